--- Until when a session is certainly alive. Pure. README.md has the proof, in
--- "How long a hold is valid".
---
--- - `heard`: the leader has heard of the session then, or later. A handshake
---   tells; and three syncs, each sent after the answer to the one before: the
---   second one after a quarter of the time-out, in which the leader asks the
---   follower for its sessions, and the third one when that must be on its way.
--- - `confirmed`: a later leader has been elected only after that, and gives
---   the session its full time-out. Only an answered write tells, because a
---   leader that was deposed answers handshakes and syncs alone.

---@class rlock.zookeeper.validity
---@field ends number
---@field heard any
---@field confirmed any
---@field syncs table
local validity = {}
validity.__index = validity

-- Parts of the time-out.
local KEPT = 9 / 10             -- the rest is for clocks of different rates
local BATCHED = 1 / 4           -- half a tick, at most: the leader asks
local LATE = 1 / 20             -- by which its threads may be late
local FRESH = 3 / 10            -- before the next write is due

local max, min = math.max, math.min

function validity.new()
  return setmetatable({ ends = 0, heard = -math.huge, confirmed = -math.huge,
    syncs = {} }, validity)
end

local function update(self)
  self.ends = min(self.heard, self.confirmed) + self.timeout * KEPT
end

--- A session was made or resumed.
---@param sent number when the handshake was sent
---@param timeout number seconds, as the server has granted them
---@param is_new boolean
function validity:begin(sent, timeout, is_new)
  self.timeout, self.heard, self.syncs = timeout, sent, {}
  if is_new then self.confirmed = sent end
  update(self)
end

--- A write was answered.
---@param sent number when it was sent
function validity:wrote(sent)
  self.confirmed = max(self.confirmed, sent)
  update(self)
end

--- Is a write due?
function validity:needs_write(now)
  return now - self.confirmed > self.timeout * FRESH
end

-- The last sync before an index that was answered by then, or nil.
local function answered_by(syncs, index, at)
  for i = index - 1, 1, -1 do
    if syncs[i].answered <= at then return i end
  end
end

--- A sync was answered.
---@param sent number when it was sent
---@param now number when it was answered
function validity:synced(sent, now)
  local syncs, timeout = self.syncs, self.timeout
  local late = timeout * LATE
  local second = answered_by(syncs, #syncs + 1, sent - late)
  local first = second and answered_by(syncs, second,
    syncs[second].sent - timeout * BATCHED)
  if first then
    self.heard = max(self.heard, syncs[first].sent)
    update(self)
    for _ = 2, first do table.remove(syncs, 1) end
  end
  local last = syncs[#syncs]
  if not last or sent - last.sent >= late then
    syncs[#syncs + 1] = { sent = sent, answered = now }
  end
end

return validity
