--- One Redis server and its command connection, opened on first use and
--- reopened after a loss, with a back-off. A command in flight when the
--- connection drops fails with "closed" and is never resent here (remote.lua
--- retries operations). Nothing is sent on a connection before its lost
--- predecessors are sealed (seal.lua). With Sentinel, the server is the master
--- that the Sentinels name, if it has that role.

local backoff = require "rlock.util.backoff"
local duration = require "rlock.util.duration"
local errors = require "rlock.redis.errors"
local events = require "rlock.util.events"
local handshake = require "rlock.redis.handshake"
local singleflight = require "rlock.util.singleflight"
local seal = require "rlock.redis.seal"
local url = require "rlock.redis.url"

---@class rlock.redis.node
---@field on_left fun(why?: string)
---@field host rlock.host
---@field options table
---@field where string
---@field timeout_ms integer
---@field connect_ms integer
---@field singleflight rlock.util.singleflight
---@field pause rlock.backoff
---@field parting any
---@field not_before number
---@field opened number
---@field shas table
---@field unanswered any
---@field dedicated table
---@field sentinel any
---@field seals rlock.redis.seal
local node = {}
node.__index = node

--- Back-off limits between attempts to connect, in seconds.
local FIRST_PAUSE, LAST_PAUSE = 0.05, 2
--- The time for the Sentinels to name the master, in connect timeouts.
local LOCATE = 3

local function load_sentinel()                           -- on first use
  return require "rlock.redis.sentinel"
end

---@param host table
---@param options table the result of url.parse, and timeout, connect_timeout
---  (seconds), name, tls; last_pause, the longest back-off between attempts to
---  connect (2)
function node.new(host, options)
  local self = setmetatable({
    host = host, options = options,
    where = options.sentinels and load_sentinel().show(options)
      or options.path or options.host .. ":" .. options.port,
    timeout_ms = duration.ms(options.timeout),
    connect_ms = duration.ms(options.connect_timeout),
    singleflight = singleflight.new(host),
    pause = backoff.new(FIRST_PAUSE, options.last_pause or LAST_PAUSE,
      host.random_number),
    -- back-off after `leave`
    parting = backoff.new(FIRST_PAUSE, LAST_PAUSE, host.random_number),
    not_before = 0,          -- earliest time of the next attempt to connect
    opened = 0,              -- when the connection was opened, by host.now()
    shas = {},               -- script -> sha, for scripts loaded on this server
    unanswered = false,      -- first script to time out since the last reply
    dedicated = {},              -- see replicas.lua
  }, node)
  self.seals = seal.new(self, options.seal or "kill")
  if options.sentinels then
    self.sentinel = load_sentinel().new(host, options, function(why)
      self:move(why)
    end)
  end
  return self
end

-- the interface of a cluster --------------------------------------------------

--- As in cluster.lua, where each slot has a node: this one has all keys.
function node:of() return self end
node.find, node.any = node.of, node.of
function node.uses() return true end
function node.size() return 1 end
function node.check_keys() end
function node.suspect() end

--- Calls fn(node) for each node, now and when there is a new one.
function node:each(fn) fn(self) end

-- connecting -----------------------------------------------------------------

--- Hooks, functions of the node. `on_lost`: its connection was lost or left.
--- `on_left`: the master that Sentinel named is left. `on_replaced`: after
--- reconnecting, the server is another one, or was restarted. The last two get
--- a reason.
function node.on_lost() end
function node.on_left() end
function node.on_replaced() end

--- Reports an event of this server, see events.lua.
function node:report(level, event, message, fields)
  fields = fields or {}
  fields.server = self.where
  events.report(self.host, self.options, level, event, message, fields)
end

