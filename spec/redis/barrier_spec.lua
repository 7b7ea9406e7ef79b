--- Barriers and double barriers on a real Redis: the operations, and what
--- members see of each other, also of those that die.
--- spec/check/barriers_spec.lua has replies that are lost.

local deduplication = require "rlock.counters.deduplication"
local enter_together = require "spec.tools.enter_together"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local host = require "rlock.host.uv"
local redis = require "spec.tools.redis"
local slow = require "spec.tools.slow"
local states = require "spec.tools.states"
local task = require "spec.tools.task"

local server = redis.shared()
local PATIENCE = 20 * slow

local function open(options)
  return fixtures.open({ url = server.url }, options)
end

local client, name, state

before_each(function()
  client, name = open(), fixtures.name "barrier"
  state = "rlock_barrier:{" .. name .. "}"
end)

after_each(fixtures.close)

-- Makes the next round the first one.
local function begin() client:call("HSET", state, "round", 1, "lost", 0) end

-- The number of members in the round.
local function members() return client:call("ZCARD", name) end

-- Ends the leases of the members, or of one, as if it had died.
local function expire(count)
  local ids = client:call("ZRANGE", name, 0, count and count - 1 or -1)
  for _, id in ipairs(ids) do client:call("ZADD", name, "XX", 1, id) end
end

-- Starts a task with fn(); returns once it waits for a message.
local function start(fn)
  local calls = server:stat("evalsha")
  local waiting = task.start(fn)
  eventually(function()
    return client:call("PUBSUB", "NUMSUB", state .. ":changed")[2] > 0
      and server:stat("evalsha") > calls
  end)
  return waiting
end

local function fails(code, ok, its_code, detail)
  assert.same({ nil, code }, { ok, its_code })
  assert.is_string(detail)
end

