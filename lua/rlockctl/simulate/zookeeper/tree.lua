--- A model of the nodes and sessions of one ZooKeeper server. All servers apply
--- the same transactions in the same order, so they get the same nodes (state
--- machine replication). The body of a request is that of its frame.

local codec = require "rlock.zookeeper.codec"
local errors = require "rlock.zookeeper.errors"
local sorted = require "rlock.util.sorted"

---@class rlockctl.simulate.zookeeper.tree
---@field [any] any
local tree = {}
tree.__index = tree

--- Transactions beside codec.ops: a new session; the end of an empty container.
tree.OPEN, tree.REMOVE = -10, 20

--- Errors beside errors.lua.
tree.EXPIRED, tree.MOVED = -112, -118

local int, ops, text = codec.int, codec.ops, codec.text
local CONTAINER = "\128" .. ("\0"):rep(7)       -- the owner of containers
local BAD_ARGUMENTS, INCONSISTENT, NO_CHILDREN = -8, -2, -108

---@param on_change? function called with "created", "deleted", "changed" or
---  "children", and a path
function tree.new(on_change)
  return setmetatable({
    nodes = { ["/"] = { data = "", version = 0, owner = codec.NO_ID,
      creates = 0, children = {}, created = 0, changed = 0 } },
    sessions = {},                    -- id -> time-out
    zxid = 0, events = {}, on_change = on_change or function() end,
  }, tree)
end

local function parent_of(path)
  local parent, name = path:match "^(.*)/([^/]+)$"
  return parent == "" and "/" or parent, name
end

local function is_ephemeral(node)
  return node.owner ~= codec.NO_ID and node.owner ~= CONTAINER
end

local function stat(node)
  local children = 0
  for _ in next, node.children do children = children + 1 end
  return (">I8I8I8I8i4i4i4"):pack(node.created, node.changed, 0, 0,
    node.version, node.creates * 2 - children, 0)
    .. (node.owner == CONTAINER and codec.NO_ID or node.owner)
    .. (">i4i4I8"):pack(#(node.data or ""), children,
      node.children_changed or node.created)
end

-- writing ---------------------------------------------------------------------

local function note(self, what, path)
  table.insert(self.events, { what, path })
end

local function remove(self, path)
  local parent, name = parent_of(path)
  self.nodes[path], self.nodes[parent].children[name] = nil, nil
  self.nodes[parent].children_changed = self.zxid
  note(self, "deleted", path)
  note(self, "children", parent)
end

local write = {}

local function create(self, txn, its)
  local path, data = its:text() or "", its:text()
  for _ = 1, its:int() do its:int() its:text() its:text() end -- who may do what
  local flags = its:int()
  local above = parent_of(path)
  if its.is_bad or not above then return BAD_ARGUMENTS end
  local parent = self.nodes[above]
  if not parent then return errors.NO_NODE end
  if flags == 2 or flags == codec.flags.sequential then
    path = path .. ("%010d"):format(parent.creates)
  end
  if self.nodes[path] then return errors.NODE_EXISTS end
  if is_ephemeral(parent) then return NO_CHILDREN end
  self.nodes[path] = { data = data, version = 0, creates = 0, children = {},
    created = txn.zxid, changed = txn.zxid,
    owner = flags == codec.flags.container and CONTAINER
      or flags % 2 == 1 and txn.session or codec.NO_ID }
  parent.creates, parent.children_changed = parent.creates + 1, txn.zxid
  parent.children[select(2, parent_of(path))] = true
  note(self, "created", path)
  note(self, "children", above)
  return 0, text(path), stat(self.nodes[path])
end

write[ops.create] = create

function write.with_stat(...)
  local err, path, its_stat = create(...)
  return err, path and path .. its_stat
end

write[ops.create2] = write.with_stat
write[ops.create_container] = write.with_stat

-- The node of a path, or an error. The version must match, unless any will do.
local function versioned(self, path, version)
  local node = self.nodes[path]
  if not node then return errors.NO_NODE end
  if version ~= -1 and version ~= node.version then
    return errors.BAD_VERSION
  end
  return 0, node
end

write[ops.delete] = function(self, _, its)
  local path = its:text()
  local err, node = versioned(self, path, its:int())
  if err ~= 0 then return err end
  if next(node.children) then return errors.NOT_EMPTY end
  remove(self, path)
  return 0, ""
