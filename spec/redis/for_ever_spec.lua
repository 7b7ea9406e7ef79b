--- Waits without a limit, in a program that is too busy to serve them, and
--- under a new password. spec/check/for_ever_spec.lua has those for a server
--- that is away.
--- #long

local control = require "spec.tools.control"
local fixtures = require "spec.tools.fixtures"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local TIMEOUT = 0.15 * slow         -- of one command
local MANY = math.floor(20000 / slow)

describe("a wait without a limit", function()
  local server, lock

  before_each(function()
    server = fixtures.server()
    lock = fixtures.open({ url = server.url, timeout = TIMEOUT }):lock "x"
    assert.is_true(lock:lock())
  end)
  after_each(fixtures.close)

  it("tolerates a task that computes longer than the timeout", function()
    local waiting = task.start(lock.lock, lock)
    task.run(function()
      local deadline = rlock.now() + 1.5 * TIMEOUT
      repeat until rlock.now() >= deadline
    end)
    assert.is_true(lock:break_lock())
    assert.is_true(waiting:join())
  end)

  it("ends if the password has changed", function()
    server:kill()
    local waiting = task.start(lock.lock, lock)
    server.password = "secret"
    server:launch()
    local ok, code = waiting:join()
    assert.same({ nil, "connect" }, { ok, code })
  end)
end)

describe("many tasks that lock at once", function()
  after_each(fixtures.close)

  it("all succeed, although no reply comes within the timeout", function()
    local server = fixtures.server()
    local client = fixtures.open { url = server.url, timeout = 0.02 }
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
    assert.is_true(over:wait(60 * slow))
    assert.is_nil(failed)
    assert.is_true(control.evalshas(server) > MANY)
  end)
end)
