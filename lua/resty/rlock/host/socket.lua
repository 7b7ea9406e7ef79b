--- Cosockets: connected, with TLS if configured. Those to a Redis are from the
--- pool or new, with the handshake done.

local clock = require "resty.rlock.host.clock"
local errors = require "rlock.redis.errors"
local resp = require "resty.rlock.host.resp"
local seal = require "rlock.redis.seal"

local socket = {}

local tcp, now = ngx.socket.tcp, clock.now
local ceil, max, min = math.ceil, math.max, math.min

local END_MS = 100       -- to wait for the end of a connection

local function set_timeout(self, ms) self:settimeouts(ms, ms, ms) end

local function ms_left(self) return ceil((self.ends - now()) * 1000) end

local function goes_on(self)
  local ms = ms_left(self)
  if ms <= 0 then return nil, "timeout" end
  set_timeout(self, ms)
  return true
end

-- Sets the socket's timeout to the time that is left.
local function use_rest(self) set_timeout(self, max(1, ms_left(self))) end

--- Sets the deadline for all further operations of a socket. A timeout would
--- not do: a reply may arrive in pieces, each of which is a read.
---@param self any a socket
---@param ms number
---@param ms_to_connect? number at most
function socket.limit(self, ms, ms_to_connect)
  self.ends = now() + ms / 1000
  self:settimeouts(min(ms, ms_to_connect or ms), ms, ms)
end

--- A reader of the socket's replies.
---@param self any a socket, with its limit
function socket.reader(self) return resp.reader(self, goes_on) end

--- Sends commands and reads their replies.
---@param self any a socket, with its limit
---@param commands table array of arrays
---@param replies? table gets them as they arrive
---@return any ... # replies, codes, details: where a reply is nil, the others
---  say why
function socket.exchange(self, commands, replies)
  local texts, reader = {}, socket.reader(self)
  for i, command in ipairs(commands) do
    texts[i] = resp.request(command, #command)
  end
  local codes, details = {}, {}
  replies = replies or {}
  local ok, why = self:send(texts)
  for i = 1, #commands do
    if ok then
      replies[i], codes[i], details[i] = reader:read()
      if codes[i] == "closed" then ok, why = nil, details[i] end
    else
      codes[i], details[i] = "closed", why
    end
  end
  return replies, codes, details
end

-- Sends the handshake, and queries the connection's identity.
local function introduce(self, options)
  local identity, code, detail = seal.handshake(options, function(commands)
    return socket.exchange(self, commands)
  end)
  return identity, code == "closed" and "connect" or code, detail
end

-- Errors of a handshake with a server that does not use TLS.
local may_be_plain = {
  timeout = true, closed = true, ["handshake failed"] = true,
  ["connection reset by peer"] = true,
}

local function shake_hands(self, options, use_plain)
  local tls, ok, why = options.tls, true, nil
  if tls and tls.certificate then
    ok, why = self:setclientcert(tls.certificate, tls.private_key)
  end
  if tls and ok then
    ok, why = self:sslhandshake(false, tls.server_name or options.host,
      tls.verify ~= false)
  end
  if ok then return true end
  if tls and may_be_plain[why] then
    why = "TLS: " .. why .. use_plain
  end
  return nil, "connect", why
end

-- A pool for connections that nginx must not reuse. Its default pool may have
-- connections of other code, with their login and state.
local NOBODYS = { pool = "rlock" }

local function dial(self, options, pool)
  local ok, why
  pool = pool or NOBODYS
  if options.path then
    ok, why = self:connect("unix:" .. options.path, pool)
  else
    local host = options.host
    if host:find(":", 1, true) then host = "[" .. host .. "]" end      -- IPv6
    ok, why = self:connect(host, options.port, pool)
  end
  if not ok then return nil, "connect", why end
  return true
end

--- Prepares a new connection: TLS, handshake, identity.
---@return any # its identity
---@return rlock.failure? code, string? detail
local function prepare(self, options)
  use_rest(self)
  local ok, code, detail = shake_hands(self, options, errors.use_plain)
  if not ok then return nil, code, detail end
  use_rest(self)
  local identity
  identity, code, detail = introduce(self, options)
  use_rest(self)
  return identity, code, detail
end

--- The address of a server, for messages.
function socket.show(options)
  return options.path or options.host .. ":" .. options.port
end

--- Connects to a server of any protocol.
---@param options table host, port or path, tls, timeout (ms, for all)
---@param use_plain string ends the message if the server may not use TLS
---@return any # the socket
---@return rlock.failure? code # "connect"
---@return string? detail
function socket.open(options, use_plain)
  local self = tcp()
  socket.limit(self, options.timeout)
  local ok, code, detail = dial(self, options)
  if ok then
    use_rest(self)
    ok, code, detail = shake_hands(self, options, use_plain)
  end
  if ok then return self end
  self:close()
  return nil, code, ("%s: %s"):format(socket.show(options), detail)
end

--- Gets a socket to a Redis.
---@param options table host, port or path, tls, timeout (ms, to connect),
---  handshake (array of commands), role ("master" or nil: any)
---@param ms number limit for all its operations
---@param slot table `pool`: the options of nginx's connect, nil for a
---  connection that nginx must not keep; `identity` is set to the connection's
---  identity, see seal.lua
---@return any # socket
---@return rlock.failure? code # "connect", "redis"
---@return string? detail
function socket.get(options, ms, slot)
  local self = tcp()
  socket.limit(self, ms, options.timeout)
  local ok, code, detail = dial(self, options, slot.pool)
  if ok and (not slot.identity or self:getreusedtimes() == 0) then
    slot.identity, code, detail = prepare(self, options)
    ok = slot.identity
    if not ok then self:close() end
  end
  if ok then return self end
  if code == "connect" then
    detail = ("%s: %s"):format(socket.show(options), detail)
  end
  return nil, code == "refused" and "connect" or code, detail
end

---@class resty.rlock.host.socket.Single
---@field socket any
---@field identity any
local Single = {}
Single.__index = Single

--- Opens a connection for the calling light thread.
---@param options table as for `get`
---@return table? # with `identity`, `send` and `close`, see pool.lua
---@return rlock.failure? code, string? detail
function socket.single(options)
  local slot = {}
  local taken, code, detail = socket.get(options, options.timeout, slot)
  if not taken then return nil, code, detail end
  return setmetatable({ socket = taken, identity = slot.identity }, Single)
end

-- Has the server closed the connection, or does it close it within END_MS?
-- nginx logs an error if a command is sent after that.
local function has_ended(self)
  socket.limit(self.socket, END_MS)
  return select(2, self.socket:receive(1)) == "closed"
end

function Single:send(ms, words)
  if has_ended(self) then return nil, "closed", "closed" end
  socket.limit(self.socket, ms)
  local replies, codes, details = socket.exchange(self.socket, { words })
  local is_late = codes[1] == "closed" and details[1] == "timeout"
  return replies[1], is_late and "timeout" or codes[1], details[1]
end

function Single:close() self.socket:close() end

return socket
