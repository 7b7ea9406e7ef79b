--- Requests that expire by the server's clock, where lost connections cannot be
--- sealed: see "Sealing" in README.md. A prologue makes an operation do nothing
--- after its deadline. That is the lowest reading that the server's clock can
--- have when the client gives the request up; TIME on each connection gives the
--- clock's offset. An owner sends nothing until its older requests with an
--- unknown outcome have expired; requests of other owners do not delay it.

local expiry = {}

local FRESH = 10         -- seconds for which an offset is used
local DRIFT = 0.001      -- maximum relative drift of the clocks
local PERIOD = 10        -- seconds between removals of what has expired

local floor, max, min = math.floor, math.max, math.min

--- Does this node's server need deadlines?
function expiry.is_on(node) return node.seals.mode == "time" end

-- op -> the same with the prologue
local guarded = setmetatable({}, { __mode = "k" })

--- The operation to send to a node, with the prologue if it needs one.
---@param node table
---@param op table the result of script.compile
function expiry.shipped(node, op)
  if not expiry.is_on(node) then return op end
  guarded[op] = guarded[op] or require("rlock.script").with_deadline(op)
  return guarded[op]
end

-- the server's clock ----------------------------------------------------------

-- Reads the clock. `read` is taken after the reply, so `ms` is a lower bound.
local function learn(node, deadline)
  local reply, code, detail = node:call(deadline, { "TIME" }, 1)
  if reply == nil then return nil, code, detail end
  local seconds = type(reply) == "table" and tonumber(reply[1])
  local micros = seconds and tonumber(reply[2])
  if not micros or not (seconds >= 0 and seconds < 2^40 and micros < 2^20) then
    return nil, "redis", "ERR no time in reply to TIME"
  end
  ---@cast seconds -nil
  node.clock = {
    connection = node.connection, read = node.host.now(),
    ms = seconds * 1000 + floor(micros / 1000),
  }
  return node.clock
end

--- Makes the next request read the server's clock.
function expiry.invalidate(node) node.clock = nil end

--- The deadline of a request that is given up at `deadline`.
---@param node table
---@param deadline number by host.now()
---@return string? # milliseconds of the server's clock
---@return rlock.failure? code, string? detail
function expiry.word(node, deadline)
  local clock, code, detail = node.clock, nil, nil
  if not clock or clock.connection ~= node.connection
      or node.host.now() - clock.read >= FRESH then
    clock, code, detail = learn(node, deadline)
  end
  if not clock then return nil, code, detail end
  local ms = clock.ms + (deadline - clock.read) * 1000 * (1 - DRIFT)
  return ("%.0f"):format(floor(ms))
end

-- unknown outcomes ------------------------------------------------------------

-- Operations that wait only for older ones of the same owner (the first
-- argument). All other operations on a key wait for each other.
local by_owner = {
  acquire = true, release = true, renew = true, leave = true, call = true,
}

-- A late one does no harm, so nothing waits for it.
local harmless = { refresh = true, count = true, peek = true }

local function requester_of(op, keys, owner)
  return keys[1] .. "\n" .. (by_owner[op.op] and owner or "")
end

--- Records a request whose outcome is unknown.
---@param node table
---@param op table
---@param keys table
---@param owner any its first argument
---@param deadline number when it expires, by host.now()
function expiry.mark_in_doubt(node, op, keys, owner, deadline)
  if harmless[op.op] then return end
  local now, in_doubt = node.host.now(), node.in_doubt or {}
  node.in_doubt = in_doubt
  if now > (node.dropped_at or -PERIOD) + PERIOD then
    node.dropped_at = now
    for other, ends in pairs(in_doubt) do
      if ends <= now then in_doubt[other] = nil end
    end
  end
  local requester = requester_of(op, keys, owner)
  in_doubt[requester] = max(in_doubt[requester] or deadline, deadline)
end

--- Waits until all older requests of the same owner have expired.
---@param deadline number by host.now()
---@return true?, rlock.failure? code, string? detail
function expiry.await_expiry(node, op, keys, owner, deadline)
  if op.op == "refresh" then return true end
  local host, requester = node.host, requester_of(op, keys, owner)
  local in_doubt = node.in_doubt or {}
  while in_doubt[requester] and in_doubt[requester] > host.now() do
    local left = min(in_doubt[requester], deadline) - host.now()
    if left <= 0 then
      return nil, "timeout", "an older request of this owner may still be "
        .. "executed"
    end
    local slept, code, detail = host.event():pause(left)
    if slept == nil then return nil, code, detail end
  end
  in_doubt[requester] = nil
  return true
end

return expiry
