--- How many permits a semaphore has: the node `limit` below its path, of 4
--- bytes, like Curator's SharedCount; and how many are taken.

local codec = require "rlock.zookeeper.codec"
local errors = require "rlock.zookeeper.errors"
local nodes = require "rlock.zookeeper.nodes"

local limit = {}

local ops = codec.ops

local function path_of(target) return target.path .. "/limit" end

--- Reads the limit.
---@param target table of a semaphore
---@param deadline number by host.now()
---@return any # the limit; false: it was never set
---@return any # its version
---@return string? detail
function limit.read(target, deadline)
  local path = path_of(target)
  local data, version, detail = nodes.get_own(target, deadline, path)
  if not data then return data, version, detail end
  if #data ~= 4 then
    return nil, "refused", path .. " is not a SharedCount of 4 bytes"
  end
  return codec.reader(data):int(), version
end

--- Reads the limit, and watches it until the gate is asked or left.
---@param target table
---@param gate table the place of the first waiter
---@return any ... # as limit.read
function limit.watch(target, gate, deadline)
  gate:attend(path_of(target))
  return limit.read(target, deadline)
end

--- Makes the node of the limit.
---@return boolean? # true, or false if it exists already
---@return rlock.failure? code, string? detail
function limit.make(target, n, deadline)
  return nodes.make(target.server, deadline, target.path, path_of(target),
    codec.int(n))
end

--- Sets the limit.
---@return true | integer | nil
---@return any code, string? detail
function limit.set(target, n, deadline)
  local path = path_of(target)
  if target.server.access then
    local now, why, what = limit.read(target, deadline)
    if now == nil then return nil, why, what end
  end
  while true do
    ---@type any, any, any
    local err, code, detail = nodes.ask(target.server, deadline, ops.set, path,
      codec.set(path, codec.int(n)))
    if err == 0 then return true end
    ---@type any
    local was_made = err
    if err then was_made, code, detail = limit.make(target, n, deadline) end
    if was_made ~= false then return was_made, code, detail end
  end
end

--- Adds to the limit, once.
---@return true?, any code, string? detail
function limit.add(target, n, deadline)
  while true do
    local now, version, detail = limit.read(target, deadline)
    if now == nil then return nil, version, detail end
    if not now then
      return nil, "refused", "the number of permits was never set"
    end
    local made, code, why, err = nodes.set(target.server, deadline,
      path_of(target), codec.int(now + n), version)
    if made then return true end
    if err ~= errors.BAD_VERSION then return nil, code, why end
  end
end

--- Counts the permits.
---@return number? # how many are available; 0 if the limit was never set
---@return any # how many are taken
---@return string? detail
function limit.count(target, deadline)
  local now, code, detail = limit.read(target, deadline)
  if now == nil then return nil, code, detail end
  local taken
  taken, code, detail =
    nodes.children(target.server, deadline, target.path .. "/leases")
  if not taken then return nil, code, detail end
  return now and now - #taken or 0, #taken
end

return limit
