--- What a lock returns when the server is unreachable or refuses: nil, a code
--- and a message, in time, with nothing left behind.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local host = require "rlock.host.uv"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"
local within = require "spec.tools.within"

local TIMEOUT = 0.4 * slow
local SLACK = 20 * slow

local server

local function start(options) server = fixtures.server(options) end

local function open(options)
  return fixtures.open({ url = server.url, timeout = TIMEOUT }, options)
end

local function refused(code, pattern, ok, its_code, detail)
  assert.is_nil(ok)
  assert.equal(code, its_code)
  assert.matches(pattern, detail)
end

describe("opening a client", function()
  after_each(fixtures.close)

  local function fails(pattern, options, code)
    options.connect_timeout = options.connect_timeout or 3 * slow
    local ok, its_code, detail = within(options.connect_timeout + SLACK,
      rlock.open, options)
    refused(code or "connect", pattern, ok, its_code, detail)
    assert.is_nil(detail:find("s3cret", 1, true), detail)
  end

  it("at an unknown host fails and names it", function()
    fails("no%-such%-host%.invalid:6379", {
      url = "redis://:s3cret@no-such-host.invalid",
    })
  end)

  it("at a closed port fails at once", function()
    start { port = true }
    local port = server.port
    server:kill()
    fails("127%.0%.0%.1:" .. port .. ".*refused", {
      url = ("redis://:s3cret@127.0.0.1:%d"):format(port),
    })
  end)

  it("at a missing socket, or no socket, fails at once", function()
    fails("/nowhere/redis.sock", { url = "unix:///nowhere/redis.sock" })
    local path = os.tmpname()
    fails(path:gsub("%p", "%%%0"), { url = "unix://" .. path })
    os.remove(path)
  end)

  it("at a server that never answers fails in time", function()
    start()
    server:pause()
    fails(".", { url = server.url, connect_timeout = TIMEOUT })
    server:resume()
  end)

  it("with a wrong password, user or database says so", function()
    start { password = "right", users = { "alice on >word ~* &* +@all" } }
    local path = server.socket
    fails("WRONGPASS", { url = "unix://:s3cret@" .. path })
    fails("WRONGPASS", { url = "unix://alice:s3cret@" .. path })
    fails("WRONGPASS", { url = "unix://nobody:s3cret@" .. path })
    fails("NOAUTH", { url = "unix://" .. path })
    local from = ", from " .. path:gsub("%p", "%%%0")
    fails("in reply to AUTH" .. from, { url = "unix://:s3cret@" .. path })
    fails("in reply to CLIENT" .. from, { url = "unix://" .. path })
    fails("DB index", { url = "unix://alice:word@" .. path .. "?db=99" },
      "redis")
    local client = fixtures.open("unix://alice:word@" .. path .. "?db=3")
    assert.is_true(client:lock("a"):lock())
    client:close()
  end)

  it("with a user and no password is not the default user", function()
    start { users = { "alice on >word ~* &* +@all", "bob on nopass +@all" } }
    local path = server.socket
    fails("WRONGPASS", { url = "unix://alice@" .. path })
    fails("WRONGPASS", { url = "unix://nobody@" .. path })
    local client = fixtures.open("unix://bob@" .. path)
    assert.equal("bob", client:call("ACL", "WHOAMI"))
    client:close()
  end)

  it("with a password that the server does not use says so", function()
    start()
    fails("AUTH", { url = "unix://:s3cret@" .. server.socket })
  end)

  it("at a server without free connections says so", function()
    start()
    local only = assert(host.connect {
      path = server.socket, timeout = 5000, silent = 0,
    })
    only:call(5000, "CONFIG", "SET", "maxclients", "1")
    fails(".", { url = server.url })
    only:close()
  end)
end)

describe("a misused call", function()
  before_each(start)
  after_each(fixtures.close)

  it("raises an error at its line", function()
    local client = open()
    for pattern, fn in pairs {
      ["call it with a colon: client:lock%(%)$"] = function()
        client.lock("a dot, where a colon was meant")
      end,
      ["bad name: must be a string that is not empty, is nil"] = function()
        client:lock()
      end,
      ["bad name: must be a string that is not empty, is empty"] = function()
        client:semaphore("")
      end,
      ["no try_lock here: a read/write lock is two locks"] = function()
        client:read_write_lock("x"):try_lock()
      end,
    } do
      local ok, message = pcall(fn)
      assert.is_false(ok)
      assert.matches("refusals_spec.lua:%d+: " .. pattern, message)
    end
  end)
end)

