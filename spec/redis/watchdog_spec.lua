--- The watchdog on a real Redis: renewals keep a hold, and what a policy or the
--- system can do to one is reported. All else is tested on a virtual clock, by
--- spec/check/watchdog_spec.lua.

-- luacheck: read globals redis

local control = require "spec.tools.control"
local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local fixtures = require "spec.tools.fixtures"
local losses = require "spec.tools.losses"
local program = require "spec.tools.program"
local rlock = require "rlock"
local slow = require "spec.tools.slow"

local LEASE = 3 * slow           -- of the watchdog
local LONG = 30 * slow           -- for what must happen earlier

local server, client, lock, name

local function open(options)
  return fixtures.open({ url = server.url, watchdog = LEASE }, options)
end

-- A command to the server without rlock; does not block.
local function ask(...) return control.ask(server, ...) end

local function evalshas() return control.evalshas(server) end

-- Waits until the server has run n more scripts.
local function more_evalshas(n)
  local wanted = evalshas() + n
  eventually(function() return evalshas() >= wanted end, LONG)
end

local function start()
  server = fixtures.server()
  client, name = open(), fixtures.name "watchdog"
  lock = client:lock(name)
end

describe("a hold without a lease", function()
  before_each(start)
  after_each(fixtures.close)

  it("is renewed until it is unlocked, beyond its lease", function()
    assert.is_true(lock:lock())
    local heard, before = losses(lock), rlock.now()
    repeat more_evalshas(3) until rlock.now() > before + LEASE
    assert.equal("held", lock:state())
    assert.equal(1, ask("EXISTS", name))
    assert.is_true(lock:unlock())
    assert.equal(0, ask("EXISTS", name))
    assert.equal(0, heard.n)
  end)
end)

describe("many holds", function()
  before_each(start)
  after_each(fixtures.close)

  it("are not affected by one that its policy cannot renew", function()
    local policy = {
      name = "raises",
      keys = function(key) return { key } end,
      server = {
        acquire = function(keys, args)
          redis.call("set", keys[1], args[1], "px", args[2])
          return { "held" }
        end,
        renew = function(keys, args)
          if keys[1] == "bad" then error("cannot renew") end
          redis.call("pexpire", keys[1], args[2])
          return { "held" }
        end,
        release = function(keys)
          redis.call("del", keys[1])
          return { "freed" }
        end,
      },
    }
    local line = debug.getinfo(policy.server.renew, "S").linedefined + 1
    local good, bad = {}, client:policy(policy, "bad")
    for i = 1, 3 do
      good[i] = client:policy(policy, "good" .. i)
      assert.is_true(good[i]:lock())
    end
    assert.is_true(bad:lock())
    local heard = losses(bad)
    eventually(function() return heard.n == 1 end, LONG)
    assert.matches("watchdog_spec%.lua:" .. line .. ": cannot renew",
      heard.reason)
    for i = 1, 3 do
      assert.equal("held", good[i]:state())
      assert.is_true(good[i]:unlock())
    end
  end)
end)

describe("a process that was stopped beyond its lease", function()
  before_each(start)
  after_each(fixtures.close)

  it("learns of its loss at once when it continues",
    function()
      local granted = server.folder .. "/granted"
      local other = program.start(server, "-e", ([[
        local rlock = require "rlock"
        local lease = %g
        local client = assert(rlock.open { watchdog = lease })
        local lock = client:lock((...))
        assert(lock:lock())
        lock:on_lost(function(_, reason) print("on_lost " .. reason) end)
        io.stdout:setvbuf "line"
        print "locked"
        repeat rlock.sleep(0.005) until io.open(select(2, ...))
        print("valid " .. lock:valid_for())
        rlock.sleep(lease)
        print("unlock", lock:unlock())
      ]]):format(LEASE), name, granted)
      eventually(function() return other:output():find("locked") end,
        LONG)
      more_evalshas(2)
      assert.equal(1, ask("EXISTS", name))
      other:kill(19)
      assert.is_true(lock:lock { wait = LONG })
      files.write(granted, "")
      other:kill(18)
      local status = other:wait()
      local output = other:output()
      assert.equal(0, status, output)
      assert.matches("valid 0", output)
      assert.matches("on_lost", output)
      assert.equal(1, (select(2, output:gsub("on_lost", ""))))
      assert.matches("unlock%s+nil%s+lost", output)
      assert.is_true(lock:is_held())
      assert.is_true(lock:unlock())
    end)
end)
