--- The nodes of a lock, as a list of its path shows them: their order, those
--- that hold the lock, and who made them. Pure.

local place = require "rlock.zookeeper.place"

local queues = {}

--- The data of a node whose holder is asked to release the lock, and the end of
--- the data of one that has a callback for it; see revoker.lua.
queues.REVOKE, queues.MARK = "__REVOKE__", " revocable"

--- The nodes of locks among the children of a path, in order.
---@param names table
---@param path string
---@return table # a list of { name, mark, number, path }
function queues.sorted(names, path)
  local list = {}
  for _, name in ipairs(names) do
    local mark, number = place.parse(name)
    if mark then
      list[#list + 1] = { name = name, mark = mark, number = number,
        path = path .. "/" .. name }
    end
  end
  table.sort(list, function(a, b)
    if a.number ~= b.number then return a.number < b.number end
    return a.mark > b.mark                       -- a writer, then its reader
  end)
  return list
end

--- The nodes that hold the lock: the first, or several that share it. Readers
--- share it if they are before the first writer, or have its number.
---@param list table from `sorted`
---@param most? integer how many nodes may share it; default: 1
---@return table # a list
function queues.holders(list, most)
  local first = list[1]
  local is_pair = first and first.mark:find "^__%u"
  local holders, limit = {}, nil
  for _, node in ipairs(list) do
    local is_writer = node.mark == "__WRIT__"
    if is_pair and limit and node.number > limit then break end
    if not is_pair and holders[most or 1] then break end
    if not is_writer or node == first then holders[#holders + 1] = node end
    if is_writer then limit = limit or node.number end
  end
  return holders
end

--- Who made a node.
---@param data string of the node
---@return string? # the owner, if rlock made it
---@return string? # then the name of the client's connections, see identity.lua
---@return string? # the address; what another program wrote
---@return string? # what a waiter has announced, see lock/deadlock.lua
function queues.maker(data)
  if data:sub(1, #queues.REVOKE) == queues.REVOKE then return nil end
  if data:sub(-#queues.MARK) == queues.MARK then
    data = data:sub(1, -#queues.MARK - 1)
  end
  local address, rest = data:match "^(%S+) ?(.*)$"
  local owner, name, wait = (rest or ""):match "^(%S+) (rlock,%S+) ?(.*)$"
  return owner, name, owner and address or data ~= "" and data or nil,
    wait ~= "" and wait or nil
end

return queues
