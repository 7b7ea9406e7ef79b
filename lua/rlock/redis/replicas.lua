--- Confirmation by replicas: a request succeeds only when enough replicas have
--- its writes. WAIT counts these replicas, but only for the writes of its own
--- connection, which it blocks. So these requests have connections of their
--- own, the dedicated connections of a node. A dedicated connection sends all
--- queued requests in one pipeline with a single WAIT (group commit). An
--- owner's requests for a lock always use the same dedicated connection, which
--- keeps them in order. Before WAIT it sets a mark, a key that expires at once,
--- because a retried request may write nothing: see the end of README.md.

local errors = require "rlock.redis.errors"
local slot = require "rlock.redis.slot"

local replicas = {}

---@class rlock.redis.replicas.Dedicated
---@field node rlock.redis.node
---@field host rlock.host
---@field wanted any
---@field queue table
---@field where string
local Dedicated = {}
Dedicated.__index = Dedicated

local CONNECTIONS = 4    -- of a node, for each number of replicas
local FRESH = 10         -- seconds between two counts of the replicas
local FOR_WAIT = 0.9     -- the part of a request's time that WAIT may take
local LATE = 120         -- ms; Redis ends WAIT up to 100 ms late
local KEY = "rlock_replicated:{%s}"
local MARK = [[
-- rlock mark
redis.call("pexpire", KEYS[1], 1)
return redis.call("set", KEYS[1], "", "px", 1)
]]

local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

-- how many -------------------------------------------------------------------

--- Counts the node's replicas, now and then. The number never falls: it
--- includes disconnected ones, or else a lone primary would confirm everything.
---@return boolean? # true: their number is known
---@return rlock.failure? code, string? detail
local function count(node, connection)
  local now = node.host.now()
  if node.counted and now - node.counted < FRESH then return true end
  local text, code, detail =
    connection:send(node.timeout_ms, { "INFO", "replication" }, 2)
  local connected = tostring(text):match("connected_slaves:(%d+)")
  if connected and #connected < 10 then
    node.counted = now
    node.replicas = max(node.replicas or 0,
      tonumber(connected) --[[@as number]])
  elseif not node.replicas then
    return nil, code or "redis", (detail or "ERR no connected_slaves in INFO")
      .. " (INFO replication, for replicas = \"all\" or \"majority\": give a "
      .. "number instead)"
  end
  return true
end

--- How many replicas must confirm.
---@param node table
---@param wanted any a number; "all"; or "majority", which counts the primary
---@return integer
function replicas.needed(node, wanted)
  local all = node.replicas or 0
  if wanted == "all" then return max(all, 1) end
  if wanted == "majority" then return max(floor((all + 1) / 2), 1) end
  return wanted
end

-- dedicated connections -----------------------------------------------------

-- An owner's number. Operations without an owner have something else as
-- their first argument, such as a token, or nothing.
local function hash(owner)
  local sum = 0
  owner = tostring(owner)
  for i = 1, #owner do sum = (sum * 31 + owner:byte(i)) % 65521 end
  return sum % CONNECTIONS
end

--- The dedicated connection of an owner.
---@param node table
---@param wanted table { count = as for `needed`, ms = how long to wait }
function replicas.connection(node, wanted, owner)
  local name = ("%s:%d:%d"):format(wanted.count, wanted.ms, hash(owner))
  local dedicated = node.dedicated[name]
  if not dedicated then
    dedicated = setmetatable({
      node = node, host = node.host, wanted = wanted, queue = {},
      where = node.where .. " " .. name,        -- for messages and tests
    }, Dedicated)
    node.dedicated[name] = dedicated
  end
  return dedicated
end

-- Its connection. In nginx, the requests of the node's pool have
-- connections of their own.
local function connect(self, deadline)
  if self.connection then return self.connection end
  local node = self.node
  local connection, code, detail = node:connect(deadline)
  if not connection or connection.is_pool then
    return connection, code, detail
  end
  connection, code, detail =
    node:open_reported("a connection", function() self:forget() end)
  if not connection then return nil, code, detail end
  if connection.why_lost then return nil, "closed", connection.why_lost end
  self.connection = connection
  local ok
  ok, code, detail = connection:make_ready(node.connect_ms, node.seals)
  if ok and self.connection == connection and not node.is_closed then
    return connection
  end
  connection:close()
  self:forget()
  return nil, code or "closed", detail or "the connection was lost"
end

