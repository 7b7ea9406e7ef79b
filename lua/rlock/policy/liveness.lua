--- Which waiters in a line are alive. These functions run inside Redis.
--
--  A waiter asks at least every half second (POLL) and leaves a sign of life
--  each time: the server time in milliseconds. A waiter that has been silent
--  for SILENT ms is dead. If no waiter at all was heard for GAP ms, the server
--  or the network stood still: the line starts anew, and every waiter gets
--  SILENT ms from that start. One that misses two starts is dead, or a single
--  waiter that asks seldom could never outlive the dead before it.
--
--  A policy stores two times with the signs of a line: when any waiter was
--  heard last, and when the line started last. So a start is O(1).

local liveness = {}

--- Seconds between two questions of a waiter, at most: `poll` of the policy.
liveness.POLL = 0.5

local SILENT = 1200
local GAP = 650                -- more than POLL; SILENT exceeds it by POLL

--- The starts of the line that count now.
--  @tparam number heard when any waiter was heard last, in ms; 0: never
--  @tparam number start when the line started last; 0: never
--  @tparam number now
--  @treturn number the start before the last
--  @treturn number the last start; other than `start` if it is new
function liveness.starts(heard, start, now)
  if heard > now + GAP or start > now + GAP then return now, now end
  if now - heard <= GAP or now - start < SILENT then return start, start end
  return start, now
end

--- How long a waiter counts as alive if it remains silent.
--  @tparam number last its last sign of life, in ms; 0: none
--  @tparam number before, start the starts of the line
--  @tparam number now
--  @treturn number ms; 0 or less: it is dead
function liveness.left(last, before, start, now)
  if last < before or last > now + SILENT then   -- the clock was set back
    last = before
  elseif last < start then
    last = start
  end
  return last + SILENT - now
end

return liveness
