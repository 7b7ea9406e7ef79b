--- A simulated network of Redis servers (the model of rlock.check.redis), for
--  hosts of rlock.host.sim. A connection delivers in order, with delays. It may
--  stall, be reset, and deliver late: what was sent on a connection that its
--  client has closed may still arrive, unless the server has closed it too.

local redis = require "rlock.check.redis"
local seal = require "rlock.redis.seal"

local network = {}
network.__index = network

local EPOCH = 1700000000                -- the servers' wall clock at time 0

--- @tparam table universe
-- @tparam table chances faults: see spec/simulate/run.lua
function network.new(universe, chances)
  local self = setmetatable({
    universe = universe, chances = chances, servers = {}, count = {},
  }, network)
  universe.connect = function(host, options)
    return self:connect(host, options)
  end
  return self
end

function network:note(what) self.count[what] = (self.count[what] or 0) + 1 end

-- servers ---------------------------------------------------------------------

local Server = {}
Server.__index = Server

local function new_run_id(universe)
  local digits = {}
  for i = 1, 40 do digits[i] = ("%x"):format(universe:pick(16) - 1) end
  return table.concat(digits)
end

--- Adds a server.
-- @tparam string name its host name
function network:server(name)
  local server = setmetatable({
    network = self, universe = self.universe, name = name,
    redis = redis.new(), scripts = {}, loaded = 0, links = {}, last_id = 0,
    subscribers = {}, thaws = 0, speed = 1, jump = 0,
    run_id = new_run_id(self.universe),
  }, Server)
  self.servers[name] = server
  return server
end

