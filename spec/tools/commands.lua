--- Generates random commands of Redis over a few keys, most of them valid:
--- occasionally a key has another type, an argument is odd, or there is a word
--- too many. The same seed gives the same commands.
---
---   local commands = require "spec.tools.commands"
---   local gen = commands.new(seed)
---   gen:command()                        -- { "set", "s1", "abc", "px", "5" }
---
--- Each command of GRAMMAR is a list of words, kinds of arguments ("<int>"),
--- and pieces: `maybe` one of some sequences, `one` of them, or `some` repeats.

local commands = {}

local Gen = {}
Gen.__index = Gen

--- A point in time beyond those of the tests, in milliseconds.
commands.FUTURE = 4102444800000

-- chance ----------------------------------------------------------------------

--- A number from 0 to n - 1.
function Gen:below(n)
  self.random = self.random * 6364136223846793005 + 1442695040888963407
  return (self.random >> 33) % n
end

function Gen:pick(list) return list[self:below(#list) + 1] end

function Gen:chance(percent) return self:below(100) < percent end

-- arguments -------------------------------------------------------------------

local ODD_INTEGERS = { "9223372036854775807", "-9223372036854775808",
  "9223372036854775808", "-9223372036854775809", "9223372036854775806", "+1",
  "01", "-0", "", "-", "abc", "1.0", " 1", "1 ", "1e2", "4294967296", "0x10",
  "1\0", "99999999999999999999", "2147483648", "00", "-01" }
local ODD_FLOATS = { "inf", "-inf", "+inf", "Infinity", "-INFINITY", "nan",
  "-nan", "", "abc", "1e400", "-1e400", "1.5x", " 1", "1 ", "1e", ".", "-", "i",
  "1_0", "1\0" }
local TEXTS = { "", "a", "b", "c", "abc", "hello world", "0", "1", "-1", "7",
  "10", "007", "+5", "3.5", "1e3", "9223372036854775807", "\0", "a\0b",
  "\r\n", "\255\254", ("x"):rep(100), "-9223372036854775808", "0.25" }

local kinds = {}
commands.kinds = kinds

-- Keys are named after the type that they have in most cases.
local function key(prefix)
  return function(self)
    if self:chance(10) then return self:pick(kinds.KEYS) end
    return prefix .. self:below(2)
  end
end

kinds.KEYS = { "s0", "s1", "h0", "h1", "l0", "l1", "t0", "t1", "z0", "z1", "x0",
  "x1", "", "\0\r\n", "none" }
kinds.string, kinds.hash, kinds.list = key "s", key "h", key "l"
kinds.set, kinds.zset, kinds.stream = key "t", key "z", key "x"

-- A key of a command that takes sets and sorted sets.
function kinds.scored(self)
  return self:chance(30) and kinds.set(self) or kinds.zset(self)
end

function kinds.key(self) return self:pick(kinds.KEYS) end

function kinds.text(self) return self:pick(TEXTS) end

function kinds.field(self)
  return self:pick { "a", "b", "c", "d", "a", "b", "c", "", "e\0", "10" }
end

function kinds.int(self)
  if self:chance(6) then return self:pick(ODD_INTEGERS) end
  return ("%d"):format(self:below(12) - 3)
end

-- A count of random elements.
function kinds.few(self)
  if self:chance(6) then return self:pick { "9223372036854775807", "", "+1",
    "-9223372036854775808", "01", "x" } end
  return ("%d"):format(self:below(12) - 5)
end

function kinds.count(self)
  if self:chance(5) then return self:pick(ODD_INTEGERS) end
  return ("%d"):format(self:below(5) - 1)
end

-- Floats that Redis shows differently since 7.2.
local INEXACT = { "0.1", "1e-7", "-3.3", "1e17", "123456789.123", "1e22",
  "1e20", "4611686018427387904", "9007199254740993", "1e16", "0.3", "1e-320" }

function kinds.float(self)
  if self:chance(6) then return self:pick(ODD_FLOATS) end
  if self:chance(5) then return self:pick { "inf", "-inf", "+3", "-0" } end
  if self:chance(5) and not self.is_exact then return self:pick(INEXACT) end
  local value = self:below(40) - 8
  return self:chance(30) and ("%.2f"):format(value / 4) or ("%d"):format(value)
end

function kinds.bound(self)
  if self:chance(30) then return self:pick { "-inf", "+inf" } end
  return (self:chance(20) and "(" or "") .. kinds.float(self)
end

-- Several keys after their number, which may be wrong.
local function numbered(kind)
  return function(self)
    local n = self:below(3) + 1
    local list = { self:chance(6) and "<int>" or ("%d"):format(n) }
    for i = 1, n do list[i + 1] = kind end
    return list
  end
end

function kinds.bit(self)
  if self:chance(6) then return self:pick { "-1", "x", "4294967296", "01" } end
  return ("%d"):format(self:below(40))
end

function kinds.id(self)
  if self:chance(8) then
    return self:pick { "0", "0-0", "5-", "-5", "5-1-2", "18446744073709551615",
      "18446744073709551616", "18446744073709551615-18446744073709551615",
      "9223372036854775808-1", "01-02", "+5", "x", "", "0-1", "5 ", "5\0x",
      "$", "-", "+", "5-*", ("1"):rep(130) }
  end
  local ms = ("%d"):format(self:below(30))
  return self:chance(40) and ms .. "-" .. self:below(3) or ms
end

-- An ID that is most often greater than the last.
function kinds.newid(self)
  if self:chance(20) then return kinds.id(self) end
  self.serial = (self.serial or 0) + self:below(2)
  return ("%d-%s"):format(self.serial // 3 + 1, self:chance(50) and "*"
    or self:below(9))
end

function kinds.idbound(self)
  if self:chance(40) then return self:pick { "-", "+" } end
  return (self:chance(20) and "(" or "") .. kinds.id(self)
end

function kinds.pattern(self)
  return self:pick { "*", "s*", "?0", "[lt]*", "[^s]?", "[a-tz]1", "[z-a]1",
    "none", "n*n*", "\\s0", "s\\0", "", "[s", "[]", "[^]0", "[\\s-]0", "*e",
    "[s-]", "\0*", "***0", "x[01]", "[\\]x]0", "\\", "s[0-", "*\n" }
end

function kinds.lexbound(self)
  if self:chance(5) then return self:pick { "a", "", "--", "(", "[" } end
  if self:chance(30) then return self:pick { "-", "+" } end
  return self:pick { "[", "(" } .. kinds.field(self)
end

local function amount(self, unit)
  if self:chance(5) then return self:pick(ODD_INTEGERS) end
  if self:chance(5) then return self:pick { "0", "-1", "9223372036854775" } end
  return ("%d"):format((1000 + self:below(100000000)) * 1000 // unit)
end

local function point(self, unit)
  if self:chance(5) then return self:pick(ODD_INTEGERS) end
  if self:chance(10) then return self:pick { "0", "-1", "1", "1000" } end
  local ms = commands.FUTURE + self:below(20) * 250
  return ("%d"):format(ms // unit)
end

function kinds.seconds(self) return amount(self, 1000) end
function kinds.ms(self) return amount(self, 1) end
function kinds.at(self) return point(self, 1000) end
function kinds.atms(self) return point(self, 1) end

-- grammar ---------------------------------------------------------------------

local function maybe(...)
  local choices = { ... }
  return function(self)
    if self:chance(60) then return {} end
    return self:pick(choices)
  end
end

local function one(...)
  local choices = { ... }
  return function(self) return self:pick(choices) end
end

local function some(...)
  local piece = { ... }
  return function(self)
    local list = {}
    for _ = 1, self:below(3) do
      table.move(piece, 1, #piece, #list + 1, list)
    end
    return list
  end
end

local expiry = { "nx", "xx", "gt", "lt" }
local scores = maybe "withscores"
local limit = maybe { "limit", "<count>", "<int>" }
local numbered_sets, numbered_zsets, numbered_lists =
  numbered "<set>", numbered "<scored>", numbered "<list>"
local weights = maybe({ "weights", "<float>" },
  { "weights", "<float>", "<float>" })
local aggregate = maybe({ "aggregate", "sum" }, { "aggregate", "min" },
  { "aggregate", "max" }, { "aggregate", "avg" })
local trim = one({ "maxlen", "<count>" }, { "maxlen", "=", "<count>" },
  { "minid", "<id>" }, { "maxlen", "~", "<count>", "limit", "<count>" },
  { "minid", "~", "<id>" }, { "maxlen", "<count>", "limit", "<count>" })
local lives = maybe({ "ex", "<seconds>" }, { "px", "<ms>" },
  { "exat", "<at>" }, { "pxat", "<atms>" }, "keepttl")
local zadd_flags = maybe("nx", "xx", "gt", "lt", "ch", { "xx", "ch" },
  { "gt", "ch" }, { "nx", "gt" }, { "gt", "lt" }, "incr", { "xx", "incr" },
  { "nx", "incr" })

local GRAMMAR = {
  del = { "<key>", some "<key>" },
  unlink = { "<key>", some "<key>" },
  exists = { "<key>", some "<key>" },
  touch = { "<key>", some "<key>" },
  type = { "<key>" },
  expire = { "<key>", "<seconds>", maybe(table.unpack(expiry)) },
  pexpire = { "<key>", "<ms>", maybe(table.unpack(expiry)) },
  expireat = { "<key>", "<at>", maybe(table.unpack(expiry)) },
  pexpireat = { "<key>", "<atms>", maybe(table.unpack(expiry)),
    maybe "nx" },
  persist = { "<key>" },
  pttl = { "<key>" },
  ttl = { "<key>" },
  pexpiretime = { "<key>" },
  expiretime = { "<key>" },
  rename = { "<key>", "<key>" },
  renamenx = { "<key>", "<key>" },
  get = { "<string>" },
  set = { "<string>", "<text>", maybe("nx", "xx"), maybe "get", lives },
  setnx = { "<string>", "<text>" },
  setex = { "<string>", "<seconds>", "<text>" },
  psetex = { "<string>", "<ms>", "<text>" },
  getset = { "<string>", "<text>" },
  getdel = { "<string>" },
  getex = { "<string>", maybe({ "ex", "<seconds>" }, { "px", "<ms>" },
    { "exat", "<at>" }, { "pxat", "<atms>" }, "persist", "keepttl") },
  mget = { "<string>", some "<string>" },
  mset = { "<string>", "<text>", some("<string>", "<text>") },
  msetnx = { "<string>", "<text>", some("<string>", "<text>") },
  strlen = { "<string>" },
  append = { "<string>", "<text>" },
  getrange = { "<string>", "<int>", "<int>" },
  substr = { "<string>", "<int>", "<int>" },
  setrange = { "<string>", "<count>", "<text>" },
  incr = { "<string>" },
  decr = { "<string>" },
  incrby = { "<string>", "<int>" },
  decrby = { "<string>", "<int>" },
  incrbyfloat = { "<string>", "<float>" },
  hget = { "<hash>", "<field>" },
  hset = { "<hash>", "<field>", "<text>", some("<field>", "<text>") },
  hmset = { "<hash>", "<field>", "<text>", some("<field>", "<text>") },
  hsetnx = { "<hash>", "<field>", "<text>" },
  hmget = { "<hash>", "<field>", some "<field>" },
  hdel = { "<hash>", "<field>", some "<field>" },
  hexists = { "<hash>", "<field>" },
  hlen = { "<hash>" },
  hstrlen = { "<hash>", "<field>" },
  hkeys = { "<hash>" },
  hvals = { "<hash>" },
  hgetall = { "<hash>" },
  hincrby = { "<hash>", "<field>", "<int>" },
  hincrbyfloat = { "<hash>", "<field>", "<float>" },
  hscan = { "<hash>", "0", maybe { "count", "<int>" } },
  llen = { "<list>" },
  lindex = { "<list>", "<int>" },
  lrange = { "<list>", "<int>", "<int>" },
  lpush = { "<list>", "<text>", some "<text>" },
  rpush = { "<list>", "<text>", some "<text>" },
  lpushx = { "<list>", "<text>", some "<text>" },
  rpushx = { "<list>", "<text>", some "<text>" },
  lpop = { "<list>", maybe "<count>" },
  rpop = { "<list>", maybe "<count>" },
  ltrim = { "<list>", "<int>", "<int>" },
  lrem = { "<list>", "<count>", "<text>" },
  lset = { "<list>", "<int>", "<text>" },
  linsert = { "<list>", one("before", "after"), "<text>", "<text>" },
  lpos = { "<list>", "<text>", maybe { "rank", "<int>" },
    maybe { "count", "<count>" }, maybe { "maxlen", "<count>" } },
  lmove = { "<list>", "<list>", one("left", "right"), one("left", "right") },
  rpoplpush = { "<list>", "<list>" },
  scard = { "<set>" },
  sismember = { "<set>", "<field>" },
  smismember = { "<set>", "<field>", some "<field>" },
  smembers = { "<set>" },
  sadd = { "<set>", "<field>", some "<field>" },
  srem = { "<set>", "<field>", some "<field>" },
  smove = { "<set>", "<set>", "<field>" },
  sinter = { "<set>", some "<set>" },
  sunion = { "<set>", some "<set>" },
  sdiff = { "<set>", some "<set>" },
  sscan = { "<set>", "0", maybe { "count", "<int>" } },
  zcard = { "<zset>" },
  zscore = { "<zset>", "<field>" },
  zmscore = { "<zset>", "<field>", some "<field>" },
  zrank = { "<zset>", "<field>" },
  zrevrank = { "<zset>", "<field>" },
  zadd = { "<zset>", zadd_flags, "<float>", "<field>",
    some("<float>", "<field>") },
  zincrby = { "<zset>", "<float>", "<field>" },
  zrem = { "<zset>", "<field>", some "<field>" },
  zrange = { "<zset>", one({ "<int>", "<int>" }, { "<bound>", "<bound>",
    "byscore" }, { "<lexbound>", "<lexbound>", "bylex" }), maybe "rev", limit,
    scores },
  zrevrange = { "<zset>", "<int>", "<int>", scores },
  zrangebyscore = { "<zset>", "<bound>", "<bound>", scores, limit },
  zrevrangebyscore = { "<zset>", "<bound>", "<bound>", scores, limit },
  zrangebylex = { "<zset>", "<lexbound>", "<lexbound>", limit },
  zrevrangebylex = { "<zset>", "<lexbound>", "<lexbound>", limit },
  zcount = { "<zset>", "<bound>", "<bound>" },
  zlexcount = { "<zset>", "<lexbound>", "<lexbound>" },
  zremrangebyscore = { "<zset>", "<bound>", "<bound>" },
  zremrangebyrank = { "<zset>", "<int>", "<int>" },
  zremrangebylex = { "<zset>", "<lexbound>", "<lexbound>" },
  zpopmin = { "<zset>", maybe "<count>" },
  zpopmax = { "<zset>", maybe "<count>" },
  zscan = { "<zset>", "0", maybe { "count", "<int>" } },
  dbsize = {},
  keys = { "<pattern>" },
  scan = { "0", maybe { "match", "<pattern>" }, { "count", "100" },
    maybe({ "type", "string" }, { "type", "ZSET" }, { "type", "x" }) },
  copy = { "<key>", "<key>", maybe "replace" },
  setbit = { "<string>", "<bit>", one("0", "1", "1", "2") },
  getbit = { "<string>", "<bit>" },
  bitcount = { "<string>", maybe({ "<int>", "<int>" },
    { "<int>", "<int>", "bit" }, { "<int>", "<int>", "byte" }) },
  sort = { one("<list>", "<set>", "<zset>"), one("alpha", "alpha",
    { maybe({ "by", "s*" }, { "by", "h*->b" }) }), limit,
    maybe({ "get", "#" }, { "get", "s*" }, { "get", "h*->a", "get", "#" }),
    maybe("asc", "desc"), maybe { "store", "<list>" } },
  sort_ro = { "<zset>", maybe "alpha", limit },
  lmpop = { numbered_lists, one("left", "right"),
    maybe { "count", "<count>" } },
  zmpop = { numbered_zsets, one("min", "max"), maybe { "count", "<count>" } },
  spop = { "<set>", maybe "<count>" },
  srandmember = { "<set>", maybe "<few>" },
  hrandfield = { "<hash>", maybe({ "<few>" }, { "<few>", "withvalues" }) },
  zrandmember = { "<zset>", maybe({ "<few>" }, { "<few>", "withscores" }) },
  randomkey = {},
  sinterstore = { "<set>", "<set>", some "<set>" },
  sunionstore = { "<set>", "<set>", some "<set>" },
  sdiffstore = { "<set>", "<set>", some "<set>" },
  sintercard = { numbered_sets, maybe { "limit", "<count>" } },
  zunionstore = { "<zset>", numbered_zsets, weights, aggregate },
  zinterstore = { "<zset>", numbered_zsets, weights, aggregate },
  zdiffstore = { "<zset>", numbered_zsets },
  zunion = { numbered_zsets, weights, aggregate, scores },
  zinter = { numbered_zsets, weights, aggregate, scores },
  zdiff = { numbered_zsets, scores },
  zintercard = { numbered_zsets, maybe { "limit", "<count>" } },
  zrangestore = { "<zset>", "<zset>", one({ "<int>", "<int>" },
    { "<bound>", "<bound>", "byscore" },
    { "<lexbound>", "<lexbound>", "bylex" }), maybe "rev", limit },
  xadd = { "<stream>", maybe "nomkstream", maybe(trim), "<newid>", "<field>",
    "<text>", some("<field>", "<text>") },
  xlen = { "<stream>" },
  xrange = { "<stream>", "<idbound>", "<idbound>", maybe { "count", "<int>" } },
  xrevrange = { "<stream>", "<idbound>", "<idbound>",
    maybe { "count", "<int>" } },
  xdel = { "<stream>", "<id>", some "<id>" },
  xtrim = { "<stream>", trim },
  xread = { maybe { "count", "<count>" }, "streams", one({ "<stream>", "<id>" },
    { "<stream>", "<stream>", "<id>", "$" }) },
  time = {},
  publish = { "<text>", "<text>" },
  spublish = { "<text>", "<text>" },
  pubsub = { one("numsub", "shardnumsub"), some "<text>" },
  ping = { maybe "<text>" },
  echo = { "<text>" },
}

--- All names, in the order of the alphabet.
commands.NAMES = {}
for name in pairs(GRAMMAR) do commands.NAMES[#commands.NAMES + 1] = name end
table.sort(commands.NAMES)

-- Versions since 7.2 answer these, if their words are wrong, with other errors
-- or check them in another order.
local OF_7_0 = {}
for name in ([[dbsize keys scan copy setbit getbit bitcount sort sort_ro
  lmpop zmpop spop srandmember hrandfield zrandmember randomkey sinterstore
  sunionstore sdiffstore sintercard zunionstore zinterstore zdiffstore
  zunion zinter zdiff zintercard zrangestore xadd xlen xrange xrevrange
  xdel xtrim xread]]):gmatch "%S+" do
  OF_7_0[name] = true
end

local chosen = commands.NAMES

--- Chooses the commands for servers of a version.
---@param version string such as "7.0"
function commands.choose(version)
  chosen = {}
  for _, name in ipairs(commands.NAMES) do
    if version == "7.0" or not OF_7_0[name] then chosen[#chosen + 1] = name end
  end
end

-- Times count from the server's clock: what they leave behind depends on it.
local RELATIVE = { expire = true, pexpire = true, setex = true, psetex = true,
  pttl = true, ttl = true }

function Gen:expand(words, piece)
  while type(piece) == "function" do piece = piece(self) end
  if type(piece) == "table" then
    for _, item in ipairs(piece) do self:expand(words, item) end
    return
  end
  local kind = piece:match("^<(%a+)>$")
  words[#words + 1] = kind and kinds[kind](self) or piece
end

-- Makes a word too many, too few, or a wrong one. Not "1": in the place of a
-- lease, it would make keys expire while commands run.
function Gen:spoil(words)
  local at = self:below(#words) + 1
  if at == 1 or self:chance(30) then
    words[#words + 1] = self:pick { "nx", "xx", "get", "0", "abc", "count" }
  elseif self:chance(40) then
    table.remove(words, at)
  else
    words[at] = self:pick { "", "abc", "-1", "nx", "limit", "withscores", "px" }
  end
end

local function is_relative(words)
  if RELATIVE[words[1]:lower()] then return true end
  for i = 3, #words do
    local word = words[i]:lower()
    if word == "ex" or word == "px" then return true end
  end
  return false
end

--- A command.
---@param is_absolute? boolean nothing that depends on the server's clock
---@return table # words
function Gen:command(is_absolute)
  local name = self:pick(chosen)
  local words = { self:chance(5) and name:upper() or name }
  for _, piece in ipairs(GRAMMAR[name]) do self:expand(words, piece) end
  if self:chance(3) then self:spoil(words) end
  if is_absolute and is_relative(words) then return self:command(true) end
  return words
end

-- The number that a generator starts from: those of successive seeds have
-- nothing in common (the finaliser of splitmix64).
local function mixed(seed)
  local z = seed * 0x9e3779b97f4a7c15
  z = (z ~ (z >> 30)) * 0xbf58476d1ce4e5b9
  z = (z ~ (z >> 27)) * 0x94d049bb133111eb
  return z ~ (z >> 31)
end

---@param seed integer
---@param is_exact? boolean only floats that all versions show alike
function commands.new(seed, is_exact)
  return setmetatable({ random = mixed(seed), is_exact = is_exact }, Gen)
end

return commands
