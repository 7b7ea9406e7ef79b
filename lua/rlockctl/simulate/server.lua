--- A simulated Redis server: the model of Redis (rlockctl.model.redis), with
--- connections, subscribers, a script cache, a clock that may drift and jump,
--- and faults.

local batched = require "rlockctl.simulate.batched"
local redis = require "rlockctl.model.redis"
local values = require "rlockctl.model.lua51.values"

---@class rlockctl.simulate.server
---@field [any] any
local server = {}
server.__index = server

local floor, max, unpack = math.floor, math.max, table.unpack

local EPOCH = 1700000000                -- the wall clock at time 0

local function new_run_id(random)
  local digits = {}
  for i = 1, 40 do digits[i] = ("%x"):format(floor(random() * 16)) end
  return table.concat(digits)
end

---@param network table its optional on_lack(link, what) is called when a
---  command needs what the model lacks, such as "command GEOADD"; the command
---  then gets no reply. Without on_lack, the model's error is raised.
---@param name string its host name
function server.new(network, name)
  local universe = network.universe
  local random = universe.stream(universe.seed, name)
  local self = setmetatable({
    network = network, universe = network.universe, name = name,
    random = random, redis = redis.new(), scripts = {}, links = {},
    ids = { last = 0 }, subscribers = {}, thaws = 0, inbox = {}, speed = 1,
    since = 0, reading = EPOCH, run_id = new_run_id(random), started = -1000,
    ails_until = 0, granted = {}, released = {}, heard = {},
    back = {},
  }, server)
  self.redis.random = universe.stream(universe.seed, name .. " elements")
  return self
end

