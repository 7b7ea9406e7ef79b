--- What a trace looks like: a row for each step.

local sorted = require "rlock.sorted"

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

--- What a key holds.
-- @tparam table server
-- @tparam string name
-- @treturn table|nil value, as text; left, ms; text, both of these
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

--- What the keys hold, a line for each.
-- @tparam table server
-- @treturn table
function trace.keys(server)
  local lines = {}
  for _, name in ipairs(sorted(server.entries)) do
    local entry = trace.entry(server, name)
    if entry then lines[#lines + 1] = name .. " " .. entry.text end
  end
  return lines
end

-- The answer of a step, in words.
local function answer_of(result)
  if not result or not result.verdict then return "" end
  if not result.value then return result.verdict end
  local value = result.value
  return result.verdict .. " " .. (type(value) == "number"
    and show_number(value) or tostring(value))
end

--- Does a step, and describes it.
-- @tparam table model
-- @tparam table state which it changes
-- @tparam table step
-- @treturn table text, answer, beliefs (a list), keys (a list), fault, where
--   (the place of the operation in the policy), result
function trace.row(model, state, step)
  local text = model:text(state, step)
  local result, fault = model:take(state, step)
  local op = model:operation(step)
  return {
    text = text, answer = answer_of(result), fault = fault, result = result,
    beliefs = model:beliefs(state), keys = trace.keys(state.server.server),
    where = op and op.where,
  }
end

--- Does the steps of a trace.
-- @tparam table model
-- @tparam table list steps
-- @treturn table rows
function trace.rows(model, list)
  local state, rows = model:start(), {}
  for i, step in ipairs(list) do rows[i] = trace.row(model, state, step) end
  return rows
end

return trace
