--- All orders in which three clients enter and leave a double barrier of two,
--- while leases end, and one request arrives once more, late: on the model of
--- Redis. A round must not open for fewer than its members, nor end while one
--- is inside, and each request may be repeated.

local ctl = require "spec.cli.ctl"
local plant = require "spec.tools.plant"
local policy = require "rlock.policy"
local snapshot = require "rlockctl.check.snapshot"

local barrier                           -- the policy

local KEYS = policy.load("barrier").keys "lock"
local N, LEASE, MEMORY = "2", 2000, "600000"
local CLIENTS = { "a", "b", "c" }

local function keys_of(client)
  return { KEYS[1], KEYS[2], KEYS[3] .. ":" .. client }
end

local function copy(list)
  local result = {}
  for key, value in pairs(list) do result[key] = value end
  return result
end

local function fork(state)
  local result = copy(state)
  result.clients, result.members = copy(state.clients), copy(state.members)
  return result
end

-- A text that is equal for states that behave alike.
local function text_of(state)
  local parts = { state.server.number, state.ticks, state.lates }
  for _, name in ipairs(CLIENTS) do
    local its = state.clients[name]
    parts[#parts + 1] = ("%s %d %d %d"):format(its.phase, its.number,
      its.round, its.left)
  end
  local list = {}
  for id, member in pairs(state.members) do
    list[#list + 1] = ("%s %d %s %s %s"):format(id,
      math.max(member.ends - state.server.now, 0), member.round, member.left,
      member.is_gone)
  end
  table.sort(list)
  return table.concat(parts, ",") .. table.concat(list, ";")
end

local function is_open(server)
  local entry = server.server:entry(KEYS[2])
  return entry and entry.value.open and tonumber(entry.value.round)
end

local function fault(trace, what) error(trace .. ": " .. what, 0) end

-- Executes a request twice.
local function execute(state, name, op, words, trace)
  local result = state.server:run(barrier.ops[op], keys_of(name), words)
  local why = op ~= "enter" and snapshot.fault_of(result)
  if why then fault(trace, why) end
  local again = result.after:run(barrier.ops[op], keys_of(name), words)
  local first, second = result.reply, again.reply
  if again.after ~= result.after then fault(trace, "not idempotent") end
  if type(first) ~= "table" then first, second = { first }, { second } end
  if first[1] ~= second[1] and op ~= "release" then
    fault(trace, ("first %s, then %s"):format(first[1], tostring(second[1])))
  end
  local before, now = is_open(state.server), is_open(result.after)
  state.server = result.after
  return first, now and now ~= before and now
end

-- A round has opened: for those that have entered, and live.
local function opened(state, round, trace)
  local count = 0
  for id, member in pairs(state.members) do
    if not member.round and not member.left
        and member.ends > state.server.now then
      count = count + 1
      state.members[id] = copy(member)
      state.members[id].round = round
    end
  end
  if count ~= tonumber(N) then
    fault(trace, ("opens for %d members"):format(count))
  end
end

-- Has a member of the round died, or its client been closed?
local function is_lost(state, round)
  for _, member in pairs(state.members) do
    if member.round == round and not member.left
        and (member.is_gone or member.ends <= state.server.now) then
      return true
    end
  end
  return false
end

-- All have left, it says.
local function check_end(state, round, trace)
  for id, member in pairs(state.members) do
    if member.round == round and not member.left then
      fault(trace, ("has ended, but %s is inside"):format(id))
    end
  end
end

local function set(state, name, fields)
  local its = copy(state.clients[name])
  for field, value in pairs(fields) do its[field] = value end
  state.clients[name] = its
  return its
end

local function change(state, id, fields)
  local member = copy(state.members[id])
  for field, value in pairs(fields) do member[field] = value end
  state.members[id] = member
end

local function id_of(name, its) return name .. its.left end

-- A request, or a duplicate of it, extends the lease.
local function extend(state, id)
  if not state.members[id] then return end
  change(state, id, { ends = state.server.now + LEASE })
end

local function enter(state, name, trace)
  local its = state.clients[name]
  local number = its.phase == "out" and its.number + 1 or its.number
  local id = id_of(name, its)
  state.members[id] = state.members[id]
    or { ends = state.server.now + LEASE }
  local was_in = its.phase == "entering"
  local words = { tostring(number), MEMORY, N, "publish", tostring(LEASE), id }
  local reply, round = execute(state, name, "enter", words, trace)
  if not was_in then
    state.members[id] = { ends = state.server.now + LEASE }
    if reply[1] == "busy" and reply[3] == 0 then state.members[id] = nil end
  end
  if reply[1] ~= "lost" then extend(state, id) end
  if round then opened(state, round, trace) end
  if reply[1] == "held" then
    if not state.members[id].round then fault(trace, "it is not in") end
    set(state, name, { phase = "in", number = number, round = reply[2] })
  elseif reply[1] == "busy" then
    set(state, name, { number = number,
      phase = reply[3] > 0 and "entering" or "waiting" })
  else
    set(state, name, { phase = "out", number = number, left = its.left - 1 })
  end
  return words
end

local function leave(state, name, trace)
  local its = state.clients[name]
  local number = its.phase == "in" and its.number + 1 or its.number
  local id = id_of(name, its)
  local words = { tostring(number), MEMORY, tostring(its.round), "publish", id }
  change(state, id, { left = state.members[id].left
    or state.members[id].ends > state.server.now or nil })
  local reply = execute(state, name, "leave", words, trace)
  if reply[1] == "free" then
    check_end(state, its.round, trace)
  elseif reply[1] == "lost" and not is_lost(state, its.round) then
    fault(trace, "it is lost, and nobody has died")
  end
  set(state, name, reply[1] == "busy" and { phase = "leaving", number = number }
    or { phase = "out", number = number, left = its.left - 1 })
  return words
