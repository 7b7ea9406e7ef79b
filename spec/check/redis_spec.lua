--- The model of Redis by itself: what it lacks, its copies, clock and texts.
--- model_spec.lua compares it with a server.

local host = require "rlockctl.model.host"
local modelled = require "rlockctl.model.redis"

local LACKS = "the model of Redis has no "

describe("what the model of Redis lacks", function()
  for _, row in ipairs {
    { "command GEOADD", "geoadd", "s", "1", "1", "b" },
    { "command SPOP", "spop", "t" },
    { "command RANDOMKEY", "randomkey" },
    { "XREAD with BLOCK", "xread", "block", "1", "streams", "x", "$" },
    { "command JSON.GET", "json.get", "s" },
    { "SET with IFEQ", "set", "s", "a", "ifeq", "b" },
    { "ZRANK with WITHSCORE", "zrank", "z", "a", "withscore" },
    { "ZRANGE with BYSCORE and BYLEX", "zrange", "z", "-", "+", "byscore",
      "bylex" },
    { "ranges by name of members with different scores", "zrangebylex", "z",
      "-", "+" },
    { "bounds in hex, or with blanks or zero bytes", "zcount", "z", "0x1",
      "2" },
    { "HSCAN with NOVALUES", "hscan", "h", "0", "novalues" },
    { "cursors with a sign or blanks", "sscan", "t", "+1" },
    { "SCAN with a TYPE that does not exist", "scan", "0", "type", "x" },
    { "BITCOUNT of no string, with a malformed range", "bitcount", "l", "a",
      "b" },
    { "command PUBSUB CHANNELS", "pubsub", "channels" },
    { "command INFO all", "info", "all" },
    { "indexes beyond 2^31", "lindex", "l", "2147483648" },
    { "counts of -2^63", "lrem", "l", "-9223372036854775808", "a" },
  } do
    local what = table.remove(row, 1)
    it("is named: " .. what, function()
      local server = modelled.new()
      for _, words in ipairs { { "zadd", "z", "1", "a", "2", "b" },
          { "hset", "h", "a", "1" }, { "sadd", "t", "a" },
          { "rpush", "l", "a" }, { "set", "n", "1" } } do
        server:call(words)
      end
      local ok, fault = pcall(server.call, server, row)
      assert.is_false(ok)
      assert.equal(LACKS .. what, fault)
    end)
  end

  it("is only a command that Redis has", function()
    local server = modelled.new()
    assert.same({ err = "ERR unknown command 'no_such'" },
      server:call { "no_such" })
    assert.same({ err = "ERR Unknown Redis command called from script: "
      .. "NO_SUCH" }, server:eval("return redis.call('no_such')", {}, {}))
    assert.equal("ERR", server:eval(
      "return redis.pcall('no_such').err:match('^%u+')", {}, {}))
  end)

  for number, text in pairs {
    ["-tonumber('0')"] = "-0", ["0.1"] = "0.10000000000000001",
    ["1e17"] = "1e+17",
  } do
    it("is named if a script passes " .. text, function()
      local ok, fault = pcall(modelled.eval, modelled.new(),
        ("return redis.call('echo', %s)"):format(number), {}, {})
      assert.is_false(ok)
      assert.equal(LACKS .. text .. " as an argument, which versions show "
        .. "differently", fault)
    end)
  end

  it("is named through the pcall of a script", function()
    local server = modelled.new()
    for _, text in ipairs { 'redis.call("geoadd")', 'redis.pcall("geoadd")',
        'pcall(redis.call, "geoadd")',
        'xpcall(function() redis.call("geoadd") end, tostring)',
        'pcall(pcall, redis.call, "geoadd")' } do
      local ok, fault = pcall(server.eval, server, "return " .. text, {}, {})
      assert.is_false(ok)
      assert.equal(LACKS .. "command GEOADD", fault)
    end
  end)
end)