end

write[ops.set] = function(self, txn, its)
  local path, data = its:text(), its:text()
  local err, node = versioned(self, path, its:int())
  if err ~= 0 then return err end
  node.data, node.version, node.changed = data, node.version + 1, txn.zxid
  note(self, "changed", path)
  return 0, stat(node)
end

write[ops.check] = function(self, _, its)
  return versioned(self, its:text(), its:int()), ""
end

write[tree.REMOVE] = function(self, txn)
  local node = self.nodes[txn.body]
  if node and node.owner == CONTAINER and not next(node.children) then
    remove(self, txn.body)
  end
  return 0
end

write[tree.OPEN] = function(self, txn)
  self.sessions[txn.session] = txn.timeout
  return 0
end

write[ops.close] = function(self, txn)
  self.sessions[txn.session] = nil
  for _, path in ipairs(self:ephemerals(txn.session)) do remove(self, path) end
  return 0, ""
end

local function copy_of(nodes)
  local copy = {}
  for path, node in next, nodes do
    local own, children = {}, {}
    for field, value in next, node do own[field] = value end
    for name in next, node.children do children[name] = true end
    own.children = children
    copy[path] = own
  end
  return copy
end

-- The results of a multi. The parts after the one that failed are inconsistent.
local function results(parts, failed)
  local list = {}
  for i, part in ipairs(parts) do
    local err = not failed and 0 or i < failed and 0
      or i == failed and part.err or INCONSISTENT
    list[i] = failed and int(-1) .. "\0" .. int(err) .. int(err)
      or int(part.op) .. "\0" .. int(0) .. part.reply
  end
  return table.concat(list) .. int(-1) .. "\1" .. int(-1)
end

write[ops.multi] = function(self, txn, its)
  local before, parts, failed = self.nodes, {}, nil
  self.nodes = copy_of(before)
  while not its.is_bad do
    local op, is_last = its:int(), its:bool()
    its:int()
    if is_last then break end
    local err, reply = write[op](self, txn, its)
    parts[#parts + 1] = { op = op, err = err, reply = reply }
    if err ~= 0 then failed = failed or #parts end
  end
  if failed then self.nodes, self.events = before, {} end
  return 0, results(parts, failed)
end

--- Applies a transaction.
---@param txn table zxid, session, op, body; timeout of a new session; or err,
---  with which it has failed
---@return integer # the error
---@return string # the body of the reply
function tree:apply(txn)
  self.zxid = txn.zxid
  if txn.err then return txn.err, "" end
  self.events = {}
  ---@type any, any
  local err, reply = write[txn.op](self, txn, codec.reader(txn.body or ""))
  for _, event in ipairs(self.events) do self.on_change(event[1], event[2]) end
  return err, err == 0 and reply or ""
end

-- reading ---------------------------------------------------------------------

--- Reads a node.
---@param op integer of codec.ops
---@param body string
---@return integer # the error
---@return string # the body of the reply
---@return string? # the path, if it is to be watched
function tree:read(op, body)
  local its = codec.reader(body)
  local path, is_watched = its:text(), its:bool()
  local node = self.nodes[path]
  if not node then
    return errors.NO_NODE, "", op == ops.exists and is_watched and path or nil
  end
  ---@type any
  local reply = ""
  if op == ops.children then
    local names = sorted(node.children)
    reply = { int(#names) }
    for i = #names, 1, -1 do reply[#reply + 1] = text(names[i]) end
    reply = table.concat(reply)
  elseif op == ops.get then
    reply = text(node.data) .. stat(node)
  elseif op == ops.exists then
    reply = stat(node)
  end
  return 0, reply, is_watched and path or nil
end

--- The sorted paths of the ephemeral nodes of one session; default: of all.
function tree:ephemerals(session)
  local list = {}
  for path, node in next, self.nodes do
    if is_ephemeral(node) and (not session or node.owner == session) then
      list[#list + 1] = path
    end
  end
  table.sort(list)
  return list
end

--- The sorted paths of the containers that have had children, but have none
--- now.
function tree:empty_containers()
  local list = {}
  for path, node in next, self.nodes do
    if node.owner == CONTAINER and node.creates > 0
        and not next(node.children) then
      list[#list + 1] = path
    end
  end
  table.sort(list)
  return list
end

return tree
