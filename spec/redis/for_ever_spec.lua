--- Waits without a limit: they outlast a server that is away or slow, and a
--- program that is too busy to serve them. Only a permanent error ends them.
-- #long

local control = require "spec.tools.control"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local host = require "rlock.host.uv"
local kinds = require "spec.tools.kinds"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local is_nginx = host.name == "ngx"
local TIMEOUT = 0.15 * slow         -- of one command
local SOON = 20 * slow

local servers = {}

local function urls()
  local list = {}
  for i, server in ipairs(servers) do list[i] = server.url end
  return list
end

local function open(options)
  return fixtures.open({ url = servers[1].url, timeout = TIMEOUT }, options)
end

local function all_servers(method)
  for _, server in ipairs(servers) do server[method](server) end
end

local function stop()
  for _, server in ipairs(servers) do
    if server.pid then server:resume() end
  end
  fixtures.close()
  all_servers "stop"
  servers = {}
end

-- Outlasts a command's timeout. The passage of time is what is tested.
local function let_it_time_out() rlock.sleep(2 * TIMEOUT) end

-- Blocks the whole program for longer than a command's timeout.
local function compute()
  local deadline = host.now() + 1.5 * TIMEOUT
  repeat until host.now() >= deadline
end

-- What can wait forever: how to make it, and how to wait for it.
local waits = {
  semaphore = function(client)
    local semaphore = client:semaphore "semaphore"
    assert(semaphore:set(5))
    return function() return semaphore:acquire() end
  end,
  permits = function(client)
    local permits = client:permits "permits"
    assert(permits:set(5))
    return function() return permits:acquire() and true end
  end,
  latch = function(client)
    local latch = client:latch "latch"
    return function() return latch:wait() end
  end,
}
for which in pairs(kinds.of) do
  waits[which] = function()
    local world = kinds.open(which, urls(), {
      timeout = TIMEOUT, watchdog = slow,
    })
    local lock = world.lock(which)
    return function() return lock:lock() and lock:unlock() end
  end
end

local names = {}
for which in pairs(waits) do names[#names + 1] = which end
table.sort(names)

local function start(which)
  local of = kinds.of[which]
  servers = of and kinds.start(which) or { redis.start() }
  return waits[which](not of and open() or nil)
end

for _, which in ipairs(names) do
  describe("without a wait, " .. which, function()
    local take

    before_each(function() take = start(which) end)
    after_each(stop)

    it("waits for a server that is stopped for longer than its timeout",
      function()
        assert.is_true(take())
        all_servers "pause"
        local waiting = task.start(take)
        let_it_time_out()
        assert.is_nil(waiting.is_over)
        all_servers "resume"
        assert.is_true(waiting:join(SOON))
      end)

    it("waits for a server that is not there", function()
      assert.is_true(take())
      all_servers "kill"
      local waiting = task.start(take)
      let_it_time_out()
      assert.is_nil(waiting.is_over)
      all_servers "launch"
      if which == "semaphore" then servers[1]:cli("SET", which, "1") end
      if which == "permits" then assert(open():permits(which):set(1)) end
      assert.is_true(waiting:join(SOON))
    end)

    it("tolerates a task that computes longer than the timeout",
      function()
        assert.is_true(take())
        local waiting = task.start(take)
        task.run(compute)
        assert.is_true(waiting:join(SOON))
      end)
  end)
end

describe("a wait without a limit", function()
  local client, lock

  before_each(function()
    servers = { redis.start() }
    client = open()
    lock = client:lock("x")
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
  end)
  after_each(stop)

  it("ends when the client is closed", function()
    servers[1]:kill()
    local waiting = task.start(lock.lock, lock)
    let_it_time_out()
    client:close()
    assert.equal("closed", select(2, waiting:join(SOON)))
  end)

  it("ends when its task is cancelled", function()
    servers[1]:kill()
    local waiting = task.start(lock.lock, lock)
    let_it_time_out()
    waiting:cancel(SOON)
    servers[1]:launch()
    eventually(function()
      return task.run(lock.try_lock, lock)
    end, SOON, "nobody has taken it since")
  end)

  it("ends with a permanent error of the server", function()
    servers[1]:cli("SET", "x", "a string")
    assert.equal("redis", select(2, task.start(lock.lock, lock):join(SOON)))
    servers[1]:cli("DEL", "x")
    servers[1]:cli("ACL", "SETUSER", "default", "-evalsha")
    local ok, code, detail = task.start(lock.lock, lock):join(SOON)
    assert.is_nil(ok)
    assert.equal("redis", code)
    assert.matches("^NOPERM", detail)
  end)

  it("ends if the password has changed", function()
    servers[1]:kill()
    local waiting = task.start(lock.lock, lock)
    servers[1].password = "secret"
    servers[1]:launch()
    local ok, code = waiting:join(SOON)
    assert.is_nil(ok)
    assert.equal("connect", code)
  end)
end)

describe("a red lock that no majority can grant", function()
  local lock

  before_each(function()
    servers = kinds.start "red"
    local world = kinds.open("red", urls(), { timeout = TIMEOUT })
    lock = world.lock "x"
  end)
  after_each(stop)

  it("is not waited for", function()
    for i = 2, 3 do servers[i]:cli("SET", "x", "a string") end
    local ok, code, detail = task.start(lock.lock, lock):join(SOON)
    assert.is_nil(ok)
    assert.equal("quorum", code)
    assert.matches("WRONGTYPE", detail)
  end)

  it("is waited for if one more server suffices", function()
    servers[3]:cli("SET", "x", "a string")
    servers[2]:kill()
    local waiting = task.start(lock.lock, lock)
    let_it_time_out()
    assert.is_nil(waiting.is_over)
    servers[2]:launch()
    assert.is_true(waiting:join(SOON))
  end)
end)

if not is_nginx then
  describe("many tasks that lock at once", function()
    local MANY = math.floor(20000 / slow)

    after_each(stop)

    it("all succeed, although no reply comes within the timeout", function()
      servers = { redis.start() }
      local client = open { timeout = 0.02 }
      local left, failed, over = MANY, nil, rlock.event()
      for i = 1, MANY do
        rlock.spawn(function()
          local lock = client:lock("many:" .. i)
          local ok, code = lock:lock()
          if not ok then failed = code end
          left = left - 1
          if left == 0 then over:set() end
        end)
      end
      assert.is_true(over:wait(3 * SOON))
      assert.is_nil(failed)
      assert.is_true(control.evalshas(servers[1]) > MANY)
    end)
  end)
end