local function copy(list) return table.move(list, 1, #list, 1, {}) end

local function remove(list, item)
  for i = #list, 1, -1 do
    if list[i] == item then return table.remove(list, i) end
  end
end

function Server:drop_links()
  for _, link in ipairs(copy(self.links)) do link:close_server() end
end

--- Restarts the server.
-- @tparam number seconds it is down
-- @tparam boolean keeps_data
function Server:restart(seconds, keeps_data)
  self.is_down = true
  self:drop_links()
  self.scripts, self.run_id = {}, new_run_id(self.universe)
  if not keeps_data then
    self.redis.entries = {}
    self.lost_data = self.universe.now
  end
  self.universe:after(seconds, function() self.is_down = false end)
end

function Server:freeze(seconds)
  self.thaws = math.max(self.thaws, self.universe.now + seconds)
end

function Server:set_clock()
  self.redis.now = math.floor((EPOCH + self.jump
    + self.universe.now * self.speed) * 1000000)
end

-- the server's commands -------------------------------------------------------

local own = {}                          -- command -> function(server, link, words)

local function run_script(server, text, words)
  local n = tonumber(words[3])
  local keys = table.move(words, 4, 3 + n, 1, {})
  local args = table.move(words, 4 + n, #words, 1, {})
  server:set_clock()
  return server.redis:eval(text, keys, args)
end

function own.evalsha(server, _, words)
  local text = server.scripts[words[2]]
  if not text then return { err = "NOSCRIPT No matching script." } end
  return run_script(server, text, words)
end

local shas = {}                         -- text -> sha, of all runs
local number_of_shas = 0

function own.script(server, _, words)
  local text = words[3]
  if not shas[text] then
    number_of_shas = number_of_shas + 1
    shas[text] = ("%040x"):format(number_of_shas)
  end
  server.scripts[shas[text]] = text
  return shas[text]
end

local clients = {}

function clients.setname() return { ok = "OK" } end
function clients.id(_, link) return link.id + 0.0 end
function clients.info(_, link)
  return ("id=%d addr=%s"):format(link.id, link.address)
end

function clients.kill(server, _, words)
  local killed = 0.0
  for _, link in ipairs(copy(server.links)) do
    if words[3]:lower() == "id" and tostring(link.id) == words[4] then
      link:close_server()
      killed = killed + 1
    end
  end
  return killed
end

function own.client(server, link, words)
  return clients[words[2]:lower()](server, link, words)
end

function own.info(server)
  return ("# Server\r\nrun_id:%s\r\nuptime_in_seconds:1000\r\n"
    .. "role:master\r\nmaster_replid:%s\r\naof_enabled:0\r\n"):format(
      server.run_id, server.run_id)
end

function own.subscribe(server, link, words)
  for i = 2, #words do
    local channel = words[i]
    server.subscribers[channel] = server.subscribers[channel] or {}
    server.subscribers[channel][link] = true
    link:push("subscribe", channel, 1)
  end
end

function own.unsubscribe(server, link, words)
  for i = 2, #words do
    local subscribers = server.subscribers[words[i]]
    if subscribers then subscribers[link] = nil end
    link:push("unsubscribe", words[i], 0)
  end
end

-- Sends what was published to the subscribers.
local function send_messages(server)
  for _, message in ipairs(server.redis.sent) do
    for _, link in ipairs(server.links) do
      local subscribers = server.subscribers[message[1]]
      if subscribers and subscribers[link] then
        link:push("message", message[1], message[2])
      end
    end
  end
  server.redis.sent = {}
end

--- Executes a command.
function Server:execute(link, words)
  self.network:note "commands"
  local name = words[1]:lower()
  local reply
  if own[name] then
    reply = own[name](self, link, words)
  else
    self:set_clock()
    reply = self.redis:call(words)
  end
  send_messages(self)
  return reply
end

-- connections -----------------------------------------------------------------

local Link = {}
Link.__index = Link

-- Schedules a delivery, after all earlier ones of this direction.
local function deliver(self, direction, fn)
  local universe, chances = self.universe, self.network.chances
  local delay = chances.delay * (0.5 + universe:random())
  if universe:random() < chances.stall then
    self.network:note "stalls"
    delay = delay + chances.stall_seconds * universe:random()
  end
  local at = math.max(universe.now + delay, self[direction])
  self[direction] = at + 1e-6
  universe:after(at - universe.now, fn)
end

-- The reply as a client sees it.
local function seen(reply)
  if type(reply) == "number" then return math.tointeger(reply) end
  if type(reply) ~= "table" then return reply end
  if reply.ok then return reply.ok end
  local list = {}
  for i, item in ipairs(reply) do list[i] = seen(item) end
  return list
end

local function answer(self, call, reply)
  if self.is_closed or call.is_over then return end
  self.heard = self.universe.now
  if type(reply) == "table" and reply.err then
    call.done(nil, "redis", reply.err)
  else
    call.done(seen(reply))
  end
end

-- A command arrives at the server.
local function arrive(self, call)
  local server, universe = self.server, self.universe
  if not self.is_served then return end
  if server.thaws > universe.now then
    universe:after(server.thaws - universe.now, function()
      arrive(self, call)
    end)
    return
  end
  if self.is_closed then self.network:note "late" end
  local reply = server:execute(self, call.words)
  if reply ~= nil then
    deliver(self, "back", function() answer(self, call, reply) end)
  end
  if universe:random() < self.network.chances.reset then
    self.network:note "resets"
    self:close_server()
  end
end

--- A message for a subscriber.
function Link:push(kind, channel, payload)
  deliver(self, "back", function()
    if not self.is_closed and not self.host.is_dead and self.message then
      self.message(kind, channel, payload)
    end
  end)
end

--- The server ends the connection; the client learns it after a delay.
function Link:close_server()
  if not self.is_served then return end
  self.is_served = false
  remove(self.server.links, self)
  deliver(self, "back", function() self:lose "connection reset" end)
end

--- The client finds the connection dead.
function Link:lose(why)
  if self.is_closed or self.host.is_dead then return end
  self:close(why, true)
  if self.lost then self.lost(why) end
end

local Connection = {}
Connection.__index = Connection

--- Closes the client's side. What was sent may still arrive; the server learns
--  of the close after that.
function Link:close(why)
  if self.is_closed then return end
  self.is_closed = true
  for _, call in ipairs(self.calls) do
    if not call.is_over then
      call.done(nil, "closed", why or "the connection was closed")
    end
  end
  deliver(self, "forth", function()
    if self.is_served then
      self.is_served = false
      remove(self.server.links, self)
    end
  end)
end

-- calls -----------------------------------------------------------------------

-- The end of a command's time. A connection on which nothing arrived for as
-- long ends first.
local function expire(self, call)
  if call.is_over then return end
  local since = math.max(self.heard, call.sent)
  if self.silent and self.universe.now - since >= self.silent - 1e-9 then
    self:lose(("silent for %d ms while commands waited")
      :format(self.silent * 1000))
  end
  if not call.is_over then
    call.done(nil, "timeout", "no answer in time")
  end
end

-- Sends a command; done(reply, code, detail) is called once.
local function start(self, ms, words, done)
  local call = { sent = self.universe.now, words = {} }
  for i, word in ipairs(words) do
    call.words[i] = type(word) == "number" and ("%.17g"):format(word) or word
  end
  function call.done(...)
    call.is_over = true
    if call.timer then self.universe:cancel(call.timer) end
    done(...)
  end
  self.calls[#self.calls + 1] = call
  if #self.calls > 64 then
    local live = {}
    for _, other in ipairs(self.calls) do
      if not other.is_over then live[#live + 1] = other end
    end
    self.calls = live
  end
  if ms > 0 then
    call.timer = self.universe:after(ms / 1000 / self.host.speed, function()
      call.timer = nil
      expire(self, call)
    end)
  end
  deliver(self, "forth", function() arrive(self, call) end)
end

function Connection:send(ms, words, n)
  local link = self.link
  if link.is_closed then
    return nil, "connect", "the connection was closed"
  end
  local event, result = link.host.event(), nil
  start(link, ms, table.move(words, 1, n, 1, {}), function(...)
    result = { ... }
    event:set()
  end)
  event:wait()
  return table.unpack(result, 1, 3)
end

function Connection:pipeline(ms, commands)
  local link = self.link
  local replies, codes, details = {}, {}, {}
  local left, event = #commands, link.host.event()
  for i, words in ipairs(commands) do
    if link.is_closed then
      codes[i], details[i], left = "closed", "the connection was closed",
        left - 1
    else
      start(link, ms, words, function(reply, code, detail)
        replies[i], codes[i], details[i] = reply, code, detail
        left = left - 1
        if left == 0 then event:set() end
      end)
    end
  end
  if left > 0 then event:wait() end
  return replies, codes, details
end

function Connection:subscribe(channel)
  local link = self.link
  deliver(link, "forth", function()
    if link.is_served then
      link.server:execute(link, { "subscribe", channel })
    end
  end)
end

function Connection:unsubscribe(channel)
  local link = self.link
  deliver(link, "forth", function()
    if link.is_served then
      link.server:execute(link, { "unsubscribe", channel })
    end
  end)
end

function Connection:close(why) self.link:close(why) end

--- As host/uv.lua: seals the connections that were lost before.
function Connection:make_ready(ms, seals)
  if not self.identity then return nil, self.fault, self.why end
  local ok, code, detail = seals:discharge(self.identity, function(commands)
    return self:pipeline(ms, commands)
  end)
  if ok then seals:prove(self.identity) end
  return ok, code, detail
end

-- connecting ------------------------------------------------------------------

local function greet(self, options)
  local commands = table.move(options.greeting, 1, #options.greeting, 1, {})
  local n = #commands
  for _, query in ipairs(seal.queries) do
    commands[#commands + 1] = query
  end
  local replies, codes, details = self:pipeline(options.timeout, commands)
  for i = 1, n do
    if replies[i] == nil then
      self:close()
      return nil, codes[i], details[i]
    end
  end
  self.identity, self.fault, self.why =
    seal.identity(replies, codes, details, n + 1)
  return self
end

--- Opens a connection, for a host.
function network:connect(host, options)
  local server = self.servers[options.host]
  host.sleep(self.chances.delay)
  if server.is_down then
    return nil, "connect", options.host .. ": connection refused"
  end
  server.last_id = server.last_id + 1
  local link = setmetatable({
    network = self, universe = self.universe, host = host, server = server,
    id = server.last_id, calls = {}, forth = 0, back = 0, is_served = true,
    address = ("%s:%d"):format(host.label, server.last_id),
    heard = self.universe.now, lost = options.lost, message = options.message,
    silent = options.silent and options.silent > 0 and options.silent / 1000,
  }, Link)
  table.insert(server.links, link)
  return greet(setmetatable({ link = link }, Connection), options)
end

return network
