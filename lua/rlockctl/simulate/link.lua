--- A simulated connection of a client to a server. It delivers in order, with
--- delays. After the client has closed a connection, what it has sent may still
--- arrive, unless the server has closed the connection too.

local batched = require "rlockctl.simulate.batched"
local errors = require "rlock.redis.errors"
local evalsha = require "rlock.redis.evalsha"
local seal = require "rlock.redis.seal"

---@class rlockctl.simulate.link
---@field [any] any
local link = {}
link.__index = link

local CONFIRM = 0.001     -- seconds until a replica confirms
local TICK = 0.1          -- seconds; Redis ends a WAIT at such a tick

local huge, kind_of, max, unpack =
  math.huge, math.type, math.max, table.unpack
local set_metatable, type = setmetatable, type

--- Opens a connection, in no time.
---@param route table between the client and the server: network.lua
---@param options table those of host.connect
function link.new(route, options)
  local server = route.server
  local ids = server.ids
  ids.last = ids.last + 1
  local self = setmetatable({
    route = route, host = route.host, server = server,
    universe = server.universe, id = ids.last, first = 1, last = 0,
    forth = 0, back = 0, is_served = true, channels = {},
    address = ("%s:%d"):format(route.host.label, ids.last),
    heard = server.universe.now, lost = options.lost,
    message = options.message, silent = (options.silent or 0) / 1000,
    seals = options.seals, unanswered = nil,
  }, link)
  self.alarm = { host = self.host, rank = 3, link = self, fire = self.watch }
  table.insert(server.links, self)
  table.insert(route.links, self)
  return self
end

-- deliveries ------------------------------------------------------------------

-- Delivers an item after a delay, and after all earlier items of its direction.
local function deliver(self, direction, item)
  local universe, route = self.universe, self.route
  local at = universe.now + route.delay * (0.5 + route.random())
  local free = route[direction]
  if at < free then at = free + (at - universe.now) end
  if at <= self[direction] then at = self[direction] + 1e-7 end
  self[direction] = at
  universe:at(at, item)
end

--- Delays all that is sent in a direction until some seconds have passed.
---@param direction string "forth" or "back"
---@param seconds number
function link:hold(direction, seconds)
  self[direction] = max(self[direction], self.universe.now + seconds)
end

-- Converts a reply from the model's form to the client's.
local function seen(reply)
  local kind = type(reply)
  if kind == "string" then return reply end
  if kind == "number" then return math.tointeger(reply) end
  if kind ~= "table" then return reply end
  if reply.ok then return reply.ok end
  if reply.err then return { err = reply.err } end
  local list = {}
  for i = 1, #reply do
    local item = reply[i]
    list[i] = type(item) == "string" and item or seen(item)
  end
  return list
end

-- calls -----------------------------------------------------------------------

local Call = { rank = 2 }
Call.__index = Call

-- Reports the outcome to the waiting task, pipeline or receiver. As in
-- host/uv.lua, a receiver learns later that the connection is closed, because
-- the receiver itself may be closing it.
local function tell(call, reply, code, detail)
  call.is_over = true
  local batch, receiver = call.batch, call.receiver
  if code and (code ~= "redis" or call.words[1] == "EVALSHA") then
    call.link.host.troubles = (call.link.host.troubles or 0) + 1
  end
  if batch then
    local i = call.index
    batch.replies[i], batch.codes[i], batch.details[i] = reply, code, detail
    batch.left = batch.left - 1
    if batch.left == 0 then batch.event:set() end
  elseif receiver and code == "closed" then
    call.link.host.daemon(receiver.replied, receiver, nil, code, detail)
  elseif receiver then
    receiver:replied(reply, code, detail)
  elseif call.task then
    call.link.host.wake(call.task, reply, code, detail)
  end
end

--- Called when the waiting task is cancelled.
function Call:abandon() self.task = nil end

-- The reply arrives at the client.
local function answer(call)
  local self = call.link
  if self.is_closed or self.is_cut then return end
  self.heard = self.universe.now
  local first = self.first
  self[first] = nil
  if first == self.last then            -- keeps the numbers small
    self.first, self.last = 1, 0
  else
    self.first = first + 1
  end
  if call.is_over then return end
  local reply = call.reply
  if type(reply) == "table" and reply.err then
    tell(call, nil, "redis", reply.err)
  else
    tell(call, seen(reply))
  end
end

local arrive

-- WAIT blocks the connection until the replica confirms or the time is over.
local function wait_for_replica(call)
  local self, ends = call.link, call.ends
  local is_done = self.server:is_confirmed(self)
  if not is_done and self.universe.now < ends and self.is_served then
    call.fire = wait_for_replica
    self.universe:at(self.universe.now + CONFIRM, call)
    return
  end
  local queue = self.blocked
  self.blocked = nil
  call.reply = is_done and self.server.replicas or 0
  call.host, call.fire = self.host, answer
  deliver(self, "back", call)
  for _, other in ipairs(queue) do other:fire() end
