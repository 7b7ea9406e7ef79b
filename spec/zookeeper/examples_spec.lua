--- The examples on a real ZooKeeper.

local eventually = require "spec.tools.eventually"
local on_zookeeper = require "spec.tools.on_zookeeper"
local peers = require "spec.tools.zookeeper_peer"
local phases = require "spec.tools.phases"
local program = require "spec.tools.program"
local rlock = require "rlock"
local slow = require "spec.tools.slow"

local server = on_zookeeper("the examples on ZooKeeper",
  { describe = describe, pending = pending, teardown = teardown })
if not server then return end

local PATIENCE = 20 * slow
local KILL, TERM, STOP, CONT = 9, 15, 19, 18

local peer

-- Starts an example; returns once it has printed this text.
local function start(text, ...)
  local its = program.start(server, ...)
  eventually(function() return its:output():find(text, 1, true) end, PATIENCE)
  return its
end

describe("the examples on ZooKeeper", function()
  before_each(function()
    peer = peers.open(server)
    assert(peer:make("/number", "0"))
  end)

  after_each(function()
    peer:delete "/number"
    peer:close()
  end)

  it("zookeeper_turns: tasks and processes lose no update", function()
    local other = program.start(server, "examples/zookeeper_turns.lua", "2")
    local output, status = program.run(server, "examples/zookeeper_turns.lua",
      "2")
    assert.equal(0, status, output)
    assert.equal(0, (other:wait()))
    assert.equal("8", (peer:get "/number"))
    local last
    for who, number in output:gmatch "(%a+) writes (%d+)" do
      assert.is_true(tonumber(number) > (last or 0))
      assert.truthy(who == "first" or who == "second")
      last = tonumber(number)
    end
  end)

  it("zookeeper_counter: a late holder changes nothing", function()
    local late = start("read 0", "examples/zookeeper_counter.lua", "1")
    late:kill(STOP)
    local output = program.run(server, "examples/zookeeper_counter.lua", "0")
    assert.equal("read 0\nwrote 1\n", output)
    late:kill(CONT)
    assert.equal(0, (late:wait()))
    assert.matches("\nlost: ", late:output())
    assert.equal("1", (peer:get "/number"))
  end)

  it("barrier: all begin together, and end together", function()
    local output, status = program.run(server, "examples/barrier.lua")
    assert.equal(0, status, output)
    phases(output, 3)
  end)

  it("letting_go: unchanged, as on Redis", function()
    local first = start("the lock is mine", "examples/letting_go.lua")
    eventually(function()
      local names = peer:names "/job"
      return (peer:get("/job/" .. names[1]) or ""):find " revocable$"
    end, PATIENCE)
    local second = start("the lock is mine", "examples/letting_go.lua", "1")
    assert.equal(0, (first:wait()))
    assert.matches("let go after step %d+: the next job\n$", first:output())
    assert.equal(0, (second:wait()))
  end)

  it("keep_alive: unchanged, as on Redis", function()
    local watchdog = 2 * slow
    local holder = start("the lock is mine", "examples/keep_alive.lua",
      tostring(watchdog))
    local waiter = start("busy", "examples/keep_alive.lua",
      tostring(watchdog))
    rlock.sleep(watchdog * 1.5)             -- longer than without a renewal
    assert.is_nil(waiter:output():find("the lock is mine", 1, true))
    assert.matches("still mine; without a renewal it would end in %d",
      holder:output())
    holder:kill(KILL)
    eventually(function()
      return waiter:output():find("the lock is mine", 1, true)
    end, PATIENCE)
    waiter:kill(TERM)
    assert.equal(143, (waiter:wait()))
  end)
end)
