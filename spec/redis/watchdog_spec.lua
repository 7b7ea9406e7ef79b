--- The watchdog on a real Redis: renewals keep a hold, and what a server,
--- another client or the system can do to one is reported. Its times are tested
--- on a virtual clock, by spec/check/watchdog_spec.lua.

-- luacheck: read globals redis

local control = require "spec.tools.control"
local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local fixtures = require "spec.tools.fixtures"
local losses = require "spec.tools.losses"
local program = require "spec.tools.program"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local LEASE = 1.5 * slow         -- of the watchdog
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

-- The states that `to` goes through, until fn returns true.
local function states(to, fn)
  local seen = { to:state() }
  eventually(function()
    local state = to:state()
    if state ~= seen[#seen] then seen[#seen + 1] = state end
    return fn(state)
  end, LONG)
  return table.concat(seen, " ")
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

  it("ends with its process", function()
    local other = program.start(server, "-e", ([[
      local rlock = require "rlock"
      local client = assert(rlock.open { watchdog = %g })
      assert(client:lock("watchdog:killed"):lock())
      print "locked"
      io.stdout:flush()
      rlock.sleep(1000)]]):format(LEASE))
    eventually(function() return other:output():find("locked") end, LONG)
    more_evalshas(2)
    assert.equal(1, ask("EXISTS", "watchdog:killed"))
    other:kill(9)
    other:wait()
    eventually(function() return ask("EXISTS", "watchdog:killed") == 0 end,
      LONG)
  end)

  it("is held, at risk, lost when the server goes away", function()
    assert.is_true(lock:lock())
    local heard = losses(lock)
    server:kill()
    local deadline = rlock.now() + lock:valid_for()
    assert.equal("held at_risk lost", states(lock, function(state)
      if state == "lost" then
        assert.is_true(rlock.now() >= deadline - 0.05)
        assert.equal(0, lock:valid_for())
      end
      return state == "lost"
    end))
    eventually(function() return heard.n == 1 end)
    assert.equal(lock, heard.told)

    server:restart()
    assert.equal("lost", select(2, lock:unlock()))
    assert.is_true(lock:lock { wait = LONG })
    assert.is_true(lock:unlock())
    assert.equal(1, heard.n)
  end)
end)

describe("many holds", function()
  before_each(start)
  after_each(fixtures.close)

  it("are renewed together", function()
    local n, holds = 500, {}
    task.many(n, function(i)
      holds[i] = assert(client:lock("watchdog:many:" .. i):hold())
    end)
    local function renewed()
      return tonumber(ask("INFO", "commandstats"):match(
        "cmdstat_pttl:calls=(%d+)"))
    end
    local calls, renewals = evalshas(), renewed()
    eventually(function() return renewed() >= renewals + 4 * n end, LONG)
    renewals = renewed() - renewals
    calls = evalshas() - calls
    assert.is_true(calls < renewals / 10, calls .. " calls for " .. renewals)
    task.many(n, function(i) assert.is_true(holds[i]:unlock()) end)
  end)

  it("are not affected by one that must not be renewed", function()
    server:cli("ACL", "SETUSER", "alice", "on", ">word", "~*", "&*", "+@all")
    local limited = open { username = "alice", password = "word" }
    local good, bad = limited:lock "good:1", limited:lock "bad"
    assert.is_true(bad:lock())
    local heard = losses(bad)
    assert.is_true(good:lock())
    server:cli("ACL", "SETUSER", "alice", "resetkeys", "~good:*",
      "~redisson*")
    assert.equal("held at_risk lost", states(bad, function(state)
      return state == "lost"
    end))
    eventually(function() return heard.n == 1 end)
    assert.equal("held", good:state())
    assert.is_true(good:unlock())
  end)

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

describe("on_lost", function()
  before_each(start)
  after_each(fixtures.close)

  local function is_told(reason, fn)
    assert.is_true(lock:lock())
    local heard = losses(lock)
    fn()
    eventually(function() return heard.n > 0 end, LONG)
    assert.matches(reason, heard.reason)
    assert.equal(lock, heard.told)
    assert.equal("lost", lock:state())
    assert.equal("lost", select(2, lock:unlock()))
    assert.equal("not_held", select(2, lock:unlock()))
    assert.equal(1, heard.n)
  end

  it("is called once when the key was deleted", function()
    is_told("server does not have it", function() ask("DEL", name) end)
  end)

  it("is called once when the lock was broken by force", function()
    is_told("broken", function()
      assert.is_true(open():lock(name):break_lock())
    end)
  end)

  it("is called once when the key gets another type", function()
    is_told("WRONGTYPE", function() ask("SET", name, "a string") end)
    assert.equal("a string", ask("GET", name))
  end)

  it("is called once when the server came back empty", function()
    is_told(".", function() server:restart() end)
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
