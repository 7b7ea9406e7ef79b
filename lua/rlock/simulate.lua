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

--- Runs a function in a simulation of its own, on a virtual clock: a spec of
--  time-outs takes milliseconds. Meanwhile, `require "rlock"` is that of one
--  simulated process, and every URL leads to the same server, which has no data
--  yet. `os.time`, `os.clock`, `os.date` and `math.random` follow the
--  simulation. Open clients inside of it.
-- @tparam function fn gets a table: `stop(seconds)`, the server does not answer
--   for so long
-- @tparam[opt] table options seed = 1; span = 86400, seconds of virtual time
--   after which the function and its tasks must have ended
-- @return what fn returned; raises its error, or that of a task
function simulate.run(fn, options)
  local found, virtual = pcall(function()
    return require "rlockctl.simulate.virtual"
  end)
  if found then return virtual.run(fn, options) end
  if not virtual:find("module '[^']*' not found") then error(virtual, 0) end
  error("simulate.run is part of rlockctl: run your specs with "
    .. "rlockctl /usr/bin/busted", 2)
end

return simulate
