--- One Redis server and its command connection, opened on first use and
--  reopened after a loss, with a back-off. A command in flight when the
--  connection drops fails with "closed" and is never resent here (remote.lua
--  retries operations). Nothing is sent on a connection before its lost
--  predecessors are sealed (seal.lua).

local backoff = require "rlock.backoff"
local errors = require "rlock.redis.errors"
local singleflight = require "rlock.redis.singleflight"
local seal = require "rlock.redis.seal"

local node = {}
node.__index = node

--- Back-off limits between attempts to connect, in seconds.
local FIRST_PAUSE, LAST_PAUSE = 0.05, 2

--- @tparam table host
-- @tparam table options the result of url.parse, and timeout, connect_timeout
--   (seconds), name, tls
function node.new(host, options)
  local self = setmetatable({
    host = host,
    options = options,
    where = options.path or (options.host .. ":" .. options.port),
    timeout_ms = math.ceil(options.timeout * 1000),
    singleflight = singleflight.new(host),
    pause = backoff.new(FIRST_PAUSE, LAST_PAUSE, host.random_number),
    -- back-off after `leave`
    parting = backoff.new(FIRST_PAUSE, LAST_PAUSE, host.random_number),
    not_before = 0,          -- earliest time of the next attempt to connect
    opened = 0,              -- when the connection was opened, by host.now()
    shas = {},               -- script -> sha, for scripts loaded on this server
    unanswered = nil,        -- first script to time out since the last reply
    lanes = {},              -- see replicas.lua
  }, node)
  self.seals = seal.new(self, options.seal or "kill")
  return self
end

-- as of a cluster (cluster.lua), which has a node for each slot ---------------

--- The node that has these keys, if that is known.
function node:of() return self end

--- As `of`, but may wait for it until the deadline.
-- @return node, or nil, code, detail
function node:find() return self end

--- Some node.
function node:any() return self end

--- Raises an error if no node can have all these keys of a lock.
function node:check_keys() return nil end

--- The number of nodes.
function node:size() return 1 end

--- Called after a failure which may mean that another node has the keys.
function node:suspect() return nil end

-- connecting -----------------------------------------------------------------

-- The first commands on every connection. A user without a password logs in
-- with an empty one: without AUTH, the connection is that of the default user.
local function greeting(options)
  local commands = {}
  if options.username then
    commands[1] = { "AUTH", options.username, options.password or "" }
  elseif options.password then
    commands[1] = { "AUTH", options.password }
  end
  if options.db and options.db ~= 0 then
    commands[#commands + 1] = { "SELECT", ("%d"):format(options.db) }
  end
  commands[#commands + 1] = { "CLIENT", "SETNAME", options.name or "rlock" }
  return commands
end

--- Opens a connection to this server.
-- @tparam function lost    called with a detail when the connection drops
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

-- Opens a connection, or reuses one that could not be made ready before.
local function opened(self)
  local connection, code, detail = self.unready
  self.unready = nil
  if connection then return connection end
  local why_lost
  connection, code, detail = self:open(function(why)
    self.host.log("info", ("lost the connection to %s: %s"):format(
      self.where, why))
    why_lost = why
    if not connection then return end    -- the opener does not have it yet
    connection.why_lost = why
    if self.connection == connection then self:forget(connection) end
    if self.unready == connection then self.unready = nil end
  end)
  if connection then connection.why_lost = why_lost end
  return connection, code, detail
end

-- Opens the connection and makes it ready, which seals its predecessors. After
-- a passing error the connection is kept for the next attempt.
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
  elseif not ok and code == "redis" and errors.is_passing(detail) then
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
    self.fell = code == "closed"          -- connected, then dropped
    -- No caller's request was sent.
    if code ~= "redis" and not self.is_closed then code = "connect" end
    self.problem = { code = code, detail = detail }
    return nil, code, detail
  end
  self.pause:reset()
  self.connection, self.problem = connection, nil
  self.opened = host.now()
  return connection
end

--- Stops using a connection. Its unanswered requests are sealed before anything
--  is sent on the next connection.
-- @tparam table connection
function node:forget(connection)
  self.connection = nil
  self.seals:lost(connection.identity)
end

--- Drops a connection. The next request opens another, perhaps to another
--  server. The back-off grows until a connection lasts.
-- @tparam table connection ignored if it is not the current one
-- @tparam string why for messages; requests in flight fail with it
function node:leave(connection, why)
  if self.connection ~= connection then return end
  local now = self.host.now()
  if now > self.opened + LAST_PAUSE then self.parting:reset() end
  self.not_before = now + self.parting:next()
  self.problem = { code = "redis", detail = why }
  self:forget(connection)
  connection:close(why)
  for _, lane in pairs(self.lanes) do lane:leave(why) end
  self.host.log("info", ("left the connection to %s: %s"):format(self.where,
    why))
end

--- Handles a failed request: leaves a server that reports itself unusable, such
--  as a primary that became a replica.
-- @param connection the connection of the request
-- @tparam string|nil code   of the failure
-- @param detail
function node:heed(connection, code, detail)
  if code == "redis" and errors.classify(detail).node_down then
    self:leave(connection, detail)
  end
end

--- The command connection; opens it if there is none.
-- @tparam number deadline by host.now()
-- @return connection, or nil, code, detail
function node:connect(deadline)
  if self.connection then return self.connection end
  if self.is_closed then return nil, "closed", "the client was closed" end
  local connection, code, detail = self.singleflight:join("connect", deadline,
    connect, self)
  if not connection and code == "timeout" then
    if self.problem then return nil, self.problem.code, self.problem.detail end
    return nil, "connect", ("%s: no connection in time"):format(self.where)
  end
  return connection, code, detail
end

--- Sends a command that kills a long-running script. A busy server answers no
--  CLIENT KILL, so this command does not wait for sealing.
-- @return as `call`
function node:interrupt(deadline, words, n)
  local connection, code, detail = self:connect(deadline)
  connection = connection or self.unready
  if not connection then return nil, code, detail end
  return connection:send(self.timeout_ms, words, n)
end

--- Sends one command.
-- @tparam number deadline by host.now()
-- @tparam table words the command and its arguments
-- @tparam integer n    the number of words
-- @return the reply, false for a Redis nil; or nil
-- @treturn string|nil code "redis", "timeout", "closed", "connect", "cancelled"
-- @return detail; for "cancelled", the value to raise
-- @treturn number|nil when it was sent, by host.now()
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
  if reply == nil then self:heed(connection, code, detail) end
  return reply, code, detail, sent
end

--- Sends a command to the node that imports the slot of its keys, after the
--  redirection ASK. Arguments and results as of `call`.
function node:ask(deadline, words)
  local replies, codes, details, sent =
    self:pipeline(deadline, { { "ASKING" }, words })
  if not replies then return nil, codes, details end
  return replies[2], codes[2], details[2], sent
end

--- Sends several commands in a pipeline.
-- @tparam number deadline by host.now()
-- @tparam table commands array of arrays
-- @treturn[1] table replies; where one is nil, codes and details say why
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

--- Closes the connection for good.
function node:close()
  self.is_closed = true
  if self.connection then self.connection:close() end
  if self.unready then self.unready:close() end
  self.connection, self.unready = nil, nil
  for _, lane in pairs(self.lanes) do lane:leave() end
end

return node
