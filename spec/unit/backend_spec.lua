--- The Redis back end without a server: its options, which commands it sends,
--- how long a lease is valid, and the arguments of its operations.

local backend = require "rlock.redis.backend"
local client = require "rlock.client"
local policies = require "rlock.policy"
local sorted = require "rlock.util.sorted"

local unpack = table.unpack or unpack

local function completed(given, url)
  return (assert(client.complete(given, url)))
end

describe("the options of a client", function()
  it("are those given, those of the URL, and defaults", function()
    local its = completed({}, "redis://u:p@h:7/3")
    assert.same({ "h", 7, 3, "u", "p", 30, 3, 3, "publish" }, { its.host,
      its.port, its.db, its.username, its.password, its.watchdog, its.timeout,
      its.connect_timeout, its.publish })
    assert.is_nil(its.tls)
    assert.equal("redis", its.backend.name)
    its = completed({ username = "me", watchdog = 5, timeout = 1,
      connect_timeout = 2, publish = "spublish" }, "redis://u:p@h")
    assert.same({ "me", "p", 5, 1, 2, "spublish" }, { its.username,
      its.password, its.watchdog, its.timeout, its.connect_timeout,
      its.publish })
    assert.equal("both", completed({}, "redis+cluster://h").publish)
    assert.equal("redis", completed({}, "unix:///s").backend.name)
    its = completed({}, "zk://u:p@h")
    assert.same({ "zookeeper", 30, 3, 3, nil }, { its.backend.name,
      its.watchdog, its.timeout, its.connect_timeout, its.tls })
  end)

  it("may have TLS only if the URL uses TLS", function()
    assert.same({}, completed({}, "rediss://h").tls)
    assert.same({}, completed({}, "zks://h").tls)
    assert.same({ ca = "x" }, completed({ tls = { ca = "x" } },
      "rediss://h").tls)
    assert.same({ ca = "x" }, completed({ tls = { ca = "x" } }, "zks://h").tls)
  end)

  it("are refused for another system", function()
    for message, row in pairs {
      ["bad option tls: only rediss:// goes over TLS"] =
        { { tls = {} }, "redis://h" },
      ["bad option sentinel: only for redis+sentinel://"] =
        { { sentinel = {} }, "redis://h" },
      ["bad option nat: only for redis+cluster://"] =
        { { nat = {} }, "redis+sentinel://h/m" },
      ["bad option acl: only for zk://"] = { { acl = "creator" }, "redis://h" },
      ["bad option tls: only zks:// uses TLS"] = { { tls = {} }, "zk://h" },
      ["bad option publish: only for Redis"] =
        { { publish = "both" }, "zk://h" },
      ["bad option seal: only for Redis"] = { { seal = "off" }, "zk://h" },
      ["bad option replicas: only for Redis"] = { { replicas = 1 }, "zk://h" },
      ["bad option replica_timeout: only for Redis"] =
        { { replica_timeout = 1 }, "zk://h" },
      ["bad option nat: only for Redis"] = { { nat = {} }, "zk://h" },
      ["bad option sentinel: only for Redis"] =
        { { sentinel = {} }, "zk://h" },
      ["bad option password: a login needs a username, too"] =
        { { password = "p" }, "zk://h" },
      ['bad option acl: "creator" needs a login, user:password@ in the URL'] =
        { { acl = "creator" }, "zk://h" },
    } do
      assert.same({ nil, "usage", message },
        { client.complete(row[1], row[2]) })
    end
    assert.same({ nil, "usage" }, { client.complete({}, "redis://"),
      (select(2, client.complete({}, "redis://"))) })
    assert(client.complete({ sentinel = {} }, "redis+sentinel://h/m"))
    assert(client.complete({ nat = {} }, "redis+cluster://h"))
    assert(client.complete({ acl = "creator" }, "zk://u:p@h"))
    assert(client.complete({ username = "u", password = "p" }, "zk://h"))
  end)
end)

