--- Release requests on ZooKeeper, compatible with Curator: its Revoker sets the
--- data of a holder's node to "__REVOKE__". The holder watches its node. A node
--- whose holder has a callback has no data if it is Curator's, and data that
--- end with MARK if it is rlock's. Curator's format has no room for a reason,
--- so only a request to an rlock holder has more data:
---   __REVOKE__ <id> <reason>
--- The holder then restores its data, so that `rlockctl status` shows the
--- holder.

local codec = require "rlock.zookeeper.codec"
local nodes = require "rlock.zookeeper.nodes"
local queues = require "rlock.zookeeper.queues"

local revoker = {}

local ops, REVOKE, MARK = codec.ops, queues.REVOKE, queues.MARK

-- Marks the data of a node whose holder has a callback.
local function mark(server, entry, version)
  server.connection:post(ops.set, codec.set(entry.place:path(),
    server:data(entry.place.owner) .. MARK, version))
end

--- Calls heard(request) for each request, outside of any task.
---@param target table
---@param owner string the name of the holder
---@param heard function
---@return function # stops listening
function revoker.listen(target, owner, heard)
  local entry = target:held_by(owner)
  if not entry then return function() end end
  entry.heard = heard
  mark(target.server, entry)
  return function() entry.heard = nil end
end

--- Handles new data of a node whose holder has a callback.
---@param server table the back end
---@param entry table
---@param its table a reader of the reply to a get
function revoker.seen(server, entry, its)
  local data, stat = its:text() or "", its:stat()
  if its.is_bad or data:sub(-#MARK) == MARK
      and data:sub(1, #REVOKE) ~= REVOKE then
    return
  end
  -- Does not overwrite a later change of the data, which is handled next.
  mark(server, entry, stat.version)
  local request = data:match("^" .. REVOKE .. " ?(.*)$")
  if request then entry.heard(request) end
end

-- The data that make a request to the holder of a node with this data; nil: the
-- holder has no callback.
local function data_for(data, request)
  if data == "" or data == REVOKE then return REVOKE end
  if data:sub(1, #REVOKE) == REVOKE or data:sub(-#MARK) == MARK then
    return REVOKE .. " " .. request
  end
end

--- Sends a request to all holders of a lock, on both sides of a pair.
---@param target table
---@param deadline number by host.now()
---@param request string
---@return integer? # the number of holders that have a callback for it
---@return any # whether there are holders
---@return string? detail
function revoker.ask(target, deadline, request)
  local holders, code, detail = target:holders(deadline)
  if not holders then return nil, code, detail end
  local n = 0
  for _, node in ipairs(holders) do
    local data = node.data and data_for(node.data, request)
    if data then
      local err
      err, code, detail = nodes.ask(target.server, deadline, ops.set, node.path,
        codec.set(node.path, data))
      if not err then return nil, code, detail end
      if err == 0 then n = n + 1 end
    end
  end
  return n, holders[1] ~= nil
end

return revoker
