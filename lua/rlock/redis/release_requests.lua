--- Release requests in Redis: messages on a channel named after the lock's key,
--- in the same slot. A holder subscribes to it only while it has a callback.
--- The channel is separate, so Redisson and the hand-over of a lock are not
--- affected. Both sides of a read/write lock share one channel.
---   rlock_release_request:{key}     "<id> <reason>"
---   rlock_release_request:N:{key}   in the database N, because channels are
---                                   shared by all databases

local naming = require "rlock.naming"
local policies = require "rlock.policy"
local release_request = require "rlock.policy.release_request"
local remote = require "rlock.redis.remote"

local release_requests = {}

local op                                -- compiled

local function channel_of(target)
  local db, prefix = target.server.options.db or 0, "rlock_release_request"
  if db ~= 0 then prefix = ("%s:%d"):format(prefix, db) end
  return naming.prefix(prefix, target[1])
end

--- Is the lock, or the other side of a read/write lock, held? A kind without
--- `peek` counts as held.
---@return any # a boolean
---@return rlock.failure? code, string? detail
local function is_held(target, deadline)
  local own, node = target.policy, target.server.node
  for _, policy in ipairs { own, own.peer and policies.load(own.peer) } do
    local peek = policy.ops.peek
    local reply, code, detail = { "held" }, nil, nil
    if peek then
      reply, code, detail = remote.run(node, peek, deadline, node.host.now(),
        target, "")
    end
    if reply == nil then return nil, code, detail end
    if type(reply) == "table" and reply[1] == "held" then return true end
  end
  return false
end

--- Sends a request.
---@param target table
---@param deadline number by host.now()
---@param request string
---@return number? # the number of clients that have a callback for it
---@return any # if there are none: whether the
---  lock is held
---@return string? detail
function release_requests.ask(target, deadline, request)
  op = op or require("rlock.script").compile("release_request", "ask",
    release_request.ask)
  local server = target.server
  local node = server.node
  local n, code, detail = remote.run(node, op, deadline, node.host.now(),
    { target[1], slot = target.slot }, channel_of(target),
    server.options.publish, request)
  if n == nil then return nil, code, detail end
  if type(n) ~= "number" then
    return nil, "redis", op.where .. ": a malformed reply"
  end
  if n > 0 then return n end
  local held
  held, code, detail = is_held(target, deadline)
  if held == nil then return nil, code, detail end
  return 0, held
end

local function notify(event, channel, request)
  if event ~= "message" then return end
  local listeners = {}                  -- a callback may change the list
  for i, heard in ipairs(channel.listeners) do listeners[i] = heard end
  for _, heard in ipairs(listeners) do heard(request) end
end

--- Calls heard(request) for each request, outside of any task.
---@param target table
---@param _ string the owner name of the holder
---@param heard function
---@return function # stops listening
function release_requests.listen(target, _, heard)
  local server, name = target.server, channel_of(target)
  local all = server.asked or {}                -- name -> channel
  server.asked = all
  local channel = all[name]
  if not channel then
    channel = { name = name, listeners = {}, notify = notify }
    all[name] = channel
    server.channels:add(channel)
  end
  local listeners = channel.listeners           -- in order of registration
  listeners[#listeners + 1] = heard
  return function()
    for i, other in ipairs(listeners) do
      if other == heard then table.remove(listeners, i) end
    end
    if listeners[1] or all[name] ~= channel then return end
    all[name] = nil
    channel.subscriber:remove(channel)
  end
end

return release_requests
