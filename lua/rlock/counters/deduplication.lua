--- Deduplication of requests that add or subtract, so that a duplicate has no
--- effect. Each request has a slot, which no concurrent request uses, and a
--- number greater than all before. For each slot the server remembers the last
--- number that it executed, and ignores requests up to it. A slot is reused
--- once the outcome is known, so there are only as many as there were
--- concurrent requests. The policy defines operations and keys; a slot's key
--- begins with the policy's third key.

local verdicts = require "rlock.lock.verdicts"
local naming = require "rlock.naming"

local deduplication = {}

--- Milliseconds for which the server remembers a slot after its last use, and
--- seconds for which a request with an unknown outcome is retried: much less.
local MEMORY = "600000"
local RETRY = 300

local pools = setmetatable({}, { __mode = "k" })    -- session -> its slots

local function next_number(pool)
  pool.last = pool.last + 1
  return ("%d"):format(pool.last)
end

--- Runs an operation of a policy with `needs`, and checks its reply.
---@param handle table of a counter: session, record
---@param name string of the operation
---@param target rlock.target
---@param deadline any as for target:run
---@param ... any
---@return any ... # as target:run; a malformed reply is a failure with code
---  "redis"
function deduplication.ask(handle, name, target, deadline, now, a, b, c, extra)
  local policy = handle.record.policy
  local reply, code, detail, may_be_applied, sent =
    target:run(name, deadline, now, a, b, c, extra)
  if reply ~= nil then
    reply, code, detail = verdicts.shaped(policy.ops[name], reply,
      policy.needs[name])
    may_be_applied = may_be_applied or not reply
  end
  return reply, code, detail, may_be_applied, sent
end

--- Begins a request.
---@param handle table
---@return table # request
function deduplication.begin(handle)
  local session = handle.session
  local pool = pools[session] or { free = {}, count = 0, last = 0 }
  pools[session] = pool
  local slot = table.remove(pool.free)
  if not slot then
    pool.count = pool.count + 1
    slot = (":%s:%d"):format(session.id, pool.count)
  end
  return {
    handle = handle, pool = pool, slot = slot, number = next_number(pool),
    target = handle.record.target:with(slot),
  }
end

--- Ends a request whose outcome is known, and frees its slot.
function deduplication.finish(request)
  table.insert(request.pool.free, request.slot)
end

--- Sends a request; retries until `deadline` while the outcome is unknown. May
--- be called again with the same request until the server has executed it.
---@param request table
---@param name string of the policy's operation
---@param deadline number by host.now()
---@param now number by host.now()
---@param n string
---@param more? table further arguments
---@return any # the reply, nil, nil, when it was sent
---@return rlock.failure? code
---@return string? detail # Sets request.is_in_doubt if an earlier copy may have
---  been executed
---@return any ...
function deduplication.send(request, name, deadline, now, n, more)
  local handle = request.handle
  local reply, code, detail, may_be_applied, sent = deduplication.ask(handle,
    name, request.target, deadline, now, request.number, MEMORY, n, more)
  if may_be_applied then request.is_in_doubt = true end
  return reply, code, detail, sent
end

--- Retries a request in the background until the server replies, or for RETRY
--- seconds; ends it.
---@param request table
---@param name string
---@param n string
---@param more? table
---@param done? function gets the reply
function deduplication.retry(request, name, n, more, done)
  local session = request.handle.session
  session:background(function()
    local now = session.host.now()
    local reply, _, detail =
      deduplication.send(request, name, now + RETRY, now, n, more)
    if reply then
      deduplication.finish(request)
      return done and done(reply)
    end
    local record = request.handle.record
    session:report_of(request.handle, "warn", "not_confirmed",
      ("the server did not confirm %s(%s) of %s %s: %s"):format(name, n,
      record.policy.name, naming.show(record.name), tostring(detail)),
      { reason = tostring(detail), operation = name })
  end)
end

--- Gives a request the next number, for another operation in the same slot: a
--- late copy of the earlier one then has no effect.
---@param request table
function deduplication.renumber(request)
  request.number, request.is_in_doubt = next_number(request.pool), nil
end

--- Ends an abandoned request. If it may have been executed, rolls it back in
--- the background.
---@param request table
---@param n string
function deduplication.undo(request, n)
  if not request.is_in_doubt then return deduplication.finish(request) end
  local undone = request.number
  deduplication.renumber(request)
  deduplication.retry(request, "undo", n, { undone })
end

local function try(request, name, n, more)
  local session = request.handle.session
  if session.is_closed then return nil, "closed", "the client was closed" end
  local now = session.host.now()
  local reply, code, detail =
    deduplication.send(request, name, now + session.timeout, now, n, more)
  if reply then deduplication.finish(request) end
  return reply, code, detail
end

--- Makes a request that is abandoned if no reply arrives in time; its outcome
--- is then unknown.
---@param request table
---@param name string
---@param n string
---@param more? table
---@return any # the reply
---@return rlock.failure? code
---@return string? detail # for "cancelled", the value to raise
function deduplication.try(request, name, n, more)
  return request.handle.session.host.whole(try, request, name, n, more)
end

local function insist(request, name, n)
  local session = request.handle.session
  local reply, code, detail = try(request, name, n)
  if reply or session.is_closed
      or not session.server:is_retried(code, detail) then
    return reply, code, detail
  end
  deduplication.retry(request, name, n)
  if code ~= "cancelled" then
    detail = detail .. "; it is retried in the background"
  end
  return nil, code, detail
end

--- Makes a request that must be executed: if no reply arrives in time, it is
--- retried in the background.
---@param request table
---@param name string of the policy's operation
---@param n string
---@return any # as `try`
function deduplication.insist(request, name, n)
  return request.handle.session.host.whole(insist, request, name, n)
end

--- Runs an idempotent operation.
---@param handle table
---@param name string
---@param a any its arguments
---@return any ... # as target:run
function deduplication.run(handle, name, a, b, c)
  local session = handle.session
  if session.is_closed then return nil, "closed", "the client was closed" end
  local now = session.host.now()
  return deduplication.ask(handle, name, handle.record.target,
    now + session.timeout, now, a, b, c)
end

--- The result for the caller: convert(reply, may_be_applied), or nil, code,
--- detail. Raises a cancellation.
function deduplication.result(convert, reply, code, detail, may_be_applied)
  if reply then return convert(reply, may_be_applied) end
  if code == "cancelled" then error(detail, 0) end
  return nil, code, detail
end

return deduplication
