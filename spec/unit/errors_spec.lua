local errors = require "rlock.redis.errors"

local first_words = {
  "BUSY Redis is busy running a script.",
  "LOADING Redis is loading the dataset in memory",
  "READONLY You can't write against a read only replica.",
  "MISCONF Redis is configured to save RDB snapshots, but",
  "OOM command not allowed when used memory > 'maxmemory'.",
  "NOREPLICAS Not enough good replicas to write.",
  "CLUSTERDOWN The cluster is down",
  "TRYAGAIN Multiple keys request during rehashing of slot",
  "MOVED 3999 127.0.0.1:6381",
  "ASK 3999 127.0.0.1:6381",
  "NOSCRIPT No matching script. Please use EVAL.",
  "NOAUTH Authentication required.",
  "NOPERM this user has no permissions to run the 'evalsha' command",
  "WRONGPASS invalid username-password pair or user is disabled.",
  "WRONGTYPE Operation against a key holding the wrong kind of value",
  "MASTERDOWN Link with MASTER is down",
  "UNKILLABLE Sorry the script already executed write commands",
  "EXECABORT Transaction discarded because of previous errors.",
  "CROSSSLOT Keys in request don't hash to the same slot",
  "DENIED Redis is running in protected mode",
  "ERR max number of clients reached",
  "ERR unknown command 'HSETX', with args beginning with: 'a'",
  "ERR value is not an integer or out of range",
  "ERR",
  "RLOCK_SOMETHING of a script's own",
  "",
}

local codes = { timeout = true, refused = true, closed = true, connect = true,
  redis = true, replicas = true }

local function check_row(row)
  assert.is_true(codes[row.code])
  assert.is_true(row.applied == "no" or row.applied == "maybe")
  assert.is_boolean(row.retry)
  assert.is_boolean(row.node_down)
end

describe("errors.classify", function()
  for _, message in ipairs(first_words) do
    it(string.format("has a whole row for %q", message), function()
      check_row(errors.classify(message))
    end)
  end

  it("distinguishes temporary errors from permanent ones", function()
    for word in ([[BUSY LOADING READONLY MISCONF OOM NOREPLICAS CLUSTERDOWN
        TRYAGAIN NOSCRIPT MASTERDOWN]]):gmatch("%S+") do
      assert.is_true(errors.classify(word .. " x").retry, word)
    end
    for word in ([[MOVED ASK NOAUTH NOPERM WRONGPASS WRONGTYPE UNKILLABLE
        EXECABORT CROSSSLOT DENIED ERR RLOCK_X]]):gmatch("%S+") do
      assert.is_false(errors.classify(word .. " x").retry, word)
    end
  end)

  it("knows the servers that serve nobody", function()
    for word in ("LOADING READONLY MASTERDOWN"):gmatch("%S+") do
      assert.is_true(errors.classify(word .. " x").node_down, word)
    end
    assert.is_true(errors.classify("CLUSTERDOWN The cluster is down").node_down)
    assert.is_false(errors.classify("BUSY x").node_down)
  end)

  it("knows that one slot of a cluster may have no node", function()
    local row = errors.classify("CLUSTERDOWN Hash slot not served")
    assert.is_false(row.node_down)
    assert.is_true(row.slot_down and row.retry)
  end)

  it("refuses redirections, and says why", function()
    local row = errors.classify("MOVED 3999 127.0.0.1:6381")
    assert.equal("refused", row.code)
    assert.matches("redis%+cluster", row.explain)
    assert.equal(row, errors.classify("MOVED 1 x"))
  end)

  it("assumes that a script may have failed after a write", function()
    for _, message in ipairs {
      "ERR user_script:3: attempt to index a nil value script: 1a, on @user_s",
      "WRONGTYPE Operation against a key holding the wrong kind of value",
      "NOPERM this user has no permissions to access one of the keys",
      "SOMETHING new",
    } do
      assert.equal("maybe", errors.classify(message).applied, message)
    end
  end)

  it("knows that other errors come before any write", function()
    for word in ([[BUSY LOADING READONLY MISCONF OOM NOREPLICAS CLUSTERDOWN
        TRYAGAIN MOVED ASK NOSCRIPT NOAUTH WRONGPASS MASTERDOWN EXECABORT
        CROSSSLOT]]):gmatch("%S+") do
      assert.equal("no", errors.classify(word .. " x").applied, word)
    end
  end)

  it("looks behind ERR for what has no word of its own", function()
    assert.equal("connect", errors.classify("ERR max number of clients "
      .. "reached").code)
    assert.equal("connect", errors.classify("ERR invalid password").code)
    assert.equal("connect", errors.classify("ERR Client sent AUTH, but no "
      .. "password is set").code)
    assert.equal("redis", errors.classify("ERR DB index is out of "
      .. "range").code)
    assert.equal("no", errors.classify("ERR unknown command 'X'").applied)
  end)

  it("finds the class that Redis before 7.0 hid", function()
    local old = "ERR Error running script (call to f_0a1b): @user_script:1: "
    assert.equal(errors.classify("WRONGTYPE x"),
      errors.classify(old .. "WRONGTYPE Operation against a key"))
    assert.equal(errors.classify("OOM x"), errors.classify(old .. "OOM x"))
    assert.equal(errors.classify("ERR x"), errors.classify(old
      .. "@user_script: 1: Unknown Redis command called from Lua script"))
  end)

  it("names the script, where that may help", function()
    assert.equal("where", errors.classify("RLOCK_SOMETHING of its own").names)
    assert.equal("name", errors.classify("BUSY Redis is busy").names)
    assert.equal("name", errors.transport.timeout.names)
    assert.is_nil(errors.classify("ERR value is not an integer").names)
    assert.is_nil(errors.classify("LOADING Redis is loading").names)
  end)

  it("recognises what the server says is outdated", function()
    assert.equal("script",
      errors.classify("NOSCRIPT No matching script.").forget)
    assert.equal("clock", errors.classify("EXPIRED the request came").forget)
    assert.is_nil(errors.classify("ERR x").forget)
  end)

  it("takes the first word, not one that begins like it", function()
    assert.equal(errors.classify("X y"), errors.classify("BUSYKEY Target key"))
  end)

  it("requires a string", function()
    assert.has_error(function() errors.classify(nil) end,
      "bad message: must be a string")
  end)
end)

