--- One operation for many holds, see the back end contract. A renewal is one
--- sync of the session that all holds share. Only session:close and wind_down
--- release a batch. Both then end the ZooKeeper session, which deletes the
--- nodes of the holds.

---@class rlock.zookeeper.batch
---@field [integer] any
---@field server table
---@field sender any
---@field name string
local batch = {}
batch.__index = batch

--- Makes a table with these fields, and perhaps items, a batch.
---@param fields table as in redis/batch.lua; and `server`
function batch.new(fields) return setmetatable(fields, batch) end

local function renew(self, now, deadline)
  local server, sender = self.server, self.sender
  local ok, _, detail, sent = server:sync(deadline)
  if not ok then return self:fail(nil, tostring(detail)) end
  self.round_trip = server.host.now() - sent
  for i = 1, #self do
    local item = self[i]
    local lease = sender.words(item, now, self)
    if lease then
      sender.answered(item, tonumber(lease), item.lock.record.target:renew(
        item.owner_name, sent, tonumber(lease)), sent)
    end
  end
end

-- The session can only be ended through a connection.
local function release(self, _, deadline)
  local ok, _, detail = self.server.connection:reach(deadline)
  if not ok then self:fail(nil, tostring(detail)) end
end

--- Sends the batch, and reports the outcomes. May wait.
function batch:send()
  local now = self.server.host.now()
  local deadline = self.sender.deadline(self, now)
  local send = self.name == "renew" and renew or release
  send(self, now, deadline)
end

--- Reports the failure of all items that have no outcome yet.
function batch:fail(_, detail)
  for i = 1, #self do
    local item = self[i]
    if self.sender.is_in(self, item) then
      self.sender.failed(item, detail, false)
    end
  end
end

return batch
