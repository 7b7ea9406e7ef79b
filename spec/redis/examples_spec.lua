--- The examples: that they run, print what they demonstrate, and do so in time.

local eventually = require "spec.tools.eventually"
local host = require "rlock.host.uv"
local phases = require "spec.tools.phases"
local program = require "spec.tools.program"
local redis = require "spec.tools.redis"
local slow = require "spec.tools.slow"

local server = redis.shared()

-- The lines of an example as { at =, who =, text = }.
local function read_lines(output)
  local lines = {}
  for at, who, text in output:gmatch("([%d.]+) s +(%w+) +([^\n]*)") do
    lines[#lines + 1] = { at = tonumber(at), who = who, text = text }
  end
  return lines
end

-- The first line from `who` that contains this text, and its number.
local function find(lines, who, text)
  for i, line in ipairs(lines) do
    if line.who == who and line.text:find(text, 1, true) then
      return line, i
    end
  end
  error(("no line of %s with %q"):format(who, text), 2)
end

local function run(...)
  local output, status, signal = program.run(server, ...)
  assert.same({ 0, 0, "" }, { status, signal, status == 0 and "" or output })
  return read_lines(output)
end

describe("the examples", function()
  it("hello: a lock is taken, counted and handed over at once", function()
    local lines = run("examples/hello.lua")
    find(lines, "main", "acquired the lock; valid for 30 s")
    find(lines, "main", "acquired it again: hold count 2")
    find(lines, "main", "released one hold: hold count 1")
    find(lines, "other", "tried to acquire it: nil, busy")
    local gave, gave_at = find(lines, "main", "releases it")
    local got, got_at = find(lines, "other", "got it")
    assert.is_true(got_at > gave_at)
    assert.is_true(got.at - gave.at < 0.2 * slow)
    find(lines, "main", "done; the lock is free")
    assert.equal("0", server:cli("EXISTS", "hello"))
  end)

  it("short_lease: a lease shorter than the work lets another one in, and says "
      .. "so in time", function()
    local lease = 0.6 * slow
    local lines = run("examples/short_lease.lua", tostring(lease))
    local first = find(lines, "first", "at work")
    local _, warned = find(lines, "first", "a careful program would stop here")
    local lost = find(lines, "first", "lost the lock")
    local second, entered = find(lines, "second", "at work")
    assert.is_true(warned < entered)
    assert.matches("so is the other one", second.text)
    assert.near(lease, second.at - first.at, lease / 2)
    assert.is_true(lost.at <= second.at + 0.01)
    find(lines, "first", "unlock: nil, lost")
    find(lines, "second", "unlock: true")
  end)

  it("taking_turns: two tasks in turn lose no update", function()
    server:cli("DEL", "taking-turns:number")
    local lines = run("examples/taking_turns.lua", "3")
    find(lines, "main", "added 6; the number is 6")
    local last
    for _, line in ipairs(lines) do
      local verb = line.text:match("^(%a+)s %d+$")
      if verb == "write" then
        assert.same({ "read", line.who }, last)
      end
      last = { verb, line.who }
    end
  end)

  it("taking_turns: so do two processes", function()
    server:cli("DEL", "taking-turns:number")
    local other = program.start(server, "examples/taking_turns.lua", "3")
    run("examples/taking_turns.lua", "3")
    assert.equal(0, (other:wait()))
    assert.equal("12", server:cli("GET", "taking-turns:number"))
  end)

  it("two_orders: a deadlock is told, and both tasks end", function()
    local output, status = program.run(server, "examples/two_orders.lua", "5")
    assert.equal(0, status, output)
    for _, name in ipairs { "bob", "eve" } do
      for i = 1, 5 do
        assert.truthy(output:find(("%s: done %d\n"):format(name, i), 1, true))
      end
    end
    assert.matches(': deadlock: %S+ waits for reentrant lock "account:%d", '
      .. "which %S+ holds; ", output)
  end)

  it("keep_alive: the watchdog keeps the lock, kill -9 gives it away within "
      .. "one watchdog period", function()
    local watchdog = 1 * slow
    local holder = program.start(server, "examples/keep_alive.lua",
      tostring(watchdog))
    eventually(function()
      return holder:output():find("the lock is mine", 1, true)
    end, 5 * slow, "the first one holds the lock")
    local waiter = program.start(server, "examples/keep_alive.lua",
      tostring(watchdog))
    eventually(function()
      return waiter:output():find("busy", 1, true)
    end, 5 * slow, "the second one finds it taken")

    host.sleep(watchdog * 2.5)          -- longer than an unrenewed lease
    assert.is_nil(waiter:output():find("the lock is mine", 1, true))
    local _, kept = holder:output():gsub("still mine", "")
    assert.is_true(kept >= 4)

    local killed = host.now()
    holder:kill(9)
    assert.equal(9, (select(2, holder:wait())))
    eventually(function()
      return waiter:output():find("the lock is mine", 1, true)
    end, watchdog + 1 * slow, "the second one holds the lock")
    local after = host.now() - killed
    assert.is_true(after > watchdog / 4 and after < watchdog + 0.5 * slow)

    waiter:kill(15)                     -- lets it clean up
    assert.equal(143, (waiter:wait()))
    assert.equal("0", server:cli("EXISTS", "keep-alive"))
  end)

  it("barrier: all begin together, and end together", function()
    local output, status = program.run(server, "examples/barrier.lua")
    assert.equal(0, status, output)
    phases(output, 3)
    local other = program.start(server, "examples/barrier.lua", "2", "4")
    assert.equal(0, select(2, program.run(server, "examples/barrier.lua", "2",
      "4")))
    assert.equal(0, (other:wait()))
    assert.equal("0", server:cli("EXISTS", "phase"))
  end)

  it("letting_go: a job ends its step and lets the next one in", function()
    local first = program.start(server, "examples/letting_go.lua")
    eventually(function()
      return first:output():find "the lock is mine"
        and server:cli("PUBSUB", "CHANNELS", "rlock_release*") ~= ""
    end, 10 * slow)
    local second = program.start(server, "examples/letting_go.lua", "2")
    assert.equal(0, (first:wait(30 * slow)))
    assert.matches("let go after step %d+: the next job\n$", first:output())
    assert.equal(0, (second:wait(30 * slow)))
    assert.matches("^busy; asked for it: %s+true%s+1\nthe lock is mine\n$",
      second:output())
  end)

  it("leader: one process leads, and another when it is killed", function()
    local function start()
      return program.start(server, "examples/leader.lua", tostring(2 * slow))
    end
    local function says(its, text)
      eventually(function() return its:output():find(text) end, 30 * slow)
    end
    local first = start()
    says(first, "I lead\n")
    says(first, "at work\n")
    local second = start()
    says(second, "%S+: leader%.lua %(pid " .. first.pid .. "%) leads")
    first:kill(9)
    says(second, "I lead\n")
    local third = start()
    says(third, "leader%.lua %(pid " .. second.pid .. "%) leads")
    second:kill(15)
    assert.equal(143, (second:wait()))
    says(third, "I lead\n")
    third:kill(15)
    assert.equal(143, (third:wait()))
  end)

  it("per_tenant: no tenant has more holders than its limit, and all jobs run",
    function()
      local output, status = program.run(server, "examples/per_tenant.lua",
        "3", "10")
      assert.equal(0, status, output)
      local jobs = {}
      for tenant, taken in output:gmatch("(%w+) job %d+ runs, (%d) of 3") do
        jobs[tenant] = (jobs[tenant] or 0) + 1
        assert.is_true(tonumber(taken) <= 3)
      end
      assert.same({ acme = 10, globex = 10 }, jobs)
      assert.matches("at most 3 and 3 ran at once", output)
      assert.equal("0", server:cli("EXISTS", "jobs:acme", "jobs:globex"))
    end)

  it("per_tenant: a place whose holder was killed is free after its lease",
    function()
      server:cli("ZADD", "jobs:acme", "1", "somebody dead")
      local output, status = program.run(server, "examples/per_tenant.lua",
        "1", "1")
      assert.equal(0, status, output)
      assert.matches("acme job 1 runs, 1 of 1", output)
    end)

  it("compute: one task of two processes makes the report, all get it",
    function()
      local other = program.start(server, "examples/compute.lua")
      local output, status = program.run(server, "examples/compute.lua")
      assert.equal(0, status, output)
      assert.equal(0, (other:wait()))
      local both = output .. other:output()
      assert.equal(1, select(2, both:gsub("makes the report", "")))
      assert.equal(1, select(2, both:gsub("has the report: computed", "")))
      assert.equal(9, select(2, both:gsub("has the report: cached", "")))
    end)

  it("priority: waiters are served by priority, and a silent one is dropped",
    function()
      server:cli("ZADD", "{printer}:queue", "-1e18", "dead and urgent")
      server:cli("ZADD", "{printer}:alive", "1", "dead and urgent")
      local output, status = program.run(server, "examples/priority.lua")
      assert.equal(0, status, output)
      local order = {}
      for priority in output:gmatch("priority (%d) has the lock") do
        order[#order + 1] = priority
      end
      assert.same({ "5", "3", "1" }, order)
      assert.equal("0", server:cli("EXISTS", "printer", "{printer}:queue"))
    end)
end)
