--- Requests that expire by the server's clock, for a server on which lost
--  connections cannot be sealed (seal.lua). A prologue goes before every
--  operation: it does nothing when the request comes after its deadline. So an
--  owner sends nothing until an older request whose outcome is unknown has
--  certainly expired. It waits for that request alone.
--
--  The deadline is the lowest reading that the server's clock can have when we
--  give the request up. The offset of that clock is learnt on each connection.
--  A server whose clock is set back may execute an expired request.

local script = require "rlock.script"

local expiry = {}

local FRESH = 10         -- seconds for which an offset is used
local DRIFT = 0.001      -- of the clocks, against each other
local PERIOD = 10        -- seconds between sweeps of what has expired

local floor, min = math.floor, math.min

--- Does this node's server need deadlines?
function expiry.is_on(node) return node.seals.mode == "time" end

-- op -> the same with the prologue
local guarded = setmetatable({}, { __mode = "k" })

local function guard(op)
  local its = guarded[op]
  if not its then
    its = script.with_deadline(op)
    guarded[op] = its
  end
  return its
end

--- What a node is sent for an operation: with the prologue where it needs one.
-- @tparam table node
-- @tparam table op what script.compile gave
function expiry.shipped(node, op)
  return expiry.is_on(node) and guard(op) or op
end

-- the server's clock ----------------------------------------------------------

-- Reads it. The reading is at least as old as the request.
local function learn(node, until_)
  local reply, code, detail = node:call(until_, { "TIME" }, 1)
  if reply == nil then return nil, code, detail end
  local seconds = type(reply) == "table" and tonumber(reply[1])
  local micros = seconds and tonumber(reply[2])
  if not micros then return nil, "redis", "ERR no time in reply to TIME" end
  node.clock = {
    connection = node.connection, read = node.host.now(),
    ms = seconds * 1000 + floor(micros / 1000),
  }
  return node.clock
end

local function clock_of(node, until_)
  local clock, now = node.clock, node.host.now()
  if clock and clock.connection == node.connection
      and now - clock.read < FRESH then
    return clock
  end
  return learn(node, until_)
end

--- The deadline of a request that is given up at `until_`.
-- @tparam table node
-- @tparam number until_ by host.now()
-- @treturn[1] string milliseconds of the server's clock
-- @treturn[2] nil, code, detail
function expiry.word(node, until_)
  local clock, code, detail = clock_of(node, until_)
  if not clock then return nil, code, detail end
  local ms = clock.ms + (until_ - clock.read) * 1000 * (1 - DRIFT)
  return ("%.0f"):format(floor(ms))
end

-- what is uncertain -----------------------------------------------------------

-- Who must wait for whom: an owner of a lock, or all who use what is no lock.
local by_owner = { acquire = true, release = true, renew = true, leave = true }

local function party_of(op, keys, owner)
  return keys[1] .. "\n" .. (by_owner[op.op] and owner or "")
end

local function sweep(node, now)
  node.doubts, node.swept = node.doubts or {}, now
  for party, until_ in pairs(node.doubts) do
    if until_ <= now then node.doubts[party] = nil end
  end
end

--- The outcome of a request is unknown.
-- @tparam table node
-- @tparam table op
-- @tparam table keys
-- @param owner its first argument
-- @tparam number until_ when it expires, by host.now()
function expiry.doubt(node, op, keys, owner, until_)
  local now = node.host.now()
  if now > (node.swept or 0) + PERIOD then sweep(node, now) end
  node.doubts[party_of(op, keys, owner)] = until_
end

--- Waits until an older request of the same owner has expired.
-- @tparam number until_ at most, by host.now()
-- @return true, or nil, code, detail
function expiry.settle(node, op, keys, owner, until_)
  local host, party = node.host, party_of(op, keys, owner)
  local expires = node.doubts and node.doubts[party]
  if not expires then return true end
  local left = expires - host.now()
  if left > 0 then
    local slept, code, detail = host.event():pause(
      min(left, until_ - host.now()))
    if slept == nil then return nil, code, detail end
  end
  if host.now() < expires then
    return nil, "timeout", "an older request of this owner may still be "
      .. "executed"
  end
  node.doubts[party] = nil
  return true
end

return expiry
