--- Models of semaphore, permits and latch for explore.lua, with the methods of
--- locks.lua. A state has the number expected on the server, `free`: each
--- request changes it once, however often it is executed. A client has
---   number    of its last request      pending   the request without a reply
---   taken     permits held; for `permits`, the number of earlier ones
---   ends      the end of its lease (permits)       left   requests to send
---
--- A step is { what = "request", client =, op =, n =, reply = "received" or
--- "lost" }, a "retry" or "give up", or one of the server, as in steps.lua.
--- After the server has lost a key, or its clock has jumped, the model accepts
--- the server's counts, and the effects of retried requests (`is_forgiven`).

local copy = require "rlockctl.check.copy"
local transitions = require "rlockctl.check.transitions"
local counter_delays = require "rlockctl.check.counter_delays"
local counter_kinds = require "rlockctl.check.counter_kinds"
local snapshot = require "rlockctl.check.snapshot"
local trail = require "rlockctl.check.trail"
local verdicts = require "rlock.lock.verdicts"
local notation = require "rlockctl.check.notation"

---@class rlockctl.check.counters
---@field name string
---@field policy rlock.loaded_policy
---@field bounds any
---@field kind any
---@field tick any
---@field lock_name any
---@field keys any
---@field limits any
---@field faults any
---@field lease number
---@field total any
local counters = {}
counters.__index = counters

-- ms for which an unanswered request and its rollback are retried: less than
-- the server's deduplication window.
local SETTLE = 300000