end

local function block(call)
  local self = call.link
  self.blocked, call.host = {}, nil
  local ms = tonumber(call.words[3]) --[[@as number]]
  local ends = self.universe.now + ms / 1000
  call.ends = math.ceil(ends / TICK) * TICK
  wait_for_replica(call)
end

-- The command arrives at the server.
function arrive(call)
  local self = call.link
  local server = self.server
  if not self.is_served or self.is_cut then return end
  if self.blocked then
    table.insert(self.blocked, call)
    return
  end
  if server.thaws > self.universe.now then
    table.insert(server.inbox, call)
    return
  end
  if self.is_closed then server.network:note "late" end
  if server.replicas and call.words[1] == "WAIT" then return block(call) end
  local reply = server:execute(self, call.words)
  if reply ~= nil then
    call.reply, call.host, call.fire = reply, self.host, answer
    deliver(self, "back", call)
  end
  if self.resets_after then
    self.resets_after = self.resets_after - 1
    if self.resets_after <= 0 then self:close_server() end
  end
end

-- `seals` of a client's node -> its closed connections that are not yet sealed
local nodes = setmetatable({}, { __mode = "k" })

-- The first arguments of operations without an owner, which may arrive late:
-- refresh, and break_ without a token.
local NO_OWNER = { publish = true, spublish = true, both = true, [""] = true }

-- Calls fn with each lock and owner of a script call.
local function each_owner(server, words, fn)
  if batched.is(server.network.texts[words[2]]) then
    for _, part in ipairs(batched.parts_of(words)) do
      fn(part.keys[1] .. " " .. part.args[1])
    end
    return
  end
  local owner = words[4 + tonumber(words[3]) --[[@as integer]]]
  if owner and not NO_OWNER[owner] then fn(words[4] .. " " .. owner) end
end

-- Read-only operations: they may be executed late.
local READS = { peek = true, count = true }

-- Is a request read-only? Works even if the server has lost the script.
local function is_read(server, words)
  local text = server.network.texts[words[2]]
  return READS[text and text:match("^%-%- rlock %S+%.([%a_]+)")] == true
end

-- The owners of the operations that were sent on a closed connection and that
-- the server may still execute. Read-only operations do not count.
local function unanswered(self)
  local owners, n = {}, 0
  for i = self.first, self.last do
    local words = self[i].words
    if words[1] == "EVALSHA" and not is_read(self.server, words) then
      n = n + 1
      each_owner(self.server, words, function(owner) owners[owner] = true end)
    end
  end
  return n > 0 and owners
end

local function has_any(set, list)
  for _, item in ipairs(list) do
    if set[item] then return true end
  end
  return false
end

