--- How a client of a cluster handles unusual slot maps, without a server.

local cluster = require "rlock.redis.cluster"
local fake_host = require "spec.tools.fake_host"
local slot = require "rlock.redis.slot"

local LAST = slot.count - 1

local world, asked, closed, limits

-- The reply to a command of the node at an address. `world` has what it says:
-- the reply to CLUSTER SLOTS, or an error's text; and for other commands a
-- function.
local function reply_of(name, words)
  local says = world[name]
  asked[#asked + 1] = name .. " " .. table.concat(words, " ")
  if words[1] ~= "CLUSTER" then return world.answer(name, words) end
  if type(says) == "string" then return nil, "redis", says end
  return says
end

local function connect(options)
  local name = options.host .. ":" .. options.port
  if not world[name] then return nil, "connect", name .. ": refused" end
  return {
    make_ready = function() return true end,
    close = function() closed[#closed + 1] = name end,
    send = function(_, ms, words)
      limits[#limits + 1] = ms
      return reply_of(name, words)
    end,
  }
end

local function new(options)
  options = options or {}
  options.timeout, options.connect_timeout = 1, 1
  options.seeds = options.seeds or { { host = "a", port = 1 } }
  asked, closed, limits = {}, {}, {}
  return cluster.new(fake_host(connect), options)
end

local function find(self, key) return self:find({ key }, 1010) end

-- A slot map of one node.
local function all_at(...) return { { 0, LAST, { ... } } } end

describe("the slot of a key", function()
  it("is its checksum, or that of its hash tag", function()
    for key, number in pairs { [""] = 0, ["\0"] = 0, ["123456789"] = 12739,
        ["x{123456789}y"] = 12739 } do
      assert.equal(number, slot.of(key))
    end
  end)
end)

describe("a redirection", function()
  it("to a bad address or slot is not followed", function()
    world = { ["a:1"] = all_at("a", 1) }
    local self = new()
    local its = find(self, "key")
    for _, detail in ipairs {
      "MOVED 1 :99999", "MOVED 1 b:0", "MOVED 1 b:-5", "MOVED 1 b", "MOVED",
      "MOVED 16384 b:2", "MOVED 99999999999999999999 b:2", "ASK 1 a\0b:6379",
      "ASK 1 " .. ("b"):rep(256) .. ":2", "ASK 1 b:1e999",
    } do
      assert.same({ nil, false }, { self:redirect(detail, its) })
    end
    assert.same({ ["a:1"] = its }, self.nodes)
    assert.equal("b:2", self:redirect("ASK 1 b:2", its).where)
  end)
end)

describe("the slot map of a cluster", function()
  before_each(function() world = {} end)

  local function address(entry, options)
    world["a:1"] = all_at((table.unpack or unpack)(entry))
    local its, _, detail = find(new(options), "key")
    return its and its.where or detail
  end

  it("names nodes by address or host name", function()
    assert.equal("10.0.0.1:7", address { "10.0.0.1", 7, "id" })
    assert.equal("db.example.org:7", address { "db.example.org", 7, "id" })
    assert.equal("::1:7", address { "::1", 7, "id" })
  end)

  it("names a node without a host by that of the one which answered", function()
    assert.equal("a:7", address { false, 7, "id", {} })
    assert.equal("a:7", address { "", 7, "id" })
  end)

  it("names a node without its host name by its address", function()
    assert.equal("10.0.0.1:7",
      address { "?", 7, "id", { "ip", "10.0.0.1" } })
    assert.matches("CLUSTERDOWN", address { "?", 7, "id", {} })
    assert.matches("CLUSTERDOWN", address { "?", 7, "id" })
    assert.matches("CLUSTERDOWN", address { "10.0.0.1", 0, "id" })
  end)

  it("is translated by a table or a function", function()
    local nat = { ["10.0.0.1:7"] = "db1:7001", ["a:7"] = "db2:7002" }
    for _, its in ipairs { nat, function(at) return nat[at] end } do
      assert.equal("db1:7001", address({ "10.0.0.1", 7 }, { nat = its }))
      assert.equal("db2:7002", address({ "", 7 }, { nat = its }))
      assert.equal("10.0.0.9:7", address({ "10.0.0.9", 7 }, { nat = its }))
    end
  end)

  it("leaves a node without slots, and returns to it without a delay",
    function()
      world["a:1"], world["b:2"] = all_at("b", 2), all_at("b", 2)
      local self = new()
      local its = find(self, "key")
      assert.equal("b:2", its.where)
      assert(its:connect(1010))
      world["b:2"], self.asked = all_at("a", 1), 0
      assert(self:connect(1010))
      assert.same({ "a:1", "b:2" }, closed)
      assert.equal(0, its.not_before)
      assert.equal("connect", its.problem.code)
    end)

  -- The number of replicas that must confirm at b:2 after the slots have moved
  -- there: by `map`, or by a redirection if `map` is false.
  local function count_at(replica, map)
    world["a:1"] = { { 0, LAST, { "a", 1 }, { replica, 2 } } }
    world["b:2"] = map
    local self = new { nat = { ["z:2"] = "b:2" } }
    find(self, "key").replicas = 2
    if not map then
      return self:redirect("MOVED " .. slot.of "key" .. " z:2",
        self.nodes["a:1"]).replicas
    end
    world["a:1"], self.asked = map, 0
    assert(self:connect(1010))
    assert.equal("b:2", find(self, "key").where)
    return find(self, "key").replicas
  end

  it("gives a promoted replica the count of its primary", function()
    for _, map in ipairs { false, { { 0, LAST, { "z", 2 } } } } do
      assert.equal(2, count_at("z", map))
    end
  end)

  it("does not raise the count of a node that gains slots", function()
    for _, map in ipairs { false, { { 0, LAST, { "z", 2 } } } } do
      assert.is_nil(count_at("y", map))
    end
  end)

  it("is not translated into something else", function()
    for _, to in ipairs { "db1", 5, false } do
      local why = address({ "10.0.0.1", 7 }, { nat = function() return to end })
      assert.matches("a:1: the function nat returned no host:port for "
        .. "10.0.0.1:7, but " .. tostring(to), why, 1, true)
    end
  end)

  it("is not translated by a function that raises, which may pass", function()
    local faults = 1
    local function nat()
      faults = faults - 1
      if faults >= 0 then error("no\nDNS", 0) end
      return "db1:7001"
    end
    world["a:1"] = all_at("10.0.0.1", 7)
    local self = new { nat = nat }
    local its, code, detail = find(self, "key")
    assert.same({ nil, "connect" }, { its, code })
    assert.matches("a:1: the function nat raised an error for 10.0.0.1:7: "
      .. "no?DNS", detail, 1, true)
    assert.equal("db1:7001", find(self, "key").where)
  end)

  it("is taken from the next node if one has none", function()
    local two = { { host = "a", port = 1 }, { host = "b", port = 2 } }
    for _, says in ipairs { {}, { { 0, 99999, { "x", 1 } } }, { { "x" } },
        { { 0, LAST } }, "CLUSTERDOWN Hash slot not served", false, 5,
        { false }, { 5 }, { "text" }, all_at("x", 2^40), all_at("x", -5),
        all_at("x", 1.5), all_at("x", {}), all_at({}, 1), all_at("x\0", 1),
        all_at(("x"):rep(256), 1) } do
      world = { ["a:1"] = says, ["b:2"] = all_at("c", 3) }
      assert.equal("c:3", find(new { seeds = two }, "key").where)
    end
    world["a:1"] = nil
    assert.equal("c:3", find(new { seeds = two }, "key").where)
  end)

  it("may lack slots, which are asked for again", function()
    world["a:1"] = { { 0, slot.of "key" - 1, { "c", 3 } } }
    local self = new()
    local its, code, detail = find(self, "key")
    assert.same({ nil, "redis" }, { its, code })
    assert.matches("^CLUSTERDOWN no node of a:1 has slot", detail)
    world["a:1"] = all_at("c", 3)
    world["c:3"] = world["a:1"]
    assert.equal("c:3", find(self, "key").where)
  end)

  it("is asked of the others first if a node has failed", function()
    local half = slot.count / 2
    local map = { { 0, half - 1, { "b", 2 } }, { half, LAST, { "c", 3 } } }
    world = { ["a:1"] = map, ["b:2"] = map, ["c:3"] = map }
    for failed, first in pairs { "c:3", "b:2" } do
      local self = new()
      assert(self:connect(1010))
      asked = {}
      self:suspect(self.masters[failed])
      assert.same({ first .. " CLUSTER SLOTS" }, asked)
    end
  end)

  it("closes the connection to a node that has no slots any more", function()
    world = { ["a:1"] = all_at("b", 2), ["b:2"] = all_at("c", 3),
      ["c:3"] = all_at("c", 3) }
    local self = new()
    assert(find(self, "key"):connect(1010))
    assert.same({ "a:1" }, closed)
    self:suspect()
    assert.same({ "a:1", "b:2" }, closed)
    assert.equal("c:3", find(self, "key").where)
    assert.is_false(self:uses(self.nodes["b:2"]))
  end)

  it("is not known: what each node said, and what to do", function()
    local two = { { host = "a", port = 1 }, { host = "b", port = 2 } }
    for said, advice in pairs {
      ["ERR This instance has cluster support disabled"] =
        "it is no cluster: use redis://",
      ["NOPERM this user has no permissions to run the 'cluster' command"] =
        "permit +cluster|slots; or, behind a proxy, use redis://",
      ["ERR unknown command 'CLUSTER'"] =
        "a proxy or a managed service hides CLUSTER: use redis://",
    } do
      world = { ["a:1"] = said }
      local _, code, detail = find(new { seeds = two }, "key")
      assert.equal("connect", code)
      assert.equal(("no node of the cluster returned a slot map: a:1: %s (%s); "
        .. "b:2: refused"):format(said, advice), detail)
    end
  end)

  it("is not known: a refused login is not tried again", function()
    local two = { { host = "a", port = 1 }, { host = "b", port = 2 } }
    for _, said in ipairs { "WRONGPASS invalid password", "NOAUTH a login" } do
      world = { ["a:1"] = said }
      local self = new { seeds = two }
      assert.same({ nil, "redis", said }, { find(self, "key") })
      world["b:2"] = all_at("b", 2)      -- knows the login
      assert.equal("b:2", find(self, "key").where)
    end
  end)

  it("is waited for longer after a failure, until a node has sent it",
    function()
      local map = all_at("a", 1)
      world = { ["a:1"] = map }
      local self = new()
      assert(self:connect(1010))
      world["a:1"] = "LOADING Redis is loading"
      for _ = 1, 2 do assert.is_nil((self:connect(1010))) end
      world["a:1"] = map
      for _ = 1, 2 do assert(self:connect(1010)) end
      assert.same({ 500, 500, 1000, 1000, 500 }, limits)
    end)

  it("is not known in time: the last fault", function()
    world = { ["a:1"] = "LOADING Redis is loading" }
    local self = new()
    assert.is_nil((find(self, "key")))
    function self.singleflight.join() return nil, "timeout", "no answer" end
    assert.same({ nil, "connect", "a:1: no node answers in time; the last "
      .. "fault is a:1: LOADING Redis is loading" }, { find(self, "key") })
  end)
end)

describe("a redirection", function()
  local self

  before_each(function()
    world = { ["a:1"] = all_at("a", 1), ["b:2"] = all_at("b", 2) }
    self = new()
    assert(self:connect(1010))
  end)

  local function where(detail)
    world["a:1"] = all_at("b", 2)
    local its, is_once = self:redirect(detail, self:any())
    return its and its.where, is_once
  end

  it("to a slot's new node holds from now on", function()
    assert.same({ "b:2", false },
      { where(("MOVED %d b:2"):format(slot.of "key")) })
    assert.equal("b:2", find(self, "key").where)
  end)

  it("to a node that imports the slot counts once", function()
    assert.same({ "b:2", true },
      { where(("ASK %d b:2"):format(slot.of "key")) })
    assert.equal("a:1", find(self, "key").where)
  end)

  it("without a host leads to that of the redirecting node", function()
    assert.equal("a:2", where(("MOVED %d :2"):format(slot.of "key")))
  end)

  it("to a node without a host name leads to what the others say", function()
    assert.is_nil(where(("MOVED %d ?:2"):format(slot.of "key")))
    assert.equal("b:2", find(self, "key").where)
  end)
end)

describe("a command of the client of a cluster", function()
  local commands = {
    GET = { "get", 2, { "readonly" }, 1, 1, 1 },
    PING = { "ping", -1, {}, 0, 0, 0 },
    BITOP = { "bitop", -4, {}, 2, -1, 1 },
    EVAL = { "eval", -3, { "noscript", "movablekeys" }, 0, 0, 0 },
    OBJECT = { "object", -2, {}, 0, 0, 0, {}, {}, {}, { { "object|help" } } },
  }
  local self, is_forbidden

  before_each(function()
    local half = slot.count / 2
    local map = { { 0, half - 1, { "a", 1 } }, { half, LAST, { "b", 2 } } }
    world = { ["a:1"] = map, ["b:2"] = map }
    is_forbidden = false
    function world.answer(name, words)
      if words[1] ~= "COMMAND" then return name end
      if is_forbidden then return nil, "redis", "NOPERM" end
      if words[2] == "INFO" then return { commands[words[3]] or false } end
      if words[3] == "EVAL" or words[3] == "OBJECT" then return { words[5] } end
      return nil, "redis", "ERR The command has no key arguments"
    end
    self = new()
    assert(self:connect(1010))
  end)

  local near, far = "bar", "foo"            -- on the first and second node

  local function call(...)
    asked = {}
    return (self:call(1010, { ... }, select("#", ...)))
  end

  it("goes to the node of its key", function()
    assert.equal("a:1", call("get", near))
    assert.equal("b:2", call("GET", far))
    assert.equal("b:2", call("BITOP", "AND", far, near))
    assert.equal("a:1", call "PING")
    assert.equal("a:1", call "GET")
  end)

  it("is looked up once, if the place of its key is fixed", function()
    call("GET", far)
    assert.equal("a:1 COMMAND INFO GET", asked[1])
    call("get", near)
    assert.equal(1, #asked)
    call "PING"
    call "PING"
    assert.equal(1, #asked)
  end)

  it("is looked up each time if that depends on its words", function()
    for _ = 1, 2 do
      assert.equal("b:2", call("EVAL", "return 1", far))
      assert.equal("b:2", call("OBJECT", "ENCODING", far))
    end
    assert.equal(2, #asked)
  end)

  it("that is unknown is not remembered", function()
    call("NONSENSE", far)
    assert.is_nil(next(self.key_places))
  end)

  it("follows redirections if COMMAND is not permitted", function()
    is_forbidden = true
    local answer = world.answer
    function world.answer(name, words)
      if words[1] == "GET" and name == "a:1" then
        return nil, "redis", ("MOVED %d b:2"):format(slot.of(far))
      end
      return answer(name, words)
    end
    assert.equal("b:2", call("GET", far))
  end)
end)

describe("a name that splits a lock's keys", function()
  local function check(name, keys_of)
    return pcall(cluster.check_keys, nil, name, keys_of(name), keys_of)
  end

  for _, kind in ipairs(require "rlock.lock.kinds") do
    local policy = require("rlock.policy." .. kind.name)
    local keys_of = (policy.read or policy).keys
    local is_latch = kind.name == "latch"

    it("is refused for a " .. kind.name .. ", and another suggested",
      function()
        local refused = { "a{b", "{}a", "{", "}{", "{}", "x}", "}x" }
        if is_latch then refused[#refused + 1] = "{a}b" end
        for _, name in ipairs(refused) do
          local ok, why = check(name, keys_of)
          assert.is_false(ok, name)
          local better = why:match 'use a name such as "(.+)"$'
          assert.is_true(check(better, keys_of), better)
        end
        for _, name in ipairs { "a", "a:b", "a b", is_latch and "a" or "{a}b",
            is_latch and "a" or "x{a}}y" } do
          assert.is_true(check(name, keys_of), name)
        end
      end)
  end

  it("is refused without advice if the policy splits all", function()
    local ok, why = check("x", function(name)
      return { name, "1:" .. name, "{2}" }
    end)
    assert.is_false(ok)
    assert.matches("let the policy's keys have the same hash tag", why, 1, true)
  end)
end)