describe("a model of Redis", function()
  local server

  before_each(function() server = modelled.new() end)

  local function get(from, key) return from:call { "get", key } end

  it("changes independently of its fork", function()
    server:call { "set", "a", "1" }
    server:call { "hset", "h", "f", "1" }
    local fork = server:fork()
    server:call { "append", "a", "2" }
    fork:call { "hset", "h", "f", "3" }
    fork:call { "del", "a" }
    assert.equal("12", get(server, "a"))
    assert.is_false(get(fork, "a"))
    assert.equal("1", server:call { "hget", "h", "f" })
    assert.equal("3", fork:call { "hget", "h", "f" })
  end)

  it("changes nothing of the fork of its fork", function()
    server:call { "rpush", "l", "a" }
    local last = server:fork():fork()
    server:call { "rpush", "l", "b" }
    assert.equal(1.0, last:call { "llen", "l" })
  end)

  it("replies to what has no order in both orders", function()
    server:call { "sadd", "t", "a", "b", "c" }
    assert.same({ "a", "b", "c" }, server:call { "smembers", "t" })
    server.turned = true
    assert.same({ "c", "b", "a" }, server:call { "smembers", "t" })
    server:call { "hset", "h", "a", "1", "b", "2" }
    assert.same({ "b", "2", "a", "1" }, server:call { "hgetall", "h" })
    assert.same({ "c", "b", "a" }, server:fork():call { "smembers", "t" })
  end)

  it("lets keys expire when its clock moves", function()
    server:call { "set", "a", "1", "px", "5" }
    server.now = server.now + 4999
    assert.equal("1", get(server, "a"))
    assert.equal(1.0, server:call { "pttl", "a" })
    server.now = server.now + 1000
    assert.is_false(get(server, "a"))
    assert.equal("", server:text())
  end)

  it("shows in one line an option that it does not know", function()
    assert.same({ err = "ERR Unsupported option a  b" },
      server:call { "expire", "k", "1", "a\r\nb\n\0c" })
  end)

  it("has times to live of any length", function()
    server:call { "set", "a", "1", "pxat", "9223372036854775807" }
    assert.equal(9223372036854776.0, server:call { "expiretime", "a" })
  end)

  it("checks the level of what a script logs", function()
    for text, fault in pairs {
      ["redis.log('x', 'y')"] = "ERR First argument must be a number (log "
        .. "level).",
      ["redis.log(4, 'y')"] = "ERR Invalid log level.",
      ["redis.log(1)"] = "ERR redis.log() requires two arguments or more.",
    } do
      assert.same({ err = fault }, server:eval(text, {}, {}))
    end
    assert.is_false(server:eval("redis.log('2', 'y')", {}, {}))
  end)

  it("tells the time of its clock", function()
    server.now = 12345678000009
    assert.same({ "12345678", "9" }, server:call { "time" })
  end)

  it("has the same text in the same state, and only then", function()
    local texts, count = {}, 0
    for _, words in ipairs {
      { "set", "a", "b" }, { "set", "a", "b", "px", "5" }, { "set", "b", "a" },
      { "sadd", "a", "b" }, { "sadd", "a", "b", "c" }, { "sadd", "a", "b c" },
      { "rpush", "a", "b" }, { "rpush", "a", "b", "c" },
      { "hset", "a", "b", "" }, { "hset", "a", "b", "true" },
      { "zadd", "a", "1700000000000001", "b" },
      { "zadd", "a", "1700000000000002", "b" }, { "rpush", "a", "b\tc" },
      { "rpush", "a", "b 1 c" }, { "hset", "a", "b", "c 1 d1 e" },
      { "hset", "a", "b", "c", "d", "e" }, { "set", "a", "b\n1 b - s1 c" },
      { "mset", "a", "b", "b", "c" }, { "xadd", "a", "1-1", "b", "c" },
      { "xadd", "a", "1-2", "b", "c" }, { "xadd", "a", "1-1", "b c", "" },
      { "xadd", "a", "maxlen", "0", "1-1", "b", "c" },
      { "xadd", "a", "1-1", "b", "c", "d", "e" },
    } do
      local one, two = modelled.new(), modelled.new()
      two.now = two.now + 77000
      one:call(words)
      two:call(words)
      assert.equal(one:text(), two:text())
      assert.is_nil(texts[one:text()])
      texts[one:text()], count = true, count + 1
    end
    assert.equal(23, count)
  end)

  it("notes what is published, and counts listeners", function()
    server.listeners = { news = 2, ["s:news"] = 1 }
    assert.equal(2.0, server:call { "publish", "news", "a" })
    assert.equal(1.0, server:call { "spublish", "news", "b" })
    assert.equal(0.0, server:call { "publish", "other", "c" })
    assert.same({ "news", 2.0, "other", 0.0 },
      server:call { "pubsub", "numsub", "news", "other" })
    assert.same({ { "news", "a" }, { "news", "b", true }, { "other", "c" } },
      server.sent)
  end)

  it("chooses the same elements with the same randomness", function()
    local function chosen(seed)
      local own, list = modelled.new(), {}
      own.random = host.stream(seed, "redis")
      for i = 1, 20 do own:call { "sadd", "t", "m" .. i } end
      own = own:fork()
      for _, words in ipairs { { "srandmember", "t", "-5" }, { "spop", "t" },
          { "spop", "t", "3" }, { "randomkey" } } do
        local reply = own:call(words)
        list[#list + 1] = type(reply) == "table" and table.concat(reply, " ")
          or reply
      end
      assert.equal(16.0, own:call { "scard", "t" })
      return table.concat(list, ", ")
    end
    assert.equal(chosen(1), chosen(1))
    assert.not_equal(chosen(1), chosen(2))
  end)

  it("scans what is there all the time, whatever else changes", function()
    for i = 1, 300 do server:call { "set", "stays" .. i, "x" } end
    local cursor, found, serial = "0", {}, 0
    repeat
      local reply = server:call { "scan", cursor, "count", "20" }
      cursor = reply[1]
      for _, name in ipairs(reply[2]) do found[name] = true end
      for i = 1, 30 do
        server:call { "set", ("new%d"):format(serial + i), "x" }
        server:call { "del", ("new%d"):format(serial + i - 20) }
      end
      serial = serial + 30
    until cursor == "0"
    for i = 1, 300 do assert.is_true(found["stays" .. i]) end
  end)

  it("shares no stream with its fork, and no value with a copy", function()
    server:call { "xadd", "x", "1-1", "a", "b" }
    server:call { "rpush", "l", "a" }
    server:call { "copy", "l", "m" }
    local fork = server:fork()
    fork:call { "xadd", "x", "2-1", "a", "b" }
    server:call { "xdel", "x", "1-1" }
    server:call { "rpush", "m", "b" }
    assert.equal(2.0, fork:call { "xlen", "x" })
    assert.equal(0.0, server:call { "xlen", "x" })
    assert.same({ "a" }, server:call { "lrange", "l", "0", "-1" })
    assert.equal("1-1", server:call { "xadd", "y", "1-1", "a", "b" })
    assert.equal("1700000000000-0", server:call { "xadd", "x", "*", "a", "b" })
    assert.equal("1700000000000-1", server:call { "xadd", "x", "*", "a", "b" })
  end)

  it("keeps what a script wrote before it failed", function()
    local reply = server:eval([[redis.call("set", KEYS[1], ARGV[1])
      redis.call("incr", KEYS[1])]], { "a" }, { "text" })
    assert.same({ err = "ERR value is not an integer or out of range" }, reply)
    assert.equal("text", get(server, "a"))
  end)

  it("leaves the strings of its host alone, also if a script fails", function()
    local meta = getmetatable("")
    server:eval("return '1' + 1", {}, {})
    server:eval("error('x')", {}, {})
    pcall(server.eval, server, "return cjson.encode({})", {}, {})
    assert.equal(meta, getmetatable(""))
    assert.equal(math.type("1" + 1), "integer")
  end)
end)