local function copy(list) return table.move(list, 1, #list, 1, {}) end

local function remove(list, item)
  for i = #list, 1, -1 do
    if list[i] == item then return table.remove(list, i) end
  end
end

-- the clock -------------------------------------------------------------------

--- The time by the server's wall clock, in seconds.
function server:clock()
  return self.reading + (self.universe.now - self.since) * self.speed
end

--- Changes the speed of the clock (drift), and lets it jump.
---@param speed number 1 is that of true time
---@param jump? number seconds; default: 0
function server:set_clock(speed, jump)
  self.reading = self:clock() + (jump or 0)
  self.since, self.speed = self.universe.now, speed
end

--- Sets the model's clock to the server's.
function server:tick()
  self.redis.now = floor((self.reading
    + (self.universe.now - self.since) * self.speed) * 1000000)
end

--- Does this owner hold a lock, according to the server?
---@param key string of the lock
---@param owner string
function server:holds(key, owner)
  self:tick()
  local entry = self.redis:entry(key)
  if not entry then return false end
  local value = entry.value
  if type(value) ~= "table" then return value == owner end
  return (value[owner] or value[owner .. ":write"] or value["r:" .. owner]
    or value["w:" .. owner]) ~= nil
end

--- Is this owner the writer of a read/write lock, according to the server?
function server:is_writer(key, owner)
  self:tick()
  local entry = self.redis:entry(key)
  local value = entry and entry.value or {}
  return (value[owner .. ":write"] or value["w:" .. owner]) ~= nil
end

--- Does this owner hold both sides of a read/write lock?
function server:holds_both(key, owner)
  local entry = self.redis:entry(key)
  local value = entry and entry.value or {}
  return self:is_writer(key, owner)
    and (value[owner] or value["r:" .. owner]) ~= nil
end

-- faults ----------------------------------------------------------------------

local function drop_links(self)
  for _, link in ipairs(copy(self.links)) do link:close_server() end
end

--- Keeps a copy of the data, for `restart` and `promote`.
function server:save()
  self.saved = self.redis
  self.redis = self.saved:fork()
  self.redis.listeners = self.saved.listeners
end

--- Restarts the server.
---@param seconds number of downtime
---@param with string "data", "nothing", or "saved": what `save` kept
function server:restart(seconds, with)
  if self.is_down then return end
  self.is_down, self.inbox = true, {}
  drop_links(self)
  self.scripts, self.run_id = {}, new_run_id(self.random)
  if with == "nothing" then
    self.redis.entries = {}
  elseif with == "saved" and self.saved then
    self.redis = self.saved:fork()
  end
  self.universe:after(seconds, function()
    self.is_down, self.started = false, self.universe.now
  end)
end

--- Stops the replica for some seconds. It does not confirm writes of that time,
--- and a failover loses them.
function server:lag(seconds)
  if self.replica or self.is_down then return end
  local replica = { since = self.universe.now, redis = self.redis:fork() }
  self.replica = replica
  self.universe:after(seconds, function()
    if self.replica == replica then self.replica = nil end
  end)
end

--- Replaces the server's data with that of its stopped replica.
function server:roll_back()
  if self.replica then
    local listeners = self.redis.listeners
    self.redis, self.replica = self.replica.redis, nil
    self.redis.listeners = listeners
  end
end

--- WAIT: has the replica confirmed the writes of a connection?
---@return boolean
function server:is_confirmed(link)
  return self.role ~= "slave"
    and (not self.replica or (link.wrote_at or -1) < self.replica.since)
end

--- Promotes a replica of the server to master.
---@param self table
---@param is_lagging boolean whether it has only what `save` kept
function server.promote(self, is_lagging)
  local data = is_lagging and self.saved or self.redis
  self.redis = data:fork()
  self.redis.listeners = {}
  self.links, self.subscribers, self.inbox = {}, {}, {}
  self.scripts, self.run_id = {}, new_run_id(self.random)
  self.thaws, self.ails_until = 0, 0
end

--- Ends a freeze: the server executes what has arrived meanwhile, in order.
function server:thaw()
  local inbox = self.inbox
  self.thaws, self.inbox = self.universe.now, {}
  for _, call in ipairs(inbox) do call:fire() end
end

--- Freezes the server: it answers nothing for some seconds. A freeze that ends
--- later continues.
function server:freeze(seconds)
  self.thaws = max(self.thaws, self.universe.now + seconds)
  self.universe:after(self.thaws - self.universe.now, function()
    if self.thaws <= self.universe.now then self:thaw() end
  end)
end

--- As `freeze`, but replaces an earlier freeze.
function server:freeze_only(seconds)
  if seconds <= 0 then return self:thaw() end
  self.thaws = 0
  self:freeze(seconds)
end

--- Makes the server answer with an error for a while.
---@param seconds number
---@param message string
---@param is_late boolean whether it executes each request before the error
function server:ail(seconds, message, is_late)
  self.ails_until = self.universe.now + seconds
  self.message, self.is_late = message, is_late
end

--- Forgets all scripts.
function server:flush_scripts() self.scripts = {} end

-- commands that are implemented here ------------------------------------------

local own = {}                    -- command -> function(server, link, words, n)

function own.evalsha(self, link, words)
  local text = self.scripts[words[2]]
  if not text then return { err = "NOSCRIPT No matching script." } end
  local n = math.tointeger(tonumber(words[3]))
  if not n or n < 0 or n > #words - 3 then    -- EVAL says why
    return self.redis:call { "eval", text, unpack(words, 3) }
  end
  local keys = { unpack(words, 4, 3 + n) }
  local args = { unpack(words, 4 + n) }
  self:tick()
  local reply = self.redis:run_script(text, keys, args)
  if self.on_eval and batched.is(text) then
    for _, part in ipairs(batched.held(batched.parts(keys, args), reply)) do
      self:on_eval(link, text, part.keys, part.args, "held")
    end
  elseif self.on_eval then
    self:on_eval(link, text, keys, args, reply)
  end
  return reply
end

local function wrong_number(name)
  return { err = ("ERR wrong number of arguments for '%s' command"):format(
    name) }
end

local scripts = {}                      -- subcommands of SCRIPT

function scripts.load(self, words)
  if #words ~= 3 then return wrong_number "script|load" end
  local text, shas = words[3], self.network.shas
  if not shas[text] then
    shas.n = (shas.n or 0) + 1
    shas[text] = ("%040x"):format(shas.n)
    self.network.texts[shas[text]] = text
  end
  self.scripts[shas[text]] = text
  return shas[text]
end

function scripts.exists(self, words)
  local list = {}
  for i = 3, #words do list[i - 2] = self.scripts[words[i]] and 1.0 or 0.0 end
  return list
end

function scripts.flush(self)
  self.scripts = {}
  return { ok = "OK" }
end

-- Finds the function of a subcommand.
local function find(list, words)
  return list[words[2]:lower()]
    or values.lacks("command " .. (words[1] .. " " .. words[2]):upper())
end

function own.script(self, _, words) return find(scripts, words)(self, words) end

local clients = {}                      -- subcommands of CLIENT

function clients.setname() return { ok = "OK" } end
function clients.id(_, link) return link.id + 0.0 end
function clients.kill(self, _, words)
  if not words[4] then values.lacks "command CLIENT KILL of an address" end
  if self.refuses_kill then
    return { err = "NOPERM this user has no permissions to run CLIENT KILL" }
  end
  local killed = 0.0
  for _, link in ipairs(copy(self.links)) do
    if words[3]:lower() == "id" and tostring(link.id) == words[4] then
      link:close_server()
      killed = killed + 1
    end
  end
  return killed
end

function own.client(self, link, words)
  return find(clients, words)(self, link, words)
end

local SECTION = "run_id:%s\r\nuptime_in_seconds:%d\r\nrole:%s\r\n"
  .. "master_replid:%s\r\naof_enabled:%d\r\nconnected_slaves:%d\r\n"

local SECTIONS = { server = true, replication = true, persistence = true }

function own.info(self, _, words)
  if words[3] or words[2] and not SECTIONS[words[2]:lower()] then
    values.lacks("command INFO " .. words[2])
  elseif self.hides_run_id then
    return { err = "NOPERM this user has no permissions to run INFO" }
  end
  return SECTION:format(self.run_id,
    floor(self.universe.now - self.started), self.role or "master",
    self.run_id,
    self.has_aof and 1 or 0, self.replicas or 0)
end

local sentinel = {}                     -- subcommands of SENTINEL

sentinel["get-master-addr-by-name"] = function(_, known)
  return { known.address, "6379" }
end
function sentinel.master(self, known)
  return { "config-epoch", tostring(known.epoch), "num-other-sentinels",
    tostring(#self.others) }
end
function sentinel.sentinels(self)
  local list = {}
  for i, name in ipairs(self.others) do
    list[i] = { "ip", name, "port", "26379" }
  end
  return list
end

function own.sentinel(self, _, words)
  local known = self.watched and self.watched[words[3]]
  if not known then return { err = "ERR No such master with that name" } end
  return sentinel[words[2]:lower()](self, known)
end

function own.hello(self)
  return { "proto", 2.0, "role", self.role or "master" }
end

function own.cluster(self)
  if self.cluster then return self.cluster.slots_of(self) end
  return { err = "ERR This instance has cluster support disabled" }
end
function own.asking() return { ok = "OK" } end

-- COMMAND INFO describes each command as having one key. The reply to COMMAND
-- GETKEYS names no key, so a client may send the command to any node.
function own.command(_, _, words)
  local action = words[2]:lower()
  if action ~= "info" and action ~= "getkeys" then
    values.lacks("command COMMAND " .. action:upper())
  end
  return { { words[3]:lower(), 2.0, { "write" }, 1.0, 1.0, 1.0 } }
end

local SHARDED = "s:"                    -- prefix of sharded channels

local function subscribe(self, link, channel)
  local listeners = self.subscribers[channel] or {}
  self.subscribers[channel] = listeners
  if not listeners[link] then
    listeners[link] = true
    link.channels[#link.channels + 1] = channel
    listeners[#listeners + 1] = link
    self.redis.listeners[channel] = #listeners
  end
end

function own.subscribe(self, link, words)
  subscribe(self, link, words[2])
  link:push("subscribe", words[2], 1)
end

function own.ssubscribe(self, link, words)
  subscribe(self, link, SHARDED .. words[2])
  link:push("ssubscribe", words[2], 1)
end

local function unsubscribe(self, link, channel)
  local listeners = self.subscribers[channel]
  if listeners and listeners[link] then
    listeners[link] = nil
    remove(listeners, link)
    remove(link.channels, channel)
    self.redis.listeners[channel] = #listeners
  end
end

function own.unsubscribe(self, link, words)
  unsubscribe(self, link, words[2])
  link:push("unsubscribe", words[2], 0)
end

function own.sunsubscribe(self, link, words)
  unsubscribe(self, link, SHARDED .. words[2])
  link:push("sunsubscribe", words[2], 0)
end

--- Ends the subscriptions to sharded channels whose slot has moved.
---@param is_gone function channel -> has its slot moved?
function server:drop_sharded(is_gone)
  for name, listeners in pairs(self.subscribers) do
    local channel = name:sub(1, #SHARDED) == SHARDED and name:sub(#SHARDED + 1)
    if channel and is_gone(channel) then
      for _, link in ipairs(copy(listeners)) do
        own.sunsubscribe(self, link, { "sunsubscribe", channel })
      end
    end
  end
end

--- Removes a closed connection, with its subscriptions.
function server:unlink(link)
  remove(self.links, link)
  for _, channel in ipairs(copy(link.channels)) do
    unsubscribe(self, link, channel)
  end
end

-- executing -------------------------------------------------------------------

--- Sends a message to the subscribers of a channel.
---@param channel string
---@param payload string
---@param is_sharded? boolean
function server:deliver(channel, payload, is_sharded)
  local name = (is_sharded and SHARDED or "") .. channel
  for _, link in ipairs(self.subscribers[name] or {}) do
    link:push(is_sharded and "smessage" or "message", channel, payload)
  end
end

-- Sends published messages to the subscribers.
local function send_messages(self)
  local sent = self.redis.sent
  if not sent[1] then return end
  self.redis.sent = {}
  for _, message in ipairs(sent) do
    local channel, payload, is_sharded = table.unpack(message)
    self:deliver(channel, payload, is_sharded)
    if self.cluster and not is_sharded then
      self.cluster:broadcast(self, channel, payload)
    end
  end
end

local lower = setmetatable({}, { __index = function(list, word)
  list[word] = word:lower()
  return list[word]
end })

-- The commands that a server answers even while it ails.
local well = { client = true, info = true, hello = true, subscribe = true,
  unsubscribe = true, ssubscribe = true, sunsubscribe = true, script = true,
  time = true }

-- The minimum number of words of a command.
local LEAST = { evalsha = 3, script = 2, client = 2, command = 3, sentinel = 3 }

local function run(self, link, words, name)
  local fn = own[name]
  if fn and #words < (LEAST[name] or 1) then
    return wrong_number(name)
  end
  local why = self.cluster and self.cluster:refusal(self, link, words, name)
  if why and name:find "subscribe$" then return link:refuse(why) end
  if why then return { err = why } end
  if fn then return fn(self, link, words) end
  self:tick()
  return self.redis:call(words)
end

-- As `run`; returns nil if the model lacks something that the command needs.
local function run_or_lack(self, link, words, name)
  local on_lack = self.network.on_lack
  if not on_lack then return run(self, link, words, name) end
  local ok, reply = pcall(run, self, link, words, name)
  if ok then return reply end
  on_lack(link, values.lack_of(reply) or error(reply, 0))
end

--- Executes a command.
---@return any # the reply as a script sees it; nil for SUBSCRIBE, and for a
---  command that the model lacks
function server:execute(link, words)
  ---@diagnostic disable-next-line: unbalanced-assignments
  local name, reply = lower[words[1]]
  local count = self.network.count
  count.commands = (count.commands or 0) + 1
  if self.ails_until > self.universe.now and not well[name] then
    if self.is_late then run_or_lack(self, link, words, name) end
    if name == "evalsha" and self.on_refusal then self:on_refusal(words) end
    reply = { err = self.message }
  elseif self.replica then
    local before = self.redis:text()
    reply = run_or_lack(self, link, words, name)
    if self.redis:text() ~= before then link.wrote_at = self.universe.now end
  else
    reply = run_or_lack(self, link, words, name)
    link.wrote_at = self.replicas and self.universe.now
  end
  send_messages(self)
  return reply
end

return server