describe("errors.is_denied", function()
  it("finds what the server refused, within a detail", function()
    for _, detail in ipairs {
      "NOAUTH Authentication required.",
      "db:6379: WRONGPASS invalid username-password pair (in reply to AUTH)",
      "NOPERM this user has no permissions to run the 'ping' command",
      "ERR invalid password", "ERR Client sent AUTH, but no password is set",
      "ERR AUTH <password> called without any password configured for the "
        .. "default user",
      "DENIED Redis is running in protected mode",
      "ERR The user executing the script can't run this command or subcommand",
      "ERR ACL failure in script: No permissions to access a channel",
    } do
      assert.is_true(errors.is_denied(detail), detail)
    end
    for _, detail in ipairs { "connection refused", "LOADING x", "ERR x" } do
      assert.is_false(errors.is_denied(detail), detail)
    end
  end)
end)

describe("errors.is_silence", function()
  it("finds a server that has not answered, and refuses nothing", function()
    for _, detail in ipairs {
      "db:6379: no connection within 3000 ms", "no answer within 90 ms",
      "m: no Sentinel answers; s:26379: no reply within 1000 ms (in reply to "
        .. "CLIENT)", "db:6379: silent for 3000 ms while commands waited",
      "no node of the cluster returned a slot map: a:1: connection refused; "
        .. "b:1: no connection in time",
    } do
      assert.is_true(errors.is_silence(detail), detail)
    end
    for _, detail in ipairs { "a:1: connection refused", "LOADING x",
        "a:1: no connection in time; b:1: NOAUTH Authentication required." } do
      assert.is_false(errors.is_silence(detail), detail)
    end
  end)
end)

describe("errors.transport", function()
  it("has a whole row for each way", function()
    for _, way in ipairs { "closed", "timeout", "connect" } do
      check_row(errors.transport[way])
      assert.equal(way, errors.transport[way].code)
    end
  end)

  it("knows that nothing was applied only without a connection", function()
    assert.equal("no", errors.transport.connect.applied)
    assert.equal("maybe", errors.transport.closed.applied)
    assert.equal("maybe", errors.transport.timeout.applied)
  end)
end)

describe("errors.of_handshake", function()
  local plain = { host = "db", port = 6379 }

  it("suggests TLS if the server closes a plain connection", function()
    local hint = "; redis:// was tried: if this port expects TLS, use rediss://"
    for _, detail in ipairs { "closed", "connection reset by peer",
      "the server closed the connection", "'\\x15\\x03\\x01'",
      "it does not speak RESP" } do
      assert.equal(detail .. hint,
        errors.of_handshake(plain, { "HELLO" }, "closed", detail))
    end
  end)

  it("does not suggest it for TLS, a path or another reason", function()
    local said = "closed (in reply to HELLO)"
    assert.equal(said .. "; the server may require a client certificate: tls "
      .. "= { cert = ..., key = ... } (rlockctl: --cert and --key)",
      errors.of_handshake({ host = "db", port = 6379, tls = {} }, { "HELLO" },
        "closed", "closed"))
    assert.equal(said, errors.of_handshake({ host = "db", port = 6379,
      tls = { cert = "c" } }, { "HELLO" }, "closed", "closed"))
    assert.equal(said, errors.of_handshake({ path = "/r" }, { "HELLO" },
      "closed", "closed"))
    assert.equal("no time left (in reply to HELLO)",
      errors.of_handshake(plain, { "HELLO" }, "closed", "no time left"))
    assert.equal("timeout",
      errors.of_handshake(plain, { "HELLO" }, "timeout", "timeout"))
    assert.equal("closed (in reply to HELLO)",
      errors.of_handshake(plain, { "HELLO" }, "timeout", "closed"))
  end)

  it("names the server that refuses", function()
    assert.equal("NOAUTH x (in reply to SELECT, from db:6379)",
      errors.of_handshake(plain, { "SELECT" }, "redis", "NOAUTH x"))
    assert.equal("NOAUTH x (in reply to SELECT, from /r)",
      errors.of_handshake({ path = "/r" }, { "SELECT" }, "redis", "NOAUTH x"))
  end)

  it("explains how to give a password without a user", function()
    assert.equal("WRONGPASS x (in reply to AUTH, from db:6379); the URL names "
      .. "a user but no password: for a password alone, write :PASSWORD@",
      errors.of_handshake(plain, { "AUTH", "word", "" }, "redis",
      "WRONGPASS x"))
    assert.equal("WRONGPASS x (in reply to AUTH, from db:6379)",
      errors.of_handshake(plain, { "AUTH", "user", "word" }, "redis",
      "WRONGPASS x"))
  end)

  it("does not show a password that the server echoes", function()
    assert.equal("the server does not know the command (in reply to AUTH, "
      .. "from db:6379)", errors.of_handshake(plain, { "AUTH" }, "redis",
      "ERR unknown command 'AUTH', with args beginning with: 'secret'"))
  end)
end)

