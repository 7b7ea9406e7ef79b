--- Locks that are handed over (policy/handover.lua), on a real Redis: what
--- subscriptions, permissions and processes contribute.

local control = require "spec.tools.control"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local program = require "spec.tools.program"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

describe("a lock is handed over", function()
  local server, name, waiters

  before_each(function()
    server = server or fixtures.server()
    name = fixtures.name "handover"
    waiters = ("redisson_lock__channel:{%s}:waiters"):format(name)
  end)

  after_each(function()
    fixtures.close()
    server = nil
  end)

  local function ask(...) return control.ask(server, ...) end

  -- Waits until so many waiters have registered.
  local function registered(n)
    eventually(function() return ask("ZCARD", waiters) == n end, 10 * slow)
  end

  -- The lock of a client that holds it.
  local function holder()
    local held = fixtures.open(server.url):lock(name, { owner = "holder" })
    task.run(function() assert(held:lock()) end)
    return held
  end

  -- A client with a task that waits, and notes its number.
  local function wait_in_line(got, i, options)
    local client = fixtures.open({ url = server.url }, options or {})
    return client, task.start(function()
      local lock = client:lock(name)
      assert(lock:lock { wait = 60 * slow })
      got[#got + 1] = i
      assert(lock:unlock())
    end)
  end

  for _, kind in ipairs { "lock", "mutex", "fenced_lock" } do
    it("in order of arrival: " .. kind, function()
      local first, got, tasks = fixtures.open(server.url), {}, {}
      local held = first[kind](first, name, { owner = "holder" })
      task.run(function() assert(held:lock()) end)
      for i = 1, 5 do
        local client = fixtures.open(server.url)
        tasks[i] = task.start(function()
          local lock = client[kind](client, name)
          assert(lock:lock { wait = 60 * slow })
          got[#got + 1] = i
          assert(lock:unlock())
          assert.equal(1, client:stats().handed_over)
        end)
        registered(i)
      end
      task.run(function() assert(held:unlock()) end)
      for i = 1, 5 do tasks[i]:join(30 * slow) end
      assert.same({ 1, 2, 3, 4, 5 }, got)
      assert.equal(0, ask("EXISTS", name, waiters))
    end)
  end

  it("past a process that has been killed", function()
    local held, got = holder(), {}
    local dead = program.start(server, "-e", ([[
      local client = assert(require("rlock").open())
      client:lock(%q):lock { wait = 60 }]]):format(name))
    registered(1)
    local _, waiting = wait_in_line(got, 2)
    registered(2)
    dead:kill(9)
    dead:wait()
    -- Redis has noticed that.
    eventually(function() return ask("PUBSUB", "NUMSUB", waiters)[2] == 1 end,
      10 * slow)
    task.run(function() assert(held:unlock()) end)
    waiting:join(30 * slow)
    assert.same({ 2 }, got)
  end)

  it("by messages to a user who may not use its other channels", function()
    ask("ACL", "SETUSER", "app", "on", "nopass", "~*", "+@all", "resetchannels",
      "&redisson_lock__channel:{" .. name .. "}")
    local options, got = { username = "app", password = "x" }, {}
    local held = holder()
    local _, waiting = wait_in_line(got, 1, options)
    eventually(function()
      return ask("PUBSUB", "NUMSUB", waiters:gsub(":waiters", ""))[2] == 1
    end, 10 * slow)
    registered(1)
    task.run(function() assert(held:unlock()) end)
    waiting:join(30 * slow)
    assert.same({ 1 }, got)
  end)

  it("by messages to a user who may only use its former keys and commands",
    function()
      ask("ACL", "SETUSER", "app", "on", "nopass", "~" .. name,
        "~redisson_lock__channel:{" .. name .. "}",
        "&redisson_lock__channel:{" .. name .. "}", "+@connection",
        "+@scripting", "+hset", "+hget", "+del", "+pttl", "+pexpire",
        "+publish", "+subscribe", "+unsubscribe", "+info")
      local options, got = { username = "app", password = "x" }, {}
      local holding = fixtures.open({ url = server.url }, options)
      local held = holding:lock(name, { owner = "holder" })
      task.run(function() assert(held:lock()) end)
      local _, waiting = wait_in_line(got, 1, options)
      eventually(function()
        return ask("PUBSUB", "NUMSUB", waiters:gsub(":waiters", ""))[2] == 1
      end, 10 * slow)
      task.run(function() assert(held:unlock()) end)
      waiting:join(30 * slow)
      assert.same({ 1 }, got)
      assert.equal(0, ask("EXISTS", name))
    end)

  it("by messages if the releaser may not use the others' channels", function()
    ask("ACL", "SETUSER", "app", "on", "nopass", "~*", "+@all", "resetchannels",
      "&redisson_lock__channel:{" .. name .. "}")
    local holding = fixtures.open({ url = server.url },
      { username = "app", password = "x" })
    local held, got = holding:lock(name, { owner = "holder" }), {}
    task.run(function() assert(held:lock()) end)
    local _, waiting = wait_in_line(got, 1)
    registered(1)
    task.run(function() assert(held:unlock()) end)
    waiting:join(30 * slow)
    assert.same({ 1 }, got)
  end)

  it("to a waiter that a full server did not register", function()
    local held, got = holder(), {}
    ask("CONFIG", "SET", "maxmemory", "1")
    local _, waiting = wait_in_line(got, 1)
    eventually(function()
      return ask("PUBSUB", "NUMSUB", waiters)[2] == 1
    end, 10 * slow)
    assert.equal(0, ask("EXISTS", waiters))
    ask("CONFIG", "SET", "maxmemory", "0")
    task.run(function() assert(held:unlock()) end)
    waiting:join(30 * slow)
    assert.same({ 1 }, got)
  end)

  it("while rlockctl waits for it, too", function()
    local held, got = holder(), {}
    local watch = program.start(server, "wait", name, "-w", "60")
    eventually(function() return ask("PUBSUB", "NUMSUB", waiters)[2] == 1 end,
      10 * slow)
    local _, waiting = wait_in_line(got, 1)
    registered(1)
    task.run(function() assert(held:unlock()) end)
    waiting:join(30 * slow)
    assert.equal(0, watch:wait())
  end)
end)
