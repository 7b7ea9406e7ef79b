--- rlockctl deadlocks: programs that take two locks in two orders, and the
--- wait-for graph.

local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local graph = require "rlockctl.cli.wait_graph"
local redis = require "spec.tools.redis"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"

local SOON = 20 * slow
local HOST = shell.run "uname -n":match "%S+"

-- A program that takes the first lock and, once there is a key `go`, waits for
-- the second. Locks are given as "kind name", perhaps with a URL. The kind
-- "compute" computes; "permits" takes a permit.
local PROGRAM = [[
local rlock = require "rlock"
local first, second, how = ...
local client = assert(rlock.open())
local function made(words)
  local kind, name, url = words:match "^(%S+) (%S+) ?(%S*)$"
  local its = url == "" and client or assert(rlock.open(url))
  if kind ~= "read" and kind ~= "write" then return its[kind](its, name) end
  local pair = its:read_write_lock(name)
  return pair[kind .. "_lock"](pair)
end
local function wait()
  print "holds"
  while client:call("GET", "go") ~= "1" do rlock.sleep(0.01) end
end
io.stdout:setvbuf "line"
if first:find "^compute " then
  return client:compute(first, { ttl = 60 }, function()
    wait()
    return client:compute(second, { ttl = 60 }, error)
  end)
end
local function take(lock)
  return lock.acquire and lock:acquire() or lock:lock { wait = 3600 }
end
local one, object = made(first), nil
if how == "object" then object = assert(one:hold()) else assert(take(one)) end
wait()
print(take(made(second)))
rlock.sleep(3600)
return object]]

local server, programs

local function output(...) return ctl.output { url = server.url, ... } end

