--- ZooKeeper's messages: what is inside a frame. Integers are big-endian. An
--- id of 64 bits (a session's, a transaction's) is a string of 8 bytes, because
--- LuaJIT has no such integers. Pure.
---
--- A reader never raises an error and never reads past the end of its text. A
--- missing value is 0 or "", and sets the reader's `is_bad`. So the caller
--- reads a whole message, and checks it once.

local codec = {}

local byte, char, concat, floor, sub =
  string.byte, string.char, table.concat, math.floor, string.sub

--- The codes of requests, in the protocol.
codec.ops = {
  create = 1, delete = 2, exists = 3, get = 4, set = 5, get_acl = 6,
  children = 8, sync = 9, ping = 11, check = 13, multi = 14, create2 = 15,
  create_container = 19, auth = 100, close = -11,
}

--- Ids of messages that answer no numbered request.
codec.xids = { event = -1, ping = -2, auth = -4 }

--- How a node is made.
codec.flags = { persistent = 0, ephemeral = 1, sequential = 3, container = 4 }

--- An id of 64 bits that is 0.
codec.NO_ID = ("\0"):rep(8)

local ALL = 31                    -- permissions
--- Permissions: to set a node, and to delete its children.
codec.WRITE, codec.DELETE = 2, 8
local LARGEST = 9007199254740992  -- 2^53
local IS_EXACT = LARGEST + 1 ~= LARGEST   -- are there 64-bit integers?

-- writing ---------------------------------------------------------------------

--- A signed integer of 32 bits.
function codec.int(n)
  n = n % 4294967296
  ---@cast n integer
  return char(floor(n / 16777216), floor(n / 65536) % 256,
    floor(n / 256) % 256, n % 256)
end

local int = codec.int

