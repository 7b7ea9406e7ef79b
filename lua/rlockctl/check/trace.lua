--- Formats a trace: a row for each step.

local sorted = require "rlock.util.sorted"

local trace = {}

local function seconds(ms) return ("%gs"):format(ms / 1000) end

local function show_number(number)
  local whole = math.tointeger(number)
  return whole and ("%d"):format(whole) or ("%.14g"):format(number)
end

local function show_value(entry)
  local value = entry.value
  if entry.kind == "string" then return ("%q"):format(value) end
  if entry.kind == "list" then
    return "[" .. table.concat(value, " ") .. "]"
  end
  local parts = sorted(value)
  for i, field in ipairs(parts) do
    local item = value[field]
    parts[i] = ("%s=%s"):format(field == "" and '""' or field,
      type(item) == "number" and show_number(item) or tostring(item))
  end
  return "{" .. table.concat(parts, " ") .. "}"
end

--- The content of a key.
---@param server table
---@param name string
---@return table? # value, as text; left, ms; text, both of these
function trace.entry(server, name)
  local entry = server:entry(name)
  if not entry then return nil end
  local left = entry.expires and entry.expires - server:ms()
  local value = show_value(entry)
  return {
    value = value, left = left, text = ("%s %s"):format(value,
      left and seconds(left) or "without expiry"),
  }
end

--- The contents of the keys, a line for each.
---@param server table
---@return table
function trace.keys(server)
  local lines = {}
  for _, name in ipairs(sorted(server.entries)) do
    local entry = trace.entry(server, name)
    if entry then lines[#lines + 1] = name .. " " .. entry.text end
  end
  return lines
end

-- The reply to a step, in words.
local function answer_of(result)
  if not result or not result.verdict then return "" end
  if not result.value then return result.verdict end
  local value = result.value
  return result.verdict .. " " .. (type(value) == "number"
    and show_number(value) or tostring(value))
end

--- Takes a step, and describes it.
---@param model table
---@param state table which it changes
---@param step table
---@return table # text, answer, beliefs (a list), keys (a list), fault, where
---  (the line of the operation in the policy), result
function trace.row(model, state, step)
  local text = model:text(state, step)
  local result, fault = model:take(state, step)
  local op = result and result.op or model:operation(step)
  return {
    text = text, answer = answer_of(result), fault = fault, result = result,
    beliefs = model:beliefs(state), keys = trace.keys(state.server.server),
    where = op and op.where,
  }
end

-- Faults of an operation that a later call proves.
local PROVED = { "frees it earlier", "shortens the lease" }

local function is_proved(fault)
  for _, text in ipairs(PROVED) do
    if fault:find(text, 1, true) then return true end
  end
  return false
end

-- The calls of a trail that show a fault: the last call of the faulty
-- operation, and the last of all calls if there is none or it proves the fault.
local function telling(trail, result)
  local last, list = trail[#trail], {}
  for i = #trail, 1, -1 do
    if trail[i].result.op == result.op then
      list[1] = trail[i]
      break
    end
  end
  if not list[1] or list[1] ~= last and is_proved(result.fault) then
    list[#list + 1] = last
  end
  return list
end

-- The answer of a probe, of which perhaps only the check knows the meaning.
local function answer_of_probe(result)
  if result.verdict then return answer_of(result) end
  local reply = result.reply
  if type(reply) == "string" then return reply end
  if result.fault or type(reply) ~= "table" or reply.err then return "error" end
  local words = {}
  for i, item in ipairs(reply) do
    words[i] = type(item) == "number" and show_number(item) or tostring(item)
  end
  return table.concat(words, " ")
end

local function probe_row(model, state, probe)
  local beliefs, result = {}, probe.result
  for i in ipairs(model:names()) do beliefs[i] = "" end
  local ms = probe.now - state.server.now
  return {
    text = table.concat({ "probe" .. (ms > 0 and " +" .. seconds(ms) or ""),
      result.op.op, table.unpack(result.words) }, " "),
    answer = answer_of_probe(result), beliefs = beliefs, is_probe = true,
    keys = trace.keys(probe.after), where = result.op.where,
  }
end

-- Drops the cached results of this server state, so that calls run again.
local function drop_results(server)
  server.results, server.taken, server.fine, server.lonely = {}, {}, {}, {}
end

--- The probes that show the fault of a trace: calls that the check made in the
--- last state, in addition to the steps.
---@param model table
---@param result table of explore.run, with a fault
---@return table # rows, with `is_probe`
function trace.probes(model, result)
  local list, state, rows = result.trace, model:start(), {}
  for i = 1, #list - 1 do model:take(state, list[i]) end
  local before = state:fork()
  drop_results(state.server)
  model.trail = {}
  local done, fault = model:take(state, list[#list])
  table.remove(model.trail, 1)          -- the step itself
  if not fault then
    model.trail = {}
    fault = model:judge_step(before, list[#list], done)
  end
  if not fault then
    model.trail = {}
    drop_results(state.server)
    model:judge(state)
  end
  local trail = model.trail
  model.trail = nil
  for i, probe in ipairs(trail[1] and telling(trail, result) or {}) do
    rows[i] = probe_row(model, state, probe)
  end
  return rows
end

--- Takes the steps of a trace.
---@param model table
---@param list table steps
---@return table # rows
function trace.rows(model, list)
  local state, rows = model:start(), {}
  for i, step in ipairs(list) do rows[i] = trace.row(model, state, step) end
  return rows
end

return trace