describe("a lock that is not held", function()
  before_each(start)
  after_each(fixtures.close)

  local function kinds(client)
    return {
      client:lock("a"), client:simple_lock("b"),
      rlock.multi_lock { client:lock("c"), client:lock("d") },
      rlock.red_lock({ client }, "e"),
    }
  end

  it("is not called lost by `need`, nor given out for no time at all",
    function()
      for _, lock in ipairs(kinds(open())) do
        for _, seconds in ipairs { 0, 1 } do
          refused("not_held", "this task does not hold it", lock:need(seconds))
        end
        local hold = assert(lock:hold())
        assert.is_true(hold:need(1))
        refused("lost", "valid for [%d.]+ s only, 60 s are", hold:need(60))
        assert(hold:unlock())
        refused("not_held", "this task does not hold it", hold:need(0))
      end
    end)
end)

describe("the result of tostring", function()
  after_each(fixtures.close)

  it("names the object, without a password", function()
    start { password = "s3cret" }
    local client = open()
    assert.equal("rlock client of " .. server.socket, tostring(client))
    local lock = client:lock("a\n\27name")
    assert.equal('reentrant lock "a??name"', tostring(lock))
    assert.equal('hold of reentrant lock "a??name"', tostring(lock:hold()))
    local multi = rlock.multi_lock { client:lock("a"), client:lock("b") }
    assert.equal("multi-lock of 2 locks", tostring(multi))
    assert.equal("hold of multi-lock of 2 locks", tostring(multi:hold()))
    assert.equal('red lock "x"', tostring(rlock.red_lock({ client }, "x")))
  end)
end)

describe("a client whose password was changed", function()
  before_each(function() start { password = "old" } end)
  after_each(function()
    server.password = "old"
    fixtures.close()
  end)

  it("says so once its connection is gone, and works when it is changed back",
    function()
      local client = open()
      local lock = client:lock("changed")
      assert.is_true(lock:lock())
      assert.is_true(lock:unlock())
      server:cli("CONFIG", "SET", "requirepass", "new")
      server.password = "new"
      server:cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
      -- The first attempt may still use the killed connection.
      local ok, code, detail
      eventually(function()
        ok, code, detail = within(TIMEOUT + SLACK, lock.try_lock, lock)
        return code ~= "closed"
      end)
      refused("connect", "WRONGPASS", ok, code, detail)
      server:cli("CONFIG", "SET", "requirepass", "old")
      server.password = "old"
      eventually(function() return lock:try_lock() end, 10 * slow)
      assert.is_true(lock:unlock())
    end)
end)

describe("a user without permission", function()
  before_each(function() start() end)
  after_each(fixtures.close)

  -- A lock of a client whose user has all rights but these.
  local function limited(...)
    server:cli("ACL", "SETUSER", "alice", "reset", "on", ">word", "~*", "&*",
      "+@all", ...)
    local client = open { username = "alice", password = "word" }
    return client:lock("limited"), client
  end

  local function nothing_left()
    eventually(function() return server:cli("EXISTS", "limited") == "0" end)
  end

  -- Asserts that a waiter of the first lock gets it when the holder unlocks the
  -- other.
  local function passes(its, theirs)
    task.run(function()
      assert(theirs:lock())
      local before = server:stat "evalsha"
      local waiting = task.start(function()
        return its:lock { wait = 30 * slow }
      end)
      eventually(function() return server:stat "evalsha" > before end)
      theirs:unlock()
      assert.is_true(waiting:join())
    end)
  end

  it("to run scripts gets an error", function()
    local lock = limited "-evalsha"
    refused("redis", "NOPERM.*evalsha", within(SLACK, lock.try_lock, lock))
    refused("redis", "NOPERM.*evalsha", within(SLACK, lock.lock, lock,
      { wait = 60 }))
    nothing_left()
  end)

  it("to load scripts gets an error", function()
    local lock = limited "-script"
    refused("redis", "NOPERM.*script", within(SLACK, lock.try_lock, lock))
    nothing_left()
  end)

  it("to use the key gets an error", function()
    local lock = limited("resetkeys", "~other*")
    local why = "NOPERM .* for \"limited\": redis%-cli acl setuser USER "
      .. "'~limited%*' .*; rlockctl doctor %-%-name NAME lists"
    refused("redis", why, within(SLACK, lock.try_lock, lock))
    refused("redis", why, within(SLACK, lock.is_locked, lock))
    nothing_left()
  end)

  it("to write the token is told which key, and nothing is left behind",
    function()
      local _, client = limited("resetkeys", "~limited", "~*token:{limited}",
        "%R~*token:{limited}:simple")
      local fenced = client:simple_lock("limited", { fenced = true })
      refused("redis", "keys mentioned .* '~redisson_lock_token:{limited}%*'; "
        .. "rlockctl", within(SLACK, fenced.try_lock, fenced))
      assert.equal("free", fenced:state())
      nothing_left()
    end)

  -- Redis 7.0 does not name the command, 7.2 does; rlock names the line.
  local IN_SCRIPT = "policy/%w+%.lua:%d+"

  for _, command in ipairs { "pexpire", "hset", "pttl" } do
    it("to " .. command .. " is told so, and nothing is left behind",
      function()
        local lock = limited("-" .. command)
        refused("redis", IN_SCRIPT, within(SLACK, lock.try_lock, lock))
        assert.equal("free", lock:state())
        assert.equal("not_held", select(2, lock:unlock()))
        nothing_left()
      end)
  end

  it("to publish gets an error from unlock, which still frees the lock",
    function()
      local lock = limited "-publish"
      assert.is_true(lock:lock())
      refused("redis", IN_SCRIPT, within(SLACK, lock.unlock, lock))
      nothing_left()
      assert.equal("not_held", select(2, lock:unlock()))
    end)

  it("to publish delays waiters only briefly", function()
    passes(open():lock "limited", (limited "-publish"))
  end)

  it("to subscribe still waits", function()
    passes((limited "-subscribe"), open():lock "limited")
  end)

  it("to use the channel still waits, and so do other locks", function()
    local lock, client = limited("resetchannels", "&*fine*")
    local other = open()
    passes(lock, other:lock "limited")
    passes(client:lock "fine", other:lock "fine")
  end)

  it("to delete gets an error from unlock; the lease ends it", function()
    local lock = limited "-del"
    assert.is_true(lock:lock { lease = 1 * slow })
    refused("redis", IN_SCRIPT, within(SLACK, lock.unlock, lock))
    assert.equal("not_held", select(2, lock:unlock()))
    nothing_left()
  end)

  it("to ping can lock", function()
    local lock = limited "-ping"
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
  end)
end)

