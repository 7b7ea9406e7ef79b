--- How redis/errors.lua classifies Redis' errors, checked against real servers:
--- that nothing was applied is verified.

local errors = require "rlock.redis.errors"
local eventually = require "spec.tools.eventually"
local redis = require "spec.tools.redis"

local SET = "return redis.call('set', KEYS[1], ARGV[1])"

local servers = {}

local function start(options)
  local server = redis.start(options)
  servers[#servers + 1] = server
  return server
end

local function class(message, word)
  assert.equal(word, message:match("^%S+"), message)
  local row = errors.classify(message)
  if word ~= "ERR" then
    assert.is_not.equal(errors.classify("SOMETHING else"), row, message)
  end
  return row
end

-- A script that writes is refused with `word`, and the key does not exist.
local function refuses_writes(server, word)
  local row = class(server:cli("EVAL", SET, 1, "key", "x"), word)
  assert.equal("no", row.applied)
  assert.is_true(row.retry)
  return row
end

describe("a server's error", function()
  after_each(function()
    while servers[1] do table.remove(servers):stop() end
  end)

  it("of memory comes before the first write, never after it", function()
    local server = start { args = { "--maxmemory", "1" } }
    refuses_writes(server, "OOM")
    assert.equal("0", server:cli("EXISTS", "key"))
    assert.equal("OK", server:cli("EVAL", "redis.call('del', KEYS[1]) " .. SET,
      1, "key", "x"))
  end)

  it("of a replica is known", function()
    local server = start { args = { "--replicaof", "127.0.0.1 1" } }
    local row = refuses_writes(server, "READONLY")
    assert.is_true(row.node_down)
    server:cli("CONFIG", "SET", "replica-serve-stale-data", "no")
    row = class(server:cli("EVAL", SET, 1, "key", "x"), "MASTERDOWN")
    assert.equal("no", row.applied)
    assert.is_true(row.node_down)
  end)

  it("of too few replicas is known", function()
    local server = start { args = { "--min-replicas-to-write", "1" } }
    assert.is_false(refuses_writes(server, "NOREPLICAS").node_down)
    assert.equal("0", server:cli("EXISTS", "key"))
  end)

  it("of a disk that cannot be written is known", function()
    local server = start { args = { "--dbfilename", "full.rdb" } }
    -- A folder in place of the dump file: not even root can save.
    os.execute("mkdir " .. server.folder .. "/full.rdb")
    server:cli("CONFIG", "SET", "save", "3600 1")
    server:cli("BGSAVE")
    eventually(function()
      return server:cli("INFO", "persistence")
        :find("rdb_last_bgsave_status:err", 1, true)
    end)
    refuses_writes(server, "MISCONF")
    assert.equal("0", server:cli("EXISTS", "key"))
  end)

  it("of a login is known", function()
    local server = start {
      users = { "alice on >secret ~mine:* &* +@all" }, password = "word",
    }
    server.password = nil
    assert.equal("connect",
      class(server:cli("AUTH", "alice", "wrong"), "WRONGPASS").code)
    assert.equal("connect", class(server:cli("PING"), "NOAUTH").code)
    local output = server:script {
      { "AUTH", "alice", "secret" }, { "GET", "yours" },
    }
    assert.equal("maybe", class(output:match("NOPERM.*"), "NOPERM").applied)
    server = start()
    assert.equal("connect", class(server:cli("AUTH", "x"), "ERR").code)
  end)

  it("of a wrong request is known", function()
    local server = start()
    server:cli("SET", "string", "1")
    assert.equal("maybe",
      class(server:cli("HGET", "string", "x"), "WRONGTYPE").applied)
    local unknown = ("0"):rep(40)
    assert.equal("script",
      class(server:cli("EVALSHA", unknown, 0), "NOSCRIPT").forget)
    assert.equal("no", class(server:cli("NOT-A-COMMAND"), "ERR").applied)
    assert.equal("no", class(server:cli("EVAL", "return +", 0), "ERR").applied)
    assert.equal("no", class(server:cli("SELECT", "999"), "ERR").applied)
    assert.equal("redis", class(server:cli("INCRBY", "a", "x"), "ERR").code)
    local output = server:script {
      { "MULTI" }, { "NOT-A-COMMAND" }, { "EXEC" },
    }
    assert.equal("no", class(output:match("EXECABORT.*"), "EXECABORT").applied)
  end)

  it("of a script that takes too long is known", function()
    local server = start { args = { "--lua-time-limit", "5" } }
    os.execute(table.concat(server:cli_words(), " ") .. " EVAL \""
      .. "redis.call('set', KEYS[1], 1) while true do end\" 1 key"
      .. " >/dev/null 2>&1 &")
    eventually(function() return server:cli("PING") ~= "PONG" end)
    assert.is_true(class(server:cli("PING"), "BUSY").retry)
    class(server:cli("SCRIPT", "KILL"), "UNKILLABLE")
  end)

  it("of a cluster is known", function()
    local server = start {
      port = true,                       -- the cluster bus: port + 10000
      args = { "--cluster-enabled", "yes" },
    }
    local row = class(server:cli("GET", "a"), "CLUSTERDOWN")
    assert.is_true(row.slot_down)
    local slots = { "CLUSTER", "ADDSLOTS" }
    for slot = 0, 16383 do slots[#slots + 1] = slot end
    server:script { slots }
    eventually(function() return server:cli("GET", "a") == "" end)
    row = class(server:cli("EVAL", "return 1", 2, "a", "b"), "CROSSSLOT")
    assert.equal("refused", row.code)
  end)
end)
