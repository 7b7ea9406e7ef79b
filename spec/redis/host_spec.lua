--- Tasks that wait for Redis, and many commands at once on one connection. What
--- does not need a server is in spec/check/host_spec.lua, for each host.

local eventually = require "spec.tools.eventually"
local host = require "rlock.host.uv"
local program = require "spec.tools.program"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
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
end)

describe("an error in a task", function()
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

describe("a command unsuitable for a shared connection", function()
  it("is refused, and does not affect the locks", function()
    local client = assert(rlock.open(server.url))
    for _, words in ipairs { { "SELECT", 3 }, { "multi" }, { "HELLO", 3 },
        { "BLPOP", "x", 1 }, { "QUIT" }, { "SUBSCRIBE", "x" },
        { "monitor" }, { "XREAD", "COUNT", 1, "BLOCK", 0, "STREAMS", "x", "$" },
        { "xreadgroup", "group", "g", "c", "block", 9, "streams", "x", ">" },
        { "XREADGROUP", "GROUP", "streams", "c", "BLOCK", 0, "STREAMS", "x",
          ">" }, { "CLIENT", "REPLY", "OFF" } } do
      local ok, code, detail = client:call(table.unpack(words))
      assert.is_nil(ok)
      assert.equal("usage", code)
      assert.matches("^" .. words[1] .. " would change or block", detail)
    end
    assert.is_false(client:call("XREAD", "STREAMS", "block", "$"))
    assert.is_true(client:lock("host:still here"):lock())
    assert.equal("1", server:cli("EXISTS", "host:still here"))
    assert.is_true(client:close())
  end)
end)
