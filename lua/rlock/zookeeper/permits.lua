--- Permits with leases: a semaphore in which each permit has its own owner,
--- named by the permit's id. They have the nodes of a semaphore
--- (semaphore.lua). A permit is the hold of a target: the end of its lease
--- deletes its node. The driver is counters/permits.lua; its ids are bytes.

local identity = require "rlock.util.identity"
local limit = require "rlock.zookeeper.limit"
local target = require "rlock.zookeeper.target"

---@class rlock.zookeeper.permits: rlock.zookeeper.target
local permits = setmetatable({}, { __index = target })
permits.__index = permits

local MOST = 100                  -- permits that are shown
local ENDLESS = 2 ^ 53            -- milliseconds: there is no lease to see

--- The channel of a call: it may get another id while it waits.
function permits:channel(id)
  return target.channel(self, id and id:sub(1, 12))
end

local run = setmetatable({}, { __index = target.operations })
permits.operations = run

-- A permit that is not held may have nodes, so it must be released.
function run.acquire(self, deadline, now, id, ms)
  local reply, code, detail, _, sent =
    target.operations.acquire(self, deadline, now, id, ms, "1")
  if not reply then return nil, code, detail, true end
  if reply[1] == "refused" then return nil, "refused", reply[2] end
  if reply[1] == "held" then reply = { "held", 0 } end
  return reply, nil, nil, true, sent
end

function run.set(self, deadline, _, n)
  local ok, code, detail = limit.set(self, tonumber(n), deadline)
  if not ok then return nil, code, detail, true end
  return { "held" }
end

function run.count(self, deadline)
  local available, taken, detail = limit.count(self, deadline)
  if not available then return nil, taken, detail end
  return { available > 0 and "free" or "held", available, taken }
end

-- Adds the ids of the first permits. One of Curator's has the id of its node.
function run.peek(self, deadline, now)
  local reply, code, detail = run.count(self, deadline)
  if not reply then return nil, code, detail end
  local holders
  holders, code, detail = self:holders(deadline)
  if not holders then return nil, code, detail end
  local used = {}
  for i = 1, math.min(#holders, MOST) do
    local id = identity.bytes(holders[i].data:match "^%S+ (%x+) rlock,"
      or holders[i].name:gsub("^_c_", ""):gsub("%-", ""):match "^%x*")
    local entry = self:held_by(id)
    used[#used + 1] = id
    used[#used + 1] = entry and (entry.deadline - now) * 1000 or ENDLESS
  end
  reply[4] = used
  return reply
end

return permits
