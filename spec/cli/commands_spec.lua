--- The commands: their output and exit status. No password is ever printed.

local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local task = require "spec.tools.task"

local server = redis.shared()

local function output(...) return ctl.output { url = server.url, ... } end

-- The output for a lock that is free.
local function free(...)
  return ctl.output { url = server.url, ends = 3, ... }
end

-- The output for a key that may not be a lock's.
local function unknown(...)
  return ctl.output { url = server.url, ends = 4, ... }
end

local function fault(status, options)
  options.url = options.url or server.url
  return ctl.fault(status, options)
end

teardown(ctl.clean)

describe("rlockctl status", function()
  local client

  setup(function() client = assert(rlock.open(server.url)) end)
  teardown(function() client:close() end)

  -- The status of a name, as text and as JSON; `how` to run it: free or output.
  local function status(name, how)
    how = how or output
    return how("status", name), how("status", "--json", name)
  end

  it("shows that there is nothing", function()
    local text, line = status("cli:none", free)
    assert.equal('"cli:none" is free\n', text)
    assert.equal('{"holders":[],"name":"cli:none","state":"free"}\n', line)
  end)

  it("shows who holds a reentrant lock, how often, and how long", function()
    local lock = client:lock("cli:held", { owner = "me" })
    assert(lock:lock { lease = 60 })
    assert.matches('^"cli:held" is held: reentrant lock\n'
      .. "  held by me, 1 time\n"
      .. "  for [56]%d%.%d s more, unless it is renewed\n"
      .. "  no owner has an id of rlock or Redisson, so it may belong to "
      .. "another program\n$", (status "cli:held"))
    assert(lock:lock { lease = 60 })
    local text, line = status "cli:held"
    assert.matches("held by me, 2 times\n", text)
    assert.matches('^{"holders":%[{"count":2,"owner":"me"}%],'
      .. '"kind":"reentrant","name":"cli:held","state":"held",'
      .. '"ttl_ms":5%d%d%d%d,"waiters":0}\n$', line)
    assert(lock:unlock())
    assert(lock:unlock())
    assert.equal('"cli:held" is free\n', (status("cli:held", free)))
  end)

  it("shows a lock that does not expire, if a client holds it", function()
    local owner = "01234567-89ab-cdef-0123-456789abcdef:1"
    server:cli("HSET", "cli:for ever", owner, "1")
    assert.equal('"cli:for ever" is held: reentrant lock\n'
      .. "  held by " .. owner .. ", 1 time\n  without an expiry\n",
      (status "cli:for ever"))
    server:cli("DEL", "cli:for ever")
    for _, words in ipairs { { "hits", "1" }, { "hits", "1", "miss", "2" } } do
      server:cli("HSET", "cli:counts", table.unpack(words))
      local text, line = status("cli:counts", unknown)
      assert.equal('"cli:counts" is unknown: a hash of counts, which may be a '
        .. "lock\n  give --policy reentrant if it is one\n", text)
      assert.matches('"kind":"unknown","may_be":%["reentrant"%],', line)
    end
    server:cli("PEXPIRE", "cli:counts", 60000)
    assert.matches(" is unknown: ", (status("cli:counts", unknown)))
    server:cli("DEL", "cli:counts")
  end)

  it("shows a simple lock", function()
    local lock = client:simple_lock "cli:simple"
    assert(lock:lock { lease = 60 })
    local text, line = status "cli:simple"
    assert.matches('^"cli:simple" is held: simple lock\n  held by '
      .. "[^\n]+, 1 time\n  for [56]%d%.%d s more", text)
    assert.matches('"kind":"simple"', line)
    assert(lock:unlock())
  end)

  it("needs --policy for a simple lock whose owner has another name", function()
    local lock = client:simple_lock("cli:own", { owner = "me" })
    assert(lock:lock())
    local text, line = status("cli:own", unknown)
    assert.equal('"cli:own" is unknown: a string that expires, which may be a '
      .. "simple lock\n  give --policy simple if it is one\n", text)
    assert.matches('"kind":"unknown","may_be":%["simple"%],', line)
    assert.matches('^"cli:own" is held: simple lock\n  held by me, 1 time\n',
      output("status", "cli:own", "--policy", "simple"))
    assert(lock:unlock())
    assert.equal('"cli:own" is free\n', (status("cli:own", free)))
  end)

  it("shows a fenced lock with its token, also when it is free", function()
    local lock = client:fenced_lock("cli:fenced", { owner = "me" })
    local _, token = assert(lock:lock())
    local text, line = status "cli:fenced"
    assert.matches('^"cli:fenced" is held: fenced lock\n  held by me, 1 time\n'
      .. "  for [^\n]*\n  token " .. token .. "\n$", text)
    assert.matches('"kind":"fenced","name":"cli:fenced","state":"held",'
      .. '"token":' .. token .. ",", line)
    assert(lock:unlock())
    assert.equal('"cli:fenced" is free: fenced lock\n',
      (status("cli:fenced", free)))
  end)

  it("shows the token of a lock of each kind", function()
    for kind, make in pairs {
      fenced = function(...) return client:mutex(...) end,
      fair = function(...) return client:fair_lock(...) end,
      simple = function(...) return client:simple_lock(...) end,
      readwrite = function(...)
        return client:read_write_lock(...):write_lock()
      end,
      fair_readwrite = function(...)
        return client:fair_read_write_lock(...):write_lock()
      end,
    } do
      local name = "cli:token of " .. kind
      local lock = make(name, { owner = "me", fenced = true })
      local _, token = assert(lock:lock())
      local text, line = status(name)
      assert.matches("\n  token " .. token .. "\n", text)
      assert.is_nil(text:find("is free", 1, true), text)
      assert.matches(('"kind":"%s",'):format(kind), line)
      assert.same(0, ctl.run { "break", name, "--force", "--token",
        ("%d"):format(token), url = server.url }.status)
      assert.equal("lost", select(2, lock:unlock()))
    end
  end)

  it("shows a fair lock also if an earlier hold had a token", function()
    local name = "cli:once fenced"
    local fenced = client:fair_lock(name, { owner = "me", fenced = true })
    assert(fenced:lock())
    assert(fenced:unlock())
    assert(client:fair_lock(name, { owner = "me" }):lock())
    assert.matches(' is held: fair lock\n', (status(name)))
    assert(client:fair_lock(name, { owner = "me" }):unlock())
  end)

  it("shows a fair lock with its queue, also when nobody holds it", function()
    local function lock(owner)
      return client:fair_lock("cli:fair", { owner = owner })
    end
    assert(lock("me"):lock())
    local waiting = {}
    for i, owner in ipairs { "first", "second" } do
      waiting[i] = task.start(function() lock(owner):lock() end)
      eventually(function() return #(lock("me"):peek().queue) == i end)
    end
    local text, line = status "cli:fair"
    assert.matches('^"cli:fair" is held: fair lock\n  held by me, 1 time\n'
      .. "  for [^\n]*\n  1. in line: first\n  2. in line: second\n$", text)
    assert.matches('"kind":"fair","name":"cli:fair",'
      .. '"queue":%[{"owner":"first"},{"owner":"second"}%],', line)
    for _, waiter in ipairs(waiting) do waiter:cancel(5) end
    assert(lock("me"):unlock())
    server:cli("RPUSH", "redisson_lock_queue:{cli:fair}", "left")
    text = status("cli:fair", free)
    assert.equal('"cli:fair" is free: fair lock\n  1. in line: left\n', text)
    server:cli("DEL", "redisson_lock_queue:{cli:fair}")
  end)

  it("shows a read/write lock with its readers and its writer", function()
    local function side(owner)
      return client:read_write_lock("cli:rw", { owner = owner })
    end
    assert(side("a"):read_lock():lock())
    assert(side("a"):read_lock():lock())
    local text, line = status "cli:rw"
    assert.matches('^"cli:rw" is held: read/write lock\n  read by a, 2 times\n'
      .. "  for [^\n]*\n  no owner has an id [^\n]+\n$", text)
    assert.matches('"holders":%[{"count":2,"mode":"read","owner":"a"}%],'
      .. '"kind":"readwrite"', line)
    assert(side("a"):read_lock():unlock())
    assert(side("a"):read_lock():unlock())
    assert(side("b"):write_lock():lock())
    assert(side("b"):read_lock():lock())
    text = status "cli:rw"
    assert.matches("\n  written by b, 1 time\n  read by b, 1 time\n  for ",
      text)
    assert(side("b"):write_lock():unlock())
    assert.matches("\n  read by b, 1 time\n  for ", (status "cli:rw"))
    assert(side("b"):read_lock():unlock())
    assert.equal('"cli:rw" is free\n', (status("cli:rw", free)))
  end)

  it("shows a fair read/write lock with its line", function()
    local function side(owner)
      return client:fair_read_write_lock("cli:frw", { owner = owner })
    end
    assert(side("a"):read_lock():lock())
    local waiting = task.start(function() side("b"):write_lock():lock() end)
    eventually(function()
      return #(side("a"):read_lock():peek().queue) == 1
    end)
    local text, line = status "cli:frw"
    assert.matches('^"cli:frw" is held: fair read/write lock\n'
      .. "  read by a, 1 time\n  for [^\n]*\n  1. in line: b, to write\n$",
      text)
    assert.matches('"queue":%[{"mode":"write","owner":"b"}%],', line)
    waiting:cancel(5)
    assert(side("a"):read_lock():unlock())
  end)

  it("shows permits, and which are in use", function()
    local permits = client:permits "cli:permits"
    assert(permits:set(3))
    local id = assert(permits:acquire { lease = 60 })
    local text, line = status("cli:permits", free)
    assert.matches('^"cli:permits" is free: permits, 2 available, 1 in use\n'
      .. "  held by [^\n]+, id " .. id .. " for [56]%d%.%d s more\n$", text)
    assert.matches('^{"available":2,"holders":%[{"owner":"' .. id
      .. '","ttl_ms":%d+,"who":{.-}}%],"in_use":1,"kind":"permits",', line)
    assert(permits:release(id))
  end)

  it("shows a semaphore and a latch, which wait alike", function()
    local semaphore = client:semaphore "cli:sem"
    local latch = client:latch "cli:latch"
    assert(semaphore:set(3))
    assert(latch:set(2))
    local text, line = status("cli:sem", unknown)
    assert.equal('"cli:sem" is 3: semaphore or latch\n', text)
    assert.equal('{"count":3,"holders":[],"kind":"semaphore or latch",'
      .. '"name":"cli:sem","waiters":0}\n', line)
    assert.equal('"cli:latch" is 2: semaphore or latch\n',
      (status("cli:latch", unknown)))
    assert.matches('"cli:sem" is free: semaphore, 3 available\n',
      free("status", "cli:sem", "--policy", "semaphore"))
    assert.matches('"cli:sem" is held: latch at 3\n',
      output("status", "cli:sem", "--policy", "latch"))
    local function told(name)
      return ctl.run { url = server.url, "status", name }.out
    end
    local one = task.start(function() semaphore:acquire(4) end)
    local other = task.start(function() latch:wait() end)
    eventually(function()
      return told "cli:sem" == '"cli:sem" is free: semaphore, 3 available\n'
          .. "  1 client is waiting for it\n"
        and told "cli:latch" == '"cli:latch" is held: latch at 2\n'
          .. "  1 client is waiting for it\n"
    end)
    assert.matches('"available":3,.*"kind":"semaphore",',
      select(2, status("cli:sem", free)))
    assert.matches('"count":2,.*"kind":"latch",.*"state":"held"',
      select(2, status "cli:latch"))
    one:cancel(5)
    other:cancel(5)
    for _, number in ipairs { "0", "-2147483648" } do   -- no latch is at these
      client:call("SET", "cli:sem", number)
      assert.matches(" is held: semaphore, " .. number:gsub("-", "%%-")
        .. " available\n", (status "cli:sem"))
    end
  end)

  it("shows the members of a barrier", function()
    local barrier, double = client:barrier "cli:barrier",
      client:double_barrier("cli:double", 1)
    assert(barrier:set())
    assert(double:enter())
    for _, name in ipairs { "cli:barrier", "cli:double" } do
      local text, line = status(name)
      assert.matches('^"' .. name .. '" is held: barrier at 1\n  held by '
        .. "[^\n]+ for %d+%.%d s more\n", text)
      assert.matches('^{"count":1,"holders":%[{"owner":"%x+","ttl_ms":%d+,'
        .. '"who":{.-}}%],"kind":"barrier",', line)
      assert.matches("\n" .. name .. " +barrier ",
        ctl.output { url = server.url, "ls" })
    end
    assert(barrier:remove() and double:leave())
    assert.matches('^"cli:barrier" is free\n', (status("cli:barrier", free)))
    assert.is_nil(ctl.output { url = server.url, "ls" }:find "barrier")
  end)

  it("calls a number unknown that rlock may not have written", function()
    local name = "cli:[n]*\\{?}"
    server:cli("SET", name, "-7")
    server:cli("SET", "rlock_request:cli:n:x", "1")
    server:cli("SET", "rlock_request:{cli:na}:01234567-89ab-cdef-0123-"
      .. "456789abcdef:1", "1")
    local text, line = status(name, unknown)
    assert.matches(" is unknown: a whole number, which may be a semaphore, a "
      .. "latch or permits %(%-7%)\n"
      .. "  give %-%-policy semaphore or latch or permits if it is one\n$",
      text)
    assert.matches('^{"count":%-7,"holders":%[%],"kind":"unknown","may_be":'
      .. '%["semaphore","latch","permits"%],"name":"[^"]+","state":"unknown",'
      .. '"type":"string"}\n$', line)
    assert(client:semaphore(name):release())
    assert.matches(" is held: semaphore, %-6 available\n", (status(name)))
    server:cli("DEL", name)
    server:cli("SET", "cli:n", "3")
    assert.matches(" is unknown: ", (status("cli:n", unknown)))
  end)

  it("shows every kind that there is under a name", function()
    local one = client:lock("cli:two", { owner = "a" })
    local other = client:fair_read_write_lock("cli:two", { owner = "b" })
      :write_lock()
    assert(one:lock())
    assert(other:lock())
    local text, line = status "cli:two"
    assert.matches("reentrant lock\n  held by a, .*fair read/write lock\n"
      .. "  written by b, ", text)
    assert.matches('^{[^\n]*"reentrant"[^\n]*\n'
      .. '{[^\n]*"fair_readwrite"[^\n]*\n$', line)
    assert(one:unlock())
    assert(other:unlock())
  end)

  it("shows some of very many, and reads no more than these", function()
    server:script {
      { "EVAL", [[
        for i = 1, 20000 do
          redis.call("hset", KEYS[1], ARGV[1] .. i, 1)
          redis.call("rpush", KEYS[2], "waiter " .. i)
          redis.call("zadd", KEYS[3], 1e14 + i, "permit " .. i)
        end
        redis.call("hset", KEYS[1], "mode", "read")
        redis.call("set", KEYS[4], 0)
        redis.call("hset", KEYS[5], "me", 1)]], "5", "cli:many",
        "redisson_lock_queue:{cli:queue}", "{cli:ids}:timeout", "cli:ids",
        "cli:queue", "01234567-89ab-cdef-0123-456789abcdef:" },
    }
    for name, count in pairs { many = "read by", queue = "in line:",
        ids = "held by" } do
      local shown = select(2, status("cli:" .. name):gsub(count, ""))
      assert.is_true(shown >= 20 and shown <= 200, name .. ": " .. shown)
    end
    server:cli("DEL", "cli:many", "redisson_lock_queue:{cli:queue}",
      "{cli:ids}:timeout", "cli:ids", "cli:queue")
  end)

  it("writes nothing", function()
    assert(client:lock("cli:still"):lock { lease = 60 })
    local function changes()
      return server:cli("INFO", "persistence"):match("rdb_changes[%w_]*:%d+")
    end
    local before = changes()
    status "cli:still"
    assert.equal(before, changes())
    assert(client:lock("cli:still"):unlock())
  end)

  it("lets no name touch the terminal, and keeps JSON valid", function()
    local name = "cli:\27[31m\n\t\"\\\255"
    server:cli("HSET", name, "\27]0;x\7\255", "1")
    server:cli("PEXPIRE", name, 60000)
    local text, line = status(name)
    assert.is_nil(text:find("[%z\1-\9\11-\31]"))
    assert.equal(4, select(2, text:gsub("\n", "")))
    assert.is_truthy(utf8.len(line))
    assert.is_truthy(line:find('"name":"cli:\\u001b[31m\\u000a\\u0009\\u0022'
      .. '\\u005c\u{FFFD}"', 1, true))
    server:cli("DEL", name)
  end)

  it("reads the name literally after --", function()
    assert.equal('"--json" is free\n', free("status", "--", "--json"))
  end)

  it("takes --url, before or after its name", function()
    local there, nowhere = server.url, "unix:///nowhere"
    for _, words in ipairs {
      { "--url", there, "status", "x" }, { "status", "--url", there, "x" },
      { "status", "x", "--url=" .. there },
      { "--url", nowhere, "status", "x", "--url", there },
    } do
      words.url = nowhere
      assert.equal('"x" is free\n', ctl.run(words).out)
    end
  end)

  it("uses a user's policy", function()
    ctl.file("own/three.lua", [[
      local server = {
        acquire = function() return { "held" } end,
        release = function() return { "freed" } end,
        peek = function(keys)
          return { "held", 60000, 0, { "a", 2, "b", 1 }, { "queue", { "c" } } }
        end,
      }
      return { name = "three", keys = function(name) return { name } end,
        server = server }]])
    local path = "--lua-path=" .. ctl.folder() .. "/own"
    assert.equal('"x" is held: three\n  held by a, 2 times\n'
      .. "  held by b, 1 time\n  for 60.0 s more, unless it is renewed\n"
      .. "  1. in line: c\n", output(path, "status", "x", "--policy", "three"))
    assert.matches('status: "x": policy "nowhere": there is no such module',
      fault(206, { "status", "x", "--policy", "nowhere" }))
    assert.matches('"fair" is free: fair lock\n',
      free("status", "fair", "--policy=fair"))
  end)

  it("exits with 4 for a key that is not a lock", function()
    local many = { "hash", "HSET", "cli:odd" }
    for i = 1, 101 do
      many[#many + 1], many[#many + 2] = "field " .. i, "1"
    end
    for _, case in ipairs {
      many,
      { "list", "RPUSH", "cli:odd", "x" }, { "set", "SADD", "cli:odd", "x" },
      { "hash", "HSET", "cli:odd", "name", "Bob" },
      { "hash", "HSET", "cli:odd", "mode", "read" },
      { "string", "SET", "cli:odd", ("x"):rep(5000), "PX", 60000 },
      { "string", "SET", "cli:odd", "word" },
      { "string", "SET", "cli:odd", "two words", "PX", 60000 },
      { "string", "SET", "cli:odd", '{"a":1}', "PX", 60000 },
      { "string", "SET", "cli:odd", "", "PX", 60000 },
    } do
      local kind = case[1]
      server:cli(table.unpack(case, 2))
      assert.equal('"cli:odd" is unknown: a ' .. kind
        .. ", not one of rlock's own locks\n", unknown("status", "cli:odd"))
      server:cli("DEL", "cli:odd")
    end
  end)

  it("ends with 202 if the server cannot be reached", function()
    assert.matches("/nowhere: no such file or directory",
      fault(202, { "status", "x", url = "unix:///nowhere" }))
    assert.matches("127.0.0.1:1: connection refused",
      fault(202, { "status", "x", url = "redis://127.0.0.1:1" }))
    assert.matches("nohost.invalid:6379: ",
      fault(202, { "status", "x", url = "redis://nohost.invalid" }))
  end)

  it("says that a bad address came from RLOCK_URL", function()
    assert.matches("^rlockctl: RLOCK_URL: bad url: must begin with redis://",
      fault(206, { "status", "x", url = "localhost:6379" }))
    local text = fault(206, { "--url", "localhost", "status", "x", url = "x" })
    assert.matches("^rlockctl: %-%-url: bad url", text)
  end)

  it("ends with 206 without a name, or with two", function()
    for _, words in ipairs { {}, { "" }, { "a", "b" } } do
      assert.matches("status: give the name of one lock",
        fault(206, { "status", table.unpack(words) }))
    end
  end)
end)

describe("rlockctl script", function()
  local OWN = [[
    local LIMIT = 3
    return {
      name = "own", keys = function(name) return { name } end,
      server = {
        acquire = function(keys) return { "held", LIMIT } end,
        release = function(keys) return { "freed" } end,
      },
    }]]

  it("prints what Redis runs for an operation", function()
    local text = output("script", "reentrant", "renew")
    assert.matches('redis.call%("pexpire", lock, lease%)', text)
    assert.equal(1, select(2, text:gsub("%-%- rlock reentrant.renew\n", "")))
  end)

  it("prints it to the letter: its sha is that of the script", function()
    output("-e", 'assert(require("rlock").open():lock("cli:sha"):lock())')
    local sha = server:cli("EVAL", "return redis.sha1hex(ARGV[1])", "0",
      output("script", "reentrant", "acquire"))
    assert.equal("1", server:cli("SCRIPT", "EXISTS", sha))
  end)

  it("prints all operations of a policy", function()
    local text, names = output("script", "reentrant"), {}
    for name in text:gmatch("%f[^\n%z]%-%- rlock reentrant%.([%w_]+)\n") do
      names[#names + 1] = name
    end
    assert.same({ "acquire", "break_", "leave", "peek", "release",
      "renew" }, names)
  end)

  it("prints a user's policy", function()
    ctl.file("own/my/own.lua", OWN)
    local own = ctl.folder() .. "/own"
    assert.matches("local LIMIT = 3\n.*return { \"held\", LIMIT }",
      output("--lua-path", own, "script", "my.own", "acquire"))
    assert.matches("local LIMIT = 3",
      output("script", "--lua-path", own, "my.own", "acquire"))
  end)

  it("reports a policy's error on one line", function()
    ctl.file("own/bad.lua", OWN:gsub("local LIMIT = 3", "local LIMIT = io"))
    local own = ctl.folder() .. "/own"
    assert.matches('script: policy "nowhere": there is no such module',
      fault(206, { "script", "nowhere" }))
    assert.matches("package.path; a module has a name such as a.b, not a path"
      .. "\n$",
      fault(206, { "script", "a/b.lua" }))
    assert.matches('script: policy "own": .*bad.lua:5: .*upvalue "LIMIT"',
      fault(206, { "--lua-path", own, "script", "bad" }))
    assert.matches("no operation fly, only acquire, break_, leave, peek, "
      .. "release", fault(206, { "script", "reentrant", "fly" }))
    fault(206, { "script" })
    fault(206, { "script", "reentrant", "renew", "x" })
  end)

  it("needs no server, and says when it cannot write", function()
    local result = ctl.run { "script", "reentrant", url = "unix:///nowhere" }
    assert.equal(0, result.status)
    result = ctl.run { program = "sh", "-c",
      '"$0" script reentrant >/dev/full', ctl.binary }
    assert.equal(1, result.status)
    assert.matches("^rlockctl: cannot write: No space left", result.err)
    for _, command in ipairs { "help", "version" } do   -- written by parts
      result = ctl.run { program = "sh", "-c", '"$0" $1 >/dev/full',
        ctl.binary, command }
      assert.equal(1, result.status)
      assert.equal("rlockctl: cannot write: the output is incomplete\n",
        result.err)
      result = ctl.run { program = "sh", "-c", '"$0" $1 >&-', ctl.binary,
        command }
      assert.same({ 0, "" }, { result.status, result.err })
    end
  end)
end)

describe("rlockctl help and version", function()
  it("show all commands, or one", function()
    for _, words in ipairs { { "help" }, { "--help" }, { "-h" } } do
      assert.matches("^rlockctl runs Lua programs", output(table.unpack(words)))
    end
    for _, name in ipairs { "status", "script", "local", "help", "version" } do
      local text = output("help", name)
      assert.matches("^rlockctl " .. name, text)
      assert.equal(text, output(name, "--help"))
      assert.equal(text, output("--help", name))
    end
    assert.matches("help: there is no command fly", fault(206,
      { "help", "fly" }))
    fault(206, { "help", "json" })
  end)

  it("fit a terminal", function()
    for line in output("help"):gmatch("[^\n]*") do
      assert.is_true(#line <= 80, line)
    end
  end)

  it("show what the binary is made of", function()
    local text = output("version")
    assert.matches("^rlock %d+%.%d+%.%d+ %(Lua 5%.4, libuv [%d.]+, hiredis "
      .. "[%d.]+, TLS %l+%)\n$", text)
    assert.equal(text, output("--version"))
    assert.equal(text, output("-V"))
  end)
end)

describe("a password", function()
  local SECRET = "s3cr3t%2Fpw"

  -- The outcome, after asserting that the secret is not shown.
  local function hidden(options)
    local result = ctl.run(options)
    local text = result.out .. result.err
    assert.is_nil(text:lower():find("s3cr3t", 1, true), text)
    return result
  end

  it("is not shown in any error", function()
    local guarded = redis.start { password = "other" }
    finally(function() guarded:stop() end)
    local urls = {
      ["redis://:" .. SECRET .. "@127.0.0.1:1"] = 202,
      ["redis://me:" .. SECRET .. "@127.0.0.1:1/0"] = 202,
      ["redis://:" .. SECRET .. "@127.0.0.1:99999"] = 206,
      ["redis://:" .. SECRET .. "@"] = 206,
      ["redis://" .. SECRET .. "@127.0.0.1:x"] = 206,
      ["redis://:s3cr3t/pw@127.0.0.1"] = 206,
      ["http://:" .. SECRET .. "@127.0.0.1"] = 206,
      [":" .. SECRET .. "@127.0.0.1"] = 206,
      ["unix://:" .. SECRET .. "@" .. guarded.socket] = 208,
      ["unix://:" .. SECRET .. "@/nowhere"] = 202,
    }
    for url, status in pairs(urls) do
      for _, options in ipairs {
        { "status", "x", url = url }, { "--url", url, "status", "x" },
        { "status", "x", "--url=" .. url }, { "-v", "--url=" .. url, "status",
          "x" },
      } do
        assert.equal(status, hidden(options).status, url)
      end
      if url:find("://", 1, true) then hidden { url } end
      hidden { "--urll=" .. url, "status", "x" }
      hidden { "-u" .. url, "status", "x" }
      hidden { "status", "x", "--json=" .. url }
      hidden { "local", url }
    end
  end)

  it("is not shown when the server sends it back", function()
    local odd = redis.start { args = { "--rename-command", "AUTH", "" } }
    finally(function() odd:stop() end)
    local result = hidden { "status", "x",
      url = "unix://:" .. SECRET .. "@" .. odd.socket }
    assert.equal(1, result.status)
  end)

  it("that is right opens a connection", function()
    local guarded = redis.start { password = "s3cr3t/pw@:" }
    finally(function() guarded:stop() end)
    assert.equal('"x" is free\n', hidden { "status", "x",
      url = guarded.url }.out)
  end)
end)