--- Forgets the connection, which was lost.
function Dedicated:forget()
  local connection = self.connection
  self.connection = nil
  if connection then self.node.seals:lost(connection.identity) end
end

--- Closes the connection.
---@param why? string
function Dedicated:leave(why)
  local connection = self.connection
  self:forget()
  if connection then connection:close(why) end
end

-- group commit ---------------------------------------------------------------

-- A request of the batch that replicas must confirm, or nil.
local function confirmed_in(batch)
  for _, request in ipairs(batch) do
    if request.is_confirmed then return request end
  end
end

--- The commands of a batch; MARK and WAIT follow those to be confirmed.
---@param self table
---@param batch table
---@param sha? string of MARK
---@param ms integer for WAIT; 0 would block indefinitely
---@return table
---@return integer? # the index of WAIT
local function commands_of(self, batch, sha, ms)
  local commands, confirmed = {}, confirmed_in(batch)
  for i, request in ipairs(batch) do commands[i] = request.words end
  if not confirmed then return commands end
  local n = #commands
  -- in the slot of the command's key, so on its node
  local key = KEY:format(slot.tag(tostring(confirmed.words[4])))
  commands[n + 1] = { "EVALSHA", sha, "1", key }
  commands[n + 2] = { "WAIT",
    ("%d"):format(replicas.needed(self.node, self.wanted.count)),
    ("%d"):format(ms) }
  return commands, n + 2
end

local function unconfirmed_by(self)
  return ("fewer than %d replicas confirmed it in time"):format(
    replicas.needed(self.node, self.wanted.count))
end

--- Does WAIT, for `ms`, confirm the batch?
---@return boolean? # true
---@return rlock.failure? code, string? detail
local function confirmation(self, ms, last, replies, codes, details)
  if replies[last - 1] == nil then
    self.node.shas[MARK] = nil           -- the server may have lost the script
    local code, detail = codes[last - 1], details[last - 1]
    local is_passing = code == "redis" and errors.is_passing(detail)
    return nil, is_passing and "replicas" or code, detail
  elseif replies[last] == nil and codes[last] == "redis" then
    return nil, "replicas", "none: the primary has become a replica"
  elseif replies[last] == nil and codes[last] == "timeout" then
    return nil, "replicas", unconfirmed_by(self)
  elseif replies[last] == nil then
    return nil, codes[last], details[last]
  end
  local needed = replicas.needed(self.node, self.wanted.count)
  local have = replies[last]
  if type(have) ~= "number" then
    return nil, "replicas", "none: the reply to WAIT is no number"
  elseif have >= needed then
    return true
  end
  return nil, "replicas", ("%d of %d replicas in %g s"):format(have, needed,
    ms / 1000)
end

local function answer(request, reply, code, detail, sent)
  request.reply, request.code, request.detail = reply, code, detail
  request.sent, request.is_answered = sent, true
  request.event:set()
end

local function fail(batch, code, detail)
  for _, request in ipairs(batch) do answer(request, nil, code, detail) end
end

-- If the server reports itself unusable, the node and its dedicated connections
-- disconnect.
local function handle(self, connection, codes, details)
  local node = self.node
  for i, code in pairs(codes) do
    local own = node.connection
    if own and (connection == self.connection or connection == own) then
      node:handle(own, code, details[i])
    end
  end
end

