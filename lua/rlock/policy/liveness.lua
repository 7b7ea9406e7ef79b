--- Which waiters in a queue are alive. These functions run inside Redis.
---
--- A waiter retries at least every half second (POLL) and leaves a heartbeat
--- each time: the server time in milliseconds. If a client has many waiters,
--- each has one every 0.8 s, and some waiter every half second. A waiter that
--- has been silent for SILENT ms is dead. If no heartbeat of any waiter arrives
--- for GAP ms, the server or the network was down: the queue restarts, and
--- every waiter gets SILENT ms from that start. A waiter that is silent across
--- two starts is dead; otherwise a single waiter that retries rarely could
--- never outlive the dead ones ahead of it.
---
--- A policy stores two times with the heartbeats of a queue: the last heartbeat
--- of any waiter, and the last start of the queue. So a start is O(1).

local liveness = {}

--- The longest time between two retries of a waiter, in seconds: `poll` of the
--- policy.
liveness.POLL = 0.5

--- Seconds within which dead waiters ahead of a live one are evicted.
liveness.DEAD = 2

local SILENT = 1200
local GAP = 650                -- more than POLL; SILENT exceeds it by POLL

--- The last two starts of the queue, at the time `now`.
---@param heard number the last heartbeat of any waiter, in ms; 0: none
---@param start number the last start of the queue; 0: none
---@param now number
---@return number # the start before the last
---@return number # the last start; differs from `start` if it is new
function liveness.starts(heard, start, now)
  if heard > now + GAP or start > now + GAP then return now, now end
  if now - heard <= GAP or now - start < SILENT then return start, start end
  return start, now
end

--- How long a waiter counts as alive if it remains silent.
---@param last number its last heartbeat, in ms; 0: none
---@param before number the starts of the queue
---@param start number
---@param now number
---@return number # ms; 0 or less: it is dead
function liveness.left(last, before, start, now)
  if last < before or last > now + SILENT then   -- the clock was set back
    last = before
  elseif last < start then
    last = start
  end
  return last + SILENT - now
end

return liveness
