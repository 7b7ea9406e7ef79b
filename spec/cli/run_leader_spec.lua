--- rlockctl run --leader: one of several runs its command, and one that has
--- lost the lead campaigns again.

local alive = require "spec.tools.alive"
local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"

local server, client
local KILL, TERM = 9, 15
local LONG = 30 * slow                  -- for what must happen earlier
local names, name = 0, nil

local RUNS = "echo runs $$; exec sleep 600"

-- Starts a machine; the options come first, its command last.
local function start(...)
  local words = { "run", "--leader", name, "--ttl", ("%gs"):format(2 * slow),
    url = server.url, limit = LONG, ... }
  local command = table.remove(words)
  table.move({ "-c", command }, 1, 2, #words + 1, words)
  return ctl.start(words)
end

-- The pids that its command has printed, once there are n.
local function pids(running, n)
  return eventually(function()
    local list = {}
    for pid in running:out():gmatch "runs (%d+)\n" do
      list[#list + 1] = tonumber(pid)
    end
    return #list >= n and list
  end, LONG, ("it runs for the %dth time"):format(n))
end

-- Waits until n others wait behind the leader.
local function await_waiting(n)
  local election = client:election(name)
  eventually(function() return #election:candidates() == n end, LONG)
end

local function assert_ended(status, running)
  local result = running:wait()
  assert.same({ status, 0 }, { result.status, result.signal }, result.err)
  return result
end

setup(function()
  server = redis.start()
  client = assert(rlock.open(server.url))
end)

teardown(function()
  client:close()
  server:stop()
  ctl.clean()
end)

before_each(function()
  names = names + 1
  name = "run:leader" .. names
end)

describe("rlockctl run --leader", function()
  it("moves to the next machine when it is stopped, and when it dies",
    function()
      local first = start(RUNS)
      pids(first, 1)
      local second = start(RUNS)
      await_waiting(1)
      local third = start(RUNS)
      await_waiting(2)
      assert.equal("", second:out() .. third:out())
      first:kill(TERM)
      assert_ended(128 + TERM, first)
      local pid = pids(second, 1)[1]
      second:kill(KILL)
      pids(third, 1)
      assert.is_false(alive(pid))
      third:kill(TERM)
      assert_ended(128 + TERM, third)
    end)

  it("names the leader to any program", function()
    local leader = start(RUNS)
    pids(leader, 1)
    assert.matches("^[^:]+: sh %(pid " .. leader.pid .. "%)$",
      (client:election(name):leader()))
    assert.matches("sh %(pid " .. leader.pid .. "%)",
      ctl.output { "status", name, url = server.url })
    leader:kill(TERM)
    leader:wait()
  end)

  it("stops the command if the lock is lost, and campaigns again", function()
    local path = ctl.file("status", "")
    local first = ctl.start { program = "sh", "-c", 'exec "$0" "$@" 3>' .. path,
      ctl.binary, "run", "--leader", name, "--status-fd=3", "--ttl",
      ("%gs"):format(2 * slow), "-c", RUNS, url = server.url, limit = LONG }
    local pid = pids(first, 1)[1]
    local second = start(RUNS)
    await_waiting(1)
    assert.is_true(client:fair_lock(name):break_lock())
    pids(second, 1)
    await_waiting(1)
    assert.is_false(alive(pid))
    second:kill(TERM)
    assert_ended(128 + TERM, second)
    pids(first, 2)
    first:kill(TERM)
    local result = assert_ended(128 + TERM, first)
    assert.matches('lost "' .. name .. '" %(.*%): the command was stopped; '
      .. "it campaigns again\n", result.err)
    local events = {}
    for event in files.read(path):gmatch '"event":"([%l_]+)"' do
      if event ~= "renewed" then events[#events + 1] = event end
    end
    assert.equal("acquired lost child_exit released waiting acquired "
      .. "child_exit released", table.concat(events, " "))
  end)

  it("does so when the server does not answer for a while", function()
    local leader = start(RUNS)
    local pid = pids(leader, 1)[1]
    server:pause()
    finally(function() server:resume() end)
    eventually(function() return not alive(pid) end, LONG, "it is stopped")
    eventually(function()
      return leader:err():find("campaigns again", 1, true)
    end, LONG)
    server:resume()
    pids(leader, 2)
    leader:kill(TERM)
    assert_ended(128 + TERM, leader)
  end)

  it("does so when the server is not there at the start", function()
    local away = redis.start()
    away:kill()
    local leader = start("--url", away.url, RUNS)
    eventually(function()
      return leader:err():find("; it keeps trying\n", 1, true)
    end, LONG)
    away:launch()
    pids(leader, 1)
    leader:kill(TERM)
    assert_ended(128 + TERM, leader)
    away:stop()
  end)

  it("exits with the status of a command that ends by itself", function()
    assert_ended(3, start "exit 3")
    assert.equal(false, (client:election(name):leader()))
    assert_ended(127, start "exec /no/such")
  end)

  it("exits when a signal asks it to, in each state", function()
    local leader = start("--ttl", ("%gs"):format(6 * slow), "--kill-after",
      ("%gs"):format(3 * slow), "trap 'echo told' TERM; echo runs $$; "
      .. "while :; do sleep 0.01; done")
    pids(leader, 1)
    local waiting = start(RUNS)
    await_waiting(1)
    waiting:kill(TERM)
    assert.matches("interrupted while waiting", assert_ended(205, waiting).err)
    assert.is_true(client:fair_lock(name):break_lock())
    leader:says "told"                  -- it ends later, by SIGKILL
    leader:kill(TERM)
    local result = assert_ended(203, leader)
    assert.is_nil(result.err:find("campaigns again", 1, true))
    assert.equal(false, (client:election(name):leader()))
  end)

  for _, row in ipairs {
    { "--no%-wait", "-n" }, { "--wait", "-w", "1s" },
    { "%-E", "-E", "0" }, { "--fair", "--fair" }, { "--fenced", "--fenced" },
    { "--shared", "-s" }, { "--exclusive", "-x" }, { "--limit", "--limit=2" },
    { "--policy", "--policy=fair" }, { "--on%-lost=ignore",
      "--on-lost=ignore" },
    { "Curator on ZooKeeper", "--option=layout=latch" },
    { '"latch" or "selector"', "--option=layout=lock" },
  } do
    it("refuses " .. row[2], function()
      local words = { "run", "--leader", name, url = server.url }
      table.move(row, 2, #row, #words + 1, words)
      table.move({ "--", "true" }, 1, 2, #words + 1, words)
      assert.matches(row[1]:gsub("^%-%-", "%%-%%-"), ctl.fault(206, words))
    end)
  end

  it("refuses several names", function()
    assert.matches("--leader takes one name", ctl.fault(206, { "run",
      "--leader", "a,b", "--", "true", url = server.url }), 1, true)
  end)
end)
