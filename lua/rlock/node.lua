--- One Redis: its command connection, opened when first needed and again after
--  a loss, never faster than the backoff allows. A command in flight when the
--  connection drops fails with "closed" and is never sent again from here:
--  remote.lua, which knows that an operation is idempotent, retries it. Nothing
--  is sent on a connection before those lost earlier are sealed (seal.lua).

local backoff = require "rlock.backoff"
local errors = require "rlock.errors"
local flight = require "rlock.flight"
local seal = require "rlock.seal"

local node = {}
node.__index = node

--- Seconds between attempts to connect: from the first, doubled up to the last.
local FIRST_PAUSE, LAST_PAUSE = 0.05, 2

--- @tparam table host
-- @tparam table options what url.parse gave, and timeout, connect_timeout
--   (seconds), name, tls
function node.new(host, options)
  local self = setmetatable({
    host = host,
    options = options,
    where = options.path or (options.host .. ":" .. options.port),
    timeout_ms = math.ceil(options.timeout * 1000),
    flights = flight.new(host),
    pause = backoff.new(FIRST_PAUSE, LAST_PAUSE, host.random_number),
    -- before a server that turned us away is connected to again
    parting = backoff.new(FIRST_PAUSE, LAST_PAUSE, host.random_number),
    not_before = 0,          -- no attempt to connect earlier
    opened = 0,              -- when the connection was opened, by host.now()
    shas = {},               -- script -> sha, of those that this server knows
    unanswered = nil,        -- the first script that timed out since a reply
  }, node)
  self.seals = seal.new(self, options.seal or "kill")
  return self
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
    greeting = greeting(options), pool = options.pool, seals = self.seals,
  }
end

-- Opens a connection, or goes on with one that could not be made ready.
local function opened(self)
  local connection, code, detail = self.unready
  self.unready = nil
  if connection then return connection end
  connection, code, detail = self:open(function(why)
    self.host.log("info", ("lost the connection to %s: %s"):format(
      self.where, why))
    if not connection then return end          -- the greeting has failed
    connection.why_lost = why
    if self.connection == connection then self:forget(connection) end
    if self.unready == connection then self.unready = nil end
  end)
  return connection, code, detail
end

-- Does the server only have no time now?
local function is_passing(detail)
  local class = errors.classify(detail)
  return class.retry and class.code == "redis"
end

-- Opens the connection, seals its predecessors, and finds out whether it is
-- good for anything. A server that is busy, or loads its data, keeps it.
local function try(self)
  local connection, code, detail = opened(self)
  if not connection then return nil, code, detail end
  local ok
  ok, code, detail = connection:make_ready(
    math.ceil(self.options.connect_timeout * 1000), self.seals)
  if connection.why_lost then
    ok, code, detail = nil, "closed", connection.why_lost
  elseif self.is_closed then
    ok, code, detail = nil, "closed", "the client was closed"
  elseif not ok and code == "redis" and is_passing(detail) then
    self.unready = connection
    return nil, code, detail
  end
  if not ok then
    connection:close()
    return nil, code, detail
  end
  return connection
end

local function connect(self)
  local host = self.host
  local early = self.not_before - host.now()
  if early > 0 then host.sleep(early) end
  if self.is_closed then return nil, "closed", "the client was closed" end
  local connection, code, detail = try(self)
  if not connection then
    self.not_before = host.now() + self.pause:next()
    self.fell = code == "closed"          -- it stood, but not for long
    -- Nothing that a caller asked for was sent.
    if code ~= "redis" and not self.is_closed then code = "connect" end
    self.problem = { code = code, detail = detail }
    return nil, code, detail
  end
  self.pause:reset()
  self.connection, self.problem = connection, nil
  self.opened = host.now()
  return connection
end

--- Uses a connection no more. What was sent on it, and is unanswered, is sealed
--  before anything is sent on the next one.
-- @tparam table connection
function node:forget(connection)
  self.connection = nil
  self.seals:lost(connection.identity)
end

--- Drops a connection: the next request opens another, which may lead to
--  another server. The backoff grows as long as that does not help.
-- @tparam table connection nothing is done if it is not the present one
-- @tparam string why for people; what is in flight fails with it
function node:leave(connection, why)
  if self.connection ~= connection then return end
  local now = self.host.now()
  if now > self.opened + LAST_PAUSE then self.parting:reset() end
  self.not_before = now + self.parting:next()
  self.problem = { code = "redis", detail = why }
  self:forget(connection)
  connection:close(why)
  self.host.log("info", ("left the connection to %s: %s"):format(self.where,
    why))
end

--- Takes note of a failure: leaves a server that says that it serves nobody
--  now, such as a primary that has become a replica.
-- @param connection on which the request was sent
-- @tparam string|nil code   of the failure
-- @param detail
function node:heed(connection, code, detail)
  if code == "redis" and errors.classify(detail).node_down then
    self:leave(connection, detail)
  end
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
    if self.problem then return nil, self.problem.code, self.problem.detail end
    return nil, "connect", ("%s: no connection in time"):format(self.where)
  end
  return connection, code, detail
end

--- Sends a command that ends what keeps a server busy. A busy server answers no
--  CLIENT KILL, so this one command does not wait until everything is sealed.
-- @return as `call`
function node:interrupt(deadline, words, n)
  local connection, code, detail = self:connect(deadline)
  connection = connection or self.unready
  if not connection then return nil, code, detail end
  return connection:send(self.timeout_ms, words, n)
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
  if reply ~= nil then return reply, sent end
  self:heed(connection, code, detail)
  return nil, code, detail
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
  for i, failure in pairs(codes) do
    self:heed(connection, failure, details[i])
  end
  return replies, codes, details, sent
end

--- Closes the connection; nothing can be asked any more.
function node:close()
  self.is_closed = true
  if self.connection then self.connection:close() end
  if self.unready then self.unready:close() end
  self.connection, self.unready = nil, nil
end

return node
