--- A connection to Redis, for commands or for a subscriber.

local core = require "rlock.core"
local tasks = require "rlock.host.uv.tasks"

local connection = {}

---@class rlock.host.uv.connection.Connection
---@field raw any
local Connection = {}
Connection.__index = Connection

local callback, free_id, take_id = tasks.callback, tasks.free_id, tasks.take_id
local begin, await = tasks.begin, tasks.await

--- Sends one command and waits for its reply.
---@param ms integer the command's deadline, 0 for none
---@param words table the command and its arguments; may be reused afterwards
---@param n integer the number of words
---@return any # the reply; false for a Redis nil
---@return rlock.failure? code # "redis", "timeout", "closed", "connect" (it was
---  not sent), or "cancelled"
---@return any detail # for "cancelled", the error to raise
function Connection:send(ms, words, n)
  local id, code, detail = begin()
  if not id then return nil, code, detail end
  return await(self.raw:call(id, ms, words, n))
end

--- As `send`, for EVALSHA, see evalsha.lua.
function Connection:eval(ms, sha, keys, a, b, c, d, extra)
  local id, code, detail = begin()
  if not id then return nil, code, detail end
  return await(self.raw:eval(id, ms, sha, keys, a, b, c, d, extra))
end

--- Sends one command, without waiting.
---@param ms any n as for `send`
---@param receiver table its method replied(reply, code, detail) is called once,
---  later, and outside of any task: it must not wait
---@return boolean # whether it was sent
function Connection:post(ms, words, n, receiver)
  local id = take_id(receiver)
  if self.raw:call(id, ms, words, n) then return true end
  free_id(id)
  return false
end

--- As `send`, with the words as arguments.
function Connection:call(ms, ...)
  return self:send(ms, { ... }, select("#", ...))
end

--- Sends several commands at once and waits for all their replies.
---@param ms integer deadline of each
---@param commands table array of arrays
---@param replies? table gets them as they arrive
---@return table # replies; where one is nil,
---@return table # codes and
---@return table # details say why
function Connection:pipeline(ms, commands, replies)
  local codes, details = {}, {}
  replies = replies or {}
  local left, all = 0, tasks.event()
  for i, command in ipairs(commands) do
    local id
    id = callback(function(reply, code, detail)
      free_id(id)
      replies[i], codes[i], details[i] = reply, code, detail
      left = left - 1
      if left == 0 then all:set() end
    end)
    local ok, code, detail = self.raw:call(id, ms, command, #command)
    if ok then
      left = left + 1
    else
      free_id(id)
      codes[i], details[i] = code, detail
    end
  end
  local _, code, unwind
  if left > 0 then _, code, unwind = all:pause() end
  for i = 1, code and #commands or 0 do     -- the task is cancelled
    if replies[i] == nil and not codes[i] then
      codes[i], details[i] = code, unwind
    end
  end
  return replies, codes, details
end

--- Sends a verb for a channel: "subscribe", "unsubscribe", or for a sharded
--- channel "ssubscribe", "sunsubscribe". Confirmations and messages go to the
--- `message` function; an error reply ends the connection.
---@param verb string
---@param channel string
function Connection:listen(verb, channel)
  return self.raw:listen(verb, channel)
end

--- Closes the connection. Commands in flight fail with "closed".
---@param why? string their detail
function Connection:close(why)
  tasks.fail(self.raw:close(), "closed", why or "the connection was closed")
  self:free_ids()
end

function Connection:free_ids()
  if self.lost_id then free_id(self.lost_id) end
  if self.message_id then free_id(self.message_id) end
  self.lost_id, self.message_id = nil, nil
end

--- Opens a connection, sends the handshake, and queries the connection's
--- `identity`, see seal.lua. Without a handshake it sends nothing.
---@param options table host, port or path, tls, timeout (ms), silent (ms),
---  handshake (array of commands), lost = function(detail), message =
---  function(kind, channel, payload) for a subscriber, role ("master": fails if
---  the server has another)
---@return any # the connection
---@return rlock.failure? code, string? detail
function connection.open(options)
  tasks.current()
  local self = setmetatable({}, Connection)
  self.lost_id = callback(function(detail)
    self:free_ids()
    if options.lost then options.lost(detail) end
  end)
  if options.message then self.message_id = callback(options.message) end
  local id, code, detail = begin()
  if id then
    self.raw, code, detail = core.connect(id, {
      host = options.host, port = options.port, path = options.path,
      tls = options.tls, timeout = options.timeout, silent = options.silent,
      lost = self.lost_id, message = self.message_id,
    })
  end
  local ok
  if self.raw then ok, code, detail = await(true) end
  if ok and not options.handshake then return self end
  if ok then return self:shake_hands(options) end
  if self.raw then tasks.fail(self.raw:close(), code, detail) end
  self:free_ids()
  return nil, code, detail
end

local function load_seal() return require "rlock.redis.seal" end -- on first use

function Connection:shake_hands(options)
  local code, detail, is_final
  self.identity, code, detail, is_final = load_seal().handshake(options,
    function(commands) return self:pipeline(options.timeout, commands) end)
  if self.identity or not is_final then return self end
  self:close()
  return nil, code == "refused" and "connect" or code, detail
end

--- Queries the connection's identity, if that is unknown, and seals the
--- connections that were lost before.
---@param ms integer deadline of each command
---@param seals table see seal.lua
---@return true?, rlock.failure? code, string? detail
function Connection:make_ready(ms, seals)
  local code, detail
  if not self.identity then
    local seal = load_seal()
    local replies, codes, details = self:pipeline(ms, seal.queries)
    self.identity, code, detail = seal.identity(replies, codes, details, 1)
    if not self.identity then return nil, code, detail end
  end
  local ok
  ok, code, detail = seals:kill_pending(self.identity, function(commands)
    return self:pipeline(ms, commands)
  end)
  if ok then seals:probe(self.identity) end
  return ok, code, detail
end

return connection
