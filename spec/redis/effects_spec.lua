--- Commands that run only while a hold lasts, on a real Redis: `call` and
--- `transaction` of a lock and of a hold.

local command_keys = require "rlock.redis.command_keys"
local blind = require "spec.tools.blind_policy"
local control = require "spec.tools.control"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local kinds = require "rlock.lock.kinds"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local TIMEOUT = 0.5 * slow

local multi = rlock.multi_lock

local server, client, name, key

-- A command to the server without rlock.
local function ask(...) return control.ask(server, ...) end

-- The locks of each kind: { title, function (client, name) -> lock }.
local function each_lock(fn)
  for _, kind in ipairs(kinds) do
    if kind.pair then
      for _, side in ipairs { "read_lock", "write_lock" } do
        fn(kind.title .. ": " .. side, function(of)
          local pair = of[kind.factory](of, name)
          return pair[side](pair)
        end)
      end
    elseif not kind.driver then
      fn(kind.title, function(of) return of[kind.factory](of, name) end)
    end
    if not kind.driver then
      fn(kind.title .. " with tokens", function(of)
        local made = of[kind.factory](of, name, { fenced = true })
        return kind.pair and made:write_lock() or made
      end)
    end
  end
end

describe("a command under a lock", function()
  after_each(fixtures.close)

  before_each(function()
    server = redis.shared()
    client, name = fixtures.open { url = server.url, timeout = TIMEOUT },
      fixtures.name "effects"
    key = name .. ":value"
  end)

  each_lock(function(title, make)
    it("runs while it is held, and not afterwards: " .. title, function()
      local lock = make(client)
      assert.equal("not_held", select(2, lock:call("SET", key, "none")))
      assert(lock:lock())
      assert.equal("OK", lock:call("SET", key, "one"))
      assert.equal("one", ask("GET", key))
      assert.is_true(lock:break_lock())
      local ok, code, detail = lock:call("SET", key, "late")
      assert.same({ nil, "lost" }, { ok, code }, detail)
      assert.equal("one", ask("GET", key))
      lock:unlock()
    end)
  end)

  it("does nothing for a holder that another has replaced", function()
    local lock, other = client:lock(name), fixtures.open(server.url):lock(name)
    local hold = assert(lock:hold { lease = 100 })
    ask("DEL", name)                     -- its lease ends on the server alone
    assert.is_true(task.run(function() return other:lock() end))
    assert.equal("lost", select(2, hold:call("SET", key, "late")))
    assert.equal("lost", select(2, hold:transaction(function(t)
      t:call("SET", key, "late")
    end)))
    assert.is_false(ask("GET", key))
    assert.equal(1, ask("EXISTS", name))
  end)

  it("does nothing while the lock is only reserved for its owner", function()
    local lock = client:lock(name)
    assert(lock:lock())
    ask("HSET", name, lock:mine().owner_name, "0")
    assert.equal("lost", select(2, lock:call("SET", key, "early")))
    assert.is_false(ask("GET", key))
    lock:break_lock()
    lock:unlock()
  end)

  it("tells the holder that it has lost the lock", function()
    local lock, lost = client:lock(name), nil
    assert(lock:lock())
    local told = rlock.event()
    lock:on_lost(function(_, why) lost = why told:set() end)
    ask("DEL", name)
    assert.equal("lost", select(2, lock:call("GET", key)))
    assert(told:wait(10 * slow))
    assert.is_string(lost)
    assert.equal("lost", lock:state())
    lock:unlock()
  end)

  it("returns any reply, and errors of the server with the command", function()
    local lock = client:lock(name)
    assert(lock:lock())
    assert.is_false(lock:call("GET", key))
    assert.equal(2, lock:call("RPUSH", key, "a", 2))
    assert.same({ "a", "2" }, lock:call("LRANGE", key, 0, -1))
    local ok, code, detail = lock:call("INCR", key)
    assert.same({ nil, "redis" }, { ok, code })
    assert.matches("^INCR: WRONGTYPE", detail)
    ok, code, detail = lock:call("NONSENSE", key)
    assert.same({ nil, "redis" }, { ok, code })
    assert.matches("^NONSENSE: ", detail)
    assert(lock:unlock())
  end)

  it("has its keys declared, wherever they are among its words", function()
    local function keys_of(...)
      return command_keys.of(client.session.server.node, rlock.now() + TIMEOUT,
        { ... }, select("#", ...))
    end
    assert.same({ "a" }, keys_of("set", "a", 1))
    assert.same({ "a", "b" }, keys_of("MSET", "a", 1, "b", 2))
    assert.same({ "a", "b", "c" }, keys_of("DEL", "a", "b", "c"))
    assert.same({ "to", "a", "b" }, keys_of("ZUNIONSTORE", "to", 2, "a", "b"))
    assert.same({ "a" }, keys_of("XADD", "a", "*", "field", 1))
    assert.same({ "a" }, keys_of("OBJECT", "ENCODING", "a"))
    for _ = 1, 2 do
      assert.same({}, keys_of "PING")
      assert.same({}, keys_of "NONSENSE")
      assert.same({}, keys_of "SET")
    end
  end)

  it("runs with others as one step, up to the first failure", function()
    local hold = assert(client:lock(name):hold())
    local replies = assert(hold:transaction(function(t)
      t:call("SET", key, 1)
      t:call("INCRBY", key, 41)
      t:call("GET", name .. ":none")
    end))
    assert.same({ "OK", 42, false }, replies)
    local ok, code, detail = hold:transaction(function(t)
      t:call("INCR", key)
      t:call("LPUSH", key, 1)
      t:call("INCR", key)
    end)
    assert.same({ nil, "redis" }, { ok, code })
    assert.matches("^LPUSH: .*%(command 2 of 3; those before it were executed",
      detail)
    assert.equal("43", ask("GET", key))
    assert.same({}, hold:transaction(function() end))
    assert.has_error(function() hold:transaction(function() error("no", 0) end)
    end, "no")
    assert(hold:unlock())
    assert.equal("not_held", select(2, hold:call("GET", key)))
  end)

  it("is not sent if the hold ends while they are collected", function()
    local lock = client:lock(name)
    local hold = assert(lock:hold())
    local ok, code = hold:transaction(function(t)
      t:call("SET", key, "late")
      assert.is_true(hold:unlock())
      assert(client:lock(name .. ":other"):lock())     -- reuses its grant
    end)
    assert.same({ nil, "not_held" }, { ok, code })
    assert(lock:lock())
    assert.equal("not_held", select(2, lock:transaction(function(t)
      t:call("SET", key, "late")
      assert.is_true(lock:unlock())
    end)))
    assert.is_false(ask("GET", key))
    assert.is_true(client:lock(name .. ":other"):unlock())
  end)

  it("is guarded by all locks of a multi-lock", function()
    local both = multi { client:lock(name .. ":a"), client:lock(name .. ":b") }
    assert.equal("not_held", select(2, both:call("SET", key, 1)))
    assert(both:lock())
    assert.equal("OK", both:call("SET", key, 1))
    ask("DEL", name .. ":b")
    assert.equal("lost", select(2, both:call("SET", key, 2)))
    assert.equal("1", ask("GET", key))
    both:unlock()
  end)

  it("is refused with the reason if nothing could guard it", function()
    local function refused(lock, pattern)
      assert(lock:lock())
      local ok, code, detail = lock:call("SET", key, 1)
      assert.same({ nil, "usage" }, { ok, code })
      assert.matches(pattern, detail)
      lock:unlock()
    end
    local other = fixtures.open { url = server.url, timeout = TIMEOUT }
    refused(multi { client:lock(name), other:lock(name .. ":b") },
      "several clients")
    refused(multi { client:lock(name), client:mutex(name .. ":b") },
      "several kinds")
    refused(client:policy(blind, name), "no server.peek")
    local lock = client:lock(name)
    assert(lock:lock())
    local many = { "MSET" }
    for i = 1, 198, 2 do many[i + 1], many[i + 2] = key .. i, i end
    local _, code, detail = lock:call((table.unpack or unpack)(many))
    assert.equal("usage", code)
    assert.matches("at most 99", detail)
    assert.has_error(function() lock:call() end, "bad argument #1 of "
      .. 'lock:call: must be a command, such as "PING", is nil')
    assert.has_error(function() lock:call("SET", key, {}) end,
      "bad argument #3 of lock:call: must be a string or a number, is a table")
    assert(lock:unlock())
  end)
end)