--- Opens a connection to this server.
---@param lost function called with a detail when the connection drops
---@param message? function for a subscriber: called with kind, channel, payload
---@param is_single? boolean a connection for the calling task, which may be
---  silent; in nginx not a pool
---@return any # connection
---@return rlock.failure? code, string? detail
function node:open(lost, message, is_single)
  local options, commands = self.options, handshake(self.options)
  local sentinel, at = self.sentinel, options
  if sentinel then
    local code, detail
    at, code, detail = sentinel:locate(self.host.now()
      + LOCATE * options.connect_timeout)
    if not at then return nil, code, detail end
    commands[#commands + 1] = seal.hello
  end
  local connection, code, detail = self.host.connect {
    host = at.host, port = at.port, path = at.path, pool = options.pool,
    tls = options.tls, timeout = self.connect_ms, lost = lost,
    message = message, is_single = is_single,
    silent = not message and not is_single and self.timeout_ms or 0,
    handshake = commands, seals = self.seals, role = sentinel and "master",
  }
  if not sentinel then return connection, code, detail end
  if not connection then
    sentinel:suspect(at)
    return nil, code == "connect" and "closed" or code, detail
  elseif at ~= sentinel.address then               -- it has moved meanwhile
    connection:close()
    return nil, "closed", "the master has moved"
  end
  ---@cast connection any
  connection.address = at
  return connection
end

--- As `open`; reports a loss of the connection, which then has a `why_lost`.
---@param what string for messages: "the connection"
---@param forget function called with the connection when it drops; not before
---  `open_reported` has returned it
function node:open_reported(what, forget)
  local connection, code, detail, why_lost
  connection, code, detail = self:open(function(why)
    self:report("info", "disconnected",
      ("lost %s to %s: %s"):format(what, self.where, why), { reason = why })
    why_lost = why
    if not connection then return end
    connection.why_lost = why
    forget(connection)
  end)
  if connection then connection.why_lost = why_lost end
  return connection, code, detail
end

-- Opens a connection, or reuses one that could not be made ready before.
local function opened(self)
  local unready = self.unready
  self.unready = nil
  if unready then return unready end
  return self:open_reported("the connection", function(connection)
    if self.connection == connection then self:forget(connection) end
    if self.unready == connection then self.unready = nil end
  end)
end

-- Opens the connection and makes it ready, which seals its predecessors. After
-- a passing error the connection is kept for the next attempt.
local function try(self, attempt)
  local connection, code, detail = opened(self)
  if not connection then return nil, code, detail end
  local ok
  ok, code, detail = connection:make_ready(self.connect_ms, self.seals)
  if connection.why_lost then
    ok, code, detail = nil, "closed", connection.why_lost
  elseif self.is_closed then
    ok, code, detail = nil, "closed", "the client was closed"
  elseif not ok and code == "redis" and errors.is_passing(detail)
      and self.attempt == attempt then
    self.unready = connection
    return nil, code, detail
  end
  if not ok then
    connection:close()
    return nil, code, detail
  end
  return connection
end

-- Detects that a new connection reaches another or a restarted server.
local function compare(self, connection)
  local known = connection.identity or connection   -- in nginx it is the pool
  local old, new = self.server, {
    run_id = known.run_id, replication = known.replication,
    address = connection.address and url.host_port(connection.address),
  }
  self.server = new
  if not old then return end
  self:report("info", "reconnected", "connected to " .. self.where .. " again")
  if old.address ~= new.address then
    self.on_replaced(("%s is now %s"):format(self.where, new.address))
  elseif old.run_id ~= new.run_id or old.replication ~= new.replication then
    self.on_replaced(self.where .. " was restarted or replaced")
  end
end

local function failed(self, code, detail)
  if self.sentinel then self.sentinel:suspect(self.sentinel.address) end
  self.not_before = self.host.now() + self.pause:next()
  self.fell = code == "closed"            -- connected, then dropped
  -- No caller's request was sent.
  if code ~= "redis" and not self.is_closed then code = "connect" end
  self.problem = { code = code, detail = detail }
  return nil, code, detail
end

local function connect(self)
  local host, attempt = self.host, {}
  self.attempt = attempt
  local early = self.not_before - host.now()
  if early > 0 then host.sleep(early) end
  if self.is_closed then return nil, "closed", "the client was closed" end
  local connection, code, detail = try(self, attempt)
  if self.attempt ~= attempt then         -- the master has moved
    if connection then connection:close() end
    return nil
  end
  if not connection then return failed(self, code, detail) end
  self.pause:reset()
  self.connection, self.problem = connection, nil
  self.opened = host.now()
  compare(self, connection)
  if self.sentinel then self.sentinel:follow() end
  return connection
end

--- Stops using a connection. Its unanswered requests are sealed before anything
--- is sent on the next connection.
---@param connection table
function node:forget(connection)
  self.connection = nil
  self.seals:lost(connection.identity)
  self.on_lost()
end

-- Closes the dedicated connections.
local function leave_dedicated(self, why)
  for _, dedicated in pairs(self.dedicated) do dedicated:leave(why) end
end

-- Sentinel has named a new address: leaves the old one, and abandons an attempt
-- to connect to it.
function node:move(why)
  if self.is_closed then return end
  self:report("info", "moved", why)
  self.attempt = nil
  self.singleflight:abandon("connect", nil, "connect", why)
  local unready = self.unready
  self.unready = nil
  if unready then unready:close(why) end
  if self.connection then
    self:leave(self.connection, why)
  else                                    -- lost; the dedicated ones may not be
    leave_dedicated(self, why)
    self.on_left(why)
  end
  self.not_before = 0
end

--- Drops a connection. The next request opens another, perhaps to another
--- server. The back-off grows until a connection lasts.
---@param connection table ignored if it is not the current one
---@param why string for messages; requests in flight fail with it
---@param code? string "redis" if `why` is an error of the server. Requests that
---  find no other connection in time return it; default: "connect"
function node:leave(connection, why, code)
  if self.connection ~= connection then return end
  local now = self.host.now()
  if now > self.opened + LAST_PAUSE then self.parting:reset() end
  self.not_before = now + self.parting:next()
  self.problem = { code = code or "connect", detail = why }
  self:forget(connection)
  connection:close(why)
  leave_dedicated(self, why)
  self:report("info", "disconnected", ("left the connection to %s: %s"):format(
    self.where, why), { reason = why })
  if self.sentinel then self.on_left(why) end
end

--- Handles a failed request: leaves a server that reports itself unusable, such
--- as a primary that became a replica.
---@param connection any the connection of the request
---@param code? string of the failure
function node:handle(connection, code, detail)
  if code == "redis" and errors.classify(detail).node_down then
    self:leave(connection, detail, code)
  end
end

--- The command connection; opens it if there is none.
---@param deadline number by host.now()
---@return any # connection
---@return string? code, string? detail
function node:connect(deadline)
  if self.connection then return self.connection end
  if self.is_closed then return nil, "closed", "the client was closed" end
  local connection, code, detail = self.singleflight:join("connect", deadline,
    connect, self)
  if not connection and code == "timeout" then
    if self.problem then return nil, self.problem.code, self.problem.detail end
    return nil, "connect", ("%s: no connection in time%s"):format(self.where,
      self.options.tls and errors.use_plain or "")
  end
  return connection, code, detail
end

--- Sends a command that kills a long-running script. A busy server answers no
--- CLIENT KILL, so this command does not wait for sealing.
---@return any ... # as `call`
function node:interrupt(deadline, words, n)
  local connection, code, detail = self:connect(deadline)
  connection = connection or self.unready
  if not connection then return nil, code, detail end
  return connection:send(self.timeout_ms, words, n)
end

-- The connection for a request, the milliseconds for its reply, and now; or
-- nil, code, detail.
local function connection_for(self, deadline)
  local connection, code, detail = self:connect(deadline)
  if not connection then return nil, code, detail end
  local now = self.host.now()
  local ms = duration.ms(deadline - now)
  if ms > 0 then return connection, math.min(ms, self.timeout_ms), now end
  return nil, "timeout", self.where .. ": no time left"
end

--- Sends one command.
---@param deadline number by host.now()
---@param words table the command and its arguments
---@param n integer the number of words
---@return any # the reply, false for a Redis nil; or nil
---@return any # "redis", "timeout", "closed",
---  "connect", "cancelled"
---@return any detail # for "cancelled", the value to raise
---@return any # when it was sent, by host.now()
function node:call(deadline, words, n)
  local connection, ms, sent = connection_for(self, deadline)
  if not connection then return nil, ms, sent end
  local reply, code, detail = connection:send(ms, words, n)
  if reply == nil then self:handle(connection, code, detail) end
  return reply, code, detail, sent
end

--- Sends a command to the node that imports the slot of its keys, after the
--- redirection ASK. Arguments and results as for `call`.
function node:ask(deadline, words)
  local replies, codes, details, sent =
    self:pipeline(deadline, { { "ASKING" }, words })
  if not replies then return nil, codes, details end
  ---@cast details -nil
  return replies[2], codes[2], details[2], sent
end

--- Sends several commands in a pipeline.
---@param deadline number by host.now()
---@param commands table array of arrays
---@return table? # replies; where one is nil, codes and details say why
---@return any # codes
---@return table|string | nil # details; detail; when there is no connection
---@return any # when they were sent
function node:pipeline(deadline, commands)
  local connection, ms, sent = connection_for(self, deadline)
  if not connection then return nil, ms, sent end
  local replies, codes, details = connection:pipeline(ms, commands)
  for i, failure in pairs(codes) do
    self:handle(connection, failure, details[i])
  end
  return replies, codes, details, sent
end

--- Loads a script, and keeps its sha.
---@param script any the key of the sha in `shas`
---@param text string
---@param deadline number by host.now()
---@return any # sha
---@return any code, string? detail
function node:load(script, text, deadline)
  local shas = self.shas   -- it may be replaced meanwhile, see seal:refuse
  local sha, code, detail = self:call(deadline, { "SCRIPT", "LOAD", text }, 3)
  if sha ~= nil and type(sha) ~= "string" then
    return nil, "redis", "ERR no sha in reply to SCRIPT LOAD"
  end
  shas[script] = sha
  return sha, code, detail
end

--- Closes the connection for good.
function node:close()
  self.is_closed = true
  self.seals:close()
  if self.connection then self.connection:close() end
  if self.unready then self.unready:close() end
  self.connection, self.unready = nil, nil
  leave_dedicated(self)
  if self.sentinel then self.sentinel:close() end
end

--- The address of the master, and its name; nil without Sentinel.
function node:master()
  local address = self.sentinel and self.sentinel.address
  if address then return url.host_port(address), self.options.master end
end

--- Stops following the master until the next connection.
function node:rest()
  if self.sentinel then self.sentinel:rest() end
end

return node
