--- Checks that a client without a hold cannot act as a holder. In each state it
--- tries all operations, on a copy of the server.

local steps = require "rlockctl.check.steps"

local ownership = {}

-- Operations, the hold count that each states, and the verdict that would mean
-- a hold. A release may remove the remains of a hold that has ended.
local TRIALS = {
  { op = "release", want = 0, never = "freed" },
  { op = "renew", want = 1, wrong = "held" },
  { op = "acquire", want = 2, wrong = "held", as = "re-enter" },
  { op = "leave", want = 0 }, { op = "refresh", want = 0 },
}

local function fault_of(lock, side, who, trial, result)
  if result.fault then return result.fault end
  local verdict = result.verdict
  if verdict == trial.wrong or verdict == "kept"
      or who.is_new and verdict == trial.never then
    return ("%s holds nothing, but %s returns %q"):format(who.name,
      trial.as or trial.op, verdict)
  end
  return steps.check_twice(lock, side, trial.op, result)
end

local function try(lock, server, who, side, trial)
  local result = steps.execute(lock, server, side, trial.op,
    steps.arguments(lock, who.name, {
      op = trial.op, side = side, lease = lock.leases[1], want = trial.want,
      wait = 0,
    }))
  return {
    fault = fault_of(lock, side, who, trial, result),
    server = result.after, what = trial.as or trial.op, op = result.op,
  }
end

local function peek(lock, server, who, side)
  local result = steps.execute(lock, server, side, "peek", { who.name })
  local count = not result.fault and result.reply[3]
  return {
    server = result.after, what = "peek", op = result.op, fault = result.fault
      or count ~= 0 and ("%s holds nothing, but peek reports %d"):format(
        who.name, count) or steps.check_twice(lock, side, "peek", result),
  }
end

-- The results of all trials, cached in the snapshot.
local function trials_of(lock, server, who, side)
  local key = ("%s %d %s"):format(who.name, side, who.is_new)
  local ops, list = lock.sides[side].ops, server.lonely[key]
  if list then return list end
  list = {}
  for _, trial in ipairs(TRIALS) do
    local is_possible = ops[trial.op]
      and (trial.want < 2 or lock.sides[side].reenter ~= false)
    if is_possible then
      list[#list + 1] = try(lock, server, who, side, trial)
    end
  end
  if ops.peek then list[#list + 1] = peek(lock, server, who, side) end
  server.lonely[key] = list
  return list
end

--- Tries all operations of a client that does not hold a side.
---@param lock table
---@param server table a snapshot
---@param who table its `name`; `is_new`: it never acquired
---@param side integer
---@param check function called with the server after each operation, if it has
---  changed, and the operation's name; returns a fault
---@return string? # a fault
---@return table? # the operation
function ownership.check(lock, server, who, side, check)
  for _, trial in ipairs(trials_of(lock, server, who, side)) do
    local fault = trial.fault
      or trial.server ~= server and check(trial.server, trial.what)
    if fault then return fault, trial.op end
  end
end

return ownership