-- Starts it under a name, with these arguments.
local function start(name, first, second, how)
  local its = ctl.start { ctl.file(name, PROGRAM), first, second, how,
    url = server.url }
  programs[#programs + 1] = its
  its:says "holds"
  return ("%s: %s (pid %d)"):format(HOST, name, its.pid)
end

-- The programs wait; returns what the command prints once there is a deadlock.
local function deadlocked(...)
  server:cli("SET", "go", 1)
  local words = { url = server.url, "deadlocks", ... }
  local result = eventually(function()
    local its = ctl.run(words)
    return its.status ~= 0 and its
  end, SOON, "a deadlock")
  assert.same({ 1, "" }, { result.status, result.err })
  return result.out
end

local function quoted(text) return (text:gsub("%p", "%%%0")) end

-- A line of the output, as a pattern.
local function line(who, holds, waits)
  return ("  %s holds %s and waits for %s, for %%d+ s, since "
    .. "%%d+%%-%%d+%%-%%d+ %%d+:%%d+:%%d+\n"):format(quoted(who), holds, waits)
end

setup(function() server = redis.start() end)
before_each(function()
  programs = {}
  server:cli "FLUSHALL"
end)
after_each(function()
  for _, its in ipairs(programs) do
    its:kill(9)
    its:wait()
  end
end)
teardown(function()
  server:stop()
  ctl.clean()
end)

describe("rlockctl deadlocks", function()
  it("says nothing if there is none", function()
    assert.equal("", output "deadlocks")
    assert.equal("", output("deadlocks", "--json"))
    start("a.lua", "lock one", "lock two")
    start("b.lua", "lock two", "lock three")
    server:cli("SET", "go", 1)
    eventually(function()
      return server:cli("KEYS", "rlock_waits:*"):find "rlock_waits"
    end, SOON, "an announcement")
    assert.equal("", output "deadlocks")
  end)

  it("shows two programs that take two locks in two orders", function()
    local a = start("a.lua", "lock one", "mutex two")
    local b = start("b.lua", "mutex two", "lock one")
    local text = deadlocked()
    assert.matches("^2 tasks wait for each other:\n", text)
    assert.matches(line(a, '"one"', '"two"'), text)
    assert.matches(line(b, '"two"', '"one"'), text)
    assert.equal(3, select(2, text:gsub("\n", "")))
    local other = ctl.run { "deadlocks", server.url }
    assert.same({ 1, "" }, { other.status, other.err })
  end)

  it("shows a ring of three, one with a reader, and their objects", function()
    local a = start("a.lua", "read one", "fair_lock two")
    local b = start("b.lua", "fair_lock two", "spin_lock three", "object")
    local c = start("c.lua", "spin_lock three", "write one")
    local text = deadlocked()
    assert.matches("^3 tasks wait for each other:\n", text)
    assert.matches(line(a, '"one"', '"two"'), text)
    assert.matches(line(b, '"two" %(another task may release it%)', '"three"'),
      text)
    assert.matches(line(c, '"three"', '"one"'), text)
  end)

  it("does not show one that has been broken", function()
    start("a.lua", "simple_lock one", "fenced_lock two")
    start("b.lua", "fenced_lock two", "simple_lock one")
    deadlocked()
    server:cli("DEL", "one")
    assert.equal("", output "deadlocks")
  end)

  it("shows programs that compute in two orders", function()
    start("a.lua", "compute one", "compute two")
    start("b.lua", "compute two", "compute one")
    local text = deadlocked()
    assert.matches("^2 tasks wait for each other:\n", text)
    assert.matches('holds "rlock_compute:{compute one}" and waits for '
      .. '"rlock_compute:{compute two}", for', text)
  end)

  it("shows a program that waits for a permit", function()
    ctl.run { url = server.url, "-e", [[
      local client <close> = assert(require "rlock".open())
      client:permits "two":set(1)]] }
    local b = start("b.lua", "permits two", "lock one")
    local a = start("a.lua", "lock one", "permits two")
    local text = deadlocked()
    assert.matches(line(a, '"one"', '"two"'), text)
    assert.matches(line(b, '"two" %(another task may release it%)', '"one"'),
      text)
  end)

  it("shows programs that take locks of two servers in two orders", function()
    local away = redis.start()
    local a = start("a.lua", "lock one", "lock two " .. away.url)
    local b = start("b.lua", "lock two " .. away.url, "lock one")
    local text = deadlocked(server.url, away.url)
    assert.matches(line(a, '"one"', '"two"'), text)
    assert.matches(line(b, '"two"', '"one"'), text)
    assert.equal("", output "deadlocks")
    away:stop()
  end)

  it("prints JSON", function()
    start("a.lua", "lock one", "lock two")
    start("b.lua", "lock two", "lock one")
    local text = deadlocked "--json"
    assert.matches('^{"tasks":%[{"by_object":false,"holds":"%a+","kind":'
      .. '"reentrant","owner":"%S+:%d+","since":"%d+%-%d+%-%d+T%d+:%d+:%d+Z",'
      .. '"waited_ms":%d+,"waits_for":"%a+","who":{.*"program":"%a.lua"', text)
    assert.equal(1, select(2, text:gsub("\n", "")))
  end)

  it("refuses a wrong command line", function()
    ctl.fault(206, { "deadlocks", server.url, "http://x" })
    ctl.fault(206, { "deadlocks", "http://x" })
    ctl.fault(202, { "deadlocks", "redis://127.0.0.1:1" })
  end)
end)

describe("the graph of waits", function()
  -- A wait of a task: "kind name", then what it holds.
  local function wait(owner, what, ...)
    local kind, name = what:match "^(%S+) (%S+)$"
    local its = { owner = owner, kind = kind, name = name, id = owner,
      place = name, held = {} }
    for i, words in ipairs { ... } do
      kind, name = words:match "^(%S+) (%S+)$"
      its.held[i] = { by = "task", kind = kind, name = name, owner = owner }
    end
    return its
  end

  -- The owners in each cycle, in order.
  local function owners(waits, holders)
    local list = {}
    for i, cycle in ipairs(graph.cycles(waits, holders)) do
      list[i] = ""
      for _, step in ipairs(cycle) do list[i] = list[i] .. step.wait.owner end
    end
    return list
  end

  it("has a cycle, but not those who wait for it", function()
    assert.same({ "bc" }, owners { wait("a", "fair x", "fair z"),
      wait("b", "fair y", "fair x"), wait("c", "fair x", "fair y") })
  end)

  it("has a wait for a permit only if all holders wait", function()
    local waits = { wait("a", "permits x", "fair y"),
      wait("b", "fair y", "permits x"), wait("c", "fair z", "permits x") }
    local holders = { x = { b = true }, y = { a = true } }
    assert.same({ "ab" }, owners(waits, holders))
    holders.x.c = true
    assert.same({}, owners(waits, holders))
    holders.z = { a = true }
    table.insert(waits[1].held, { by = "task", kind = "fair", name = "z",
      owner = "a" })
    assert.same({ "ab" }, owners(waits, holders))
  end)

  it("has no cycle of readers", function()
    assert.same({}, owners { wait("a", "p.read x", "fair y"),
      wait("b", "fair y", "p.read x") })
    assert.same({ "ab" }, owners { wait("a", "p.write x", "fair y"),
      wait("b", "fair y", "p.read x") })
  end)

  it("has several cycles", function()
    assert.same({ "ab", "cd" }, owners { wait("a", "fair x", "fair y"),
      wait("b", "fair y", "fair x"), wait("c", "fair z", "fair w"),
      wait("d", "fair w", "fair z") })
  end)

  it("believes the servers about holders", function()
    local waits = { wait("a", "fair x", "fair y"),
      wait("b", "fair y", "fair x") }
    assert.same({ "ab" }, owners(waits, { x = { b = true }, y = { a = true } }))
    assert.same({}, owners(waits, { x = { b = true }, y = { c = true } }))
    assert.same({}, owners(waits, { x = { b = true } }))
  end)

  it("parses what clients announce, and nothing else", function()
    local its = graph.parse "7 1500 fair a%20b u:1 task mutex c u:2"
    assert.same({ "7 a b u:1", "a b", 1.5, "c" },
      { its.id, its.name, its.waited, its.held[1].name })
    for _, text in ipairs { "", "x", "7 x fair a u:1", "7 1 fair a",
        "7 1 fair a u:1 task mutex c", "7 1e300 fair a u:1",
        "7 -1e300 fair a u:1" } do
      assert.is_nil(graph.parse(text))
    end
  end)
end)
