--- The model of a lock, for explore.lua. All models have the methods of this
--- file, such as those of counters.lua.

local transitions = require "rlockctl.check.transitions"
local delays = require "rlockctl.check.delays"
local invariants = require "rlockctl.check.invariants"
local naming = require "rlock.naming"
local steps = require "rlockctl.check.steps"
local notation = require "rlockctl.check.notation"
local State = require "rlockctl.check.state"

---@class rlockctl.check.locks
---@field name string
---@field sides any
---@field bounds any
---@field lock_name any
---@field keys any
---@field options table
---@field options_of any
---@field faults any
---@field hands_over any
---@field publish any
---@field listeners any
---@field has_strangers boolean
---@field leases any
---@field tick any
---@field most_holds any
---@field is_symmetric boolean
---@field is_absolute boolean
---@field known_transitions table
---@field allows any
---@field is_fair boolean
---@field slack any
---@field patience any
---@field poll any
---@field keeps any
---@field limits any
local locks = {}
locks.__index = locks

local function set(list)
  local result = {}
  for _, item in ipairs(list or {}) do result[item] = true end
  return result
end

-- Does an operation read the clock? Then times are not relative.
local function reads_clock(sides)
  for _, side in ipairs(sides) do
    for name in pairs(side.server) do
      local op = side.ops[name]
      if op.text:find('"time"', 1, true) then return true end
    end
  end
  return false
end

local function one_at_most() return false end

-- Readers share; a writer excludes other owners.
local function readers_or_writer(holders)
  local writer
  for _, holder in ipairs(holders) do
    if holder.mode == "write" then writer = holder.owner end
  end
  for _, holder in ipairs(holders) do
    if writer and holder.owner ~= writer then return false end
  end
  return true
end

-- The subscribers of a lock that is handed over (policy/handover.lua): by
-- default its waiters; "foreign": also a client of another kind; "deaf": only
-- that one, because the clients of the waiters have lost their connections.
local function listeners_of(policy, keys, kind)
  local channel = policy.channel(keys, "A")
  local inbox, ours = naming.inbox(channel, ""), kind == "deaf" and 0 or 1
  return setmetatable({
    [channel] = ours + (kind and 1 or 0), [naming.waiters(channel)] = ours,
  }, {
    __index = function(_, name)
      return name:sub(1, #inbox) == inbox and ours or nil
    end,
  })
end

--- Describes what is explored.
---@param sides table one policy, or those for reading and writing; results of
---  policy.load
---@param bounds table clients, ops, ticks, tick (ms), breaks, server_faults
---  (evict, expire, jump), leases (ms), most_holds, faults (name -> true),
---  options, options_of (client -> its own), is_symmetric, name (of the lock),
---  listeners ("foreign" or "deaf", of a lock that is handed over)
---@return table
function locks.new(sides, bounds)
  local first = sides[1]
  local keys, hands_over = first.keys(bounds.name or "lock"), first.hands_over
  return setmetatable({
    name = first.name:match("^[^.]*"), sides = sides, bounds = bounds,
    lock_name = bounds.name, keys = keys, options = bounds.options,
    options_of = bounds.options_of or {},
    faults = bounds.faults, hands_over = hands_over,
    publish = hands_over and "hand over" or "publish",
    listeners = hands_over and listeners_of(first, keys, bounds.listeners),
    has_strangers = bounds.listeners ~= nil,
    leases = bounds.leases, tick = bounds.tick, most_holds = bounds.most_holds,
    is_symmetric = bounds.is_symmetric, is_absolute = reads_clock(sides),
    known_transitions = {},
    allows = first.allows or sides[2] and readers_or_writer or one_at_most,
    is_fair = first.fair, slack = (first.slack or 0) * 1000,
    patience = delays.patience(first), poll = first.poll and first.poll * 1000,
    keeps = set(first.keeps and first.keeps(keys)),
    limits = first.lasts and first.lasts(keys),
  }, locks)
end

--- The first state. A state has fork() and text(); equal texts are states that
--- behave alike. Its `server` is a snapshot.
function locks:start() return State.new(self) end

--- Do its operations read the clock?
function locks:is_timed() return self.is_absolute end

--- The possible next steps.
---@return table
function locks:transitions(state) return transitions.of(self, state) end

--- Takes a step in a state, which it changes.
---@return table? # the result of an operation: `verdict`, `value`,
---  `is_ordered`, `compiled`
---@return string? # a fault
function locks:take(state, step) return steps.take(self, state, step) end

--- Checks a state.
---@return string? # a fault
---@return table? # the faulty operation, if it is not that of the last step
function locks:judge(state) return invariants.check(self, state) end

--- Checks a step that has been executed.
---@param before table the state before it
---@param step table
---@param result? table
---@return string? # a fault
function locks:judge_step(before, step, result)
  if not result or not result.verdict then return end
  return result.verdict == "held" and invariants.check_order(self, before, step)
    or delays.check_step(self, before, step, result)
end

--- A step as text.
function locks:text(state, step) return notation.text(self, state, step) end

--- Parses a step; returns it, or nil and a fault.
function locks:read(state, text) return notation.read(self, state, text) end

--- The names of the clients.
---@return table
function locks:names()
  local names = {}
  for i = 1, self.bounds.clients do names[i] = string.char(64 + i) end
  return names
end

--- The belief of each client, as text.
---@return table
function locks:beliefs(state)
  local list = {}
  for i, client in ipairs(state.clients) do
    list[i] = notation.belief(self, state, client)
  end
  return list
end

--- The operation of a step, the result of script.compile; or nil.
function locks:operation(step)
  return step.op and self.sides[step.side].ops[step.op]
end

return locks
