--- User policies: those of the examples and of the README, operation by
--- operation and under contention between processes.

local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local fixtures = require "spec.tools.fixtures"
local program = require "spec.tools.program"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local states = require "spec.tools.states"
local task = require "spec.tools.task"

-- The README's policy "my/few.lua", as the module my.few.
local function few_of_the_readme()
  local text = require "spec.tools.few"
  local lines = select(2, text:gsub("[^%s][^\n]*\n", ""))
  assert(lines <= 40, "a lock in forty lines has " .. lines)
  return text
end

local server, client, folder

setup(function()
  server = redis.start()
  client = assert(rlock.open(server.url))
  folder = server.folder .. "/lua"
  assert(os.execute(("mkdir -p '%s/my'"):format(folder)))
  files.write(folder .. "/my/few.lua", few_of_the_readme())
  package.path = folder .. "/?.lua;" .. package.path
end)

teardown(function()
  client:close()
  server:stop()
end)

-- Increments a number by two commands, with at most `places` tasks at once.
local PROGRAM = [[
local rlock = require "rlock"
local which, option, places, tasks, rounds = table.unpack(arg)
places = tonumber(places)
local client = assert(rlock.open())
io.stdout:setvbuf "line"
print "begun"

local function work()
  local inside = client:call("INCR", "inside")
  assert(inside <= places, inside .. " are inside")
  if inside == places then client:call("SET", "was full", 1) end
  local n = tonumber(client:call("GET", "number") or 0)
  if places == 1 then client:call("SET", "number", n + 1) end
  client:call("INCR", "rounds")
  return client:call("DECR", "inside")
end

for i = 1, tonumber(tasks) do
  local lock = client:policy(which, "contended", {
    [option] = option == "priority" and i or places })
  rlock.spawn(function()
    for _ = 1, tonumber(rounds) do
      local ok, code, detail = lock:with({ wait = 120 }, work)
      assert(ok, ("%s: %s"):format(code, detail))
    end
  end)
end]]

local TASKS, ROUNDS = 10, 40

local function contend(which, option, places)
  server:cli("FLUSHALL")
  local path = folder .. "/contend.lua"
  files.write(path, PROGRAM)
  local processes = {}
  for i = 1, 3 do
    processes[i] = program.start(server, "--lua-path=" .. folder, path, which,
      option, tostring(places), tostring(TASKS), tostring(ROUNDS))
  end
  for _, process in ipairs(processes) do
    assert.equal(0, process:wait(120 * slow), process:output())
  end
  local all = tostring(3 * TASKS * ROUNDS)
  assert.equal(all, server:cli("GET", "rounds"))
  assert.equal("1", server:cli("GET", "was full"))
  if places == 1 then assert.equal(all, server:cli("GET", "number")) end
  assert.equal("0", server:cli("EXISTS", "contended", "{contended}:queue"))
end

