--- Commands that a hold guards: `call` and `transaction` of a hold, a lock or a
--  multi-lock. The server checks the holds and runs the commands as one step.
--  There is no retry, because a command need not be idempotent.

local check = require "rlock.util.options"

-- The commands that a function collects.
local Transaction = {}
Transaction.__index = Transaction

--- Adds a command.
-- @param ...  the command and its arguments: strings and numbers
function Transaction:call(...)
  self[#self + 1] = check.words("transaction:call", 2, ...)
end

local effect = {}

--- The commands that fn collects.
-- @tparam function fn  called with an object whose method `call` adds one
-- @treturn table
function effect.collect(fn)
  local commands = setmetatable({}, Transaction)
  fn(commands)
  return commands
end

--- Runs commands if all grants are held on the server. May wait.
-- @tparam table grants
-- @tparam table commands  arrays of strings and numbers
-- @treturn[1] table the reply of each command; false for a Redis nil
-- @treturn[2] nil, code, detail as of handle:call; for "cancelled", the value
--   to raise
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
