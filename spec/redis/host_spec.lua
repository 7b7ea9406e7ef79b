--- The libuv host by itself: tasks, events, sleep, cancellation, errors in
--- tasks, and many commands at once on one connection.

local eventually = require "spec.tools.eventually"
local host = require "rlock.host.uv"
local program = require "spec.tools.program"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local server = redis.shared()

local function connect()
  return assert(host.connect {
    path = server.socket, timeout = 5000, silent = 0,
  })
end

-- Runs a script in its own process, with RLOCK_URL set to the server.
local function run(code)
  return program.run(server, "-e", code)
end

describe("a task", function()
  it("gets its arguments, and join returns its results, nils and all",
    function()
      local spawned = rlock.spawn(function(...)
        assert.equal(3, select("#", ...))
        return ...
      end, nil, "b", nil)
      local results = table.pack(spawned:join())
      assert.same({ n = 3, nil, "b", nil }, results)
      assert.same(results, table.pack(spawned:join()))
    end)

  it("starts after the one that spawned it waits, in the order of spawning",
    function()
      local order = {}
      for i = 1, 5 do rlock.spawn(function() order[#order + 1] = i end) end
      assert.same({}, order)
      rlock.sleep(0)
      assert.same({ 1, 2, 3, 4, 5 }, order)
    end)

  it("can be joined by many", function()
    local gate = rlock.event()
    local joined = rlock.spawn(function()
      gate:wait()
      return "done"
    end)
    local all = {}
    for i = 1, 10 do
      all[i] = task.start(function() return joined:join() end)
    end
    rlock.sleep(0)
    gate:set()
    for i = 1, 10 do assert.equal("done", all[i]:join()) end
  end)

  it("runs while others wait for Redis", function()
    local turns, replied = 0, false
    local calling = task.start(function()
      local connection <close> = setmetatable({ it = connect() }, {
        __close = function(self) self.it:close() end,
      })
      connection.it:call(5000, "BLPOP", "host:nothing", "0.2")
      replied = true
    end)
    while not replied do
      turns = turns + 1
      rlock.sleep(0.001)
    end
    calling:join()
    assert.is_true(turns > 5)
  end)

  it("may use coroutines of its own that do not wait", function()
    local numbers = coroutine.wrap(function()
      for i = 1, 3 do coroutine.yield(i) end
    end)
    assert.same({ 1, 2, 3 }, { numbers(), numbers(), numbers() })
  end)

  it("is one of very many", function()
    local count, n, last = 0, 20000, nil
    for _ = 1, n do
      last = rlock.spawn(function()
        rlock.sleep(0.05)
        count = count + 1
      end)
    end
    last:join()
    eventually(function() return count == n end)
  end)
end)

describe("sleep", function()
  it("ends in order of time, never early", function()
    local order, all = {}, {}
    for i, seconds in ipairs { 0.06, 0.02, 0.04, 0.08, 0 } do
      all[i] = task.start(function()
        local before = rlock.now()
        rlock.sleep(seconds)
        assert.is_true(rlock.now() - before >= seconds)
        order[#order + 1] = seconds
      end)
    end
    for _, each in ipairs(all) do each:join() end
    assert.same({ 0, 0.02, 0.04, 0.06, 0.08 }, order)
  end)

  it("lets others run even for 0 seconds", function()
    local ran = false
    rlock.spawn(function() ran = true end)
    rlock.sleep(0)
    assert.is_true(ran)
  end)

  it("ends while other tasks wake each other without pause",
    function()
      local a, b, is_over = rlock.event(), rlock.event(), false
      local turns = 0
      local function play(mine, yours)
        while not is_over do
          mine:wait()
          turns = turns + 1
          yours:set()
        end
        yours:set()
      end
      local one, two = task.start(play, a, b), task.start(play, b, a)
      a:set()
      rlock.sleep(0.05)
      is_over = true
      one:join()
      two:join()
      assert.is_true(turns > 1000)
    end)
end)

describe("an event", function()
  it("that was set earlier ends one wait at once", function()
    local event = rlock.event()
    event:set()
    event:set()
    assert.is_true(event:wait())
    assert.is_false(event:wait(0.001))
    event:set()
    assert.is_true(event:wait(0))
    assert.is_false(event:wait(0))
  end)

  it("returns false after the timeout, not earlier", function()
    local before = rlock.now()
    assert.is_false(rlock.event():wait(0.03))
    assert.is_true(rlock.now() - before >= 0.03)
  end)

  it("that is set after a timeout ends the next wait",
    function()
      local event = rlock.event()
      assert.is_false(event:wait(0.001))
      event:set()
      assert.is_true(event:wait(1))
    end)

  it("wakes only its own waiter", function()
    local events, woken, all = {}, {}, {}
    for i = 1, 5 do
      events[i] = rlock.event()
      all[i] = task.start(function()
        events[i]:wait()
        woken[#woken + 1] = i
      end)
    end
    rlock.sleep(0)
    events[3]:set()
    all[3]:join()
    assert.same({ 3 }, woken)
    for _, i in ipairs { 5, 1, 4, 2 } do events[i]:set() end
    for i = 1, 5 do all[i]:join() end
    assert.same({ 3, 5, 1, 4, 2 }, woken)
  end)

  it("waits without a limit for nil or math.huge", function()
    local event = rlock.event()
    rlock.spawn(function()
      rlock.sleep(0.02)
      event:set()
    end)
    assert.is_true(event:wait(math.huge))
  end)

  it("wakes through a chain of any depth", function()
    local n = 20000
    local events = {}
    for i = 1, n + 1 do events[i] = rlock.event() end
    for i = 1, n do
      rlock.spawn(function()
        events[i]:wait()
        events[i + 1]:set()
      end)
    end
    rlock.sleep(0)
    events[1]:set()
    assert.is_true(events[n + 1]:wait(10 * slow))
  end)

  it("of the end of tasks wakes through a chain of any depth", function()
    local gate = rlock.event()
    local before = rlock.spawn(function() gate:wait() return 0 end)
    for _ = 1, 5000 do
      local joined = before
      before = rlock.spawn(function() return joined:join() + 1 end)
    end
    rlock.sleep(0)
    gate:set()
    assert.equal(5000, task.run(function() return before:join() end))
  end)
end)

describe("a task that is cancelled", function()
  local log

  before_each(function() log = {} end)

  local function note(text) log[#log + 1] = text end

  -- Cancels a task that waits in fn, and joins it.
  local function cancel_in(fn)
    local waiting = rlock.spawn(function()
      fn()
      note "went on"
    end)
    rlock.sleep(0.01)
    assert.is_true(waiting:cancel())
    assert.same({ n = 3, nil, "cancelled", "cancelled" },
      table.pack(task.run(function() return waiting:join() end)))
    assert.same({}, log)
  end

  -- rlock's functions return nil, "cancelled", unwind; raises unwind.
  local function raised(result, code, unwind)
    if code == "cancelled" then error(unwind, 0) end
    return result
  end

  it("is unwound where it sleeps", function()
    cancel_in(function() rlock.sleep(1000) end)
  end)

  it("is unwound in the wait for an event, and uses up no wake",
    function()
      local event = rlock.event()
      cancel_in(function() event:wait() end)
      event:set()
      assert.is_true(event:wait(0))
      cancel_in(function() event:wait(1000) end)
      event:set()
      assert.is_true(event:wait(0))
    end)

  it("is unwound where it joins another, which goes on", function()
    local gate = rlock.event()
    local other = rlock.spawn(function() gate:wait() return "fine" end)
    cancel_in(function() other:join() end)
    gate:set()
    assert.equal("fine", task.run(function() return other:join() end))
  end)

  it("is unwound in the wait for a reply, which no other task gets",
    function()
      local client <close> = assert(rlock.open(server.url))
      client:call("DEL", "host:list")
      local connection = connect()
      cancel_in(function()
        raised(connection:call(5000, "BLPOP", "host:list", "0"))
      end)
      client:call("RPUSH", "host:list", "late")
      for i = 1, 20 do
        assert.equal("mine " .. i, connection:call(5000, "ECHO", "mine " .. i))
      end
      connection:close()
    end)

  it("is unwound where it waits for the replies of a pipeline", function()
    local connection, codes = connect(), nil
    cancel_in(function()
      local _, details
      _, codes, details = connection:pipeline(5000,
        { { "BLPOP", "host:empty", "0" }, { "PING" } })
      raised(nil, codes[2], details[2])
    end)
    assert.same({ "cancelled", "cancelled" }, codes)
    connection:close()
  end)

  it("before it has begun is unwound at its first wait", function()
    local begun = false
    local unborn = rlock.spawn(function()
      begun = true
      rlock.sleep(1000)
      note "went on"
    end)
    unborn:cancel()
    task.run(function() unborn:join() end)
    assert.is_true(begun)
    assert.same({}, log)
  end)

  it("runs its <close> variables and pcalls, which may wait again", function()
    local client <close> = assert(rlock.open(server.url))
    local gate = rlock.event()
    local waiting = rlock.spawn(function()
      local _ <close> = setmetatable({}, { __close = function(_, message)
        assert.is_true(host.is_unwind(message))
        rlock.sleep(0.01)
        note(client:call("ECHO", "closed after a wait"))
      end })
      local ok, message = pcall(gate.wait, gate)
      assert.is_false(ok)
      assert.is_true(host.is_unwind(message))
      rlock.sleep(0.01)
      note(client:call("ECHO", "cleaned up after a wait"))
      note(tostring(message))
      error(message, 0)
    end)
    rlock.sleep(0.005)
    waiting:cancel("enough of this")
    task.run(function() waiting:join() end)
    assert.same({ "cleaned up after a wait", "enough of this",
      "closed after a wait" }, log)
  end)

  it("is unwound once: it continues after a catch", function()
    local waiting = rlock.spawn(function()
      for _ = 1, 3 do note(tostring((pcall(rlock.sleep, 0.01)))) end
      return "to the end"
    end)
    rlock.sleep(0)
    assert.is_true(waiting:cancel())
    assert.is_false(waiting:cancel())
    assert.equal("to the end", task.run(function() return waiting:join() end))
    assert.same({ "false", "true", "true" }, log)
  end)

  it("after its end is not affected", function()
    local over = rlock.spawn(function() return 1 end)
    rlock.sleep(0)
    assert.is_false(over:cancel())
    assert.equal(1, over:join())
  end)

  it("by itself is unwound at its next wait", function()
    local own
    own = rlock.spawn(function()
      own:cancel()
      note "still runs"
      rlock.sleep(0)
      note "went on"
    end)
    task.run(function() own:join() end)
    assert.same({ "still runs" }, log)
  end)

  it("just as it was woken is unwound at its next wait", function()
    local event = rlock.event()
    local waiting = rlock.spawn(function()
      note(tostring(event:wait()))
      event:wait()
      note "went on"
    end)
    rlock.sleep(0)
    event:set()
    waiting:cancel()
    task.run(function() waiting:join() end)
    assert.same({ "true" }, log)
  end)
end)

describe("an error in a task", function()
  it("ends the program with a traceback and status 1, after every <close>",
    function()
      local output, status = run [[
        local rlock = require "rlock"
        local function closing(text)
          return setmetatable({}, { __close = function()
            rlock.sleep(0.01)
            print("closed " .. text)
          end })
        end
        rlock.spawn(function()
          local _ <close> = closing "the other"
          rlock.sleep(1000)
        end)
        rlock.spawn(function()
          local _ <close> = closing "the failing"
          rlock.sleep(0.01)
          local function culprit() error("it went wrong") end
          culprit()
        end)
        local _ <close> = closing "main"
        rlock.sleep(1000)
      ]]
      assert.equal(1, status)
      assert.matches("it went wrong", output)
      assert.matches("stack traceback", output)
      assert.matches("culprit", output)
      for _, who in ipairs { "the other", "the failing", "main" } do
        assert.matches("closed " .. who, output)
      end
    end)

  it("may be any value", function()
    local output, status = run "error({ 'a table' })"
    assert.equal(1, status)
    assert.matches("error object is a table", output)
    output, status = run [[error(setmetatable({}, {
      __tostring = function() return "speaks for itself" end }))]]
    assert.equal(1, status)
    assert.matches("speaks for itself", output)
    assert.equal(1, (select(2, run "error()")))
  end)

  it("that is caught has no effect", function()
    local output, status = run [[
      local rlock = require "rlock"
      print(pcall(function() rlock.sleep(0) error("caught", 0) end))]]
    assert.equal(0, status)
    assert.matches("false%s+caught", output)
  end)

  it("releases the locks that the program holds", function()
    local output, status = run [[
      local client = assert(require("rlock").open())
      assert(client:lock("host:failing"):lock())
      print(client:call("EXISTS", "host:failing"))
      error("after locking")
    ]]
    assert.equal(1, status)
    assert.matches("^1\n", output)
    assert.equal("0", server:cli("EXISTS", "host:failing"))
  end)
end)

describe("the program", function()
  it("reports a deadlock of all tasks", function()
    local output, status = run 'require("rlock").event():wait()'
    assert.equal(1, status)
    assert.matches("deadlock: every task waits", output)
  end)

  it("waits for the tasks that outlive main", function()
    local output, status = run [[
      local rlock = require "rlock"
      rlock.spawn(function() rlock.sleep(0.05) print("the last") end)]]
    assert.equal(0, status)
    assert.matches("the last", output)
  end)

  it("ends with os.exit from any task, after every <close>", function()
    local output, status = run [[
      local rlock = require "rlock"
      rlock.spawn(function() rlock.sleep(0.01) os.exit(7) end)
      local _ <close> = setmetatable({}, { __close = function()
        rlock.sleep(0.01)
        print("tidy")
      end })
      rlock.sleep(1000)]]
    assert.equal(7, status)
    assert.equal("tidy\n", output)
  end)

  it("does not end before a cleanup of a few seconds at most, and then does",
    function()
      local before = rlock.now()
      local output, status = run [[
        local rlock = require "rlock"
        local _ <close> = setmetatable({}, { __close = function()
          rlock.sleep(1000)
        end })
        os.exit(3)]]
      assert.equal(3, status, output)
      assert.is_true(rlock.now() - before < 15 * slow)
    end)
end)

describe("waiting outside a task", function()
  -- The error when fn waits in a coroutine of the user's own.
  local function complaint(fn)
    local ok, message = coroutine.resume(coroutine.create(fn))
    return ok and "it was let through" or tostring(message)
  end

  it("is a usage error with advice", function()
    local client <close> = assert(rlock.open(server.url))
    local lock = client:lock("host:outside")
    for what, fn in pairs {
      sleep = function() rlock.sleep(0.01) end,
      event = function() rlock.event():wait() end,
      join = function() rlock.spawn(function() end):join() end,
      open = function() rlock.open(server.url) end,
      call = function() client:call("PING") end,
      lock = function() lock:lock() end,
      try_lock = function() lock:try_lock() end,
      is_locked = function() lock:is_locked() end,
    } do
      assert.matches("^" .. what .. ": .*rlock%.spawn",
        what .. ": " .. complaint(fn))
    end
  end)

  it("is a usage error also for an owner that has a name", function()
    for _, method in ipairs { "lock", "try_lock", "unlock", "is_locked",
      "break_lock", "hold" } do
      local output, status = program.run(server, "-e", [[
        local client = assert(require("rlock").open())
        local lock = client:lock("host:named", { owner = "somebody" })
        assert(lock:lock())
        local method = ...
        print(coroutine.resume(coroutine.create(function()
          return lock[method](lock)
        end)))
        assert(client:call("ECHO", "x") == "x")
        assert(lock:unlock())
      ]], method)
      assert.matches("^false\t[^\n]*rlock%.spawn", output)
      assert.equal(0, status)
    end
  end)

  it("does not disturb the tasks", function()
    complaint(function() rlock.sleep(1) end)
    rlock.sleep(0)
    assert.is_false(rlock.event():wait(0.001))
  end)
end)

describe("a pipeline", function()
  local connection

  before_each(function() connection = connect() end)
  after_each(function() connection:close() end)

  it("gives every command its own reply, refusals too", function()
    connection:call(5000, "DEL", "host:none")
    connection:call(5000, "SET", "host:text", "x")
    local replies, codes, details = connection:pipeline(5000, {
      { "ECHO", "a" }, { "GET", "host:none" }, { "INCR", "host:text" },
      { "NO-SUCH-COMMAND" }, { "ECHO", "z" },
    })
    assert.same({ "a", false, nil, nil, "z" }, replies)
    assert.same({ nil, nil, "redis", "redis" }, codes)
    assert.matches("not an integer", details[3])
    assert.matches("unknown command", details[4])
  end)

  it("may be long", function()
    local commands = {}
    for i = 1, 5000 do commands[i] = { "ECHO", tostring(i) } end
    local replies = connection:pipeline(10000, commands)
    for i = 1, 5000 do assert.equal(tostring(i), replies[i]) end
  end)

  it("of no commands is answered at once", function()
    assert.same({}, (connection:pipeline(1000, {})))
  end)

  it("on a connection that was closed fails command by command", function()
    connection:close()
    local replies, codes = connection:pipeline(1000,
      { { "PING" }, { "PING" } })
    assert.same({}, replies)
    assert.same({ "closed", "closed" }, codes)
  end)

  it("fails in time, command by command, when the server is silent",
    function()
      local quiet = redis.start()
      local other = assert(host.connect {
        path = quiet.socket, timeout = 5000, silent = 0,
      })
      quiet:pause()
      local before = rlock.now()
      local replies, codes = other:pipeline(100, { { "PING" }, { "PING" } })
      assert.is_true(rlock.now() - before >= 0.1)
      quiet:resume()
      other:close()
      quiet:stop()
      assert.same({}, replies)
      assert.same({ "timeout", "timeout" }, codes)
    end)

  it("forms when many tasks use one connection", function()
    local client <close> = assert(rlock.open(server.url))
    client:call("PING")
    local reads = server:info("total_reads_processed")
    task.many(1000, function(i)
      assert.equal("task " .. i, client:call("ECHO", "task " .. i))
    end)
    reads = server:info("total_reads_processed") - reads
    assert.is_true(reads < 300, reads .. " reads for 1000 commands")
  end)
end)

describe("misuse of tasks", function()
  it("by a coroutine.yield outside of rlock ends the program",
    function()
      local output, status = program.run(server, "-e",
        "print(1) coroutine.yield(3) print(2)")
      assert.equal(1, status)
      assert.matches("^1\n", output)
      assert.matches("a task called coroutine.yield", output)
      assert.not_matches("\n2\n", output)
    end)

  it("is refused by the argument's name", function()
    for _, case in ipairs {
      { "fn of rlock.spawn", function() rlock.spawn("x") end },
      { "fn of rlock.run", function() rlock.run() end },
      { "bad seconds", function() rlock.sleep("1") end },
      { "bad seconds", function() rlock.event():wait("x") end },
    } do
      local ok, message = pcall(case[2])
      assert.is_false(ok)
      assert.matches(case[1], message, 1, true)
      assert.matches("host_spec.lua:%d+:", message)
    end
  end)
end)

describe("a command unsuitable for a shared connection", function()
  it("is refused, and does not affect the locks", function()
    local client = assert(rlock.open(server.url))
    for _, words in ipairs { { "SELECT", 3 }, { "multi" }, { "HELLO", 3 },
        { "BLPOP", "x", 1 }, { "QUIT" }, { "SUBSCRIBE", "x" },
        { "monitor" } } do
      local ok, code, detail = client:call(table.unpack(words))
      assert.is_nil(ok)
      assert.equal("usage", code)
      assert.matches("^" .. words[1] .. " would change or block", detail)
    end
    assert.is_true(client:lock("host:still here"):lock())
    assert.equal("1", server:cli("EXISTS", "host:still here"))
    assert.is_true(client:close())
  end)
end)