for _, case in ipairs {
  { "per tenant", "examples.per_tenant", "limit" },
  { "of the README", "my.few", "most" },
} do
  describe("the lock " .. case[1], function()
    local module, limit, few, name = case[2], case[3], nil, nil

    before_each(function()
      few, name = states.of(client, module), "few"
      client:call("DEL", name)
    end)

    it("admits at most the given number of holders", function()
      few.play(name, [[
        acquire a 60000 1 2          held
        acquire b 60000 1 2          held
        acquire c 60000 1 2          busy
        acquire a 60000 1 2          held       -- asked twice
        release a 1 0 publish        freed
        release a 1 0 publish        lost
        renew a 60000 1              lost
        renew b 60000 1              held
        acquire c 60000 1 2          held
        release b 1 0 publish        freed
        release c 1 0 publish        freed
      ]])
      assert.equal(0, client:call("EXISTS", name))
    end)

    it("says when a lease ends, and lives as long as the last", function()
      few.ask(name, "acquire", "a", "30000", "1", "2")
      few.ask(name, "acquire", "b", "9000000", "1", "2")
      local verdict = few.ask(name, "acquire", "c", "60000", "1", "2")
      assert.equal("busy", verdict[1])
      assert.near(30000, verdict[2], 5000 * slow)
      assert.near(9000000, client:call("PTTL", name), 5000 * slow)
      few.ask(name, "renew", "a", "60000", "1")
      assert.near(9000000, client:call("PTTL", name), 5000 * slow)
    end)

    it("gives the place of a dead holder away after its lease", function()
      client:call("ZADD", name, 1, "somebody dead")
      few.play(name, [[
        renew dead 60000 1           lost
        acquire a 60000 1 1          held
        acquire b 60000 1 1          busy
      ]])
    end)

    it("wakes a waiter", function()
      local function lock(owner)
        return client:policy(module, name, { owner = owner, [limit] = 1 })
      end
      assert(lock("a"):lock())
      local waiting = task.start(function()
        return lock("b"):lock { wait = 20 * slow }
      end)
      eventually(function()
        return #client:call("PUBSUB", "CHANNELS", "freed:{few}") == 1
      end)
      assert(lock("a"):unlock())
      assert.is_true(waiting:join())
      assert(lock("b"):unlock())
    end)

    it("keeps its limit between processes", function()
      contend(module, limit, 3)
    end)

    it("is a mutual exclusion when one may hold it", function()
      contend(module, limit, 1)
    end)
  end)
end

-- Waits until the server's clock shows another one.
local function next_millisecond()
  local now = states.now_ms(client)
  eventually(function() return states.now_ms(client) > now end)
end

