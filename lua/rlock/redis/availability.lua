--- Which servers of red locks answer. A server that fails to answer is skipped
--- until it answers a PING, so it delays callers only once. Meanwhile its node
--- has the field `away` = { why, since, asked }.

local errors = require "rlock.redis.errors"

local availability = {}

--- Seconds between PINGs; seconds without a request after which they stop.
local PAUSE, IDLE = 0.02, 5
--- Seconds before an unresponsive server is skipped: if this process was
--- blocked, the reply may be waiting to be read.
local GRACE = 0.01

-- Does the server answer a PING? LOADING and BUSY do not count.
local function answers(node, state)
  local reply, code, detail = node:call(
    node.host.now() + node.options.timeout, { "PING" }, 1)
  if reply ~= nil then return true end
  state.why = detail
  return code == "redis" and not errors.classify(detail).retry
end

local function probe(node, state)
  local host = node.host
  while not node.is_closed and host.now() - state.asked < IDLE
      and not answers(node, state) do
    host.sleep(PAUSE)
  end
  node.away = nil
end

--- Marks a server as away and starts to probe it.
---@param node table
---@param why string for messages
function availability.mark_away(node, why)
  if node.away then return end
  local now = node.host.now()
  local state = { why = why, since = now, asked = now }
  node.away = state
  node.host.service(probe, node, state)
end

--- Why the server should be skipped now, or nil.
---@return string?
function availability.why_away(node)
  local state = node.away
  if not state then return nil end
  local now = node.host.now()
  state.asked = now
  if now - state.since < GRACE then return nil end
  return ("away for %.1f s: %s"):format(now - state.since, state.why)
end

return availability
