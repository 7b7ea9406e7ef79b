--- A model of a double barrier for explore.lua, with the methods of locks.lua.
--- It tracks the expected state outside of the server: `members`, id -> { ends,
--- when the lease expires; round, which the member is in; left; is_gone }. A
--- round must open only for n live members, must end only when all have left,
--- and must be lost only if a member has died. A client has
---   phase    "out"; "waiting": it has asked to enter; "entering": it is a
---            member; "in"; "leaving"; "withdrawing"
---   number   of its last request       round   which it is in
---   left     how often it may still enter
---
--- A step is { what = "request", client =, op =, reply = "received" or "lost"
--- }, or a step of the server, as in steps.lua. If a reply is lost, the client
--- repeats the request with the same number.

local copy = require "rlockctl.check.copy"
local notation = require "rlockctl.check.notation"
local snapshot = require "rlockctl.check.snapshot"
local trail = require "rlockctl.check.trail"
local transitions = require "rlockctl.check.transitions"
local verdicts = require "rlock.lock.verdicts"

---@class rlockctl.check.barriers
---@field [string] any
local barriers = {}
barriers.__index = barriers

local MEMORY = 600000                   -- as in counters/deduplication.lua

-- The operations that a client may request in each phase.
local OPS = {
  out = { "enter" }, waiting = { "enter", "withdraw" },
  entering = { "enter", "withdraw", "renew", "release" },
  ["in"] = { "leave", "renew", "release" }, leaving = { "leave" },
  withdrawing = { "withdraw" },
}

-- The phase after a lost reply; default: unchanged.
local UNKNOWN = { leave = "leaving", withdraw = "withdrawing" }

