--- What is believed of Sentinels that disagree, fail, or are set up again.

local fake_host = require "spec.tools.fake_host"
local sentinel = require "rlock.redis.sentinel"

--- The Sentinels: address -> what it says: { place, epoch, others }, or an
--- error's text.
local world
local moves, asked

local function flat(named)
  local list = {}
  for name, value in pairs(named) do
    list[#list + 1] = name
    list[#list + 1] = tostring(value)
  end
  return list
end

local function place_in(text)
  local host, port = text:match("^(.*):(.*)$")
  return { host, port }
end

-- The replies of one Sentinel.
local function replies_of(says)
  if type(says) == "string" then
    return {}, { "redis", "redis", "redis" }, { says, says, says }
  elseif not says.place then
    return { [2] = false }, { "redis" }, { "ERR No such master" }
  end
  local others = {}
  for i, name in ipairs(says.others or {}) do
    local at = place_in(name)
    others[i] = flat { ip = at[1], port = at[2] }
  end
  local about = says.epoch and flat {
    ["config-epoch"] = says.epoch, ["num-other-sentinels"] = says.more or 2,
  }
  local replies = { master = about, sentinels = others,
    ["get-master-addr-by-name"] = place_in(says.place) }
  return replies, {}, {}
end

-- Replies to the commands in their order. Between the first two of them,
-- `is_then` may replace what the Sentinel says.
local function pipeline(name, commands)
  local list = {}
  for i, words in ipairs(commands) do
    local replies, codes, details = replies_of(world[name])
    if next(codes) then return replies, codes, details end
    list[i] = replies[words[2]:lower()]
    world[name] = i == 1 and world[name].is_then or world[name]
  end
  return list, {}, {}
end

local function connect(options)
  local name = options.host .. ":" .. options.port
  asked[#asked + 1] = name
  local says = world[name]
  if not says then return nil, "connect", name .. ": refused" end
  return {
    identity = { run_id = name }, close = function() end,
    pipeline = function(_, _, commands) return pipeline(name, commands) end,
    send = function() return { flat { name = "a" }, flat { name = "b" } } end,
  }
end

local function new(...)
  local list = {}
  for i, name in ipairs { ... } do
    local at = place_in(name)
    list[i] = { host = at[1], port = tonumber(at[2]) }
  end
  moves, asked = {}, {}
  return sentinel.new(fake_host(connect), { sentinels = list, master = "m",
    connect_timeout = 3 }, function(why) moves[#moves + 1] = why end)
end

local function located(self)
  asked = {}
  local place, code, detail = self:locate(1010)
  return place and place.host .. ":" .. place.port, code, detail
end

local ALL = { "s:1", "s:2", "s:3" }

describe("Sentinel", function()
  before_each(function()
    world = {}
    for _, name in ipairs(ALL) do
      world[name] = { place = "a:1", epoch = 1, others = ALL }
    end
  end)

  it("is asked in turn; the first that answers moves to the front", function()
    world["s:1"] = nil
    local self = new("s:1", "s:2")
    assert.equal("a:1", (located(self)))
    assert.same({ "s:1", "s:2" }, asked)
    assert.equal("a:1", (located(self)))
    assert.same({ "s:2" }, asked)
  end)

  it("names the others, which are asked as well", function()
    local self = new "s:1"
    assert.equal("a:1", (located(self)))
    world["s:1"], world["s:2"] = nil, nil
    assert.equal("a:1", (located(self)))
    assert.same({ "s:1", "s:2", "s:3" }, asked)
  end)

  it("moves the master once", function()
    local self = new "s:1"
    located(self)
    world["s:1"] = { place = "b:2", epoch = 2 }
    assert.equal("b:2", (located(self)))
    located(self)
    assert.same({ "m moved from a:1 to b:2" }, moves)
  end)

  it("may fail over between two replies", function()
    local self = new "s:1"
    located(self)
    local is_then = { place = "b:2", epoch = 2 }
    world["s:1"] = { place = "a:1", epoch = 1, is_then = is_then }
    assert.equal("a:1", (located(self)))
    assert.equal("b:2", (located(self)))
  end)

  it("is not believed if it has missed a failover", function()
    world["s:1"] = { place = "b:2", epoch = 2, others = ALL }
    local self = new "s:1"
    assert.equal("b:2", (located(self)))
    world["s:1"], world["s:2"].others = nil, {}
    world["s:3"] = nil
    local place, code, detail = located(self)
    assert.same({ nil, "connect" }, { place, code })
    assert.matches("only Sentinels that have missed a failover answer", detail)
    assert.same({}, moves)
  end)

  it("is believed if most have been reconfigured", function()
    world["s:1"].epoch = 7
    local self = new(ALL[1], ALL[2], ALL[3])
    assert.equal("a:1", (located(self)))
    for _, name in ipairs(ALL) do world[name] = { place = "c:3", epoch = 0 } end
    assert.equal("c:3", (located(self)))
    assert.same({ "m moved from a:1 to c:3" }, moves)
  end)

  it("is not believed if older, even if the master does not answer", function()
    world["s:1"] = { place = "b:2", epoch = 2, others = ALL }
    local self = new "s:1"
    assert.equal("b:2", (located(self)))
    world["s:1"], world["s:3"] = nil, nil
    self:suspect(self.address)
    assert.is_nil((located(self)))
    assert.same({}, moves)
  end)

  it("may name one master in two ways; that is no move", function()
    local self = new("s:1", "s:2")
    located(self)
    world["s:1"].place = "alias:1"
    assert.equal("a:1", (located(self)))
    self:suspect(self.address)
    assert.equal("alias:1", (located(self)))
  end)

  it("is believed without an epoch", function()
    world["s:1"].epoch = nil
    local self = new "s:1"
    assert.equal("a:1", (located(self)))
    world["s:1"].place = "b:2"
    assert.equal("b:2", (located(self)))
  end)

  for error, what in pairs {
    ["NOAUTH Authentication required."] =
      "s:1: it requires a password: sentinel = { password = ... }, in "
        .. "rlockctl RLOCK_SENTINEL_PASSWORD: NOAUTH Authentication required.",
    ["WRONGPASS invalid username-password pair"] =
      "s:1: it refuses the user or password of the option sentinel: WRONGPASS",
    ["ERR unknown command 'SENTINEL'"] = "s:1: it is not a Sentinel",
    ["NOPERM this user has no permissions"] = "s:1: NOPERM this user",
  } do
    it("that answers " .. error:match("^%u+") .. " is explained", function()
      world = { ["s:1"] = error }
      local _, code, detail = located(new "s:1")
      assert.equal("connect", code)
      assert.equal("m: no Sentinel answers; " .. what,
        detail:sub(1, 24 + #what))
    end)
  end

  it("is not believed if it names a bad address", function()
    for _, port in ipairs { "99999999", "6379.5", "1e999", "0", "-1", "" } do
      world["s:1"].place = "a:" .. port
      local self = new("s:1", "s:2")
      assert.equal("a:1", (located(self)))
      assert.same({ "s:1", "s:2" }, asked)
    end
  end)

  it("that names bad Sentinels is believed without them", function()
    world["s:1"].others = { "s:99999999", "s:1e999", "s:2" }
    local self = new "s:1"
    assert.equal("a:1", (located(self)))
    assert.equal(2, #self.list)
  end)

  it("with a malformed epoch has none", function()
    for _, epoch in ipairs { "nan", "1e999", "-1", "x" } do
      world["s:1"].epoch = epoch
      local self = new "s:1"
      assert.equal("a:1", (located(self)))
      assert.is_nil(self.epoch)
    end
  end)

  it("lists its masters", function()
    world = { ["s:1"] = {} }
    assert.same({ nil, "connect", 'm: no Sentinel knows it; s:1: it knows no '
      .. 'master "m", only: a, b' }, { located(new "s:1") })
  end)
end)

describe("a connection to a Sentinel", function()
  -- The options of host.connect.
  local function reached(options)
    local seen
    options.sentinels = { { host = "s", port = 1 } }
    options.master, options.connect_timeout = "m", 3
    local self = sentinel.new(fake_host(function(given)
      seen = given
      return nil, "connect", "refused"
    end), options, function() end)
    self:locate(1010)
    return seen
  end

  it("uses TLS like that to the master, or its own options", function()
    local tls = { ca = "x" }
    for i, row in ipairs {
      { {}, nil }, { { tls = tls }, tls },
      { { tls = tls, sentinel = { tls = true } }, tls },
      { { sentinel = { tls = true } }, {} },
      { { tls = tls, sentinel = { tls = false } }, nil },
      { { tls = tls, sentinel = { tls = { ca = "y" } } }, { ca = "y" } },
    } do
      assert.same(row[2], reached(row[1]).tls, i)
    end
  end)

  it("has its own login, and a third of the timeout", function()
    local its = reached { username = "no", password = "no", name = "it",
      sentinel = { username = "u", password = "p" } }
    assert.same({ { "AUTH", "u", "p" }, { "CLIENT", "SETNAME", "it" } },
      its.handshake)
    assert.same({ "s", 1, 1000, 1000 },
      { its.host, its.port, its.timeout, its.silent })
    assert.is_nil(its.pool)
  end)

  it("is not kept in a pool", function()
    assert.same({ name = "p:sentinel", idle = 5, size = 0 },
      reached({ pool = { name = "p", idle = 5, size = 30 } }).pool)
  end)
end)

describe("the list of Sentinels", function()
  it("has 32 at most, those of the URL first", function()
    local others = {}
    for i = 1, 50 do others[i] = "o:" .. i end
    world = { ["s:1"] = { place = "a:1", epoch = 1, others = others } }
    local self = new("s:2", "s:1")
    located(self)
    assert.equal(32, #self.list)
    assert.same({ "s:1", "s:2", "o:1", "o:30" }, {
      self.list[1].host .. ":" .. self.list[1].port,
      self.list[2].host .. ":" .. self.list[2].port,
      self.list[3].host .. ":" .. self.list[3].port,
      self.list[32].host .. ":" .. self.list[32].port,
    })
  end)

  it("drops those that are no longer listed", function()
    local says = { place = "a:1", epoch = 1, others = { "s:2", "s:3" } }
    world = { ["s:1"] = says }
    local self = new "s:1"
    located(self)
    assert.equal(3, #self.list)
    says.others = { "s:3" }
    located(self)
    assert.equal(2, #self.list)
    assert.equal(3, self.list[2].port)
  end)
end)
