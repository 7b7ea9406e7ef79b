--- Limits the time that a command waits for servers. At the limit, the program
--- ends even during a name lookup, a handshake or a request.

local host = require "rlock.host.uv"

local time_limit = {}

local ANSWER = 2        -- seconds for a reply, with a wait of 0
local LEAST = 1         -- least seconds for a reply, with a longer wait

--- Seconds for cleaning up after the limit, such as undoing a request.
time_limit.LEAVE = 0.5

local SLACK = 0.05      -- a wait of the same length ends first, with its detail

--- The bound of a wait.
---@param seconds number
function time_limit.of(seconds)
  return seconds > 0 and math.max(seconds, LEAST) or ANSWER
end

--- Sets a bound.
---@param seconds number or math.huge
---@param late function called at the bound; returns the exit status
---@return function # removes the bound
function time_limit.bound(seconds, late)
  local done = host.event()
  host.daemon(function()
    if not done:wait(seconds + SLACK) then host.exit(late()) end
  end)
  return function() done:set() end
end

--- Opens a client. If its server does not reply, retries until the bound.
---@param options table as for rlock.open
---@param seconds number of the wait; with math.huge, opens it once
---@return any ... # as rlock.open
function time_limit.open(options, seconds)
  local open, errors = require("rlock").open, require "rlock.redis.errors"
  local ends = seconds < math.huge and host.now() + time_limit.of(seconds) or 0
  local client, code, detail
  repeat
    client, code, detail = open(options)
  until client or host.now() >= ends or not errors.is_silence(detail)
  return client, code, detail
end

-- Limits the client's wait for each later reply.
local function limit(client, seconds)
  local session = client and client.session
  if session then session.timeout = math.min(session.timeout, seconds) end
end

--- The message for a server that has not replied in time.
---@param seconds number as for `of`
---@return string
function time_limit.problem(seconds)
  local address = require "rlockctl.cli.address"
  local default = address.default()
  local parsed = address.parse(default)
  local is_redis = parsed and not parsed.hosts
  return ("no answer from %s within %gs%s"):format(parsed
    and address.show(default) or "the server", time_limit.of(seconds),
    is_redis and parsed.tls and require("rlock.redis.errors").use_plain or "")
end

--- Shortens the close of a client whose server does not reply.
---@param client? table
function time_limit.leave(client) limit(client, time_limit.LEAVE) end

--- Bounds a release by the length of the wait, but at least 1 s. A release has
--- two attempts.
---@param client table
---@param seconds number
function time_limit.shorten(client, seconds)
  limit(client, math.max(time_limit.of(seconds), 1) / 2)
end

return time_limit