---@param policy table the result of policy.load
---@param bounds table as for locks.new
---@return table
function barriers.new(policy, bounds)
  if bounds.server_faults + bounds.breaks > 0 then
    error("--faults: a barrier has crash, lost, twice and late", 0)
  end
  if not bounds.has_ticks then bounds.ticks = 1 end
  local lease = bounds.leases[#bounds.leases]
  return setmetatable({
    name = policy.name, policy = policy, bounds = bounds, lease = lease,
    tick = bounds.has_tick and bounds.tick or lease + 500,
    keys = policy.keys(bounds.name or "lock"), faults = bounds.faults,
    n = math.max(math.floor(tonumber(bounds.options.n) or 2), 1),
  }, barriers)
end

-- states ----------------------------------------------------------------------

local state_of = {}
state_of.__index = state_of

function state_of:fork()
  local result = setmetatable(copy(self), state_of)
  result.clients, result.members = copy(self.clients), copy(self.members)
  return result
end

-- Changes fields of a client or of a member.
local function change(list, key, fields)
  list[key] = copy(list[key])
  for field, value in pairs(fields) do list[key][field] = value end
end

function state_of:text()
  local parts = { self.server.number, self.ticks }
  for _, old in ipairs(self.copies) do
    parts[#parts + 1] = self.server:number_of(old.text)
  end
  for _, client in ipairs(self.clients) do
    parts[#parts + 1] = ("%s %d %.0f %d"):format(client.phase, client.number,
      client.round, client.left)
  end
  local list = {}
  for id, member in pairs(self.members) do
    list[#list + 1] = ("%s %d %s %s %s"):format(id,
      math.max(member.ends - self.server.now, 0), member.round, member.left,
      member.is_gone)
  end
  table.sort(list)
  return table.concat(parts, ",") .. table.concat(list, ";")
end

local function is_live(state, member)
  return not member.is_gone and member.ends > state.server.now
end

-- The numbers of the open round, or nil; of the current round; and of the last
-- round that was lost.
local function round_of(model, server)
  local entry = server.server:entry(model.keys[2])
  local fields = entry and entry.value or {}
  return fields.open and tonumber(fields.round), tonumber(fields.round or 0),
    tonumber(fields.lost or 0)
end

-- the expected effects --------------------------------------------------------

-- A round has opened, with the live members that have entered.
local function opened(model, state, round)
  local count = 0
  for id, member in pairs(state.members) do
    if not member.round and not member.left and is_live(state, member) then
      count = count + 1
      change(state.members, id, { round = round })
    end
  end
  if count ~= model.n then
    return ("it opens early, for %d members that live"):format(count)
  end
end

-- A member's request extends its lease; so does a duplicate that arrives late.
local function extend(model, state, op, id, reply)
  local is_in = reply[1] == "held" or reply[1] == "busy"
  if is_in and op ~= "leave" and state.members[id] then
    change(state.members, id, { ends = state.server.now + model.lease })
  end
end

local function check_free(state, round)
  for id, member in pairs(state.members) do
    if member.round == round and not member.left then
      return ("it ends early: %s is inside"):format(id)
    end
  end
end

-- Checks that a round was lost for a reason. A later round counts, too, because
-- the server remembers only the last lost round.
local function check_lost(state, round)
  for _, member in pairs(state.members) do
    if member.round and member.round >= round and not member.left
        and not is_live(state, member) then
      return nil
    end
  end
  return "it is lost, but no member has died"
end

-- op -> function(model, state, id, client, reply). It returns the next phase,
-- the round and a fault.
local apply = {}

function apply.enter(_, state, id, _, reply)
  if reply[1] == "held" then
    local member = state.members[id]
    return "in", reply[2], not (member and member.round) and "it is not in"
  elseif reply[1] == "busy" then
    if reply[3] == 0 then state.members[id] = nil end
    return reply[3] > 0 and "entering" or "waiting"
  end
  return "out"
end

function apply.withdraw(_, state, id, _, reply)
  local member = state.members[id]
  local is_in = member and member.round
  if reply[1] == "held" then
    return "in", reply[2], not is_in and "it is not in"
  end
  if not is_in then state.members[id] = nil end
  return "out", nil, is_in and check_lost(state, is_in) and "it was in"
end

function apply.leave(_, state, _, client, reply)
  local round = client.round
  if reply[1] == "busy" then return "leaving" end
  return "out", nil,
    (reply[1] == "free" and check_free or check_lost)(state, round)
end

function apply.renew(_, _, _, client) return client.phase end

function apply.release(_, state, id)
  if not state.members[id].round then state.members[id] = nil end
  return "out"
end

-- requests --------------------------------------------------------------------

-- Does a request get a new number? Otherwise, it repeats an earlier request.
local function is_new(client, op)
  return op == "enter" and client.phase == "out"
    or op == "leave" and client.phase == "in"
    or op == "withdraw" and client.phase ~= "withdrawing"
end

local function words_of(model, client, op, id)
  local lease, round = ("%d"):format(model.lease),
    ("%.0f"):format(client.round)
  if op == "renew" then return { id, lease, round } end
  if op == "release" then return { id, "1", "0", "publish" } end
  local words = { ("%d"):format(client.number), ("%d"):format(MEMORY),
    op == "enter" and ("%d"):format(model.n) or op == "leave" and round
      or lease, "publish", id }
  if op == "enter" then table.insert(words, 5, lease) end
  return words
end

local function execute(model, state, op, keys, words)
  local result = trail.run(model, state.server, op, keys, words)
  local fault = op.op ~= "enter" and snapshot.fault_of(result)
    or result.reply.err and snapshot.fault_of(result)
  local shaped, code, detail
  if not fault then
    shaped, code, detail = verdicts.shaped(op, result.reply,
      model.policy.needs[op.op])
    result.verdict = shaped and (shaped[1] or shaped)
  end
  if not fault and model.faults.twice then
    local again = trail.run(model, result.after, op, keys, words)
    if again.after ~= result.after then
      fault = ("run twice, %s leaves other keys than run once"):format(op.op)
    end
  end
  state.server = result.after
  return result, shaped, fault or code and detail
end

local function remember(model, state, result, id)
  if not model.faults.late then return end
  local text = result.op.op .. " " .. table.concat(result.words, " ")
  for _, old in ipairs(state.copies) do
    if old.text == text then return end
  end
  state.copies = copy(state.copies)
  table.insert(state.copies, { text = text, result = result, id = id })
end

-- The server has ended a round as lost. After that, it may have let `id` enter.
local function lost(state, id)
  local has_died = false
  for its, member in pairs(state.members) do
    if not member.left then
      has_died = has_died or not is_live(state, member)
      if not member.round and its ~= id then
        change(state.members, its, { is_gone = true })
      end
    end
  end
  return not has_died and "it is lost, but no member has died" or nil
end

-- Applies the effects that do not depend on the client; returns a fault.
local function applied(model, state, before, result, reply, id)
  local was_open, old, was_lost = round_of(model, before)
  local is_open, _, is_lost = round_of(model, state.server)
  if old > 0 and is_lost ~= was_lost then
    local fault = lost(state, reply[1] ~= "lost" and id)
    if fault then return fault end
  end
  extend(model, state, result.op.op, id, reply)
  if is_open and is_open ~= was_open then
    return opened(model, state, is_open)
  end
end

local doing = {}

function doing.request(model, state, step)
  local i, op = step.client, step.op
  local client = state.clients[i]
  if is_new(client, op) then
    change(state.clients, i, { number = client.number + 1,
      left = client.left - (op == "enter" and 1 or 0) })
    client = state.clients[i]
  end
  local id, before = client.name .. client.left, state.server
  local words = words_of(model, client, op, id)
  if op == "leave" and is_live(state, state.members[id]) then
    change(state.members, id, { left = true })
  elseif op == "release" then
    change(state.members, id, { is_gone = true })
  elseif op == "enter" and client.phase ~= "entering" then
    state.members[id] = state.members[id] or { ends = 0 }
  end
  local keys = { model.keys[1], model.keys[2],
    model.keys[3] .. ":" .. client.name }
  local result, reply, fault =
    execute(model, state, model.policy.ops[op], keys, words)
  if fault then return result, fault end
  remember(model, state, result, id)
  fault = applied(model, state, before, result, reply, id)
  if fault then return result, fault end
  local phase, its
  phase, its, fault = apply[op](model, state, id, client, reply)
  if step.reply == "lost" then
    phase = UNKNOWN[op] or client.phase == "out" and "waiting" or client.phase
  end
  change(state.clients, i, { phase = phase, round = its or client.round })
  return result, fault or nil
end

function doing.tick(model, state, step)
  state.server = state.server:later(step.ms or model.tick)
  state.ticks = state.ticks - 1
end

function doing.late(model, state, step)
  local before = state.server
  state.copies = copy(state.copies)
  local its = table.remove(state.copies, step.copy)
  local old = its.result
  local result, reply, fault =
    execute(model, state, old.op, old.keys, old.words)
  if fault then return result, fault end
  return result, applied(model, state, before, result, reply, its.id)
end

-- the model -------------------------------------------------------------------

function barriers.is_timed() return true end

function barriers:names()
  local names = {}
  for i = 1, self.bounds.clients do names[i] = string.char(64 + i) end
  return names
end

function barriers:start()
  self.empty = self.empty or snapshot.empty(true, 1000)
  local state = setmetatable({ server = self.empty, clients = {}, members = {},
    ticks = self.bounds.ticks, copies = {}, server_faults = 0 }, state_of)
  for i, name in ipairs(self:names()) do
    state.clients[i] = { name = name, phase = "out", number = 0, round = 0,
      left = self.bounds.ops }
  end
  return state
end

function barriers:transitions(state)
  local list, before = {}, nil
  for i, client in ipairs(state.clients) do
    local is_next = not before or not self.bounds.is_symmetric
      or before.number > 0
    for _, op in ipairs(is_next and (client.left > 0 or client.phase ~= "out")
        and OPS[client.phase] or {}) do
      for _, reply in ipairs { "received", "lost" } do
        if reply == "received"
            or self.faults.lost and op ~= "renew" and op ~= "release" then
          list[#list + 1] = { what = "request", client = i, op = op,
            reply = reply }
        end
      end
    end
    before = client
  end
  transitions.add_of_server(self, list, state)
  return list
end

function barriers:take(state, step) return doing[step.what](self, state, step)
end

--- Checks that a message wakes the waiters when a round opens or ends.
function barriers:judge_step(before, _, result)
  if not result or not result.verdict or result.sent[1] then return nil end
  local open, round = round_of(self, before.server)
  local now_open, now_round = round_of(self, result.after)
  if open ~= now_open or round > 0 and round ~= now_round then
    return "lost wake: the round has changed, but no message is published on "
      .. "its channel"
  end
end

--- Checks that all keys expire, and that no round outlasts the leases.
function barriers:judge(state)
  for _, key in ipairs(state.server:keys()) do
    local expires = state.server.server:entry(key).expires
    if not expires then return ("the key %s has no expiry"):format(key) end
    if expires > state.server.now + self.lease + MEMORY then
      return ("leaked: the key %s lasts for %gs"):format(key,
        (expires - state.server.now) / 1000)
    end
  end
  local round = round_of(self, state.server)
  local later = state.server:later(self.lease + 1)
  if round and trail.run(self, later, self.policy.ops.look, self.keys,
      { ("%.0f"):format(round), "publish" }).reply[1] == "busy" then
    return "a round is open when all leases have ended"
  end
end

function barriers:text(state, step)
  if not step.client then return notation.of_server(state, step, self.tick) end
  return ("%s %s%s"):format(state.clients[step.client].name, step.op,
    step.reply == "lost" and " lost" or "")
end

local EXPECTED = "say A enter, A leave lost or +1s"

-- Steps that a lock has, but a barrier does not.
local OF_LOCKS = { ["break"] = true, evict = true, expire = true, jump = true }

local function read_other(state, text)
  local what = text:match("%S+")
  if OF_LOCKS[what] then
    return nil, ("a barrier has no %s: %s"):format(what, EXPECTED)
  end
  local step, problem = notation.read_server(state, text)
  if step or problem then return step, problem end
  return nil, notation.unknown_client(state, text, apply)
    or ("unknown step %q: %s"):format(text, EXPECTED)
end

function barriers:read(state, text)
  local parts, i, client = notation.of_client(state, text)
  if not parts then return read_other(state, text) end
  for _, op in ipairs(OPS[client.phase]) do
    if op == parts[2] and (not parts[3] or parts[3] == "lost") then
      return { what = "request", client = i, op = op,
        reply = parts[3] or "received" }
    end
  end
  return nil, ("%s is %s: it may %s"):format(client.name, client.phase,
    table.concat(OPS[client.phase], ", "))
end

function barriers:beliefs(state)
  local list = {}
  for i, client in ipairs(state.clients) do list[i] = client.phase end
  return list
end

function barriers:operation(step)
  return step.op and self.policy.ops[step.op]
end

return barriers
