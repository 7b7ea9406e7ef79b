--- Mutual exclusion, counted: two processes of fifty tasks each increment a
--- number that only the lock protects, and no update is lost.
--- #long

local control = require "spec.tools.control"
local eventually = require "spec.tools.eventually"
local program = require "spec.tools.program"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"

local SCRIPT = "spec/tools/count_up.lua"
local TASKS = 50

local server

-- A command to the server without rlock; does not block.
local function ask(...)
  return control.ask(server, ...)
end

local function number()
  return tonumber(ask("GET", "counter:number") or 0)
end

local function start(rounds, watchdog)
  return program.start(server, SCRIPT, tostring(TASKS), tostring(rounds),
    tostring(watchdog or 30))
end

-- Waits for its end; returns its increments.
local function finish(process, seconds)
  local status = process:wait(seconds)
  local output = process:output()
  assert.equal(0, status, output)
  return tonumber(output:match "added (%d+)")
end

describe("two processes and a hundred tasks", function()
  before_each(function()
    server = redis.start()
  end)

  after_each(function()
    control.close()
    server:stop()
  end)

  it("lose none of 20 000 updates", function()
    local rounds = slow <= 2 and 200 or 50
    local one, two = start(rounds), start(rounds)
    assert.equal(TASKS * rounds, finish(one, 200))
    assert.equal(TASKS * rounds, finish(two, 200))
    assert.equal(2 * TASKS * rounds, number())
    assert.equal(0, ask("EXISTS", "counter:lock"))
  end)

  it("lose none while connections are cut and scripts forgotten", function()
    local rounds = 20
    local one, two = start(rounds), start(rounds)
    eventually(function() return number() > 0 end, 20 * slow)
    local kinds, faults = { "normal", "pubsub" }, 0
    while number() < 2 * TASKS * rounds and faults < 5000 do
      rlock.sleep(0.02 * math.random())
      faults = faults + 1
      if faults % 3 == 0 then
        ask("SCRIPT", "FLUSH")
      else
        ask("CLIENT", "KILL", "TYPE", kinds[faults % 3], "SKIPME", "yes")
      end
    end
    assert.equal(TASKS * rounds, finish(one, 60 * slow))
    assert.equal(TASKS * rounds, finish(two, 60 * slow))
    assert.equal(2 * TASKS * rounds, number())
    assert.is_true(faults > 10, faults .. " faults only")
    eventually(function() return ask("EXISTS", "counter:lock") == 0 end)
  end)

  it("go on when one of them is killed with the lock",
    function()
      local lease = 1.5 * slow
      local one, two = start(60, lease), start(100000, lease)
      eventually(function() return number() > 50 end, 20 * slow)
      -- Suspended at a random moment: if the number stands still, it holds the
      -- lock, and is killed as the holder.
      eventually(function()
        two:kill(19)
        local before, deadline = number(), rlock.now() + 0.2 * slow
        repeat
          rlock.sleep(0.02)
        until number() ~= before or rlock.now() >= deadline
        if number() == before then return true end
        two:kill(18)
        rlock.sleep(0.01 * math.random())
      end, 30 * slow)
      assert.equal(1, ask("EXISTS", "counter:lock"))
      two:kill(9)
      two:wait(5 * slow)
      local before = number()
      eventually(function() return number() > before end, lease + 20 * slow)
      local added = finish(one, 60 * slow)
      assert.equal(TASKS * 60, added)
      assert.is_true(number() >= added)
      assert.equal(0, ask("EXISTS", "counter:lock"))
    end)
end)
