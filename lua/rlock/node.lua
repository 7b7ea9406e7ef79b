--- One Redis: its command connection, opened when first needed and again after
--  a loss, never faster than the backoff allows. A command in flight when the
--  connection drops fails with "closed" and is never sent again from here: who
--  knows that an operation may be repeated (remote.lua) repeats it.

local backoff = require "rlock.backoff"
local errors = require "rlock.errors"
local flight = require "rlock.flight"

local node = {}
node.__index = node

--- Seconds between attempts to connect: from the first, doubled up to the last.
local FIRST_PAUSE, LAST_PAUSE = 0.05, 2

--- @tparam table host
-- @tparam table options what url.parse gave, and timeout, connect_timeout
--   (seconds), name, tls
function node.new(host, options)
  return setmetatable({
    host = host,
    options = options,
    where = options.path or (options.host .. ":" .. options.port),
    timeout_ms = math.ceil(options.timeout * 1000),
    flights = flight.new(host),
    pause = backoff.new(FIRST_PAUSE, LAST_PAUSE, host.random_number),
    not_before = 0,          -- no attempt to connect earlier
    shas = {},               -- script -> sha, of those that this server knows
  }, node)
end

-- What is said first on every connection.
local function greeting(options)
  local commands = {}
  if options.password then
    commands[1] = options.username
      and { "AUTH", options.username, options.password }
      or { "AUTH", options.password }
  end
  if options.db and options.db ~= 0 then
    commands[#commands + 1] = { "SELECT", ("%d"):format(options.db) }
  end
  commands[#commands + 1] = { "CLIENT", "SETNAME", options.name or "rlock" }
  return commands
end

--- Opens one connection to this server.
-- @tparam function lost    called with a detail when it drops
-- @tparam[opt] function message for a subscriber: called with kind, channel,
--   payload
-- @return connection, or nil, code, detail
function node:open(lost, message)
  local options = self.options
  local timeout = math.ceil(options.connect_timeout * 1000)
  return self.host.connect {
    host = options.host, port = options.port, path = options.path,
    tls = options.tls, timeout = timeout, lost = lost, message = message,
    silent = not message and self.timeout_ms or 0,
    greeting = greeting(options), pool = options.pool,
  }
end

-- Does the server say something? (A pool of connections has none yet.) One that
-- only accepts and drops is as good as none. What it says matters only if it
-- does not want us at all.
local function is_answered(self, connection)
  local replies, codes, details = connection:pipeline(
    math.ceil(self.options.connect_timeout * 1000), { { "PING" } })
  if replies[1] ~= nil then return true end
  if codes[1] == "redis" then
    local class = errors.classify(details[1])
    if class.code ~= "connect" then return true end
  end
  return nil, codes[1], details[1]
end

-- Opens the connection and finds out whether it is good for anything.
local function try(self)
  local why_lost, is_ours
  local connection, code, detail = self:open(function(why)
    why_lost = why
    if is_ours then self.connection = nil end
    self.host.log("info", ("lost the connection to %s: %s"):format(
      self.where, why))
  end)
  if not connection then return nil, code, detail end
  local ok = connection.is_greeted
  if not ok then ok, code, detail = is_answered(self, connection) end
  if ok and why_lost then ok, code, detail = nil, "closed", why_lost end
  if ok and self.is_closed then
    ok, code, detail = nil, "closed", "the client was closed"
  end
  if not ok then
    connection:close()
    return nil, code, detail
  end
  is_ours = true
  return connection
end

local function connect(self)
  local host = self.host
  local early = self.not_before - host.now()
  if early > 0 then host.sleep(early) end
  if self.is_closed then return nil, "closed", "the client was closed" end
  local connection, code, detail = try(self)
  if not connection then
    self.not_before, self.problem = host.now() + self.pause:next(), detail
    self.fell = code == "closed"          -- it stood, but not for long
    -- Nothing that a caller asked for was sent.
    if code ~= "redis" and not self.is_closed then code = "connect" end
    return nil, code, detail
  end
  self.pause:reset()
  self.connection, self.problem = connection, nil
  return connection
end

--- The command connection, opened if there is none.
-- @tparam number deadline when to give up, by host.now()
-- @return connection, or nil, code, detail
function node:connect(deadline)
  if self.connection then return self.connection end
  if self.is_closed then return nil, "closed", "the client was closed" end
  local connection, code, detail = self.flights:join("connect", deadline,
    connect, self)
  if not connection and code == "timeout" then
    return nil, "connect", self.problem or ("%s: no connection in time"):format(
      self.where)
  end
  return connection, code, detail
end

--- Sends one command.
-- @tparam number deadline when to give up, by host.now()
-- @tparam table words the command and its arguments
-- @tparam integer n    how many words
-- @return[1] the reply; false for a Redis nil
-- @treturn[1] number when it was sent, by host.now()
-- @treturn[2] nil
-- @treturn[2] string code "redis", "timeout", "closed", "connect", "cancelled"
-- @return[2] detail; for "cancelled", what is to be raised
function node:call(deadline, words, n)
  local connection, code, detail = self.connection
  if not connection then
    connection, code, detail = self:connect(deadline)
    if not connection then return nil, code, detail end
  end
  local sent = self.host.now()
  local ms = math.ceil((deadline - sent) * 1000)
  if ms <= 0 then return nil, "timeout", "no time left" end
  if ms > self.timeout_ms then ms = self.timeout_ms end
  local reply
  reply, code, detail = connection:send(ms, words, n)
  if reply == nil then return nil, code, detail end
  return reply, sent
end

--- Sends several commands at once.
-- @tparam number deadline when to give up, by host.now()
-- @tparam table commands array of arrays
-- @treturn[1] table replies, codes, details: where a reply is nil, the others
--   say why
-- @treturn[1] table codes
-- @treturn[1] table details
-- @treturn[1] number when they were sent
-- @treturn[2] nil, code, detail when there is no connection
function node:pipeline(deadline, commands)
  local connection, code, detail = self:connect(deadline)
  if not connection then return nil, code, detail end
  local sent = self.host.now()
  local ms = math.ceil((deadline - sent) * 1000)
  if ms <= 0 then return nil, "timeout", "no time left" end
  if ms > self.timeout_ms then ms = self.timeout_ms end
  local replies, codes, details = connection:pipeline(ms, commands)
  return replies, codes, details, sent
end

--- Closes the connection; nothing can be asked any more.
function node:close()
  self.is_closed = true
  if self.connection then self.connection:close() end
  self.connection = nil
end

return node