--- A string, or bytes; nil differs from "".
function codec.text(value)
  if not value then return int(-1) end
  return int(#value) .. value
end

local text = codec.text

--- The first message of a connection.
---@param session table id, password; `timeout` in ms, `seen`: the last
---  transaction that the client knows of
function codec.hello(session)
  return int(0) .. session.seen .. int(session.timeout) .. session.id
    .. text(session.password) .. "\0"
end

--- A request.
---@param xid number
---@param op integer one of codec.ops
---@param body? string default: ""
function codec.request(xid, op, body)
  return int(xid) .. int(op) .. (body or "")
end

local function acl(scheme, id)
  return int(1) .. int(ALL) .. text(scheme) .. text(id)
end

local ANYONE = acl("world", "anyone")

--- Access for this login only.
codec.CREATOR = acl("auth", "")

--- The body of a create.
---@param path string
---@param data string
---@param flags integer one of codec.flags
---@param access? string default: everyone may do everything
function codec.create(path, data, flags, access)
  return text(path) .. text(data) .. (access or ANYONE) .. int(flags)
end

--- The body of a delete or a check, of any version by default.
function codec.versioned(path, version)
  return text(path) .. int(version or -1)
end

--- The body of a set.
function codec.set(path, data, version)
  return text(path) .. text(data) .. int(version or -1)
end

--- The body of a read, perhaps with a watch.
function codec.read(path, is_watched)
  return text(path) .. (is_watched and "\1" or "\0")
end

--- The body of an auth.
function codec.auth(scheme, login)
  return int(0) .. text(scheme) .. text(login)
end

--- The body of a multi.
---@param parts table a list of { op, body }
function codec.multi(parts)
  local list = {}
  for i, part in ipairs(parts) do
    list[i] = int(part[1]) .. "\0" .. int(-1) .. part[2]
  end
  return concat(list) .. int(-1) .. "\1" .. int(-1)
end

-- reading ---------------------------------------------------------------------

---@class rlock.zookeeper.codec.Reader
---@field bytes any
---@field at number
---@field is_bad boolean
local Reader = {}
Reader.__index = Reader

--- A reader of a frame.
---@param bytes string
function codec.reader(bytes)
  return setmetatable({ bytes = bytes, at = 1, is_bad = false }, Reader)
end

-- The position of the next `n` bytes, or nil.
local function take(self, n)
  local at = self.at
  if at + n - 1 > #self.bytes then
    self.is_bad, self.at = true, #self.bytes + 1
    return nil
  end
  self.at = at + n
  return at
end

function Reader:int()
  local at = take(self, 4)
  if not at then return 0 end
  local a, b, c, d = byte(self.bytes, at, at + 3)
  local n = ((a * 256 + b) * 256 + c) * 256 + d
  return n < 2147483648 and n or n - 4294967296
end

--- An id of 64 bits.
function Reader:id()
  local at = take(self, 8)
  return at and sub(self.bytes, at, at + 7) or codec.NO_ID
end

function Reader:bool()
  local at = take(self, 1)
  return at ~= nil and byte(self.bytes, at) ~= 0
end

--- A string, or bytes; nil if the server has sent none.
function Reader:text()
  local length = self:int()
  if length == -1 then return nil end
  ---@type any
  local at = length >= 0 and take(self, length)
  if not at then
    self.is_bad = true
    return ""
  end
  ---@diagnostic disable-next-line: param-type-mismatch
  return sub(self.bytes, at, at + length - 1)
end

--- A list of strings. Its length is bounded by the bytes that are there.
function Reader:texts()
  local list, n = {}, self:int()
  if n > (#self.bytes + 1 - self.at) / 4 then self.is_bad = true end
  for i = 1, self.is_bad and 0 or n do list[i] = self:text() or "" end
  return list
end

--- The stat of a node: `created`, the id of the transaction that made it; its
--- `version`; its `owner`, a session; the `size` of its data; its number of
--- `children`; `changed`, the id of the transaction that last made or deleted
--- a child, or that made the node.
function Reader:stat()
  local stat = { created = self:id() }
  take(self, 24)                    -- when it was changed, and both times
  stat.version = self:int()
  take(self, 8)                     -- the versions of its children and its ACL
  stat.owner, stat.size = self:id(), self:int()
  stat.children, stat.changed = self:int(), self:id()
  return stat
end

--- Does anyone have a permission for a node that has this access control list?
---@param permission? integer default: codec.DELETE
function Reader:is_open(permission)
  local n, unit = self:int(), permission or codec.DELETE
  for _ = 1, n do
    local permissions, scheme = self:int(), self:text()
    self:text()
    if self.is_bad then return true end
    if scheme == "world" and floor(permissions / unit) % 2 == 1 then
      return true
    end
  end
  return self.is_bad
end

--- The server's first message: the session that it has given.
---@return table? # id, password, timeout (ms; 0: there is no such session)
function codec.welcome(bytes)
  local its = codec.reader(bytes)
  its:int()
  local session = { timeout = its:int(), id = its:id(),
    password = its:text() or "" }
  if its.is_bad or session.timeout < 0 then return nil end
  session.is_read_only = its.at <= #bytes and its:bool()
  return session
end

--- The head of each later message.
---@return integer # xid
---@return string # zxid
---@return integer # err
---@return table # the reader of the rest
function codec.head(bytes)
  local its = codec.reader(bytes)
  return its:int(), its:id(), its:int(), its
end

--- The results of a multi: a list of error numbers, and the stat after its last
--- set. A multi that has failed has no error in its head.
---@param its table a reader
function codec.results(its)
  local errors, stat = {}, nil
  while not its.is_bad do
    local kind, is_last, err = its:int(), its:bool(), its:int()
    if is_last then break end
    if kind == -1 then err = its:int() end
    if kind == codec.ops.set then stat = its:stat() end
    errors[#errors + 1] = err
  end
  return errors, stat
end

--- An id of 64 bits as a number, such as a token.
---@return number? # nil if this runtime cannot have it exactly
function codec.number(id)
  local its = codec.reader(id)
  local high, low = its:int() % 4294967296, its:int() % 4294967296
  local n = high * 4294967296 + low
  if IS_EXACT or n < LARGEST then return n end
end

return codec
