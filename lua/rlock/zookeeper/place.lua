--- One of our nodes in a queue: ephemeral and sequential, below a parent. Its
--- name is Curator's: `_c_<uuid>-<mark><10 digits>`. Fields:
---   parent    the path of the queue
---   lock      that of the lock: the same, or the node above it
---   mark      what comes before the number: "lock-", "__READ__", ...
---   blocks    mark -> whether it waits for earlier nodes with this mark
---   node      its name; nil: there is none
---   number    its place in the order
---   created   the id of the transaction that made it
---   beside    another place, whose number the node shares, see target.lua
---   is_alone  the node of `beside` was not in the last list of the queue
---   ahead     the node that is watched: nothing to do until it changes
---   most      how many nodes may be in the queue, in any order; then the queue
---             is watched instead of a node
---   gate      another place, which must be first in its own queue before this
---             one may have a node
---   is_over   its entry was dropped, so `ask` makes no further node
---
--- The uuid is made before the node. So if the reply to a create is lost, the
--- list of nodes tells whether it was made. A `sync` precedes this list: the
--- server that resumed the session may not have the node yet. A uuid is used in
--- one session only: a node with it is certainly ours.

local codec = require "rlock.zookeeper.codec"
local errors = require "rlock.zookeeper.errors"
local identity = require "rlock.util.identity"
local nodes = require "rlock.zookeeper.nodes"

---@class rlock.zookeeper.place
---@field parent string?
---@field number integer?
---@field watching table?
---@field gate? table
---@field most? integer
---@field beside? any
---@field is_over? boolean
---@field is_alone? boolean
local place = {}
place.__index = place

local ops, sub = codec.ops, string.sub
local DIGITS, UUID = 10, 36
local LAST = 2147383647             -- 100 000 before the server's counter ends

-- The first is Curator's InterProcessMutex, the last kazoo's Lock.
local MARKS = { "lock-", "__READ__", "__WRIT__", "lease-", "member-", "latch-",
  "__lock__" }

