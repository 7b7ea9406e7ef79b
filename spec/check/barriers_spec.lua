--- Barriers on virtual time: when members that wait are told, and what becomes
--- of requests whose replies are lost, late or not awaited.

local stage = require "spec.simulate.stage"

local on_stage = stage.tests(it)

local NAME = "barrier"
local LEASE = 30           -- the default of the option watchdog
local SERVED = 0.05        -- seconds until a message has its effect
local MEMORY = 600         -- seconds for which the server remembers requests

-- Another process with a client.
local function add_client(self, options)
  self.count = (self.count or 1) + 1
  local host = self:add_host("client" .. self.count)
  options = options or {}
  options.lazy = true
  return self:client(options, nil, host), host
end

-- Calls fn(...) in a task of this process that goes on for long. Returns the
-- results, with the time at which they came.
local function start(self, host, fn, ...)
  local results = {}
  local arguments = table.pack(...)
  host.spawn(function()
    results.value, results.code =
      fn(table.unpack(arguments, 1, arguments.n))
    results.at = self.now()
    host.sleep(1000)
  end)
  self.sleep(0.01)
  return results
end

local function entry(self, key) return self.server.redis:entry(key) end

local function members(self)
  local count = 0
  for _ in pairs((entry(self, NAME) or { value = {} }).value) do
    count = count + 1
  end
  return count
end

-- Two members that have entered a round.
---@return any, any, table, any # both; the second's host, and its client
local function enter_two(self, client)
  local other, host = add_client(self)
  local one, two = client:double_barrier(NAME, 2), other:double_barrier(NAME, 2)
  local first = start(self, self.host, one.enter, one)
  start(self, host, two.enter, two)
  self.sleep(SERVED)
  assert.is_true(first.value)
  return one, two, host, other
end

