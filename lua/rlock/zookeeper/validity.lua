--- Until when a session is certainly alive. Pure.
--
--  The leader ends a session when it has not heard of it for the session's
--  time-out T. A follower tells the leader of its clients in batches, one for
--  each half tick of the leader; a tick is at most T/2. It answers pings by
--  itself, so these prove nothing. But it cannot answer a `sync` (or make a
--  session, or resume one) without the leader. So:
--
--  - A handshake sent at h: the leader has heard of the session at h or later.
--  - A sync sent at s is answered: after s, the leader and this follower were
--    in touch. So the leader has the batch of s - T/4 or a later one, and knows
--    what was sent until then. If another sync was sent at r <= s - T/4, and
--    answered before s, the leader has heard of the session at r or later.
--
--  A sixth of T is a reserve: for pauses of the leader between its batches, and
--  for clocks that run at different rates.
--  @module rlock.zookeeper.validity

local validity = {}
validity.__index = validity

local KEPT = 5 / 6              -- of the time-out
local BATCHED = 1 / 4           -- of the time-out: half a tick, at most

function validity.new()
  return setmetatable({ ends = 0, heard = -math.huge, syncs = {} }, validity)
end

-- The leader has heard of the session at this time, or later.
local function hear(self, at)
  if at > self.heard then self.heard = at end
  self.ends = self.heard + self.timeout * KEPT
end

--- A session was made or resumed.
-- @tparam number sent    when the handshake was sent
-- @tparam number timeout seconds, as the server has granted them
function validity:begin(sent, timeout)
  self.timeout, self.heard = timeout, sent
  self.syncs = { { sent = sent, answered = sent } }
  hear(self, sent)
end

--- A sync was answered.
-- @tparam number sent when it was sent
-- @tparam number now  when it was answered
function validity:synced(sent, now)
  local syncs, limit = self.syncs, sent - self.timeout * BATCHED
  local function is_known(sync)
    return sync and sync.sent <= limit and sync.answered <= sent
  end
  while is_known(syncs[2]) do table.remove(syncs, 1) end
  if is_known(syncs[1]) then hear(self, syncs[1].sent) end
  syncs[#syncs + 1] = { sent = sent, answered = now }
end

return validity
