--- Leader election on a real Redis. spec/check/election_spec.lua has the times.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local LONG = 30 * slow            -- seconds for what must happen earlier
local WHO = "^[^:]+: [^(]+%(pid %d+%)$"

local server = redis.shared()
local name

local function open(options)
  return fixtures.open({ url = server.url }, options)
end

-- An election of a client of its own, and its changes as texts.
local function candidate(options)
  local election, changes = open(options):election(name), {}
  election:on_change(function(leads, why)
    changes[#changes + 1] = tostring(leads) .. (why and " " .. why or "")
  end)
  return election, changes
end

-- Starts a campaign; returns once it waits behind n others.
local function start(election, n)
  local campaign = task.start(function() return election:campaign() end)
  eventually(function() return #election:candidates() == n + 1 end, LONG)
  return campaign
end

local function has_changed(changes, ...)
  local wanted = { ... }
  eventually(function() return #changes >= #wanted end, LONG)
  assert.same(wanted, changes)
end

before_each(function() name = fixtures.name "election" end)
after_each(fixtures.close)

describe("an election", function()
  it("has one leader, and the candidate that came first is next", function()
    local elections, campaigns = { candidate() }, {}
    assert.is_true(elections[1]:campaign())
    for i = 2, 4 do
      elections[i] = candidate()
      campaigns[i] = start(elections[i], i - 2)
    end
    for i = 1, 4 do
      if campaigns[i] then assert.is_true(campaigns[i]:join(LONG)) end
      for k, election in ipairs(elections) do
        assert.equal(i == k, election:is_leader())
      end
      assert.is_true(elections[i]:resign())
    end
  end)

  it("names its leader and its candidates to any process", function()
    local first, second, other = candidate(), candidate { name = "b" },
      candidate()
    local who, state = other:leader()
    assert.same({ false, "free" }, { who, state.state })
    assert(first:campaign())
    start(second, 0)
    who, state = other:leader()
    assert.matches(WHO, who)
    assert.equal("held", state.state)
    assert.is_true(state.ttl > 0)
    local waiting = other:candidates()
    assert.equal(1, #waiting)
    assert.equal((who:gsub(" %(", " b (")), waiting[1])
  end)

  it("is led by a candidate without an identity, or by a plain lock",
    function()
      local election = candidate { identity = false }
      assert(election:campaign())
      assert.matches("^%x+%-[%x-]+:%d+$", (election:leader()))
      assert(election:resign())
      assert(open():fair_lock(name):lock())
      assert.matches("^%x+%-[%x-]+:%d+$", (election:leader()))
    end)

  it("is led beyond the end of the task that campaigned, until any resigns",
    function()
      local election, changes = candidate()
      task.run(function() assert(election:campaign()) end)
      assert.is_true(election:is_leader())
      assert.is_true(election:valid_for() > 0)
      assert.is_true(election:campaign())
      assert.is_true(task.run(function() return election:resign() end))
      assert.is_false(election:is_leader())
      assert.equal(0, election:valid_for())
      has_changed(changes, "true", "false resigned")
      local ok, code = election:resign()
      assert.same({ nil, "not_held" }, { ok, code })
    end)

  it("has another leader if the lock is broken, and the former finds out",
    function()
      local first, changes = candidate { watchdog = 1.5 * slow }
      local second = candidate()
      assert(first:campaign())
      local campaign = start(second, 0)
      assert(open():fair_lock(name):break_lock())
      assert.is_true(campaign:join(LONG))
      eventually(function() return #changes == 2 end, LONG)
      assert.matches("^false expired or broken", changes[2])
      assert.is_false(first:is_leader())
      campaign = start(first, 0)
      assert(second:resign())
      assert.is_true(campaign:join(LONG))
    end)

  it("is left by a leader whose server does not answer", function()
    server = fixtures.server()
    finally(function() server = redis.shared() end)
    local election, changes = candidate { watchdog = slow }
    assert(election:campaign())
    server:pause()
    eventually(function() return #changes == 2 end, LONG)
    assert.matches("^false not renewed in time", changes[2])
    server:resume()
    assert.is_true(election:campaign { wait = LONG })
    assert.is_true(election:is_leader())
  end)

  it("keeps nothing of a campaign that is over", function()
    local first, second = candidate(), candidate()
    assert(first:campaign())
    for wait, wanted in pairs { [0] = "busy", [0.2] = "timeout" } do
      local ok, code = second:campaign { wait = wait }
      assert.same({ nil, wanted }, { ok, code })
    end
    local campaign = start(second, 0)
    local ok, code, detail = second:campaign()
    assert.same({ nil, "refused" }, { ok, code })
    assert.matches("another task campaigns", detail)
    campaign:cancel()
    eventually(function() return #second:candidates() == 0 end, LONG)
    campaign = start(second, 0)
    assert(first:resign())
    assert.is_true(campaign:join(LONG))
  end)

  it("is over for a client that is closed", function()
    local election, changes = candidate { watchdog = slow }
    assert(election:campaign())
    election.client:close()
    assert.is_false(election:is_leader())
    has_changed(changes, "true", "false the client was closed")
    local ok, code = election:campaign()
    assert.same({ nil, "closed" }, { ok, code })
    assert.equal(false, (candidate():leader()))
  end)

  it("is told at once that its client was closed", function()
    local election, changes = candidate { watchdog = 600 }
    assert(election:campaign())
    has_changed(changes, "true")
    rlock.sleep(0.01)                   -- its watch waits
    election.client:close()
    has_changed(changes, "true", "false the client was closed")
  end)

  it("is not led after a deadline that has passed", function()
    local election = candidate()
    local deadline = rlock.deadline(0)
    local ok, code = election:campaign { wait = deadline }
    assert.same({ nil, "timeout" }, { ok, code })
    assert(election:campaign())
    assert.is_true(election:campaign { wait = deadline })
  end)

  it("checks what it is given", function()
    local client = open()
    assert.error_matches(function() client:election "" end, "bad name")
    assert.error_matches(function()
      client:election(name, { layout = "lock" })
    end, 'bad layout: must be "latch" or "selector"')
    assert.error_matches(function()
      client:election(name, { layout = "latch" })
    end, "on ZooKeeper, and this is Redis: leave it out")
    local election = client:election(name)
    assert.error_matches(function() election.is_leader() end, "with a colon")
    assert.error_matches(function() election:on_change(1) end, "function")
    assert.error_matches(function() election:campaign { wait = -1 } end, "wait")
    assert.equal(("election %q"):format(name), tostring(election))
  end)
end)

describe("a callback", function()
  it("may campaign again", function()
    local election = candidate()
    local again
    election:on_change(function(leads)
      if not leads then again = election:campaign() end
    end)
    assert(election:campaign())
    assert(election:resign())
    eventually(function() return again end, LONG)
    assert.is_true(election:is_leader())
  end)
end)
