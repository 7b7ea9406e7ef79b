--- A connection for subscriptions.

local duplex = require "resty.rlock.host.duplex"
local resp = require "resty.rlock.host.resp"
local socket = require "resty.rlock.host.socket"
local tasks = require "resty.rlock.host.tasks"

local subscriber = {}

local Subscriber = duplex.class {}

local QUIET = 15         -- seconds without a byte until a PING is sent; after
                         -- twice as many, the connection is dead

function Subscriber:connect(options)
  local slot = {}
  local taken, code, detail = socket.get(options, options.timeout, slot)
  self.identity = slot.identity
  return taken, code, detail
end

local function send(self, ...)
  return self:write(resp.request({ ... }, select("#", ...)))
end

-- Detects a half-open connection.
function Subscriber:quiet(seconds)
  if seconds == QUIET then
    send(self, "PING")
  elseif seconds == 2 * QUIET then
    return ("no sign of life for %d s"):format(seconds)
  end
end

function Subscriber:read()
  local reader = resp.reader(self)
  while true do
    local push, code, detail = reader:read()
    if code or self.is_closed then return detail end
    if type(push) == "table" then self.heard(push[1], push[2], push[3]) end
  end
end

--- Opens a connection.
---@param options table as for socket.get; and message = function(kind, channel,
---  payload), lost = function(detail)
---@return any # the connection
---@return rlock.failure? code, string? detail
function subscriber.open(options)
  if not tasks.is_shared() then
    return nil, "connect", "no subscriber: this Lua state serves a single "
      .. "request (is lua_code_cache off?)"
  end
  return duplex.open(setmetatable({ heard = options.message }, Subscriber),
    options)
end

--- Sends a verb for a channel: "subscribe", "unsubscribe", or for a sharded
--- channel "ssubscribe", "sunsubscribe". Confirmations and messages go to the
--- `message` function; an error reply ends the connection.
function Subscriber:listen(verb, channel) return send(self, verb, channel) end

--- Closes the connection. Nothing is delivered or sent afterwards.
function Subscriber:close()
  send(self, "QUIT")                    -- ends the reader at once
  self.is_closed = true
end

return subscriber