describe("a command under a lock, beside faults", function()
  local proxy, lock

  before_each(function()
    server = fixtures.server()
    proxy = fixtures.proxy(server)
    client = fixtures.open { url = proxy.url, timeout = TIMEOUT }
    name = fixtures.name "effects"
    key = name .. ":value"
    lock = client:lock(name)
    assert(lock:lock())
    assert.equal("OK", lock:call("SET", key, 0))   -- loads the script
  end)

  after_each(fixtures.close)

  it("is not retried if its reply is lost", function()
    proxy:drop_replies(1, key)
    local ok, code, detail = lock:call("INCR", key)
    assert.same({ nil, "timeout" }, { ok, code })
    assert.matches("outcome is unknown", detail)
    assert.equal("1", ask("GET", key))
    assert.equal(2, lock:call("INCR", key))
    assert(lock:unlock())
  end)

  it("runs if the server has lost the script", function()
    ask("SCRIPT", "FLUSH")
    assert.equal(1, lock:call("INCR", key))
    assert(lock:unlock())
  end)

  it("waits for the primary if the server has become a replica", function()
    local patient = fixtures.open { url = proxy.url, timeout = 20 * slow }
    local hold = assert(patient:lock(name .. ":other"):hold())
    ask("REPLICAOF", "127.0.0.1", "1")
    local ok, code, detail = lock:call("INCR", key)
    assert.same({ nil, "redis" }, { ok, code })
    assert.matches("^READONLY.*connect to its primary", detail)
    local calls = control.evalshas(server)
    local waiting = task.start(function() return hold:call("INCR", key) end)
    eventually(function() return control.evalshas(server) > calls end)
    ask("REPLICAOF", "NO", "ONE")
    assert.equal(1, waiting:join())
    assert.equal("1", ask("GET", key))
    assert(hold:unlock())
    assert(lock:unlock())
  end)

  it("changes nothing on a server that has lost the lock", function()
    server:kill()
    server:launch()
    local ok, code = lock:call("INCR", key)
    assert.is_nil(ok)
    assert.is_true(code == "lost" or code == "timeout" or code == "connect",
      code)
    assert.is_false(ask("GET", key))
    lock:unlock()
  end)
end)