end

local function withdraw(state, name, trace)
  local its = state.clients[name]
  local id = id_of(name, its)
  local words = { tostring(its.number + 1), MEMORY, tostring(LEASE),
    "publish", id }
  local reply = execute(state, name, "withdraw", words, trace)
  local member = state.members[id]
  if reply[1] == "held" then
    if not member or not member.round then fault(trace, "it is not in") end
    extend(state, id)
    set(state, name, { phase = "in", number = its.number + 1,
      round = reply[2] })
  else
    if member and member.round and not is_lost(state, member.round) then
      fault(trace, "it is in, and withdraws")
    end
    if not member or not member.round then state.members[id] = nil end
    set(state, name, { phase = "out", number = its.number + 1,
      left = its.left - 1 })
  end
  return words
end

local function renew(state, name, trace)
  local its = state.clients[name]
  local id = id_of(name, its)
  local reply = execute(state, name, "renew",
    { id, tostring(LEASE), tostring(its.round) }, trace)
  if reply[1] == "held" then extend(state, id) end
end

local function release(state, name, trace)
  local its = state.clients[name]
  local id = id_of(name, its)
  execute(state, name, "release", { id, "1", "0", "publish" }, trace)
  if state.members[id].round then
    change(state, id, { is_gone = true })
  else
    state.members[id] = nil
  end
  set(state, name, { phase = "out", left = its.left - 1 })
end

-- What a client may do in each phase.
local steps = {
  out = { enter = enter }, waiting = { enter = enter, withdraw = withdraw },
  entering = { enter = enter, withdraw = withdraw, renew = renew,
    release = release },
  ["in"] = { leave = leave, renew = renew, release = release },
  leaving = { leave = leave },
}

local function sorted(map)
  local names = {}
  for name in pairs(map) do names[#names + 1] = name end
  table.sort(names)
  return names
end

local seen, count

-- Visits all states that follow. `sent` is a request that may arrive late.
local function visit(state, trace, sent)
  local text = text_of(state) .. (sent and table.concat(sent, " ") or "")
  if seen[text] then return end
  seen[text], count = true, count + 1
  if state.ticks > 0 then
    local after = fork(state)
    after.server = state.server:later(state.tick)
    after.ticks = state.ticks - 1
    visit(after, trace .. " tick", sent)
  end
  if sent and state.lates > 0 then
    local after = fork(state)
    after.lates = 0
    local name, op, words = sent[1], sent[2], { table.unpack(sent, 3) }
    local result = state.server:run(barrier.ops[op], keys_of(name), words)
    after.server = result.after
    local verdict = type(result.reply) == "table" and result.reply[1]
    if op ~= "leave" and (verdict == "held" or verdict == "busy") then
      extend(after, words[op == "enter" and 6 or 5])
    end
    local late = ("%s %s late %s"):format(trace, name, op)
    local round = is_open(after.server)
    if round and round ~= is_open(state.server) then
      opened(after, round, late)
    end
    visit(after, late)
  end
  for _, name in ipairs(CLIENTS) do
    local its = state.clients[name]
    for _, op in ipairs(its.left > 0 and sorted(steps[its.phase]) or {}) do
      local after, step = fork(state), ("%s %s %s"):format(trace, name, op)
      local words = steps[its.phase][op](after, name, step)
      visit(after, step, sent)
      if words and not sent and state.lates > 0 then
        visit(after, step, { name, op, table.unpack(words) })
      end
    end
  end
end

local function explore(ticks, tick, lates, lefts)
  seen, count, barrier = {}, 0, policy.load "barrier"
  local state = { server = snapshot.empty(true, 1000), ticks = ticks,
    tick = tick, lates = lates, clients = {}, members = {} }
  for i, name in ipairs(CLIENTS) do
    state.clients[name] = { phase = "out", number = 0, round = 0,
      left = lefts[i] }
  end
  visit(state, "")
  return count
end

teardown(ctl.clean)

describe("a double barrier on the model of Redis", function()
  for _, row in ipairs {
    { "with late requests", 0, 0, 1, { 1, 1, 1 } },
    { "with leases that end", 1, 2500, 0, { 1, 1, 1 } },
    { "with members that come again", 0, 0, 0, { 2, 1, 1 } },
    { "with late requests, and leases that are renewed", 2, 1500, 1,
      { 1, 1, 0 } },
  } do
    it(row[1], function()
      assert.is_true(explore(table.unpack(row, 2)) > 100)
    end)
  end

  for _, row in ipairs {
    { "one that opens early", ">= tonumber(n)", ">= n - 1",
      "opens for 1 members" },
    { "one that a late request enters", "if not is_done(slot, number) then\n"
      .. "    if round.n and",
      'if not redis.call("zscore", members, id) then\n    if round.n and',
      "enter: " },
    { "one that takes out a member that is in",
      "if round.is_open then\n      redis.call(", "if false then\n"
      .. "      redis.call(", "it is in, and withdraws" },
    { "one that ends early",
      'redis.call("exists", members) == 0 then\n      finish(',
      "true then\n      finish(", "is inside" },
  } do
    it("finds " .. row[1], function()
      local why = plant.during("rlock.policy.barrier", row[2], row[3],
        function()
          return select(2, pcall(explore, 0, 0, 1, { 1, 1, 1 }))
        end)
      assert.matches(row[4], why, 1, true)
    end)
  end
end)
