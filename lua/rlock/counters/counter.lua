--- What the public objects of counters have in common.

--- A counter has no owners.
---@class rlock.counter
---@field session rlock.session internal
---@field record rlock.record internal
local counter = {}

--- Creates the class of a kind.
---@param kind string the name of its policy
---@param parent? table a class to inherit from
---@return table
function counter.class(kind, parent)
  ---@type any
  local class = setmetatable({}, { __index = parent })
  class.__index = class

  ---@param client rlock.client its counters keep it alive
  ---@param name string
  function class.new(client, name)
    local session = client.session
    local policy = session.options.backend.load(kind)
    return setmetatable({
      session = session, record = session:record(client, policy, name),
    }, class)
  end

  return class
end

--- Creates a class that inherits a copy of the fields of a parent.
---@param parent table
---@return any
function counter.derive(parent)
  local class = {}
  for name, value in pairs(parent) do class[name] = value end
  class.__index = class
  return class
end

-- Conversions of replies, see deduplication.result.

function counter.yes() return true end

function counter.second(reply) return reply[2] end

return counter