describe("a command of the user", function()
  -- How it is sent.
  local function sent(...)
    local self, words = { node = {} }, { ... }
    function self.node.call(_, deadline, its, n)
      assert.same({ 9, words, #words }, { deadline, its, n })
      return "call"
    end
    function self.node.interrupt() return "interrupt" end
    local how, code, detail = backend.call(self, 9, words)
    if how then return how end
    assert.equal("usage", code)
    assert.match("^" .. words[1] .. " would change or block the connection",
      detail)
    return "refused"
  end

  it("is refused if it would change or block the connection", function()
    for word in ([[select multi exec discard watch unwatch hello reset quit
      auth wait waitaof blpop brpop brpoplpush blmove blmpop bzpopmin bzpopmax
      bzmpop subscribe psubscribe ssubscribe unsubscribe punsubscribe
      sunsubscribe monitor sync psync SELECT]]):gmatch "%S+" do
      assert.equal("refused", sent(word, 1), word)
    end
    assert.equal("refused", sent("client", "REPLY", "off"))
    assert.equal("call", sent("client", "list"))
    assert.equal("call", sent("reply", "reply"))
    assert.equal("call", sent "ping")
    assert.equal("call", sent(5))
  end)

  it("is refused if it may block, like XREAD", function()
    for _, words in ipairs {
      { "xread", "BLOCK", 0, "streams", "s", 0 },
      { "XREAD", "count", 1, "block", 0, "streams", "s", 0 },
      { "xreadgroup", "group", "g", "c", "block", 0, "streams", "s", ">" },
    } do
      assert.equal("refused", sent(unpack(words)))
    end
    for _, words in ipairs {
      { "xread", "streams", "block", 0 }, { "xread" },
      { "xreadgroup", "group", "block", "block", "streams", "s", ">" },
      { "get", "block" },
    } do
      assert.equal("call", sent(unpack(words)))
    end
  end)

  it("does not wait for the script that it kills", function()
    assert.equal("interrupt", sent("script", "KILL"))
    assert.equal("interrupt", sent("FUNCTION", "kill"))
    assert.equal("call", sent("script", "load", "x"))
    assert.equal("call", sent("client", "kill"))
    assert.equal("call", sent "script")
  end)
end)

describe("a lease", function()
  it("is valid for less time, by the drift of clocks and 2 ms", function()
    local function valid(seconds, drift)
      return backend.valid_until(100, seconds, drift) - 100
    end
    assert.near(29.968, valid(30), 1e-9)
    assert.near(29.698, valid(30, 0.01), 1e-9)
    assert.near(0.01798, valid(0.02), 1e-9)
    assert.near(0.0089, valid(0.01, 0.01), 1e-9)
    assert.near(0.004, valid(0.005, 0), 1e-9)
    assert.near(0.0171, valid(0.019, 0), 1e-9)
  end)
end)

describe("the arguments of an operation", function()
  -- A server that returns the arguments that are sent.
  local function server(options)
    local self = setmetatable({ options = options, classes = {},
      hands_over = true }, backend)
    self.node = { timeout_ms = 1000, options = { timeout = 1 },
      shas = setmetatable({}, { __index = function() return "sha" end }),
      check_keys = function() end, connection = {} }
    function self.node.connection.eval(_, _, _, _, ...)
      local words = { ... }
      for i = 1, 4 do words[i] = words[i] or "-" end
      words[5] = words[5] and table.concat(words[5], " ")
      return table.concat(words, " ")
    end
    return self
  end

  -- What each operation sends, P being the command that publishes.
  local function sent_by(kind)
    local policy = policies.load(kind)
    local target, list =
      server({ publish = "P" }):bind(policy, "name", {}), {}
    for _, name in ipairs(sorted(policy.server)) do
      list[#list + 1] = name .. " "
        .. target:run(name, 9, 1, "a", "b", "c", { "x" })
    end
    return list
  end

  -- The same in a pipeline: these are not followed by others.
  local function joined(kind, name)
    local target =
      server({ publish = "P" }):bind(policies.load(kind), "name", {})
    return table.concat({ target:arguments(name, "a", "b", "c", "d") }, " ")
  end

  it("have the publish command at the right index", function()
    -- Those that publish, and their first four arguments.
    for kind, operations in pairs {
      simple = { break_ = "a P c -", release = "a b c P" },
      fair = { break_ = "a P c -", leave = "a P c -", refresh = "P b c -",
        release = "a b c P" },
      permits = { acquire = "a b c P", release = "a b c P", set = "a P c -" },
      semaphore = { acquire = "a b c P", drain = "a b c P",
        release = "a b c P", set = "a b c P", undo = "a b c P" },
      latch = { count_down = "a b c P", delete = "P b c -", set = "a b c P" },
      barrier = { enter = "a b c P", leave = "a b c P", look = "a P c -",
        release = "a b c P", remove = "a b c P", withdraw = "a b c P" },
    } do
      for _, text in ipairs(sent_by(kind)) do
        local name, words = text:match "^(%S+) (.*) x$"
        assert.equal(operations[name] or "a b c -", words, name)
      end
    end
  end)

  it("have it in a pipeline, too", function()
    assert.same({ "a b c P", "a P", "P b c d", "a b c d" }, {
      joined("fair", "release"), joined("fair", "leave"),
      joined("fair", "refresh"), joined("fair", "acquire"),
    })
  end)
end)

describe("a lock of a client", function()
  local function server(options)
    return setmetatable({ options = options, classes = {}, hands_over = true,
      node = { check_keys = function() end } }, backend)
  end

  local function bound(own, options, name)
    own.timeout, own.watchdog = own.timeout or 3, own.watchdog or 30
    own.publish = "publish"
    return server(own):bind(policies.load "reentrant", name or "name", options)
  end

  it("needs its own number of replicas, else that of the client", function()
    assert.is_nil(bound({}, {}).replicas)
    assert.same({ count = 2, ms = 1000 }, bound({}, { replicas = 2 }).replicas)
    assert.same({ count = "all", ms = 1000 },
      bound({ replicas = "all" }, {}).replicas)
    assert.same({ count = 1, ms = 500 }, bound({ replicas = 2 },
      { replicas = 1, replica_timeout = 0.5 }).replicas)
    assert.same({ count = 2, ms = 700 },
      bound({ replicas = 2, replica_timeout = 0.7 }, {}).replicas)
    assert.same({ count = 2, ms = 1500 },
      bound({ replicas = 2, replica_timeout = 9 }, {}).replicas)
    assert.same({ count = 2, ms = 300 },
      bound({ replicas = 2, watchdog = 0.9 }, {}).replicas)
  end)

  it("may be shared only with the same option replicas", function()
    local target = bound({}, { replicas = 1, replica_timeout = 1 })
    target:check("name", { replicas = 1, replica_timeout = 1 })
    bound({}, {}):check("name", {})
    bound({}, {}):check "name"
    for _, other in ipairs { { replicas = 2, replica_timeout = 1 }, {},
        { replicas = 1, replica_timeout = 0.5 } } do
      assert.error_matches(function() target:check("name", other) end,
        '^bad replicas of "name": this client has a lock of that name')
    end
    assert.has_error(function()
      bound({}, {}):check("name", { replicas = 1 })
    end)
  end)

  it("is handed over, unless its name is a hash tag", function()
    assert.same({ true, "hand over" }, { bound({}, {}).hands_over,
      bound({}, {}).publish })
    assert.is_truthy(bound({}, {}).leaves)
    local its = bound({}, {}, "{name}")
    assert.same({ false, false, "publish" },
      { its.hands_over, its.leaves, its.publish })
    for _, name in ipairs { "{a}b", "a{b}", "{a}{b}" } do
      assert.is_true(bound({}, {}, name).hands_over)
    end
  end)
end)
