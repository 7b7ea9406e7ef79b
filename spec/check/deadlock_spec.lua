--- Deadlocks on a simulated host: tasks of one client take locks in random
--- orders. An oracle knows who holds what and who waits for what. Each report
--- must be a cycle of it, and no cycle may last.

local multi = require "rlock.several.multi"
local sim = require "rlockctl.model.host"
local stage = require "spec.simulate.stage"

local TASKS, ROUNDS = 6, 25
local WAIT = 250                 -- seconds, of the 300 of a stage
local BOUND = 25                 -- seconds that a lock may take
local SEEDS = 12
local DELAY = 0.002              -- of each message, seconds

-- the oracle ------------------------------------------------------------------

local Oracle = {}
Oracle.__index = Oracle

local function new_oracle()
  return setmetatable({ holders = {}, wants = {}, reports = 0 }, Oracle)
end

-- A task holds a lock, or a side of one. It ends by itself at `ends`.
function Oracle:took(name, who, side, ends)
  self.holders[name] = self.holders[name] or {}
  table.insert(self.holders[name], { who = who, side = side, ends = ends })
end

function Oracle:gave(name, who)
  local list = self.holders[name]
  for i = #list, 1, -1 do
    if list[i].who == who then table.remove(list, i) end
  end
end

-- The tasks that certainly keep out one that wants a lock.
local function ahead_of(self, want)
  local list = {}
  for _, name in ipairs(want.names) do
    for _, holder in ipairs(self.holders[name] or {}) do
      if holder.ends >= want.deadline
          and not (want.side == "read" and holder.side == "read") then
        list[#list + 1] = holder.who
      end
    end
  end
  return list
end

-- Is the task part of a cycle?
function Oracle:is_stuck(who)
  local stack, seen = { who }, {}
  while stack[1] do
    local want = self.wants[table.remove(stack)]
    for _, other in ipairs(want and ahead_of(self, want) or {}) do
      if other == who then return true end
      if not seen[other] then
        seen[other] = true
        stack[#stack + 1] = other
      end
    end
  end
  return false
end

-- the tasks -------------------------------------------------------------------

local KINDS = { "lock", "mutex", "fair_lock", "fenced_lock", "simple_lock",
  "spin_lock" }

-- A lock of one of the names, which have a kind each.
local function choose(self, random)
  local i = 1 + math.floor(random() * self.names)
  local kind = i > #KINDS and self.pair or KINDS[i]
  local name, side = kind .. i, nil
  local made = self.client[kind](self.client, name)
  if i > #KINDS then
    side = random() < 0.6 and "read" or "write"
    made = side == "read" and made:read_lock() or made:write_lock()
  end
  return made, name, side
end

-- Takes one lock in some way. Returns what releases it; or nil.
local function take(self, task, name, side, lock)
  local oracle, began = self.oracle, self.stage.now()
  local options = { wait = self.wait }
  local dice = self.is_mixed and task.random() or 1
  local is_object = dice < 0.2
  if dice > 0.6 and dice < 1 then options.lease = 4 * task.random() + 0.1 end
  oracle.wants[task] = { names = { name }, side = side,
    deadline = began + self.wait }
  local ok, code, detail
  if is_object then
    ok, code, detail = lock:hold(options)
  else
    ok, code, detail = lock:lock(options)
  end
  self.longest = math.max(self.longest, self.stage.now() - began)
  if code == "deadlock" then
    oracle.reports = oracle.reports + 1
    assert(oracle:is_stuck(task), "a false report: " .. tostring(detail))
  end
  oracle.wants[task] = nil
  if not ok then return nil end
  oracle:took(name, task, side, is_object and 0
    or self.stage.now() + (options.lease or math.huge))
  local object = is_object and ok or lock
  return function()
    oracle:gave(name, task)
    object:unlock()
  end
end

-- Takes two locks at once.
local function take_both(self, task)
  local one, name = choose(self, task.random)
  local two, other = choose(self, task.random)
  if name == other or task.held[name] or task.held[other] then return end
  local its = multi.new { one, two }
  self.oracle.wants[task] = { names = { name, other },
    deadline = self.stage.now() + self.wait }
  local ok, code, detail = its:lock { wait = self.wait }
  if code == "deadlock" then
    assert(self.oracle:is_stuck(task), "a false report: " .. tostring(detail))
  end
  self.oracle.wants[task] = nil
  if ok then its:unlock() end
end

local function round(self, task)
  task.held = {}
  local undo = {}
  for _ = 1, 1 + math.floor(task.random() * 3) do
    if task.random() < 0.2 then
      take_both(self, task)
    else
      local lock, name, side = choose(self, task.random)
      if not task.held[name] then
        local release = take(self, task, name, side, lock)
        if not release then break end
        undo[#undo + 1], task.held[name] = release, true
      end
    end
    self.stage.sleep(task.random() * 0.02)
  end
  for i = #undo, 1, -1 do undo[i]() end
  self.stage.sleep(task.random() * 0.02)
end

local function play(seed, fields)
  local self = fields
  self.oracle, self.longest = new_oracle(), 0
  stage.play(function(its)
    self.stage, self.client = its, its:client()
    its:route().delay = DELAY
    local left, done, why = TASKS, its.host.event(), nil
    for number = 1, TASKS do
      local task = { random = sim.stream(seed, "task" .. number) }
      its.spawn(function()
        local ok, problem = pcall(function()
          for _ = 1, self.rounds or ROUNDS do round(self, task) end
        end)
        left, why = left - 1, why or not ok and problem
        if left == 0 or why then done:set() end
      end)
    end
    assert(done:wait(WAIT), "tasks are stuck")
    assert(not why, why)
  end)
  return self
end

describe("tasks that take locks in random orders", function()
  it("never hang, and every reported deadlock is one", function()
    local reports = 0
    for seed = 1, SEEDS do
      local its = play(seed, { names = #KINDS + 2, pair = "read_write_lock",
        wait = WAIT })
      assert.is_true(its.longest < BOUND, ("seed %d: a lock took %.1f s")
        :format(seed, its.longest))
      reports = reports + its.oracle.reports
    end
    assert.is_true(reports > SEEDS)
  end)

  it("get no false deadlock from a wait that resolves by itself", function()
    for _, pair in ipairs { "read_write_lock", "fair_read_write_lock" } do
      for seed = 1, SEEDS do
        play(seed, { names = #KINDS + 2, pair = pair, wait = 1,
          is_mixed = true, rounds = 10 })
      end
    end
  end)
end)

describe("a deadlock", function()
  local on_stage = stage.tests(it)

  -- Tasks that each hold a lock and wait for that of the next one.
  local function ring(self, client, n)
    for i = 1, n - 1 do
      self.spawn(function()
        local own = client:lock("lock" .. i)
        assert(own:lock())
        self.sleep(1)
        local following = client:lock("lock" .. i + 1)
        if following:lock { wait = WAIT } then following:unlock() end
        own:unlock()
      end)
    end
    assert(client:lock("lock" .. n):lock())
    self.sleep(2)
  end

  on_stage("of many tasks is reported at once", function(self, client)
    ring(self, client, 50)
    local took, ok, code, detail = self:timed(function()
      return client:lock("lock1"):lock { wait = WAIT }
    end)
    assert.same({ nil, "deadlock" }, { ok, code })
    assert.is_true(took < 0.1)
    assert.matches("; and 40 more$", detail)
  end)

  on_stage("is none of a reader behind a writer, who may give up",
    function(self, client)
      local pair, lock = client:fair_read_write_lock "pair", client:lock "lock"
      self.spawn(function()
        assert(pair:read_lock():lock())
        self.sleep(1)
        assert(lock:lock { wait = WAIT })
        lock:unlock()
        pair:read_lock():unlock()
      end)
      assert(lock:lock())
      self.sleep(1.5)
      self.spawn(function()
        local ok, code = pair:write_lock():lock { wait = 5 }
        assert(not ok and code == "timeout")
      end)
      self.sleep(0.5)
      local took, ok = self:timed(function()
        return pair:read_lock():lock { wait = WAIT }
      end)
      assert.is_true(ok)
      assert.is_true(took > 4)
      assert.is_true(lock:unlock())
    end)

  -- The server forgets a script.
  local function forget(self, name)
    for sha, text in pairs(self.server.scripts) do
      if text:find("rlock " .. name, 1, true) then
        self.server.scripts[sha] = nil
      end
    end
  end

  on_stage("is none with what a multi-lock holds for a moment",
    function(self, client)
      self:route().delay = DELAY
      local one, two = client:lock "one", client:mutex "two"
      self.spawn(function()
        assert(client:lock("other"):lock())
        multi.new({ one, two }):lock()
      end)
      assert(two:lock())
      self.sleep(1)
      local met = 0
      for i = 0, 40 do
        forget(self, "mutex.acquire")     -- so `two` takes longer than `one`
        assert(client:call("PUBLISH", two.record.target:channel(""), "0"))
        self.sleep(i * DELAY / 4)
        local took, ok, _, detail = self:timed(function()
          return one:lock { wait = 10 }
        end)
        assert(ok, detail)
        if took > 3 * DELAY then met = met + 1 end       -- it was not free
        one:unlock()
        self.sleep(0.5)
      end
      assert.is_true(met > 0)
    end)

  -- Each of these tasks waits for the one that waits for it; but "b" is on two
  -- servers.
  on_stage("is none with a lock of the same name on another server",
    function(self, client)
      local other = self:client(nil, self:add_server "redis2")
      local function task(held, wanted)
        return self.spawn(function()
          assert(held:lock())
          self.sleep(1)
          local ok, code = wanted:lock { wait = 5 }
          assert.same({ nil, "timeout" }, { ok, code })
          held:unlock()
        end)
      end
      assert(other:lock("b"):lock())
      local one = task(client:lock "a", other:lock "b")
      local two = task(client:lock "b", client:lock "a")
      one:join()
      two:join()
    end)

  on_stage("is searched for once in each waiting task", function(self, client)
    local LAYERS, READERS = 10, 2
    local function side(layer)
      return client:read_write_lock("lock" .. layer)
    end
    for layer = 1, LAYERS do
      for _ = 1, READERS do
        self.spawn(function()
          assert(side(layer):read_lock():lock())
          self.sleep(LAYERS - layer + 1)
          side(layer + 1):write_lock():lock { wait = WAIT }
        end)
      end
    end
    assert(side(LAYERS + 1):write_lock():lock())
    self.sleep(LAYERS + 1)
    local is_over, met = self.host.is_over, 0
    function self.host.is_over(...)
      met = met + 1
      return is_over(...)
    end
    local ok, code = side(1):write_lock():lock { wait = 0.5 }
    self.host.is_over = is_over
    assert.same({ nil, "deadlock" }, { ok, code })
    assert.is_true(met <= LAYERS * READERS * READERS, met)
  end)

  on_stage("is not seen beyond the thousand newest holds", function(self,
      client)
    ring(self, client, 2)
    for i = 1, 1000 do assert(client:lock("more" .. i):lock()) end
    assert.equal("timeout",
      select(2, client:lock("lock1"):lock { wait = 5 }))
  end)
end)

describe("the announcement of a wait", function()
  local on_stage = stage.tests(it)

  -- The key of the only announcement; nil: there is none.
  local function announced(self)
    local redis = self.server.redis
    self.server:tick()
    for key in pairs(redis.entries) do
      if key:find "^rlock_waits:" and redis:entry(key) then return key end
    end
  end

  on_stage("begins after a second and is repeated while it lasts",
    function(self, client)
      local one, two = client:lock "one", client:lock "two"
      self.spawn(function()
        assert(two:lock())
        self.sleep(100)
        two:unlock()
      end)
      assert(one:lock())
      self.spawn(function()
        self.sleep(0.9)
        assert.is_nil(announced(self))
        self.sleep(1.2)
        local text = self.server.redis:entry((announced(self))).value
        local waited = tonumber(text:match "^%d+ (%d+)")
        assert.is_true(waited >= 1000 and waited <= 2100, text)
        for _ = 1, 90 do
          assert.is_string(announced(self))
          self.sleep(1)
        end
      end)
      assert(two:lock { wait = WAIT })
      self.sleep(0.1)
      assert.is_nil(announced(self))
    end)

  on_stage("ends by itself when the process has died", function(self, client)
    local host = self:add_host "other"
    local dying = self:client({ lazy = true }, nil, host)
    assert(client:lock("two"):lock())
    host.daemon(function()
      assert(dying:lock("one"):lock())
      dying:lock("two"):lock()
    end)
    self.sleep(5)
    assert.is_string(announced(self))
    self.universe:kill(host)
    self.sleep(35)
    assert.is_nil(announced(self))
  end)

  on_stage("is not sent if all holds expire anyway", function(self, client)
    self.spawn(function()
      assert(client:lock("two"):lock())
      self.sleep(100)
    end)
    self.spawn(function()
      assert(client:lock("one"):lock { lease = 100 })
      client:lock("two"):lock { wait = 10 }
    end)
    self.sleep(3)
    assert.is_nil(announced(self))
  end)
end)