describe("the lock with priorities", function()
  after_each(fixtures.close)

  local MODULE = "examples.priority"
  local priority, name, queue

  before_each(function()
    priority, name, queue = states.of(client, MODULE), "prio", "{prio}:queue"
    client:call("DEL", name, queue, "{prio}:alive")
  end)

  local function line() return client:call("ZRANGE", queue, 0, -1) end

  it("is held once, and prolonged, never shortened", function()
    priority.play(name, [[
      acquire a 60000 1 0 0          held
      acquire a 30000 1 0 0          held       -- asked twice
      acquire b 60000 1 0 0          busy
      renew b 60000 1                lost
      release b 1 0 publish          lost
      renew a 30000 1                held
    ]])
    assert.is_true(client:call("PTTL", name) > 30000)
    priority.play(name, [[
      release a 1 0 publish          freed
      release a 1 0 publish          lost
    ]])
  end)

  it("has its waiters in the order of priority, then of arrival", function()
    priority.play(name, [[
      acquire h 60000 1 0 0          held
      acquire low 60000 1 -1 -2.5    busy
      acquire one 60000 1 5000 0     busy
      acquire only-tries 60000 1 0 9 busy
      acquire high 60000 1 -1 7      busy
    ]])
    next_millisecond()
    priority.play(name, [[
      acquire two 60000 1 -1 0       busy
      acquire one 60000 1 5000 0     busy       -- keeps its place
    ]])
    assert.same({ "high", "one", "two", "low" }, line())
    priority.play(name, [[
      release h 1 0 publish          freed
      acquire one 60000 1 -1 0       busy
      acquire only-tries 60000 1 0 9 busy
      acquire high 60000 1 -1 7      held
    ]])
    assert.same({ "one", "two", "low" }, line())
    priority.play(name, [[
      leave one publish              left
      leave one publish              left
    ]])
    assert.same({ "two", "low" }, line())
  end)

  it("keeps the order of arrival for any priority", function()
    priority.play(name, "acquire h 60000 1 0 0 held")
    for _, wanted in ipairs { "1e300", "-1e300", "1000", "-1000", "0.5" } do
      client:call("DEL", queue, "{prio}:alive")
      priority.ask(name, "acquire", "z", "60000", "1", "-1", wanted)
      next_millisecond()
      priority.ask(name, "acquire", "a", "60000", "1", "-1", wanted)
      assert.same({ "z", "a" }, line(), wanted)
    end
  end)

  it("drops a silent waiter, so that none blocks the others", function()
    priority.play(name, [[
      acquire h 60000 1 0 0          held
      acquire dead 60000 1 -1 9      busy
      acquire b 60000 1 -1 0         busy
      release h 1 0 publish          freed
      acquire b 60000 1 -1 0         busy
    ]])
    client:call("ZADD", "{prio}:alive", 1, "dead")
    priority.play(name, "acquire b 60000 1 -1 0 held")
    assert.same({}, line())
  end)

  it("leaves nothing in the queue if a reply is lost", function()
    local proxy = fixtures.proxy(server)
    local cut = fixtures.open { url = proxy.url, timeout = 0.3 * slow }
    local lock = cut:policy(MODULE, name)
    client:call("SET", name, "h", "PX", 60000)
    assert.equal("busy", select(2, lock:try_lock()))
    for _, owner in ipairs { "", "named" } do
      if owner ~= "" then lock = cut:policy(MODULE, name, { owner = owner }) end
      proxy:mute(1, name)
      assert.equal("timeout", select(2, lock:lock { wait = 0.1 * slow }))
      eventually(function() return not line()[1] end)
    end
  end)

  it("notifies the next waiter, also if the first leaves", function()
    local function lock(owner, urgency)
      return client:policy(MODULE, name, { owner = owner, priority = urgency })
    end
    assert(lock("h", 0):lock())
    local order, waiting = {}, {}
    for i, owner in ipairs { "low", "middle", "high" } do
      waiting[i] = task.start(function()
        assert(lock(owner, i):with(function()
          order[#order + 1] = owner
          return true
        end))
      end)
    end
    eventually(function() return #line() == 3 end)
    waiting[3]:cancel(10 * slow)
    eventually(function() return #line() == 2 end)
    assert(lock("h", 0):unlock())
    waiting[1]:join(20 * slow)
    waiting[2]:join(20 * slow)
    assert.same({ "middle", "low" }, order)
  end)

  it("serves waiters of several processes by priority", function()
    assert(client:policy(MODULE, name, { owner = "h" }):lock())
    local processes = {}
    for i = 1, 3 do
      processes[i] = program.start(server, "-e", [[
        local rlock = require "rlock"
        local client = assert(rlock.open())
        for i = 1, 5 do
          local urgency = 10 * i + tonumber(arg[1])
          local lock = client:policy("examples.priority", "prio",
            { priority = urgency })
          rlock.spawn(function()
            assert(lock:with(function()
              return client:call("RPUSH", "served", urgency)
            end))
          end)
        end]], tostring(i))
    end
    eventually(function() return #line() == 15 end, 20 * slow)
    assert(client:policy(MODULE, name, { owner = "h" }):unlock())
    for _, process in ipairs(processes) do
      assert.equal(0, process:wait(60 * slow), process:output())
    end
    local served = client:call("LRANGE", "served", 0, -1)
    for i, urgency in ipairs(served) do served[i] = tonumber(urgency) end
    local sorted = table.move(served, 1, #served, 1, {})
    table.sort(sorted, function(a, b) return a > b end)
    assert.equal(15, #served)
    assert.same(sorted, served)
  end)

  it("is a mutual exclusion between processes", function()
    contend(MODULE, "priority", 1)
  end)

  it("goes on when a process with waiters and the lock is killed", function()
    local process = program.start(server, "-e", [[
      local rlock = require "rlock"
      local client = assert(rlock.open { watchdog = 1 })
      local function lock()
        return client:policy("examples.priority", "prio", { priority = 9 })
      end
      assert(lock():lock())
      for _ = 1, 3 do rlock.spawn(function() lock():lock() end) end
      rlock.sleep(1000)]])
    eventually(function() return #line() == 3 end, 20 * slow)
    process:kill(9)
    process:wait()
    assert.is_true(client:policy(MODULE, name):lock { wait = 20 * slow })
    assert.is_true(client:policy(MODULE, name):unlock())
    assert.same({}, line())
  end)
end)
