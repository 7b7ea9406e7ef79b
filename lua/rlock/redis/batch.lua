--- Sends one operation for many locks in one pipeline. Items with the same
--- arguments share a request (calls.lua) if the batch `is_joint`. What such a
--- request refuses is sent again, for each item alone. If the script or clock
--- offset of a request is outdated, it is retried once. If its slot has moved,
--- it is sent alone.
---
--- A batch is a list of items, grants or permits. They have `lock` and
--- `owner_name`. The fields of a batch:
---   route     from target:route
---   name      of the operation
---   is_final  whether it needs no confirmation by replicas
---   is_joint  whether items may share a request. Only for operations that
---             answer "held" and take no command that publishes
---   round_trip  seconds of its last pipeline, once that has ended
---   sender    a table of functions:
---     is_in(batch, item)    does the outcome still concern the item? It may
---                           have been released in the meantime
---     deadline(list, now)   of the requests for these items
---     words(item, now[, batch])  the arguments after the owner, at most
---                           three; the first is the lease in milliseconds.
---                           nil if the item is not in the batch
---     held(batch, items, n, lease, sent)  the reply to a shared request for
---                           n items is "held" for those that are in the
---                           batch. An item may be false
---     answered(item, lease, reply, sent)  a reply to the request for that
---                           lease
---     failed(item, why, is_gone)  a failure; is_gone: the server certainly
---                           has no such hold

local calls = require "rlock.redis.calls"
local remote = require "rlock.redis.remote"

---@class rlock.redis.batch
---@field is_joint any
local batch = {}
batch.__index = batch

local RAISED = "the request raised an error"

-- The node of a route, which may be a dedicated connection.
local function node_of(route) return route.node or route end

local function op_of(self, item)
  return item.lock.record.policy.ops[self.name]
end

-- sending ---------------------------------------------------------------------

--- Makes the calls of the batch, and loads their scripts. This may wait; then
--- the calls are made again, without the items that have left in the meantime.
---@return any # the calls
---@return any # from remote.ready, if there are calls
---@return string? detail
local function prepare(self, is_joint, now, deadline)
  local node, may_wait = node_of(self.route), false
  local list, last = calls.of(self, now, is_joint), nil
  for _, call in ipairs(list) do
    local op = calls.op_of(call)
    may_wait = may_wait or not remote.is_ready(node, op)
    local word, code, detail = remote.ready(node, op, deadline)
    if not word and code == "redis" and call.n > 1 then
      return prepare(self, false, now, deadline)
    end
    if not word then return nil, code, detail end
    last = word
  end
  return may_wait and calls.of(self, now, is_joint) or list, last
end

--- Sends the requests.
---@return any # the calls, replies, codes, details and sent
---@return any code
---@return string | table | nil detail
---@return any ...
local function send_all(self, is_joint)
  local node = node_of(self.route)
  local now = node.host.now()
  local deadline = self.sender.deadline(self, now)
  local list, word, detail = prepare(self, is_joint, now, deadline)
  if not list then return nil, word, detail end
  if not list[1] then return list, {}, {}, {} end
  local commands = {}
  for i, call in ipairs(list) do
    commands[i] = calls.command(node, call, word, self.name)
  end
  local replies, codes, details, sent =
    self.route:pipeline(deadline, commands, self.is_final)
  if not replies then return nil, codes, details end
  if sent then self.round_trip = node.host.now() - sent end
  return list, replies, codes, details, sent
end

-- outcomes --------------------------------------------------------------------

local function failed(self, item, code, detail)
  local node, record = node_of(self.route), item.lock.record
  local class, why = remote.classify(node, op_of(self, item), code, detail,
    record.name)
  if class.node_down or class.slot_down then
    record.target.node:suspect(node)
  end
  self.sender.failed(item, why, class.gone)
end