describe("a server that refuses temporarily", function()
  local client, lock

  before_each(function()
    start()
    client = open { watchdog = 1.5 * slow }
    lock = client:lock("refused")
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
  end)

  after_each(fixtures.close)

  -- The server refuses with `word` from arrange() to undo().
  local function rides_out(word, arrange, undo)
    arrange()
    local ok, code, detail = within(TIMEOUT + SLACK, lock.try_lock, lock)
    refused("redis", word, ok, code, detail)
    assert.equal("free", lock:state())
    ok, code, detail = within(2 * TIMEOUT + SLACK, lock.lock, lock,
      { wait = 2 * TIMEOUT })
    assert.is_nil(ok)
    assert.is_true(code == "redis" or code == "timeout",
      ("%s: %s"):format(code, detail))
    local waiting = task.start(function()
      return lock:lock { wait = 30 * slow }
    end)
    rlock.sleep(TIMEOUT)
    undo()
    assert.is_true(waiting:join())
  end

  local function set(...) return server:cli("CONFIG", "SET", ...) end

  it("because it is out of memory is retried until the deadline",
    function()
      rides_out("OOM", function() set("maxmemory", "1") end,
        function() set("maxmemory", "0") end)
    end)

  it("because it is a replica is retried until the deadline",
    function()
      rides_out("READONLY",
        function() server:cli("REPLICAOF", "127.0.0.1", "1") end,
        function() server:cli("REPLICAOF", "NO", "ONE") end)
    end)

  it("because replicas are missing is retried until the deadline",
    function()
      rides_out("NOREPLICAS",
        function() set("min-replicas-to-write", "1") end,
        function() set("min-replicas-to-write", "0") end)
    end)

  it("because a script occupies it is retried until the deadline",
    function()
      set("lua-time-limit", "5")
      rides_out("BUSY", function()
        server:background("EVAL", "while true do end", "0")
        eventually(function()
          return server:cli("PING"):find("BUSY", 1, true)
        end)
      end, function() server:cli("SCRIPT", "KILL") end)
    end)

  it("because it loads its data is retried until the deadline",
    function()
      -- It serves other clients after each value, so replies come soon.
      local values, value = { "MSET" }, ("v"):rep(1100)
      for i = 1, 4000 do
        values[#values + 1] = "key:" .. i
        values[#values + 1] = value
      end
      server:script { values }
      set("rdbcompression", "no")
      set("key-load-delay", ("%.0f"):format(1000 * slow))
      set("loading-process-events-interval-bytes", "1024")
      server:background("DEBUG", "RELOAD")
      eventually(function()
        return server:cli("PING"):find("LOADING", 1, true)
      end)
      local ok, code, detail = within(TIMEOUT + SLACK, lock.try_lock, lock)
      refused("redis", "LOADING", ok, code, detail)
      local fresh = open()
      assert.is_true(fresh:lock("refused"):lock { wait = 30 * slow })
      assert.equal("PONG", server:cli("PING"))
    end)

  it("because the cluster has no owner for the slot says so", function()
    local cluster = fixtures.server {
      port = true, args = { "--cluster-enabled", "yes" },
    }
    local its = open { url = cluster.url }:lock("refused")
    refused("redis", "CLUSTERDOWN", within(TIMEOUT + SLACK, its.try_lock,
      its))
  end)
end)
