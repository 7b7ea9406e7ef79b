--- `require "rlock.simulate"` outside of a simulation, so that one file is both
--- a program and its test. This module checks the invariants once, when the
--- program has ended. `rlockctl simulate` replaces it with its own module.

local check_function = require "rlock.util.options".type "function"
local host = require "rlock.host.uv"

---@class rlock.simulate
---@field finally fun(fn: fun()) adds an invariant like `always`, but a
--- simulation checks it once, at the end of a run
local simulate = {}

local tables, invariants = {}, {}
local client                            -- for simulate.redis

-- Checks the invariants in a task, after all other tasks have ended.
function host.at_end()
  for _, fn in ipairs(invariants) do
    local holds, why = fn()
    if holds == false then
      local at = debug.getinfo(fn, "S") --[[@as table]]
      error(why or ("%s:%d: this invariant returned false"):format(at.short_src,
        at.linedefined), 0)
    end
  end
end

--- A table that all processes of a simulation share and that survives their
--- crashes. Outside of a simulation, only this program has it.
---@param name string
---@return table<any, any>
function simulate.shared(name)
  tables[name] = tables[name] or {}
  return tables[name]
end

--- Adds an invariant. It is violated if fn raises an error or returns false.
--- A simulation calls fn after each step of any process.
---@param fn fun() must not wait
function simulate.always(fn)
  check_function(fn, "fn of an invariant", 2)
  invariants[#invariants + 1] = fn
end

simulate.finally = simulate.always

--- Reads the server's data in an invariant. Until the first rlock.open, a
--- simulation skips an invariant that reads data.
---@param ... string | number a command
---@return any # its reply; raises an error if it fails
function simulate.redis(...)
  client = client or assert(require("rlock").open())
  local reply, _, detail = client:call(...)
  if reply == nil then error(detail, 2) end
  return reply
end

---@class rlock.simulated_server
---@field stop fun(seconds: number) stops it for this many seconds

---@class rlock.options.simulate
---@field seed? integer default: 1
---@field span? number seconds of virtual time within which the function and its
--- tasks must end; default: 86400

---@alias rlock.simulate_options rlock.options.simulate & { seed?: any,
---   span?: any, [string]: nil }

--- Runs a function in its own simulation, on a virtual clock, so a spec of a
--- time-out takes milliseconds. During the call, `require "rlock"` belongs to
--- one simulated process, and every URL leads to the same simulated server,
--- which is empty at first. `os.time`, `os.clock`, `os.date` and `math.random`
--- follow the simulation. Open clients inside the function. A loop raises an
--- error if it neither waits nor reads the clock, or if it lasts longer than
--- the span without a wait.
---@generic T
---@param fn fun(server: rlock.simulated_server): T...
---@param options? rlock.simulate_options
---@return T... # the results of fn; raises its error, or that of a task
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