-- Sends the request of a single item whose slot has moved to another node.
local function send_alone(self, item)
  local sender, target = self.sender, item.lock.record.target
  local host = target.server.host
  local function request()
    if not sender.is_in(self, item) then return end
    local now = host.now()
    local lease, more, last = sender.words(item, now)
    local reply, code, detail, _, sent = remote.run(target.node,
      op_of(self, item), sender.deadline({ item }, now), now, target,
      target:arguments(self.name, item.owner_name, lease, more, last))
    if not sender.is_in(self, item) then return end
    if reply ~= nil then return sender.answered(item, lease, reply, sent) end
    failed(self, item, code, detail)
  end
  local function abort()
    if sender.is_in(self, item) then failed(self, item, "closed", RAISED) end
  end
  -- The sender of a final batch does not wait for a daemon.
  if self.is_final then return host.guard(abort, nil, request) end
  local task, code, detail = host.daemon(function()
    host.guard(abort, nil, request)
  end)
  if not task then failed(self, item, code, detail) end
end

--- Handles one failure.
---@return boolean # whether to retry with the script or clock fetched again;
---  false if `is_second`
local function handle_failure(self, item, is_second, code, detail)
  local node, op = node_of(self.route), op_of(self, item)
  local target = item.lock.record.target
  local class = remote.classify(node, op, code, detail, item.lock.record.name)
  if remote.forget(node, op, class) and not is_second then return true end
  if class.redirects and target.node.redirect then
    target.node:redirect(detail, node)
    send_alone(self, item)
  else
    failed(self, item, code, detail)
  end
  return false
end

-- Handles the outcome of a call for one item.
local function handle_one(self, call, again, is_second, reply, code, detail,
    sent)
  local item = call[1]
  if not self.sender.is_in(self, item) then return end
  if reply ~= nil then
    self.sender.answered(item, call.lease, reply, sent)
  elseif handle_failure(self, item, is_second, code, detail) then
    again[#again + 1] = item
  end
end

local function fail_all(self, items, code, detail)
  for _, item in ipairs(items) do
    if self.sender.is_in(self, item) then failed(self, item, code, detail) end
  end
end

-- Has the server refused a call for several items, which it may not do for each
-- of them alone?
local function is_refused(self, call, code, detail)
  if code ~= "redis" then return false end
  local node, op = node_of(self.route), call.op
  local class = remote.classify(node, op, code, detail, "")
  remote.forget(node, op, class)
  remote.forget(node, calls.op_of(call), class)
  return not (class.node_down or class.slot_down)
end

-- Handles the outcome of a call for several items.
local function handle_joint(self, call, again, reply, code, detail, sent)
  if reply == nil and not is_refused(self, call, code, detail) then
    return fail_all(self, call, code, detail)
  end
  local is_in, list = self.sender.is_in, calls.unserved(call, reply)
  for _, i in ipairs(list) do
    local item = call[i]
    call[i] = false
    if item and is_in(self, item) then again[#again + 1] = item end
  end
  if reply ~= nil then
    self.sender.held(self, call, call.n, call.lease, sent)
  end
end

--- Handles all outcomes.
---@return table # the items to send again
local function handle(self, is_second, list, replies, codes, details, sent)
  local again = {}
  if not list then
    fail_all(self, self, replies, codes)
    return again
  end
  for i, call in ipairs(list) do
    if call.n > 1 then
      handle_joint(self, call, again, replies[i], codes[i], details[i], sent)
    else
      handle_one(self, call, again, is_second, replies[i], codes[i], details[i],
        sent)
    end
  end
  return again
end

--- Sends the items of the batch. Those to be sent again remain.
---@return boolean # whether there are any
local function pass(self, is_joint, is_second)
  local items = handle(self, is_second, send_all(self, is_joint))
  for i = 1, math.max(#self, #items) do self[i] = items[i] end
  return self[1] ~= nil
end

--- Sends a batch, and reports the outcomes. May wait.
function batch:send()
  if self.is_joint and self[2] and not pass(self, true, false) then return end
  if pass(self, false, false) then pass(self, false, true) end
end

--- Makes a table with these fields, and perhaps items, a batch.
---@param fields table see above
function batch.new(fields) return setmetatable(fields, batch) end

return batch