describe("a double barrier", function()
  local function member(n, of)
    return (of or client):double_barrier(name, n or 2)
  end

  local over

  before_each(function() over = host.event() end)
  after_each(function() over:set() end)

  it("gives the verdict of its state, and applies each number once",
    function()
      local ops = states.of(client, "barrier")
      begin()
      ops.play(name, [[
        enter 1 60000 2 publish 60000 a       busy
        enter 1 60000 2 publish 60000 a       busy    -- again
        enter 2 60000 3 publish 60000 b       refused
        look 0 publish                        refused
        enter 2 60000 2 publish 60000 b       held
        enter 1 60000 2 publish 60000 z       lost    -- late
        enter 2 60000 2 publish 60000 b       held
        enter 3 60000 2 publish 60000 c       busy    -- one too many
      ]])
      assert.equal(2, members())
      ops.play(name, [[
        withdraw 4 60000 0 publish a          held
        withdraw 4 60000 0 publish a          held
        leave 5 60000 1 publish a             busy
        leave 5 60000 1 publish a             busy
        enter 4 60000 2 publish 60000 a       lost    -- late
        leave 6 60000 1 publish b             free
        leave 6 60000 1 publish b             free
        look 1 publish                        free
        look 2 publish                        lost    -- no such round
        enter 7 60000 2 publish 60000 c       busy
        look 1 publish                        free
        look 2 publish                        busy
        withdraw 8 60000 0 publish c          freed
        enter 7 60000 2 publish 60000 c       lost    -- late
        look 2 publish                        lost
      ]])
      assert.equal(0, members())
    end)

  it("loses a round whose member dies, before it opens and after", function()
    local ops = states.of(client, "barrier")
    begin()
    ops.play(name, [[
      enter 1 60000 3 publish 60000 a       busy
      enter 2 60000 3 publish 60000 b       busy
    ]])
    client:call("ZADD", name, 1, "a")
    ops.play(name, [[
      enter 3 60000 3 publish 60000 c       busy    -- of the next round
      look 1 publish                        lost
      renew a 60000 1                       lost
      renew b 60000 1                       lost
      renew c 60000 2                       held
      enter 4 60000 3 publish 60000 a       busy
      enter 5 60000 3 publish 60000 b       held
      leave 6 60000 2 publish a             busy
    ]])
    client:call("ZADD", name, 1, "b")
    ops.play(name, [[
      leave 7 60000 2 publish c             lost
      look 2 publish                        lost
      enter 8 60000 1 publish 60000 a       held    -- of the next round
      release a 1 0 publish                 freed
      look 3 publish                        lost
      release a 1 0 publish                 lost
    ]])
  end)

  it("counts a member's lease from the last duplicate of a request", function()
    local ops = states.of(client, "barrier")
    local function shorten()
      local ends = tonumber(client:call("ZSCORE", name, "a"))
      client:call("ZADD", name, ends - 50000, "a")
      return ends
    end
    begin()
    ops.play(name, "enter 1 60000 2 publish 60000 a       busy")
    local ends = shorten()
    ops.play(name, "enter 1 60000 2 publish 60000 a       busy")
    assert.is_true(tonumber(client:call("ZSCORE", name, "a")) >= ends)
    ops.play(name, "enter 2 60000 2 publish 60000 b       held")
    ends = shorten()
    ops.play(name, "withdraw 3 60000 60000 publish a      held")
    assert.is_true(tonumber(client:call("ZSCORE", name, "a")) >= ends)
  end)

  it("leaves nothing behind but a number, for minutes", function()
    enter_together(over, PATIENCE, member(), member())
    assert.is_true(client:call("PTTL", name) > 0)
    assert.is_true(client:call("PTTL", state) > 600000)
    local one = member(1)
    expire()
    assert.is_true(one:enter())
    assert.is_true(one:leave())
    local fields = client:call("HKEYS", state)
    table.sort(fields)
    assert.same({ "good", "lost", "round" }, fields)
    assert.is_true(client:call("PTTL", state) <= 600000)
    assert.equal(0, client:call("EXISTS", name))
  end)

  it("opens when the last one has entered, and ends when all have left, again "
    .. "and again", function()
    local inside, most, all = 0, 0, {}
    local other = open()
    for i = 1, 5 do all[i] = member(5, i % 2 == 0 and other or client) end
    for _ = 1, 3 do
      task.many(5, function(i)
        assert.is_true(all[i]:enter { wait = PATIENCE })
        inside = inside + 1
        most = math.max(most, inside)
        eventually(function() return most == 5 end, PATIENCE)
        inside = inside - 1
        assert.is_true(all[i]:leave { wait = PATIENCE })
        assert.equal(0, inside)
        most = 0
      end, PATIENCE)
    end
  end)

  it("takes a member out again that enters for too long", function()
    local one, two = member(), member()
    fails("timeout", one:enter { wait = 0 })
    fails("timeout", one:enter { wait = 0.01 })
    assert.equal(0, members())
    fails("not_held", one:leave())
    local waiting = start(function() return two:enter { wait = PATIENCE } end)
    assert.is_true(one:enter { wait = PATIENCE })
    assert.is_true(waiting:join(PATIENCE))
  end)

  it("lets one that is too many wait for the next round", function()
    local all = { member(), member(), member(), member() }
    enter_together(over, PATIENCE, all[1], all[2])
    local late = start(function() return all[3]:enter { wait = PATIENCE } end)
    fails("timeout", all[4]:enter { wait = 0 })
    fails("timeout", all[1]:leave { wait = 0 })
    assert.is_true(all[2]:leave { wait = PATIENCE })
    assert.is_true(all[1]:leave { wait = PATIENCE })
    assert.is_true(all[4]:enter { wait = PATIENCE })
    assert.is_true(late:join(PATIENCE))
    fails("not_held", all[1]:leave())
  end)

  it("can retry `leave` after a timeout", function()
    local proxy = fixtures.proxy(server)
    local one, two = member(2, open { url = proxy.url }), member()
    enter_together(over, PATIENCE, one, two)
    proxy:freeze()
    local ok, code = one:leave { wait = 0.1 * slow }
    assert.is_nil(ok)
    assert.is_true(code == "timeout" or code == "connect")
    proxy:thaw()
    eventually(function() return members() == 1 end)
    fails("timeout", one:leave { wait = 0 })
    local leaving = start(function() return one:leave { wait = PATIENCE } end)
    assert.is_true(two:leave { wait = PATIENCE })
    assert.is_true(leaving:join(PATIENCE))
    fails("not_held", one:leave())
  end)

  it("tells those that enter that a member has died", function()
    local one, two = member(3), member(3)
    local first = start(function() return one:enter { wait = PATIENCE } end)
    local second = start(function() return two:enter { wait = PATIENCE } end)
    eventually(function() return members() == 2 end)
    expire(1)
    fails("timeout", member(3):enter { wait = 0 })    -- it finds the dead one
    fails("lost", first:join(PATIENCE))
    fails("lost", second:join(PATIENCE))
    assert.equal(0, members())
    fails("not_held", one:leave())
  end)

  it("tells those that leave that a member has died, without any other request",
    function()
      local mortal = open { watchdog = 2 * slow }
      local one, two = member(), member(2, mortal)
      enter_together(over, PATIENCE, one, two)
      mortal.session.watchdog:close()                 -- its program has died
      fails("lost", one:leave { wait = PATIENCE })
      fails("lost", two:leave { wait = PATIENCE })
    end)

  it("tells those that leave that a member's client was closed", function()
    local other = open()
    local one, two = member(3), member(3, other)
    enter_together(over, PATIENCE, one, two, member(3))
    local leaving = start(function() return one:leave { wait = PATIENCE } end)
    other:close()
    fails("lost", leaving:join(PATIENCE))
  end)

  it("lets others wait if a client is closed before the round opens",
    function()
      local other = open()
      local one, two = member(), member(2, other)
      local waiting = task.start(function() return two:enter() end)
      eventually(function() return members() == 1 end)
      other:close()
      fails("closed", waiting:join(PATIENCE))
      eventually(function() return members() == 0 end)
      enter_together(over, PATIENCE, one, member())
    end)

  it("leaves nothing of a cancelled task", function()
    local waiting = start(function() return member():enter() end)
    eventually(function() return members() == 1 end)
    waiting:cancel()
    eventually(function() return members() == 0 end)
    enter_together(over, PATIENCE, member(), member())
  end)

  it("may be left by two tasks, whose requests end once", function()
    local one, two = member(), member()
    enter_together(over, PATIENCE, one, two)
    local first = start(function() return one:leave { wait = PATIENCE } end)
    local second = start(function() return one:leave { wait = PATIENCE } end)
    assert.is_true(two:leave { wait = PATIENCE })
    assert.is_true(first:join(PATIENCE))
    assert.is_true(second:join(PATIENCE))
    enter_together(over, PATIENCE, one, two)
    assert.not_equal(one.request.slot, two.request.slot)
  end)

  it("is entered once by one member, and with the same n", function()
    local one = member(1)
    assert.is_true(one:enter())
    fails("refused", one:enter())
    assert.is_true(one:leave())
    assert.is_true(one:enter())
    local ok, code, detail = member(2):enter { wait = 0 }
    fails("refused", ok, code, detail)
    assert.matches("has 1 members, not 2", detail)
    assert.is_true(one:leave())
  end)

  it("refuses wrong arguments by name", function()
    local one = member()
    for _, case in ipairs {
      { "name", function() client:double_barrier(5, 2) end },
      { "bad n: 0", function() client:double_barrier(name, 0) end },
      { "bad n: 1001", function() client:double_barrier(name, 1001) end },
      { "bad n: nil", function() client:double_barrier(name) end },
      { "wait", function() one:enter { wait = -1 } end },
      { "weight", function() one:leave { weight = 1 } end },
      { "colon", function() one.enter() end },
    } do
      local ok, message = pcall(case[2])
      assert.is_false(ok, case[1])
      assert.matches(case[1], message, 1, true)
      assert.matches("barrier_spec.lua:%d+:", message)
    end
  end)
end)

