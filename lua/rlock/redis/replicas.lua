--- Confirmation by replicas: a request succeeds only when enough replicas have
--  its writes. WAIT counts these replicas, but only for the writes of its own
--  connection, which it blocks. So these requests have connections of their
--  own, the lanes of a node. A lane sends all queued requests in one pipeline
--  with a single WAIT (group commit). An owner's requests for a lock always use
--  the same lane, which keeps them in order.
--
--  A retried request may write nothing. WAIT would then not cover what the
--  first attempt wrote. So a lane sets MARK before WAIT, a key that expires at
--  once.

local slot = require "rlock.redis.slot"

local replicas = {}

local Lane = {}
Lane.__index = Lane

local LANES = 4          -- of a node, for each number of replicas
local FRESH = 10         -- seconds between two counts of the replicas
local MARK = "rlock_replicated:{%s}"

local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

-- how many -------------------------------------------------------------------

-- Counts the node's replicas, now and then. The number never falls: it includes
-- disconnected ones, or else a lone primary would confirm everything.
local function count(node, connection)
  local now = node.host.now()
  if node.counted and now - node.counted < FRESH then return end
  local text = connection:call(ceil(node.options.timeout * 1000), "INFO",
    "replication")
  local connected = tostring(text):match("connected_slaves:(%d+)")
  node.counted = now
  node.replicas = max(node.replicas or 0, tonumber(connected) or 0)
end

--- How many replicas must confirm.
-- @tparam table node
-- @param wanted a number; "all"; or "majority", which counts the primary
-- @treturn integer
function replicas.needed(node, wanted)
  local all = node.replicas or 0
  if wanted == "all" then return max(all, 1) end
  if wanted == "majority" then return max(floor((all + 1) / 2), 1) end
  return wanted
end

-- lanes ----------------------------------------------------------------------

-- An owner's lane number.
local function hash(owner)
  local sum = 0
  for i = 1, #owner do sum = (sum * 31 + owner:byte(i)) % 65521 end
  return sum % LANES
end

--- The lane of an owner.
-- @tparam table node
-- @tparam table wanted  { count = as for `needed`, ms = how long to wait }
-- @tparam string owner
function replicas.lane(node, wanted, owner)
  local name = ("%s:%d:%d"):format(wanted.count, wanted.ms, hash(owner))
  local lane = node.lanes[name]
  if not lane then
    lane = setmetatable({
      node = node, host = node.host, wanted = wanted, queue = {},
    }, Lane)
    node.lanes[name] = lane
  end
  return lane
end

-- The lane's own connection. In nginx, the requests of the node's pool have
-- connections of their own.
local function connect(self, deadline)
  if self.connection then return self.connection end
  local node = self.node
  local connection, code, detail = node:connect(deadline)
  if not connection or connection.is_pool then
    return connection, code, detail
  end
  connection, code, detail = node:open(function(why)
    node:tell("info", "disconnected", ("lost a connection to %s: %s"):format(
      node.where, why), { reason = why })
    self:forget()
  end)
  if not connection then return nil, code, detail end
  self.connection = connection
  local ok
  ok, code, detail =
    connection:make_ready(ceil(node.options.connect_timeout * 1000), node.seals)
  if ok and self.connection == connection then return connection end
  connection:close()
  self:forget()
  return nil, code or "closed", detail or "the connection was lost"
end

--- Forgets the connection, which was lost.
function Lane:forget()
  local connection = self.connection
  self.connection = nil
  if connection then self.node.seals:lost(connection.identity) end
end

--- Closes the connection.
-- @tparam[opt] string why
function Lane:leave(why)
  local connection = self.connection
  self:forget()
  if connection then connection:close(why) end
end

-- group commit ---------------------------------------------------------------

-- The commands of a batch; MARK and WAIT follow those to be confirmed.
-- @treturn table
-- @treturn integer|nil the index of WAIT
local function commands_of(self, batch)
  local commands, confirmed = {}, nil
  for i, request in ipairs(batch) do
    commands[i] = request.words
    if request.is_confirmed then confirmed = request end
  end
  if not confirmed then return commands end
  local n = #commands
  -- in the slot of the command's key, so on its node
  local mark = MARK:format(slot.tag(tostring(confirmed.words[4])))
  commands[n + 1] = { "SET", mark, "", "PX", "1" }
  commands[n + 2] = { "WAIT",
    ("%d"):format(replicas.needed(self.node, self.wanted.count)),
    ("%d"):format(self.wanted.ms) }
  return commands, n + 2
end