-- Reports an operation that is sent while the server may still execute one from
-- the connection that this one replaces, which is therefore not sealed. With
-- replicas, connections are dedicated: only operations of the same owner and
-- lock count, and read-only ones do not.
local function check_sealed(self, words)
  local list, owners = nodes[self.seals], {}
  if self.server.replicas and is_read(self.server, words) then return end
  each_owner(self.server, words, function(owner)
    owners[#owners + 1] = owner
  end)
  for i = #list, 1, -1 do
    local old = list[i]
    if not old.is_served or self.seals.mode ~= "kill" then
      table.remove(list, i)
    elseif old.server == self.server
        and (not self.server.replicas
          or has_any(old.unanswered, owners)) then
      table.remove(list, i)
      self.universe:report("unsealed", "%s sends on %s before %s is sealed",
        self.host.label, self.address, old.address)
    end
  end
end

--- Sends a command.
---@param words table copied
local function start(self, ms, words, n)
  local copy = { unpack(words, 1, n) }
  for i = 1, n do
    local word = copy[i]
    local kind = kind_of(word)
    if kind == "integer" then
      copy[i] = ("%d"):format(word)
    elseif kind then
      copy[i] = ("%.17g"):format(word)
    end
  end
  local now, lost = self.universe.now, nodes[self.seals]
  if lost and lost[1] and copy[1] == "EVALSHA" then
    check_sealed(self, copy)
  end
  local call = set_metatable({         -- preallocates all fields
    link = self, words = copy, fire = arrive, sent = now, is_over = false,
    deadline = nil, task = nil, reply = nil, host = nil, receiver = nil,
    due = ms > 0 and now + ms / 1000 / self.host.speed or huge,
  }, Call)
  self.last = self.last + 1
  self[self.last] = call
  local alarm = self.alarm
  if alarm.deadline and call.due < alarm.deadline then
    self.universe:cancel(alarm)
  end
  if not alarm.deadline and not alarm.is_delayed then self:set_alarm() end
  deliver(self, "forth", call)
  return call
end

-- deadlines -------------------------------------------------------------------

-- The time at which the client declares the connection dead.
local function silent_due(self)
  if self.silent <= 0 or self.first > self.last then return huge end
  return max(self.heard, self[self.first].sent) + self.silent
end

--- Sets the alarm for the earliest deadline.
function link:set_alarm()
  local due = silent_due(self)
  for i = self.first, self.last do
    local call = self[i] --[[@as table]]
    if not call.is_over and call.due < due then due = call.due end
  end
  if due < huge then
    self.universe:at(max(due, self.universe.now), self.alarm)
  end
end

--- The alarm: closes a silent connection, else times out overdue calls.
function link.watch(alarm)
  local self = alarm.link
  if self.is_closed then return end
  local now = self.universe.now + 1e-9
  if silent_due(self) <= now then
    return self:lose(("silent for %d ms while commands waited")
      :format(self.silent * 1000))
  end
  for i = self.first, self.last do
    local call = self[i]
    if call and not call.is_over and call.due <= now then
      tell(call, nil, "timeout", "no reply in time")
    end
  end
  if not self.is_closed and not alarm.deadline then self:set_alarm() end
end

-- ends ------------------------------------------------------------------------

local function fail_all(self, why)
  for i = self.first, self.last do
    local call = self[i]
    self[i] = nil
    if not call.is_over then tell(call, nil, "closed", why) end
  end
  self.first, self.last = 1, 0
end

local function forget(self)
  for i, other in ipairs(self.route.links) do
    if other == self then table.remove(self.route.links, i) end
  end
end

local function unserve(self)
  if not self.is_served then return end
  self.is_served = false
  self.server:unlink(self)
end

--- The server closes the connection; the client learns of it after a delay.
function link:close_server()
  if not self.is_served then return end
  unserve(self)
  deliver(self, "back", { host = self.host, rank = 2, fire = function()
    if not self.is_mute then self:lose "connection reset" end
  end })
end

--- The client declares the connection dead.
function link:lose(why)
  if self.is_closed then return end
  self:close(why)
  if self.lost then self.lost(why) end
end

--- Closes the client's side. What it has sent may still arrive. After that, the
--- server learns that the connection is closed.
function link:close(why)
  if self.is_closed then return end
  self.is_closed = true
  forget(self)
  self.unanswered = self.seals and unanswered(self)
  if self.unanswered then
    nodes[self.seals] = nodes[self.seals] or {}
    table.insert(nodes[self.seals], self)
  end
  self.universe:cancel(self.alarm)
  fail_all(self, why or "the connection was closed")
  if not self.is_mute then
    deliver(self, "forth", { fire = function() unserve(self) end })
  end
end

--- Makes the connection half-open: nothing more arrives on either side, until
--- the client gives up or the server resets the connection. What is lost in the
--- meantime is never delivered.
---@param seconds number until the reset
function link:half_open(seconds)
  self.is_mute, self.is_cut = true, true
  self.universe:after(seconds, function()
    self.is_mute = false
    self:close_server()
  end)
end

--- Sends a subscriber an error, which closes the connection.
function link:refuse(why)
  deliver(self, "back", { host = self.host, rank = 2, fire = function()
    if not self.is_mute then self:lose(why) end
  end })
end

--- Sends a command without a reply of its own: the server may answer by `push`.
---@param words table
---@return true?, rlock.failure? code, string? detail
function link:tell(words)
  if self.is_closed then return nil, "closed", "the connection was closed" end
  deliver(self, "forth", setmetatable({
    link = self, words = words, fire = arrive,
  }, Call))
  return true
end

-- A message arrives at the client.
local function hear(item)
  local self = item.link
  if not self.is_closed and not self.is_cut and self.message then
    self.message(item.kind, item.channel, item.payload)
    if self.host.heard then self.host.heard() end
  end
end

--- A message for a subscriber.
function link:push(kind, channel, payload)
  deliver(self, "back", { host = self.host, rank = 2, fire = hear, link = self,
    kind = kind, channel = channel, payload = payload, deadline = nil })
end

-- the connection, for the host ------------------------------------------------

---@class rlockctl.simulate.Connection
---@field [any] any
local Connection = {}
Connection.__index = Connection

function Connection:send(ms, words, n)
  local own = self.link
  if own.is_closed then
    return nil, "connect", "the connection was closed"
  end
  local unwind = own.host.cancellation()
  if unwind then return nil, "cancelled", unwind end
  return own.host.wait_for(start(own, ms, words, n))
end

local scratch = {}

function Connection:eval(ms, ...)
  return self:send(ms, scratch, evalsha(scratch, ...))
end

function Connection:post(ms, words, n, receiver)
  if self.link.is_closed then return false end
  start(self.link, ms, words, n).receiver = receiver
  return true
end

function Connection:call(ms, ...)
  return self:send(ms, { ... }, select("#", ...))
end

function Connection:pipeline(ms, commands, replies)
  local own = self.link
  local batch = {
    replies = replies or {}, codes = {}, details = {}, left = #commands,
    event = own.host.event(),
  }
  for i, words in ipairs(commands) do
    if own.is_closed then
      batch.codes[i], batch.details[i] = "closed", "the connection was closed"
      batch.left = batch.left - 1
    else
      local call = start(own, ms, words, #words)
      call.batch, call.index = batch, i
    end
  end
  local _, code, unwind
  if batch.left > 0 then _, code, unwind = batch.event:pause() end
  for i = 1, code and #commands or 0 do     -- the task is cancelled
    if batch.replies[i] == nil and not batch.codes[i] then
      batch.codes[i], batch.details[i] = code, unwind
    end
  end
  return batch.replies, batch.codes, batch.details
end

-- SUBSCRIBE and UNSUBSCRIBE: their replies are messages.
function Connection:listen(verb, channel)
  return self.link:tell { verb, channel }
end

function Connection:close(why) self.link:close(why) end

-- The handshake, and sealing, as in host/uv.lua.

local function greet(self, options)
  local commands = table.move(options.handshake, 1, #options.handshake, 1, {})
  local n = #commands
  for _, query in ipairs(seal.queries) do
    commands[#commands + 1] = query
  end
  local replies, codes, details = self:pipeline(options.timeout, commands)
  for i = 1, n do
    if replies[i] == nil
        and not errors.is_optional(commands[i], codes[i], details[i]) then
      self:close()
      return nil, codes[i], details[i]
    end
  end
  self.identity, self.fault, self.why =
    seal.identity(replies, codes, details, n + 1)
  local wrong = seal.wrong(self.identity, options)
  if wrong then
    self:close()
    return nil, "connect", wrong
  end
  return self
end

function Connection:make_ready(ms, seals)
  local identity = self.identity
  if not identity and self.has_been_asked then
    local replies, codes, details = self:pipeline(ms, seal.queries)
    identity, self.fault, self.why = seal.identity(replies, codes, details, 1)
    self.identity = identity
  end
  self.has_been_asked = true
  if not identity then return nil, self.fault, self.why end
  local ok, code, detail = seals:kill_pending(identity, function(commands)
    return self:pipeline(ms, commands)
  end)
  if ok then seals:probe(identity) end
  return ok, code, detail
end

-- Reports a connection to a master of an earlier epoch than that of an earlier
-- connection. A process that has just stalled is exempt, because perhaps no
-- Sentinel that knows the later master answers.
local function check_epoch(host, options)
  local name, epoch = options.host:match("^(.-)%-(%d+)$")
  epoch = tonumber(epoch or 0) --[[@as number]]
  local newest = host.newest[name or options.host] or 0
  if epoch < newest and host.universe.now > host.stalls_until + 1 then
    host.universe:report("older master", "%s connects to %s, epoch %d came "
      .. "after it", host.label, options.host, newest)
  end
  return function()
    host.newest[name or options.host] = max(epoch, newest)
  end
end

--- Opens a connection to a server, without a handshake.
---@param route table
---@param options table those of host.connect
---@return any # link
---@return rlock.failure? code, string? detail
function link.dial(route, options)
  local host, universe = route.host, route.server.universe
  local most = options.timeout / 1000
  local there = max(route.forth, route.back) - universe.now
  if there > 0 and there >= most or route.is_mute then
    host.sleep(most)
    return nil, "connect", options.host .. ": no answer in time"
  end
  host.sleep(max(there, 0) + route.delay)
  if route.server.is_down or route.refuses_until > universe.now then
    return nil, "connect", options.host .. ": connection refused"
  end
  return link.new(route, options)
end

--- Opens a connection, with the handshake, as host.connect does.
---@param route table
---@param options table
---@return any # connection
---@return rlock.failure? code, string? detail
function link.connect(route, options)
  local own, code, detail = link.dial(route, options)
  if not own then return nil, code, detail end
  return greet(setmetatable({ link = own }, Connection), options)
end

--- As `connect`, for a master whose address comes from Sentinels.
function link.connect_to_master(route, options)
  local host = route.host
  host.newest = host.newest or {}
  local connected = check_epoch(host, options)
  local connection, code, detail = link.connect(route, options)
  if connection then connected() end
  return connection, code, detail
end

return link