describe("a double barrier on virtual time:", function()
  on_stage("opens, and ends, within a message", function(self, client)
    local other, host = add_client(self)
    local one, two = client:double_barrier(NAME, 2),
      other:double_barrier(NAME, 2)
    local first = start(self, self.host, one.enter, one)
    self.sleep(100)
    assert.is_nil(first.at)
    local began = self.now()
    local second = start(self, host, two.enter, two)
    self.sleep(SERVED)
    assert.same({ true, true }, { first.value, second.value })
    assert.is_true(first.at - began < SERVED)
    first = start(self, self.host, one.leave, one)
    self.sleep(100)                     -- the watchdog renews the other
    assert.is_nil(first.at)
    began = self.now()
    start(self, host, two.leave, two)
    self.sleep(SERVED)
    assert.is_true(first.value and first.at - began < SERVED)
    assert.equal(0, members(self))
  end)

  it("renews a member that waits", function()
    stage.play(function(self)
      local client = self:client { watchdog = 2 }
      local one, two = client:double_barrier(NAME, 2),
        client:double_barrier(NAME, 2)
      local first = start(self, self.host, one.enter, one)
      self.sleep(6)
      assert.is_true(two:enter { wait = 5 })
      self.sleep(SERVED)
      assert.same({ true }, { first.value, first.code })
    end)
  end)

  on_stage("a member that was refused is not in", function(self, client)
    enter_two(self, client)
    local three = client:double_barrier(NAME, 3)
    local _, code, detail = three:enter()
    assert.equal("refused", code)
    assert.same({ nil, "refused", detail }, { three:enter() })
  end)

  on_stage("a member that two tasks leave may be entered again at once",
    function(self, client)
      local one, two, host = enter_two(self, client)
      local function again(member)
        assert.is_true(member:leave())
        return member:enter()
      end
      local first = start(self, self.host, again, one)
      local second = start(self, self.host, one.leave, one)
      start(self, host, again, two)
      self.sleep(SERVED)
      assert.same({ true, true }, { first.value, second.value })
      first = start(self, self.host, one.leave, one)
      start(self, host, two.leave, two)
      self.sleep(SERVED)
      assert.same({ true }, { first.value, first.code })
    end)

  on_stage("a member that is lost is named in the log",
    function(self, client)
      local _, two = enter_two(self, client)
      self:logged()
      client:call("DEL", NAME)
      self.sleep(LEASE)
      assert.match("lost member %x+ of barrier \"?" .. NAME,
        table.concat(self:logged(), "\n"))
      assert.is_table(two)
    end)

  on_stage("a member may retry `leave` after a timeout",
    function(self, client)
      local one, two, host = enter_two(self, client)
      self:route().delay = 10
      assert.is_nil((one:leave { wait = 1 }))
      self:route().delay = 0
      self.sleep(20)
      assert.equal(1, members(self))
      start(self, host, two.leave, two)
      self.sleep(SERVED)
      assert.is_true(one:leave())
    end)

  for _, case in ipairs { "enters", "leaves" } do
    on_stage("a member that " .. case .. " gets `lost` within the lease after "
      .. "another has died", function(self, client)
      local other, host = add_client(self)
      local n = case == "enters" and 3 or 2
      local one, two = client:double_barrier(NAME, n),
        other:double_barrier(NAME, n)
      local waiting = start(self, self.host, one.enter, one)
      start(self, host, two.enter, two)
      self.sleep(7)
      if case == "leaves" then
        waiting = start(self, self.host, one.leave, one)
      end
      self.sleep(7)
      self.universe:kill(host)
      local died = self.now()
      self.sleep(LEASE + SERVED)
      assert.equal("lost", waiting.code)
      assert.is_true(waiting.at - died <= LEASE + 0.01)
      assert.equal(0, members(self))
    end)
  end

  on_stage("a member that is inside stays in for as long as it likes",
    function(self, client)
      local other, host = add_client(self)
      local one, two = client:double_barrier(NAME, 2),
        other:double_barrier(NAME, 2)
      local first = start(self, self.host, one.enter, one)
      start(self, host, two.enter, two)
      self.sleep(20)
      assert.is_true(first.value)
      first = start(self, self.host, one.leave, one)
      self.sleep(200)
      assert.is_nil(first.at)
      start(self, host, two.leave, two)
      self.sleep(SERVED)
      assert.is_true(first.value)
    end)

  on_stage("counts a member once if its replies are lost",
    function(self, client)
      local one = client:double_barrier(NAME, 2)
      local _, code = self:lose_reply(one.enter, one, { wait = 2 })
      assert.equal("timeout", code)
      self.sleep(SERVED)
      assert.equal(0, members(self))
      local other, host = add_client(self)
      local two = other:double_barrier(NAME, 2)
      start(self, host, two.enter, two)
      assert.is_true(self:lose_reply(one.enter, one))
      assert.equal(2, members(self))
      start(self, host, two.leave, two)
      assert.is_true(self:lose_reply(one.leave, one))
      assert.equal(0, members(self))
    end)

  on_stage("withdraws a member in the background if the server is away",
    function(self, client)
      local one = client:double_barrier(NAME, 2)
      self.spawn(function()
        self.sleep(1)
        self.server:restart(20, "data")
      end)
      local took, ok, code = self:timed(one.enter, one, { wait = 3 })
      assert.is_nil(ok)
      assert.is_true(code == "timeout" or code == "connect", code)
      assert.is_true(took < 10)
      self.sleep(25)
      assert.equal(0, members(self))
    end)

  on_stage("leaves in the background if the server is down",
    function(self, client)
      local one, two, host = enter_two(self, client)
      self.server:restart(20, "data")
      local _, ok, code = self:timed(one.leave, one, { wait = 3 })
      assert.is_nil(ok)
      assert.is_true(code == "timeout" or code == "connect", code)
      self.sleep(22)
      assert.equal(1, members(self))
      local second = start(self, host, two.leave, two)
      self.sleep(SERVED)
      assert.is_true(second.value)
      assert.is_false(client.session.watchdog:is_needed())
    end)

  on_stage("is open for the last one that gives up at the same time",
    function(self, client)
      local other, host = add_client(self)
      local one, two = client:double_barrier(NAME, 2),
        other:double_barrier(NAME, 2)
      -- The message that the round is open comes too late.
      self:route().delay = 0.2
      local first = start(self, self.host, one.enter, one, { wait = 3 })
      self.sleep(2.7)
      start(self, host, two.enter, two)
      self.sleep(2)
      assert.is_true(first.value)
      assert.equal(2, members(self))
    end)

  on_stage("leaves nothing of a cancelled task", function(self, client)
    local one = client:double_barrier(NAME, 2)
    local task = self.spawn(function() one:enter() end)
    self.sleep(1)
    assert.equal(1, members(self))
    task:cancel()
    self.sleep(SERVED)
    assert.equal(0, members(self))
    assert.equal(0, client.session.pending)
    assert.is_false(client.session.watchdog:is_needed())
  end)

  on_stage("raises a cancellation that comes while it withdraws",
    function(self, client)
      local one, has_returned = client:double_barrier(NAME, 2), false
      local task = self.spawn(function()
        one:enter { wait = 1 }
        has_returned = true
      end)
      self.sleep(0.9)
      self:route().delay = 0.3
      self.sleep(0.2)
      task:cancel()
      self.sleep(1)
      assert.is_false(has_returned)
      assert.equal(0, members(self))
    end)

  on_stage("never confuses its round with a later one when it is forgotten",
    function(self, client)
      local one, two, host, other = enter_two(self, client)
      local left = start(self, self.host, one.leave, one, { wait = 1 })
      self.sleep(2)
      assert.equal("timeout", left.code)
      start(self, host, two.leave, two)
      self.sleep(SERVED)                -- and then for longer than MEMORY
      client:call("DEL", "rlock_barrier:{" .. NAME .. "}")
      local three = other:double_barrier(NAME, 2)
      start(self, host, three.enter, three)
      left = start(self, self.host, one.leave, one)
      self.sleep(SERVED)
      assert.equal("lost", left.code)   -- how it ended is unknown
    end)

  on_stage("leaves no key behind for more than minutes", function(self, client)
    local one = client:double_barrier(NAME, 1)
    assert.is_true(one:enter() and one:leave())
    assert.is_nil(entry(self, NAME))
    local redis = self.server.redis
    for key in pairs(redis.entries) do
      local expires = redis:entry(key).expires
      assert.is_true(expires and expires <= redis:ms() + MEMORY * 1000, key)
    end
  end)
end)

