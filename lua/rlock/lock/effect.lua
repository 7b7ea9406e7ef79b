--- Commands that a hold guards: `call` and `transaction` of a hold, a lock or a
--- multi-lock. The server checks the holds and runs the commands as one step.
--- There is no retry, because a command need not be idempotent.

local check = require "rlock.util.options"

-- The commands that a function collects.
---@class rlock.transaction
local Transaction = {}
Transaction.__index = Transaction

--- Adds a command.
---@param ... string | number the command and its arguments
function Transaction:call(...)
  self[#self + 1] = check.words("transaction:call", 2, ...)
end

local effect = {}

--- The commands that fn collects.
---@param fn function called with an object whose method `call` adds one
---@return table
function effect.collect(fn)
  local commands = setmetatable({}, Transaction)
  fn(commands)
  return commands
end

--- Runs commands if all grants are held on the server. May wait.
---@param grants table a list of grants
---@param commands table arrays of strings and numbers
---@return table? # the reply of each command; false for a Redis nil
---@return rlock.failure? code
---@return string? detail # as of handle:call; for "cancelled", the value to
---  raise
function effect.run(grants, commands)
  local guards = {}
  for i, granted in ipairs(grants) do
    local record = granted.lock.record
    guards[i] = { target = record.target, policy = record.policy,
      name = record.name, owner_name = granted.owner_name }
  end
  local target, session = guards[1].target, grants[1].lock.session
  if not target.effect then
    return nil, "usage", grants[1]:show()
      .. ": its server runs no commands under a lock"
  end
  local replies, code, detail =
    target:effect(guards, commands, session.host.now() + session.timeout)
  for _, granted in ipairs(code == "lost" and grants or {}) do
    if granted.lock then                 -- not released meanwhile
      granted.lock.session.watchdog:suspect(detail,       -- checks it at once
        function(other) return other == granted end)
    end
  end
  return replies, code, detail
end

return effect