describe("the row of an error", function()
  -- Its fields but the texts.
  local function show(row)
    local list = {}
    for name, value in pairs(row) do
      if name ~= "explain" and name ~= "advice" then
        list[#list + 1] = name .. "=" .. tostring(value)
      end
    end
    table.sort(list)
    return table.concat(list, " ")
  end

  -- code, applied, retry, node_down; further fields
  local function is(code, applied, retry, node_down, more, message)
    local words = { "applied=" .. applied, "code=" .. code,
      "node_down=" .. tostring(node_down), "retry=" .. tostring(retry) }
    for word in (more or ""):gmatch "%S+" do words[#words + 1] = word end
    table.sort(words)
    assert.equal(table.concat(words, " "), show(errors.classify(message)),
      message)
  end

  it("is known for each word", function()
    is("redis", "no", true, false, "names=name", "BUSY x")
    is("redis", "no", true, true, nil, "LOADING x")
    is("redis", "no", true, true, nil, "READONLY x")
    is("redis", "no", true, true, nil, "MASTERDOWN x")
    is("redis", "no", true, false, nil, "MISCONF x")
    is("redis", "no", true, false, nil, "OOM x")
    is("redis", "no", true, false, nil, "NOREPLICAS x")
    is("redis", "no", true, true, nil, "CLUSTERDOWN The cluster is down")
    is("redis", "no", true, false, "slot_down=true", "CLUSTERDOWN Hash slot")
    is("redis", "no", true, false, nil, "TRYAGAIN x")
    is("refused", "no", false, false, "redirects=true", "MOVED 1 a:1")
    is("refused", "no", false, false, "redirects=true", "ASK 1 a:1")
    is("refused", "no", false, false, nil, "CROSSSLOT x")
    is("redis", "no", true, false, "forget=script pause=false", "NOSCRIPT x")
    is("timeout", "no", true, false, "forget=clock pause=false", "EXPIRED x")
    is("connect", "no", false, false, nil, "NOAUTH x")
    is("connect", "no", false, false, nil, "WRONGPASS x")
    is("connect", "no", false, true, nil, "DENIED x")
    is("redis", "maybe", false, false, "permits=true", "NOPERM x")
    is("redis", "maybe", false, false, "expects=true gone=true", "WRONGTYPE x")
    is("redis", "no", false, false, nil, "UNKILLABLE x")
    is("redis", "no", false, false, nil, "EXECABORT x")
    is("redis", "maybe", false, false, nil, "ERR x")
    is("redis", "maybe", false, false, "names=where", "WHATEVER x")
  end)

  it("is known for texts that are only ERR", function()
    is("connect", "no", true, true, nil, "ERR max number of clients reached")
    is("redis", "maybe", true, true, nil, "ERR WAIT cannot be used with x")
    is("connect", "no", false, false, nil, "ERR invalid password")
    is("connect", "no", false, false, nil, "ERR AUTH called without")
    is("redis", "no", false, false, nil, "ERR DB index is out of range")
    is("redis", "no", false, false, nil, "ERR unknown command 'x'")
    is("redis", "maybe", false, false, "expects=true",
      "ERR value is not an integer or out of range")
    is("redis", "maybe", false, false, "permits=true",
      "ERR The user executing the script can't run this")
    is("redis", "maybe", false, false, "permits=true",
      "ERR ACL failure in script: No permissions to access a channel")
    is("redis", "no", false, false, nil, "ERR Error compiling script")
  end)

  it("is known without a reply", function()
    for code, expected in pairs {
      closed = "applied=maybe code=closed node_down=true retry=true",
      timeout = "applied=maybe code=timeout names=name node_down=true "
        .. "retry=true",
      connect = "applied=no code=connect node_down=true retry=true",
      replicas = "applied=maybe code=replicas node_down=false retry=true",
    } do
      assert.equal(expected, show(errors.transport[code]))
    end
    assert.equal("applied=no code=timeout node_down=false redirects=true "
      .. "retry=true", show(errors.redirected))
  end)
end)