describe("a barrier on virtual time:", function()
  on_stage("waiters continue when it is removed, and not before",
    function(self, client)
      local other, host = add_client(self)
      local its = other:barrier(NAME)
      assert.is_true(client:barrier(NAME):set())
      local waiting = start(self, host, its.wait, its)
      self.sleep(100)
      assert.is_nil(waiting.at)
      local began = self.now()
      assert.is_true(client:barrier(NAME):remove())
      self.sleep(SERVED)
      assert.is_true(waiting.value and waiting.at - began < SERVED)
    end)

  on_stage("waiters are told within the lease that the client that had set it "
    .. "has died", function(self, client)
      local other, host = add_client(self)
      local its = other:barrier(NAME)
      start(self, host, its.set, its)
      local waiting = start(self, self.host, client.barrier(client, NAME).wait,
        client:barrier(NAME))
      self.sleep(17)
      self.universe:kill(host)
      local died = self.now()
      self.sleep(LEASE + SERVED)
      assert.equal("lost", waiting.code)
      assert.is_true(waiting.at - died <= LEASE + 0.01)
    end)

  on_stage("is not reported as lost if another client removes it",
    function(self, client)
      local other, host = add_client(self)
      local its = other:barrier(NAME)
      assert.is_true(client:barrier(NAME):set())
      assert.is_true(start(self, host, its.remove, its).value)
      self.sleep(LEASE)
      assert.equal(1, #self:calls "renew")
      assert.same({}, self:logged())
      assert.is_false(client.session.watchdog:is_needed())
    end)

  on_stage("is counted once, even if two clients remove it",
    function(self, client)
      local other, host = add_client(self)
      local its, mine = other:barrier(NAME), client:barrier(NAME)
      assert.is_true(mine:set())
      assert.is_true(start(self, host, its.remove, its).value)
      self.sleep(LEASE)
      mine:remove()
      assert.equal(1, client:stats().hold.count)
    end)

  on_stage("is renewed once in a period, however often it was set",
    function(self, client)
      local its = client:barrier(NAME)
      for _ = 1, 3 do assert.is_true(its:set()) end
      self.sleep(LEASE / 3 + 1)
      assert.equal(1, #self:calls "renew")
      assert.is_true(its:remove())
      assert.is_false(client.session.watchdog:is_needed())
    end)

  on_stage("is set and removed once if the replies are lost",
    function(self, client)
      local its = client:barrier(NAME)
      assert.is_true(self:lose_reply(its.set, its))
      assert.equal(1, members(self))
      assert.is_true(self:lose_reply(its.remove, its))
      assert.equal(0, members(self))
      assert.is_false(its:remove())
    end)

  on_stage("is not set if the server answers too late", function(self, client)
    local its = client:barrier(NAME)
    assert.is_true(its:set() and its:remove())
    self:route().back = 9
    assert.is_nil((its:set()))
    assert.equal(1, members(self))
    self:route().back = 0
    self.sleep(20)
    assert.equal(0, members(self))
  end)

  on_stage("is not set if the server does not answer", function(self, client)
    local its = client:barrier(NAME)
    assert.is_true(its:wait())
    self.server:restart(9, "data")
    local ok, code = its:set()
    assert.same({ nil, "connect" }, { ok, code })
    self.sleep(20)
    assert.equal(0, members(self))
    assert.equal(0, client.session.pending)
  end)
end)