--- The mark and the number of a node; nil for one of another kind.
---@param name string
function place.parse(name)
  local number = tonumber(sub(name, -DIGITS))
  for _, mark in ipairs(number and MARKS or {}) do
    if sub(name, -DIGITS - #mark, -DIGITS - 1) == mark then
      return mark, number
    end
  end
end

---@param server table the back end: host, connection, data(owner)
---@param fields table parent, lock, mark, blocks; `data`, or `owner` for it;
---  lasts: whether the node at `lock` is persistent;
---  on_wake, called outside of any task when a retry may succeed
function place.new(server, fields)
  local self = setmetatable(fields, place)
  self.server, self.connection = server, server.connection
  self.epoch = false
  return self
end

-- Begins a new session: the nodes of the previous one are gone.
local function renew(self)
  self.epoch, self.uuid = self.connection.epoch, identity.uuid(self.server.host)
  self.node, self.number, self.ahead, self.created = nil, nil, nil, nil
  self.is_in_doubt = nil
end

--- The path of its node.
function place:path() return self.parent .. "/" .. self.node end

local function took_create(call)
  local self = call.place
  if not call.err or self.create ~= call or errors.of(call.err).ends then
    return
  end
  self.is_in_doubt = nil
  if call.err ~= 0 then return end
  self.connection.validity:wrote(call.sent)
  local its = call.its
  local path = its:text() or ""
  self.node = sub(path, #self.parent + 2)
  self.number = tonumber(sub(path, -DIGITS))
  self.created = its:stat().created
  if its.is_bad then self.is_in_doubt = true end
end

-- Sends the create.
local function create(self)
  local server, flags, beside = self.server, codec.flags, self.beside
  self.is_in_doubt = true
  local call = self.connection:post(ops.create2, codec.create(
    ("%s/_c_%s-%s%s"):format(self.parent, self.uuid, self.mark,
      beside and ("%010d"):format(beside.number) or ""),
    self.data or server:data(self.owner),
    beside and flags.ephemeral or flags.sequential, server.access))
  call.on_over, call.place, self.create = took_create, self, call
  if call.code == "connect" then self.is_in_doubt = nil end     -- not sent
  return call
end

-- Finds our node in a list, after a lost reply.
local function find(self, names)
  local own = "_c_" .. self.uuid
  for _, name in ipairs(names) do
    if sub(name, 1, 3 + UUID) == own then
      self.node, self.number = name, tonumber(sub(name, -DIGITS))
      return true
    end
  end
end

local function is_in(names, node)
  for _, name in ipairs(names) do
    if name == node then return true end
  end
  return false
end

--- The nearest node before ours that it waits for; nil: none.
---@return string?
---@return boolean # whether our node is in the list
---@return string? # the mark of another kind
local function survey(self, names)
  local own, mine, blocks = self.node, self.number, self.blocks
  ---@type any, any, any, any
  local ahead, last, is_there, other = nil, -1, false, nil
  for i = 1, #names do
    local name = names[i]
    if name == own then
      is_there = true
    else
      local mark, number = place.parse(name)
      if not mark or blocks[mark] == nil then
        other = other or mark or self.server.foreign[name]
      elseif blocks[mark] and number < mine and number > last then
        ahead, last = name, number
      end
    end
  end
  return ahead, is_there, other
end

-- Removes the watch.
local function unwatch(self)
  if self.watching then
    self.connection:unwatch(self.watching, self.on_change)
  end
  self.watching, self.on_change, self.ahead = nil, nil, nil
end

-- Watches a path: its next change clears `ahead`, and wakes the waiter; without
-- `ahead` only if `always`.
local function start_watch(self, path, always)
  unwatch(self)
  local function on_change()
    if self.on_change ~= on_change then return end
    self.watching, self.on_change = nil, nil
    if self.ahead or always then
      self.ahead = nil
      self:on_wake()
    end
  end
  self.watching, self.on_change = path, on_change
  self.connection:watch(path, on_change)
end

--- Makes our node if there is none, and lists the queue.
---@return table|boolean|nil # names; false: retry
---@return rlock.failure? code, string? detail
local function look(self, deadline)
  local connection = self.connection
  self.sent = connection.host.now()
  if self.is_in_doubt then connection:sync() end
  local made = not self.node and not self.is_in_doubt and create(self)
  if self.most then start_watch(self, self.parent) end
  local acl = nodes.ask_access(self.server, self.parent)
  local list = connection:post(ops.children,
    codec.read(self.parent, self.most ~= nil))
  ---@type any, any, any
  local err, its, detail = nodes.answer(list, deadline, self.parent)
  if not err then
    return err --[[@as any]], its, detail
  elseif made and made.err == errors.NO_NODE or err == errors.NO_NODE then
    local ok, code, why = nodes.make_containers(self.server,
      deadline, self.parent, self.lock, self.lasts)
    if not ok then return nil, code, why end
    return false
  elseif made and made.err ~= 0 then
    return nil, "zookeeper", errors.says(made.err, self.parent)
  end
  local code, why = nodes.refusal(acl, self.parent)
  if code then return nil, code, why end
  local names = nodes.names(self.server, its)
  if not names then return false end
  if not self.node then
    self.is_in_doubt = nil
    if not find(self, names) then return false end
  end
  return names
end

--- Watches the node ahead.
---@return boolean? # whether it is still there; nil: code, detail
---@return any ...
local function watch(self, ahead, deadline)
  local path = self.parent .. "/" .. ahead
  start_watch(self, path)
  self.ahead = ahead
  local err, code, detail = nodes.answer(
    self.connection:post(ops.get, codec.read(path, true)), deadline, path)
  if err == 0 then return self.ahead == ahead end
  unwatch(self)
  if err == nil then return nil, code, detail end
  return false
end

-- Asks for the id of the transaction that made our node, after a lost reply.
-- Returns what nodes.answer returns.
local function ask_created(self, deadline)
  local path = self:path()
  local err, its, detail = nodes.answer(
    self.connection:post(ops.exists, codec.read(path)), deadline, path)
  if err == 0 then self.created = its:stat().created end
  return err, its, detail
end

--- Is its gate one of a session that has ended?
function place:is_shut_out()
  return self.gate ~= nil and self.gate.epoch ~= self.connection.epoch
end

--- Checks whether it is our turn; makes our node if there is none. Retries
--- until the deadline. Returns false early if the gate needs a new check (see
--- `is_shut_out`) or another task has dropped the entry.
---@param deadline number by host.now()
---@param is_try? boolean do not watch the node ahead
---@return boolean? # whether nothing is ahead
---@return rlock.failure? code
---@return string? detail # for "cancelled", the value to raise. Our node may be
---  in the queue
function place:ask(deadline, is_try)
  local connection = self.connection
  while true do
    local ok, code, detail = connection:reach(deadline)
    if not ok then return nil, code, detail end
    if self.is_over or self:is_shut_out() then return false end
    if self.epoch ~= connection.epoch then renew(self) end
    local names
    names, code, detail = look(self, deadline)
    if names == nil then return nil, code, detail end
    if self.is_over then return false end
    if names and self.number > LAST then
      return nil, "refused", ("the numbers below %s are nearly used up: delete "
        .. "that node, or use another name"):format(self.parent)
    end
    local ahead, is_there, other
    if names then ahead, is_there, other = survey(self, names) end
    local beside = self.beside
    if names and beside then self.is_alone = not is_in(names, beside.node) end
    if other then
      return nil, "refused", ("%s has nodes of another kind of lock (%s)")
        :format(self.parent, other)
    elseif names and not is_there then
      self.node, self.created = nil, nil     -- it was deleted
    elseif names and self.most and #names > self.most then
      if is_try then return false end
      if self.watching then              -- nothing has changed since the list
        self.ahead = self.parent
        return false
      end
    elseif names and not ahead then
      unwatch(self)
      if self.created then return true end
      local err
      err, code, detail = ask_created(self, deadline)
      if err == nil then return nil, code, detail end   -- else lists again
    elseif names and is_try then
      return false
    elseif names then
      local is_watched
      is_watched, code, detail = watch(self, ahead, deadline)
      if is_watched then return false end
      if is_watched == nil then return nil, code, detail end
    end
    if connection.host.now() >= deadline then
      return nil, "timeout", ("%s: no time left"):format(connection.where)
    end
  end
end

--- Watches a node that may not exist, while ours is first in its queue.
---@param path string
function place:attend(path)
  start_watch(self, path, true)
  self.connection:post(ops.exists, codec.read(path, true))
end

--- Is it in the queue, with nothing to do until `on_wake`?
function place:is_waiting()
  return self.ahead ~= nil and self.epoch == self.connection.epoch
end

--- The connection was lost, and with it the watch.
function place:dropped() unwatch(self) end

-- Is our node certainly gone?
local function is_gone(self)
  return self.epoch ~= self.connection.epoch
    or not self.node and not self.is_in_doubt
end

-- The results for an error of the server.
local function failed(err, path)
  return nil, errors.of(err).ends and "closed" or "zookeeper",
    errors.says(err, path)
end

--- Deletes it once.
---@return boolean? # whether it was there
---@return rlock.failure? code, string? detail
local function delete(self, deadline)
  local connection = self.connection
  if not self.node then
    connection:sync()
    local err, its, detail = connection:post(ops.children,
      codec.read(self.parent)):wait(deadline)
    if not err then return nil, its, detail end
    if err ~= 0 and err ~= errors.NO_NODE then
      return failed(err, self.parent)
    end
    if not self.node then
      local names = err ~= 0 and {} or nodes.names(self.server, its)
      if not names then
        return nil, "connect", connection.where .. ": a malformed list"
      end
      self.is_in_doubt = nil
      if not find(self, names) then return false end
    end
  end
  local err, code, detail = connection:post(ops.delete,
    codec.versioned(self:path())):wait(deadline)
  if err == 0 then return true end
  if err == errors.NO_NODE then return false end
  if not err then return nil, code, detail end
  return failed(err, self:path())
end

-- Deletes it; retries until the deadline.
local function insist(self, deadline)
  local was_sent, result = false, nil
  while not is_gone(self) do
    local ok, code, detail = self.connection:reach(deadline)
    if not ok then return nil, code, detail end
    if is_gone(self) then break end
    result, code, detail = delete(self, deadline)
    if result ~= nil then break end
    if code ~= "closed" and code ~= "connect" then return nil, code, detail end
    was_sent = was_sent or code == "closed"
  end
  self.node, self.is_in_doubt = nil, nil
  return result or was_sent
end

-- The job that deletes its node has died with its timer, see
-- resty/rlock/host/guard.lua.
local function delete_later(self) self.server:leave_place(self) end

-- Lets the back end delete its node later, if it may still be there.
local function doom(self)
  local server = self.server
  server.doomed[self] = server.host.now() + server.options.timeout
end

--- Deletes its node. A node that cannot be deleted in time is deleted by the
--- back end later, or ends with the session.
---@param deadline number by host.now()
---@return boolean? # whether it was there; true if an earlier attempt, whose
---  reply was lost, may have deleted it
---@return rlock.failure? code, string? detail
function place:leave(deadline)
  self.server.doomed[self] = nil               -- no other task deletes it now
  unwatch(self)
  local on_death = self.connection.host.on_death
  local survives = on_death and on_death(delete_later, self)
  local result, code, detail = insist(self, deadline)
  if survives then survives() end
  if result == nil and code ~= "zookeeper" then doom(self) end
  return result, code, detail
end

--- Sends the delete of its node, without waiting. If that fails, the back end
--- deletes it later.
---@return boolean # false: it could not be sent, so call `leave`
function place:abandon()
  local doomed = self.server.doomed
  unwatch(self)
  if is_gone(self) then return true end
  doom(self)
  if not self.node or not self.connection.is_ready then return false end
  self.connection:post(ops.delete, codec.versioned(self:path()),
    function(call)
      if call.err == 0 or call.err == errors.NO_NODE then
        doomed[self], self.node = nil, nil
      end
    end)
  return true
end

return place
