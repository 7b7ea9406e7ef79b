--- One operation for many holds, see the back end contract. A renewal is one
--- sync of the session that all holds share. Releases are sent concurrently.

---@class rlock.zookeeper.batch
---@field [integer] any
---@field server table
---@field sender any
---@field name string
local batch = {}
batch.__index = batch

local LATE = 0.1          -- seconds that a failure at the deadline may take

--- Makes a table with these fields, and perhaps items, a batch.
---@param fields table as in redis/batch.lua; and `server`
function batch.new(fields) return setmetatable(fields, batch) end

-- Calls fn(item, lease, want) for the items that are still in the batch.
local function each(self, now, fn)
  local sender = self.sender
  for i = 1, #self do
    local item = self[i]
    if item and sender.is_in(self, item) then
      local lease, want = sender.words(item, now, self)
      if lease then fn(item, lease, want) end
    end
  end
end

-- Reports the failure of all items that have no outcome yet.
local function fail(self, detail)
  for i = 1, #self do
    local item = self[i]
    if item and self.sender.is_in(self, item) then
      self.sender.failed(item, detail, false)
    end
  end
end

local function renew(self, now, deadline)
  local server, sender = self.server, self.sender
  local ok, _, detail, sent = server:sync(deadline)
  if not ok then return fail(self, tostring(detail)) end
  self.round_trip = server.host.now() - sent
  each(self, now, function(item, lease)
    sender.answered(item, tonumber(lease), item.lock.record.target:renew(
      item.owner_name, sent, tonumber(lease)), sent)
  end)
end

-- Sends a release for each item, and waits for all.
local function release(self, now, deadline)
  local host, sender = self.server.host, self.sender
  local left, all = 1, host.event()
  local function ended()
    left = left - 1
    if left == 0 then all:set() end
  end
  local function one(item, lease, want)
    local reply, _, detail = item.lock.record.target:run("release", deadline,
      now, item.owner_name, lease, want)
    if sender.is_in(self, item) then
      if reply then
        sender.answered(item, tonumber(lease), reply, now)
      else
        sender.failed(item, tostring(detail), false)
      end
    end
    ended()
  end
  each(self, now, function(item, lease, want)
    left = left + 1
    if not host.daemon(one, item, lease, want) then one(item, lease, want) end
  end)
  ended()
  all:pause(deadline + LATE - host.now())
end

--- Sends the batch, and reports the outcomes. May wait.
function batch:send()
  local now = self.server.host.now()
  local deadline = self.sender.deadline(self, now)
  local send = self.name == "renew" and renew or release
  send(self, now, deadline)
end

return batch