-- Whether WAIT confirms the batch.
-- @treturn[1] boolean true
-- @treturn[2] nil, code, detail
local function confirmation(self, last, replies, codes, details)
  if replies[last - 1] == nil then
    return nil, codes[last - 1], details[last - 1]
  elseif replies[last] == nil and codes[last] == "redis" then
    return nil, "replicas", "none: the primary has become a replica"
  elseif replies[last] == nil then
    return nil, codes[last], details[last]
  end
  local needed = replicas.needed(self.node, self.wanted.count)
  local have = tonumber(replies[last]) or 0
  if have >= needed then return true end
  return nil, "replicas", ("%d of %d replicas in %.1f s"):format(have, needed,
    self.wanted.ms / 1000)
end

local function answer(request, reply, code, detail, sent)
  request.reply, request.code, request.detail = reply, code, detail
  request.sent = sent
  request.event:set()
end

local function fail(batch, code, detail)
  for _, request in ipairs(batch) do answer(request, nil, code, detail) end
end

-- The node leaves a server that reports itself unusable, and so do its lanes.
local function heed(self, connection, codes, details)
  local node = self.node
  for i, code in pairs(codes) do
    local own = node.connection
    if own and (connection == self.connection or connection == own) then
      node:heed(own, code, details[i])
    end
  end
end

-- Sends a batch and answers its requests.
local function exchange(self, batch)
  local deadline = 0
  for _, request in ipairs(batch) do
    deadline = max(deadline, request.deadline)
  end
  local connection, code, detail = connect(self, deadline)
  if not connection then return fail(batch, code, detail) end
  count(self.node, connection)
  local sent = self.host.now()
  local ms = min(deadline - sent, self.node.options.timeout) * 1000
  if ms <= 0 then return fail(batch, "timeout", "no time left") end
  local commands, last = commands_of(self, batch)
  local replies, codes, details = connection:pipeline(ceil(ms)
    + self.wanted.ms, commands)
  heed(self, connection, codes, details)
  local ok
  if last then
    ok, code, detail = confirmation(self, last, replies, codes, details)
  end
  for i, request in ipairs(batch) do
    if replies[i] == nil then
      answer(request, nil, codes[i], details[i], sent)
    elseif request.is_confirmed and not ok then
      answer(request, nil, code, detail, sent)
    else
      answer(request, replies[i], nil, nil, sent)
    end
  end
end

-- Takes the queued requests. Those whose deadline has passed are not sent.
local function next_batch(self)
  local batch, now = {}, self.host.now()
  for _, request in ipairs(self.queue) do
    if request.deadline > now then
      batch[#batch + 1] = request
    else
      answer(request, nil, "timeout", "no time left")
    end
  end
  self.queue = {}
  return batch
end

-- The lane's task, while requests are queued.
local function serve(self)
  while self.queue[1] do
    local batch = next_batch(self)
    if batch[1] then exchange(self, batch) end
  end
  self.is_serving = nil
end

local function enqueue(self, deadline, words, is_confirmed)
  local request = {
    words = words, deadline = deadline, is_confirmed = is_confirmed,
    event = self.host.event(),
  }
  self.queue[#self.queue + 1] = request
  if not self.is_serving then
    self.is_serving = true
    self.host.daemon(serve, self)
  end
  return request
end

-- Waits for the answer.
local function result(self, request)
  local limit = request.deadline + self.wanted.ms / 1000 - self.host.now()
  if not request.event.is_set then
    local woken, code, unwind = request.event:pause(max(limit, 0))
    if woken == nil then return nil, code, unwind end
    if not woken then return nil, "timeout", "no answer in time" end
  end
  return request.reply, request.code, request.detail, request.sent
end

-- Operations that change nothing that must survive a failover.
local unconfirmed = { release = true, leave = true, peek = true }

--- Must this operation be confirmed?
-- @tparam table op
function replicas.must_confirm(op) return not unconfirmed[op.op] end

--- Sends one command, as node:call.
-- @tparam number deadline by host.now(), for the reply of the command itself
-- @tparam table words  not to be modified afterwards
-- @tparam boolean is_confirmed whether replicas must have it
-- @return as node:call; the code is "replicas" if it was executed, but too few
--   replicas have confirmed it
function Lane:call(deadline, words, is_confirmed)
  return result(self, enqueue(self, deadline, words, is_confirmed))
end

--- Sends several commands, as node:pipeline.
-- @tparam[opt] boolean is_final they need no confirmation
function Lane:pipeline(deadline, commands, is_final)
  local requests, replies, codes, details = {}, {}, {}, {}
  for i, words in ipairs(commands) do
    requests[i] = enqueue(self, deadline, words, not is_final)
  end
  local sent
  for i, request in ipairs(requests) do
    local at
    replies[i], codes[i], details[i], at = result(self, request)
    if at and (not sent or at < sent) then sent = at end
  end
  return replies, codes, details, sent
end

return replicas