-- The requests whose deadline has not passed. The others are not sent.
local function in_time(self, requests)
  local batch, now = {}, self.host.now()
  for _, request in ipairs(requests) do
    if request.deadline > now then
      batch[#batch + 1] = request
    else
      answer(request, nil, "timeout", "no time left")
    end
  end
  return batch
end

-- Does the reply to a request that is not retried (effects.lua) say that it was
-- not executed as a whole? This counts without a confirmation.
local function is_failure(reply)
  local verdict = type(reply) == "table" and reply[1] or reply
  return verdict == "lost" or verdict == "failed"
end

-- Sends a batch and answers its requests.
local function exchange(self, batch)
  local deadline = 0
  for _, request in ipairs(batch) do
    deadline = max(deadline, request.deadline)
  end
  local connection, code, detail = connect(self, deadline)
  if not connection then return fail(batch, code, detail) end
  local sha
  if confirmed_in(batch) then
    if type(self.wanted.count) == "string" then
      local is_known
      is_known, code, detail = count(self.node, connection)
      if not is_known then return fail(batch, code, detail) end
    end
    sha, code, detail = self.node.shas[MARK], nil, nil
    if not sha then sha, code, detail = self.node:load(MARK, MARK, deadline) end
    if not sha then return fail(batch, code, detail) end
  end
  batch = in_time(self, batch)
  if not batch[1] then return end
  for _, request in ipairs(batch) do request.is_sent = true end
  local sent = self.host.now()
  local ms = max(1, min(deadline - sent, self.node.options.timeout) * 1000)
  -- WAIT may take a part of the time, which leaves LATE if there is enough.
  local most = min(ms * FOR_WAIT, max(ms - LATE, ms / 2))
  local wait_ms = max(1, min(self.wanted.ms, floor(most)))
  local commands, last = commands_of(self, batch, sha, wait_ms)
  self.replies, self.mark = {}, last and last - 1
  local replies, codes, details =
    connection:pipeline(ceil(ms), commands, self.replies)
  self.mark = nil
  handle(self, connection, codes, details)
  local ok
  if last then
    ok, code, detail =
      confirmation(self, wait_ms, last, replies, codes, details)
  end
  for i, request in ipairs(batch) do
    if replies[i] == nil then
      answer(request, nil, codes[i], details[i], sent)
    elseif request.is_confirmed and not ok
        and not (request.is_once and is_failure(replies[i])) then
      answer(request, nil, code, detail, sent)
    else
      answer(request, replies[i], nil, nil, sent)
    end
  end
end

-- Fails all requests: its task was refused, killed or raised an error.
local function fail_all(self, code, detail)
  local batch, queue = self.batch or {}, self.queue
  self.batch, self.queue, self.is_serving, self.mark = nil, {}, nil, nil
  for _, request in ipairs(batch) do
    if not request.is_answered then answer(request, nil, code, detail) end
  end
  fail(queue, code, detail)
end

local function abort(self)
  fail_all(self, "closed", "the task of the connection raised an error")
end

local function work(self)
  while self.queue[1] do
    local batch = in_time(self, self.queue)
    self.batch, self.queue = batch, {}
    if batch[1] then exchange(self, batch) end
  end
  self.batch, self.is_serving = nil, nil
end

-- The dedicated connection's task, while requests are queued.
local function serve(self) self.host.guard(abort, self, work, self) end

local function enqueue(self, deadline, words, is_confirmed, is_once)
  -- In nginx, a task may end at any moment.
  if self.is_serving and self.task and self.host.is_over(self.task) then
    fail_all(self, "closed", "the task of the connection has ended")
  end
  local request = {
    words = words, deadline = deadline, is_confirmed = is_confirmed,
    is_once = is_once, event = self.host.event(),
  }
  self.queue[#self.queue + 1] = request
  if not self.is_serving then
    self.is_serving = true
    local task, code, detail = self.host.daemon(serve, self)
    self.task = task
    if not task then fail_all(self, code, detail) end
  end
  return request
end

-- Waits for the answer.
local function result(self, request)
  local limit = request.deadline - self.host.now()
  if not request.event.is_set then
    local woken, code, unwind = request.event:pause(max(limit, 0))
    if woken == nil then return nil, code, unwind end
    local problem = not request.is_sent and self.node.problem
    if not woken and request.is_confirmed
        and self.mark and self.replies[self.mark] ~= nil then
      return nil, "replicas", unconfirmed_by(self)    -- only WAIT has not ended
    elseif not woken and problem then
      return nil, problem.code, problem.detail
    elseif not woken then
      return nil, "timeout", "no answer in time"
    end
  end
  return request.reply, request.code, request.detail, request.sent
end

--- The operations that bypass these connections. They have no owner whose
--- requests must stay in order, and change nothing that must survive a
--- failover. A heartbeat queued behind a WAIT would be late.
replicas.direct = { peek = true, count = true, refresh = true }

--- Those that need no confirmation, for the latter reason.
replicas.unconfirmed = { release = true, leave = true }

--- Sends one command, as node:call.
---@param deadline number by host.now(), also for the confirmation
---@param words table not to be modified afterwards
---@param is_confirmed boolean whether replicas must have it
---@param is_once? boolean whether it is not retried
---@return any # as node:call; the code is "replicas" if it was executed, but
---  too few replicas have confirmed it
function Dedicated:call(deadline, words, is_confirmed, is_once)
  return result(self, enqueue(self, deadline, words, is_confirmed, is_once))
end

--- Sends several commands, as node:pipeline.
---@param is_final? boolean they need no confirmation
function Dedicated:pipeline(deadline, commands, is_final)
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
