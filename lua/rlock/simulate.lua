--- `require "rlock.simulate"` of a program that runs plainly, so that one file
--  is a program and its test: the invariants are checked once, when the program
--  has ended. `rlockctl simulate` has a module of its own in place of this one.

local host = require "rlock.host.uv"

local simulate = {}

local tables, invariants = {}, {}
local client                            -- for simulate.redis

-- Checks the invariants, as a task after all others have ended.
function host.at_end()
  for _, fn in ipairs(invariants) do fn() end
end

--- A table that all processes of a simulation share, and that outlives them.
--  Here it is this program's.
-- @tparam string name
-- @treturn table
function simulate.shared(name)
  tables[name] = tables[name] or {}
  return tables[name]
end

--- Adds an invariant: fn raises if it does not hold. A simulation calls it
--  after each step of any process.
-- @tparam function fn must not wait
function simulate.always(fn) invariants[#invariants + 1] = fn end

--- Adds an invariant that a simulation checks once, at the end of a run.
-- @tparam function fn must not wait
simulate.finally = simulate.always

--- Reads the server's data in an invariant.
-- @param ... a command
-- @return its reply; raises if it fails
function simulate.redis(...)
  client = client or assert(require("rlock").open())
  local reply, _, detail = client:call(...)
  if reply == nil then error(detail, 2) end
  return reply
end

return simulate