---@param policy table the result of policy.load
---@param bounds table as for locks.new
---@return table
function counters.new(policy, bounds)
  if bounds.faults["break"] then
    error(("--faults: %s cannot be broken"):format(policy.name), 0)
  end
  if next(bounds.options_of) then
    error(("--option: the clients of %s have no options"):format(policy.name),
      0)
  end
  local kind, keys = counter_kinds[policy.name],
    policy.keys(bounds.name or "lock")
  return setmetatable({
    name = policy.name, policy = policy, bounds = bounds, kind = kind,
    tick = not bounds.has_tick and kind.tick or bounds.tick,
    lock_name = bounds.name, keys = keys,
    limits = policy.lasts and policy.lasts(keys) or {},
    faults = bounds.faults, lease = bounds.leases[#bounds.leases],
    total = math.floor(tonumber(bounds.options.n) or 2),
  }, counters)
end

-- states ----------------------------------------------------------------------

---@class rlockctl.check.counters.State
---@field server table
---@field clients table
---@field ticks any
---@field free number
---@field total any
---@field leases table
---@field copies table
---@field server_faults any
local state_of = {}
state_of.__index = state_of

function state_of:fork()
  local result = setmetatable(copy(self), state_of)
  result.clients = copy(self.clients)
  return result
end

local function change(state, i)
  state.clients[i] = copy(state.clients[i])
  return state.clients[i]
end

local function text_of_client(client, now)
  local pending = client.pending
  return ("%d %d %d %s %s"):format(client.left, client.number, client.taken,
    client.ends and math.max(client.ends - now, 0), pending
    and ("%s %d %d %s %s %s %d"):format(pending.op, pending.n,
      pending.number, pending.took, pending.is_done, pending.is_forgiven,
      now - pending.sent))
end

function state_of:text()
  local now, leases = self.server.now, {}
  for id, ends in pairs(self.leases) do
    leases[#leases + 1] = id .. math.max(ends - now, 0)
  end
  table.sort(leases)
  local parts = {
    self.server.number, self.free, self.total, self.ticks, self.server_faults,
    table.concat(leases, ","),
  }
  for _, old in ipairs(self.copies) do
    parts[#parts + 1] = self.server:number_of(old.text)
  end
  for _, client in ipairs(self.clients) do
    parts[#parts + 1] = self.server:number_of(text_of_client(client, now))
  end
  return table.concat(parts, " ")
end

-- requests --------------------------------------------------------------------

-- Executes an operation; returns the result, with `verdict` or `fault`.
local function run(model, server, op, keys, args, is_turned)
  local result = trail.run(model, server, op, keys, args, is_turned)
  if result.verdict or result.fault then return result end
  result.fault = snapshot.fault_of(result)
  if result.fault then return result end
  local shaped, _, detail =
    verdicts.shaped(op, result.reply, model.policy.needs[op.op])
  if shaped then
    result.verdict, result.value = shaped[1], shaped[2]
  else
    result.fault = detail
  end
  return result
end

local function execute(model, state, client, request, is_turned)
  local keys, args = model.kind.arguments(model, client, request)
  return run(model, state.server, model.policy.ops[request.op], keys, args,
    is_turned)
end

-- The replies of operations that have no effect.
local AGAIN =  { release = "lost", delete = "free" }

local function check_twice(model, first)
  local op = first.op
  local second = run(model, first.after, op, first.keys, first.words)
  if second.fault then return second.fault end
  if second.after ~= first.after then
    return ("run twice, %s leaves other keys than run once"):format(op.op)
  end
  local verdict = second.verdict
  if verdict ~= first.verdict and verdict ~= AGAIN[op.op] then
    return ("run twice, %s returns %q, then %q"):format(op.op, first.verdict,
      verdict)
  elseif verdict == first.verdict and type(first.value) == "number"
      and second.value ~= first.value then
    return ("run twice, %s returns %g, then %g"):format(op.op, first.value,
      second.value)
  end
end

-- Updates the client when it receives the reply.
local function receive(model, state, client, request, verdict)
  client.pending = nil
  if not model.kind.has_leases then return end
  if request.op == "release" then
    state.leases = copy(state.leases)
    state.leases[client.name .. client.taken] = nil
  end
  if request.op == "release" or request.op == "renew" and verdict ~= "held" then
    client.ends, client.taken = nil, client.taken + 1
  elseif verdict == "held" and request.op ~= "set" then
    client.ends = state.server.now + model.lease
  end
end

-- The server's count: free permits, or the count; and the permits in use. Or
-- nil, a fault.
local function counted(self, server)
  local result = run(self, server, self.policy.ops.count, self.keys, {})
  if result.fault then return nil, result.fault end
  return result.value, result.reply[3]
end

-- Accepts the server's counts and leases. If it cannot count, `judge` says so.
local function accept(model, state)
  local free, used = counted(model, state.server)
  if not free then return end
  state.free = free
  if not model.kind.has_leases then return end
  local leases = state.server.server:entry(model.keys[2])
  state.total, state.leases = free + used, copy(leases and leases.value or {})
end

-- Keeps a copy of a request, as steps.lua does.
local function remember(state, result)
  local text = result.op.op .. " " .. table.concat(result.words, " ")
  local copies = {}
  for _, old in ipairs(state.copies) do
    if old.text == text then return end
    copies[#copies + 1] = old
  end
  copies[#copies + 1] = { text = text, result = result }
  state.copies = copies
end

-- Changes the state as the request must; returns whether it has been applied,
-- and a fault.
local function apply(model, state, client, request, result)
  local is_retry = client.pending == request
  if request.is_done or is_retry and AGAIN[request.op] == result.verdict then
    return request.is_done
  end
  return model.kind.apply[request.op](state, client, request, result,
    model.lease)
end

-- Executes a request or its retry, and applies its effect once.
local function send(model, state, client, request, step)
  local result = execute(model, state, client, request, step.is_turned)
  if result.fault then return result, result.fault end
  local fault = model.faults.twice and check_twice(model, result)
  local before = request
  request = copy(request)
  if request.op == "release" then client.ends = nil end
  if not fault then
    request.is_done, fault = apply(model, state, client, before, result)
  end
  state.server = result.after
  if request.is_forgiven then
    fault = nil
    accept(model, state)
  end
  if model.faults.late then remember(state, result) end
  if step.reply == "lost" then
    client.pending = request
  else
    receive(model, state, client, request, result.verdict)
  end
  return result, fault or nil
end

-- steps -----------------------------------------------------------------------

local doing = {}

function doing.request(model, state, step)
  local client = change(state, step.client)
  client.left, client.number = client.left - 1, client.number + 1
  return send(model, state, client, {
    op = step.op, n = step.n, number = client.number, sent = state.server.now,
  }, step)
end

function doing.retry(model, state, step)
  local client = change(state, step.client)
  return send(model, state, client, client.pending, step)
end

-- An abandoned acquire is rolled back by a request with the next number.
doing["give up"] = function(model, state, step)
  local client, undo = change(state, step.client), model.kind.undo
  local pending = client.pending
  client.pending = nil
  if pending.op == "release" and model.kind.has_leases then
    client.taken = client.taken + 1     -- its lease will end
  end
  if not undo or pending.op ~= "acquire" then return end
  client.number = client.number + 1
  client.pending = {
    op = undo, n = pending.n, number = client.number, took = pending.is_done,
    undone = pending.number, sent = pending.sent,
    is_forgiven = pending.is_forgiven,
  }
end

-- Frees the permits whose lease has ended.
local function expire_leases(model, state)
  if not model.kind.has_leases then return end
  local n = 0
  for _, ends in pairs(state.leases) do
    if ends > state.server.now then n = n + 1 end
  end
  state.free = state.total - n
end

function doing.tick(model, state, step)
  state.server = state.server:later(step.ms or model.tick)
  state.ticks = state.ticks - 1
  expire_leases(model, state)
end

-- Excuses all pending requests from the checks; calls see(client) for each
-- client.
local function forgive(state, see)
  state.server_faults = state.server_faults - 1
  for i = 1, #state.clients do
    local client = change(state, i)
    if client.pending then
      client.pending = copy(client.pending)
      client.pending.is_forgiven = true
    end
    see(client)
  end
end

function doing.evict(model, state, step)
  state.server = state.server:without(step.key)
  accept(model, state)
  forgive(state, function(client)
    if client.ends and not state.leases[client.name .. client.taken] then
      client.ends, client.taken = nil, client.taken + 1
    end
  end)
end

doing.expire = doing.evict

-- Only the server's clock jumps, so the times of the clients move with it.
function doing.jump(model, state, step)
  state.server = state.server:later(step.ms)
  accept(model, state)
  forgive(state, function(client)
    local lease = state.leases[client.name .. client.taken] or 0
    client.ends = client.ends and math.min(client.ends + step.ms, lease)
    if client.pending then
      client.pending.sent = client.pending.sent + step.ms
    end
  end)
end

function doing.late(model, state, step)
  local left, old = copy(state.copies), state.copies[step.copy].result
  table.remove(left, step.copy)
  state.copies = left
  local result = run(model, state.server, old.op, old.keys, old.words)
  state.server = result.after
  return result, result.fault
end

local ALONE = { name = "Z", taken = 0 }   -- a client for queries

function counters:is_timed() return self.kind.has_leases end

--- The first state, after the request that sets the number; `first` is its
--- result.
function counters:start()
  self.empty = self.empty or snapshot.empty(self.kind.has_leases)
  local state = setmetatable({
    server = self.empty, clients = {}, ticks = self.bounds.ticks, free = 0,
    total = self.total, leases = {}, copies = {},
    server_faults = self.bounds.server_faults,
  }, state_of)
  for i, name in ipairs(self:names()) do
    state.clients[i] = {
      name = name, left = self.bounds.ops, number = 0, taken = 0,
    }
  end
  local request = self.kind.start(self)
  request.number, request.sent = 1, state.server.now
  local fault
  state.first, fault = send(self, state, copy(ALONE), request, {})
  if fault then error(fault, 0) end
  return state
end

local function add(list, model, step)
  list[#list + 1] = step
  if not model.bounds.faults.lost then return end
  local lost = copy(step)
  lost.reply = "lost"
  list[#list + 1] = lost
end

local function add_of_client(self, list, state, i)
  local client = state.clients[i]
  local pending = client.pending
  if pending then
    if state.server.now - pending.sent <= SETTLE then
      list[#list + 1] = { what = "retry", client = i, reply = "received" }
    end
    list[#list + 1] = { what = "give up", client = i }
  elseif client.left > 0 then
    for _, offer in ipairs(self.kind.offers(self, state, client)) do
      add(list, self, { what = "request", client = i, op = offer[1],
        n = offer[2], reply = "received" })
    end
  end
end

function counters:transitions(state)
  local list, bounds = {}, self.bounds
  for i = 1, #state.clients do
    local before = state.clients[i - 1]
    if not bounds.is_symmetric or not before or before.left < bounds.ops then
      add_of_client(self, list, state, i)
    end
  end
  transitions.add_of_server(self, list, state)
  return list
end

function counters:take(state, step)
  return doing[step.what](self, state, step)
end

-- invariants ------------------------------------------------------------------

local function check_count(self, state)
  local free, used = counted(self, state.server)
  if not free then return used end
  if free ~= state.free then
    return ("count returns %d instead of %d"):format(free, state.free)
  elseif used and used ~= state.total - state.free then
    return ("count returns %d in use instead of %d"):format(used,
      state.total - state.free)
  elseif free < 0 then
    return "more permits are taken than exist"
  end
end

-- When all leases are over, all permits are free.
local function check_leases(self, state)
  if not self.kind.has_leases then return end
  local last = state.server:later(self.lease + transitions.jump(self))
  if counted(self, last) ~= state.total then
    return "not all permits are free when all leases have ended"
  end
end

local function check_beliefs(_, state)
  for _, client in ipairs(state.clients) do
    local ends = client.ends
    if ends and not client.pending and ends > state.server.now
        and (state.leases[client.name .. client.taken] or 0) < ends then
      return client.name .. " believes that it has a permit, but has none"
    end
  end
end

-- Only the number itself and the leases may have no expiry.
local function check_keys(self, state)
  local keys = self.keys
  for _, key in ipairs(state.server:keys()) do
    local keeps = key == keys[1] or self.kind.has_leases and key == keys[2]
    if not keeps and not state.server.server:entry(key).expires then
      return ("the key %s has no expiry"):format(key)
    end
  end
end

function counters:judge(state)
  local fault = check_count(self, state) or check_beliefs(self, state)
    or check_leases(self, state) or check_keys(self, state)
  if fault then return fault end
  return counter_delays.check(self, state)
end

function counters:judge_step(before, _, result)
  if result and result.verdict then
    return counter_delays.check_step(self, before, result)
  end
end

-- notation --------------------------------------------------------------------

local function seconds(ms) return ("%gs"):format(ms / 1000) end

function counters:names()
  local names = {}
  for i = 1, self.bounds.clients do names[i] = string.char(64 + i) end
  return names
end

local WITHOUT_NUMBER = { drain = true, delete = true, renew = true,
  count_down = true }

function counters:text(state, step)
  if not step.client then return notation.of_server(state, step, self.tick) end
  local parts = { state.clients[step.client].name, step.op or step.what }
  if step.op and not WITHOUT_NUMBER[step.op] then
    parts[3] = ("%d"):format(step.n)
  end
  if step.reply == "lost" then parts[#parts + 1] = "lost" end
  if step.is_turned then parts[#parts + 1] = "turned" end
  return table.concat(parts, " ")
end

-- The error for an unknown step of a client.
local function unknown(self, text)
  local ops = {}
  for op in pairs(self.kind.apply) do
    if op ~= "undo" then ops[#ops + 1] = op end
  end
  table.sort(ops)
  return nil, ("unknown step %q: a %s has %s, retry and give up"):format(text,
    self.name, table.concat(ops, ", "))
end

local DIGITS = 15                       -- at most, of a number of permits

local function request_in(self, i, parts)
  local step = { what = "request", client = i, op = parts[2], n = 1,
    reply = "received" }
  for k = 3, #parts do
    local word = parts[k]
    if word == "lost" then
      step.reply = word
    elseif word == "turned" then
      step.is_turned = true
    elseif word:find("^%d+$") and #word <= DIGITS then
      step.n = tonumber(word)
    else
      return nil, "unknown word " .. word
    end
  end
  if self.kind.apply[step.op] and step.op ~= "undo" then return step end
  return unknown(self, table.concat(parts, " ", 2))
end

local function of_client(self, i, client, parts)
  local what = table.concat(parts, " ", 2)
  if what == "retry" or what == "give up" then
    local step = { what = what, client = i, reply = "received" }
    if client.pending then return step end
    return nil, client.name .. " has no request without a reply"
  elseif client.pending then
    return nil, client.name .. " has a request without a reply: use retry or "
      .. "give up"
  end
  return request_in(self, i, parts)
end

function counters:read(state, text)
  local parts, i, client = notation.of_client(state, text)
  if parts then return of_client(self, i, client, parts) end
  local step, problem = notation.read_server(state, text)
  if step or problem then return step, problem end
  problem = notation.unknown_client(state, text, self.kind.apply)
  if problem then return nil, problem end
  return unknown(self, text)
end

local function belief(self, state, client)
  local parts = {}
  if self.kind.has_leases then
    local left = client.ends and client.ends - state.server.now
    parts[1] = left and (left > 0 and "has one " .. seconds(left) or "expired")
  elseif self.kind.undo then
    parts[1] = client.taken > 0 and ("has %d"):format(client.taken) or nil
  end
  if client.pending then
    parts[#parts + 1] = "? " .. client.pending.op
  end
  return parts[1] and table.concat(parts, ", ") or "-"
end

function counters:beliefs(state)
  local list = {}
  for i, client in ipairs(state.clients) do
    list[i] = belief(self, state, client)
  end
  return list
end

function counters:operation(step)
  return step.op and self.policy.ops[step.op]
end

return counters
