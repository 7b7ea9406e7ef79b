--- Sends one operation for many locks in one pipeline. If the script or clock
--  offset of a request is outdated, it is retried once. If its slot has moved,
--  it is sent alone.
--
--  A batch is a list of items, grants or permits. They have `lock` and
--  `owner_name`. The fields of a batch:
--    route     from target:route
--    name      of the operation
--    is_final  whether it needs no confirmation by replicas
--    round_trip  seconds of its last pipeline, once that has ended
--    sender    a table of functions:
--      is_in(batch, item)    does the outcome still concern the item? It may
--                            have been released in the meantime
--      deadline(list, now)   of the requests for these items
--      words(item, now)      the arguments after the owner, at most three; the
--                            first is the lease in milliseconds
--      answered(item, lease, reply, sent)  a reply to the request for that
--                            lease
--      failed(item, why, is_gone)  a failure; is_gone: the server certainly
--                            has no such hold

local remote = require "rlock.redis.remote"

local batch = {}
batch.__index = batch

local RAISED = "the request raised an error"

-- The node of a route, which may be a dedicated connection.
local function node_of(route) return route.node or route end

local function op_of(self, item)
  return item.lock.record.policy.ops[self.name]
end

-- sending ---------------------------------------------------------------------

-- Loads the scripts of the batch. This may wait; items that leave in the
-- meantime are removed.
-- @return as remote.ready
local function prepare(self, deadline)
  local word, code, detail
  local is_in, node = self.sender.is_in, node_of(self.route)
  for _, item in ipairs(self) do
    if is_in(self, item) then
      word, code, detail = remote.ready(node, op_of(self, item), deadline)
      if not word then return nil, code, detail end
    end
  end
  local all, n = #self, 0
  for i = 1, all do
    local item = self[i]
    self[i] = nil
    if is_in(self, item) then
      n = n + 1
      self[n] = item
    end
  end
  return word
end

-- Sends the requests.
-- @return replies, codes, details, sent and the leases requested; or nil, code,
--   detail
local function send_all(self)
  local sender, node = self.sender, node_of(self.route)
  local now = node.host.now()
  local deadline = sender.deadline(self, now)
  local word, code, detail = prepare(self, deadline)
  if not self[1] then return {}, {}, {} end
  if not word then return nil, code, detail end
  local commands, leases = {}, {}
  for i, item in ipairs(self) do
    local lease, more, last = sender.words(item, now)
    local target = item.lock.record.target
    leases[i] = lease
    commands[i] = remote.command(node, op_of(self, item), word, target,
      target:arguments(self.name, item.owner_name, lease, more, last))
  end
  local replies, codes, details, sent =
    self.route:pipeline(deadline, commands, self.is_final)
  if sent then self.round_trip = node.host.now() - sent end
  return replies, codes, details, sent, leases
end

-- outcomes --------------------------------------------------------------------

local function failed(self, item, code, detail)
  local node, record = node_of(self.route), item.lock.record
  local class, why = remote.classify(node, op_of(self, item), code, detail,
    record.name)
  if class.node_down then record.target.node:suspect(node) end
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

-- Handles one failure.
-- @treturn boolean whether to retry with the script or clock fetched again;
--   false if `is_second`
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

-- Handles one outcome.
-- @treturn boolean whether to retry
local function handle_one(self, item, is_second, lease, reply, code, detail,
    sent)
  if reply == nil then
    return handle_failure(self, item, is_second, code, detail)
  end
  self.sender.answered(item, lease, reply, sent)
  return false
end

-- Handles all outcomes.
-- @treturn table the items to retry
local function handle(self, is_second, replies, codes, details, sent, leases)
  local again, is_in = {}, self.sender.is_in
  for i, item in ipairs(self) do
    local is_here = is_in(self, item)
    if is_here and not replies then
      failed(self, item, codes, details)
    elseif is_here and handle_one(self, item, is_second, leases[i], replies[i],
        codes[i], details[i], sent) then
      again[#again + 1] = item
    end
  end
  return again
end

-- Replaces the items of the batch.
local function refill(self, items)
  for i = 1, math.max(#self, #items) do self[i] = items[i] end
end

--- Sends a batch, and reports the outcomes. May wait.
function batch:send()
  local again = handle(self, false, send_all(self))
  if not again[1] then return end
  refill(self, again)
  handle(self, true, send_all(self))
end

--- Reports the failure of all items that have no outcome yet.
-- @tparam string code
-- @tparam string detail
function batch:fail(code, detail) handle(self, true, nil, code, detail) end

--- Creates an empty batch.
-- @tparam table fields see above
function batch.new(fields) return setmetatable(fields, batch) end

return batch