describe("a barrier", function()
  local barrier

  before_each(function() barrier = client:barrier(name) end)

  it("is open until it is set, and again when it is removed by any client",
    function()
      assert.is_true(barrier:wait())
      assert.is_false(barrier:remove())
      assert.is_true(barrier:set())
      assert.is_true(barrier:set())
      fails("timeout", barrier:wait { wait = 0 })
      fails("timeout", barrier:wait { wait = 0.01 })
      local other = open():barrier(name)
      local waiting = {}
      for i = 1, 3 do
        local its = i == 2 and other or barrier
        waiting[i] = start(function() return its:wait { wait = PATIENCE } end)
      end
      assert.is_true(other:remove())
      for i = 1, 3 do assert.is_true(waiting[i]:join(PATIENCE)) end
      assert.is_true(barrier:wait())
      assert.is_false(barrier:remove())
      assert.equal(0, members())
    end)

  it("is no loss to the client that had set it when another removes it",
    function()
      local events = {}
      local own = open { watchdog = 3, log = function(_, event)
        events[#events + 1] = event
      end }
      assert.is_true(own:barrier(name):set())
      assert.is_true(barrier:remove())
      eventually(function() return not own.session.watchdog:is_needed() end)
      for _, event in ipairs(events) do assert.not_equal("lost", event) end
    end)

  it("stays set if it is set while the reply to remove is on its way",
    function()
      assert.is_true(barrier:set())
      local insist = deduplication.insist
      finally(function() deduplication.insist = insist end)
      function deduplication.insist(...)
        local reply = insist(...)
        assert.is_true(barrier:set())
        return reply
      end
      assert.is_true(barrier:remove())
      assert.equal("held", barrier.record.member.state)
    end)

  it("that is removed and set again opens for those that have waited",
    function()
      begin()
      assert.is_true(barrier:set())
      local waiting = start(function()
        return barrier:wait { wait = PATIENCE }
      end)
      local ops = states.of(client, "barrier")
      ops.play(name, [[
        remove 1 60000 0 publish              freed
        remove 1 60000 0 publish              freed
        enter 2 60000 0 publish 60000 a       held
        remove 1 60000 0 publish              freed   -- late
        look 0 publish                        busy
        look 1 publish                        free
      ]])
      assert.is_true(waiting:join(PATIENCE))
    end)

  it("forgets those that have set it and died when it is set again",
    function()
      local ops = states.of(client, "barrier")
      begin()
      ops.play(name, [[
        enter 1 60000 0 publish 60000 a       held
        enter 2 60000 0 publish 60000 b       held
      ]])
      client:call("ZADD", name, 1, "a")
      ops.play(name, [[
        enter 3 60000 0 publish 60000 c       held
        look 1 publish                        busy
        renew a 60000 1                       lost
      ]])
      assert.same({ "b", "c" }, client:call("ZRANGE", name, 0, -1))
    end)

  it("is lost when all that have set it have died, not earlier", function()
    local mortal = open { watchdog = 2 * slow }
    assert.is_true(barrier:set())
    assert.is_true(mortal:barrier(name):set())
    local waiting = start(function() return barrier:wait() end)
    mortal:close()
    fails("timeout", barrier:wait { wait = 0 })
    expire()
    fails("timeout", client:double_barrier(name, 2):enter { wait = 0 })
    fails("lost", waiting:join(PATIENCE))
    assert.is_true(barrier:wait())
  end)

  it("is lost when the client that has set it is closed, or dies", function()
    for _, ends in ipairs { "close", "die" } do
      local other = open { watchdog = 2 * slow }
      assert.is_true(other:barrier(name):set())
      local waiting = start(function() return barrier:wait() end)
      if ends == "die" then other.session.watchdog:close() end
      other:close()
      fails("lost", waiting:join(PATIENCE))
    end
  end)

  it("differs from a double barrier", function()
    assert.is_true(barrier:set())
    local ok, code, detail = client:double_barrier(name, 2):enter { wait = 0 }
    assert.same({ nil, "refused" }, { ok, code })
    assert.matches(" is a plain barrier, and is set$", detail)
    assert.is_true(barrier:remove())
    local double = client:double_barrier(name, 1)
    assert.is_true(double:enter())
    fails("refused", barrier:set())
    fails("refused", barrier:wait())
    fails("refused", barrier:remove())
    assert.is_true(double:leave())
  end)

  it("refuses wrong arguments by name", function()
    for _, case in ipairs {
      { "name", function() client:barrier() end },
      { "wait", function() barrier:wait { wait = -1 } end },
      { "options", function() barrier:wait(3) end },
      { "colon", function() barrier.set() end },
    } do
      local ok, message = pcall(case[2])
      assert.is_false(ok, case[1])
      assert.matches(case[1], message, 1, true)
      assert.matches("barrier_spec.lua:%d+:", message)
    end
  end)
end)
