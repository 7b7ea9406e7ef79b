--- The words for steps, and what a trace looks like. A step is one line:
--    A acquire [read|write] [2s] [wait] [lost]    lost: no reply arrives
--    A release|renew|leave [read|write] [lost]
--    A retry | A give up | A die
--    +1s | break [read|write] | remove KEY | late N

local steps = require "rlock.check.steps"
local world = require "rlock.check.world"

local trace = {}

local function seconds(ms) return ("%gs"):format(ms / 1000) end

local function mode_of(lock, side)
  return #lock.sides > 1 and lock.sides[side].name:match("%.(.*)$") or nil
end

-- writing ---------------------------------------------------------------------

local function request_text(lock, state, step)
  local client = state.clients[step.client]
  local words = { client.name, step.op, mode_of(lock, step.side) }
  if client.pending then return client.name .. " retry" end
  if step.op == "acquire" then
    words[#words + 1] = seconds(step.lease)
    if step.wait ~= 0 then words[#words + 1] = "wait" end
  end
  if step.reply == "lost" then words[#words + 1] = "lost" end
  return table.concat(words, " ")
end

--- A step in words.
-- @tparam table lock
-- @tparam table state before the step
-- @tparam table step
-- @treturn string
function trace.text(lock, state, step)
  if step.what == "request" then return request_text(lock, state, step) end
  if step.client then
    return state.clients[step.client].name .. " " .. step.what
  elseif step.what == "tick" then
    return "+" .. seconds(step.ms or lock.tick)
  elseif step.what == "break" then
    return "break" .. (mode_of(lock, step.side) and " "
      .. mode_of(lock, step.side) or "")
  end
  local copy = step.copy and state.copies[step.copy]
  return step.what .. " " .. (copy and ("%d (%s)"):format(step.copy, copy.text)
    or step.key)
end

-- reading ---------------------------------------------------------------------

local OPS = { acquire = true, release = true, renew = true, leave = true }

local function client_named(state, name)
  for i, client in ipairs(state.clients) do
    if client.name == name then return i, client end
  end
end

local function side_named(lock, word)
  for side = 1, #lock.sides do
    if mode_of(lock, side) == word then return side end
  end
end

local function ms_of(word)
  local number = word:match("^(%d+%.?%d*)s$") or word:match("^(%d*%.%d+)s$")
  return number and math.floor(tonumber(number) * 1000 + 0.5)
end

local function retry(i, client)
  if not client.pending then return nil, "nothing to retry" end
  local step = { what = "request", client = i, reply = "told" }
  for _, key in ipairs { "op", "side", "want", "lease", "wait" } do
    step[key] = client.pending[key]
  end
  return step
end

-- The hold count that the request states.
local function wanted(client, step)
  local count = client.holds[step.side].count
  if step.op == "acquire" then return client.waits and 1 or count + 1 end
  return step.op == "release" and math.max(count - 1, 0) or count
end

local function request(lock, i, client, words)
  local step = {
    what = "request", client = i, op = words[2], side = 1, wait = 0,
    reply = "told", lease = lock.leases[1],
  }
  for k = 3, #words do
    local word = words[k]
    if word == "wait" then
      step.wait = -1
    elseif word == "lost" then
      step.reply = "lost"
    elseif ms_of(word) then
      step.lease = ms_of(word)
    elseif side_named(lock, word) then
      step.side = side_named(lock, word)
    else
      return nil, "unknown word " .. word
    end
  end
  step.want = wanted(client, step)
  return step
end

local function of_client(lock, i, client, words)
  local what = table.concat(words, " ", 2)
  if what == "give up" and client.pending or what == "die" then
    return { what = what, client = i }
  elseif what == "retry" then
    return retry(i, client)
  elseif OPS[words[2]] then
    return request(lock, i, client, words)
  end
  return nil, ("unknown step %q: say acquire, release, renew, leave, retry, "
    .. "give up or die"):format(what)
end

--- Reads a step.
-- @tparam table lock
-- @tparam table state before the step
-- @tparam string text
-- @treturn[1] table the step
-- @treturn[2] nil
-- @treturn[2] string why it is none
function trace.read(lock, state, text)
  local words = {}
  for word in text:gmatch("%S+") do words[#words + 1] = word end
  local i, client = client_named(state, words[1])
  if client and words[2] then return of_client(lock, i, client, words) end
  local ms = words[1]:match("^%+") and ms_of(words[1]:sub(2))
  if ms then return { what = "tick", ms = ms } end
  if words[1] == "break" then
    return { what = "break", side = side_named(lock, words[2]) or 1 }
  elseif words[1] == "remove" and words[2] then
    return { what = "remove", key = text:match("^%s*remove%s+(.-)%s*$") }
  elseif words[1] == "late" and tonumber(words[2]) then
    return { what = "late", copy = tonumber(words[2]) }
  end
  return nil, ("unknown step %q"):format(text)
end

-- showing ---------------------------------------------------------------------

-- What a client believes, in words.
local function belief(lock, state, client)
  if client.is_dead then return "dead" end
  local now, words = state.server:ms(), {}
  for side, hold in ipairs(client.holds) do
    if hold.count > 0 then
      local left = math.max(hold.valid - now, 0)
      words[#words + 1] = ("%s%s%s"):format(
        hold.count > 1 and hold.count .. "x " or "",
        left > 0 and "holds " .. seconds(left) or "expired",
        mode_of(lock, side) and " " .. mode_of(lock, side) or "")
    end
  end
  if client.waits then words[#words + 1] = "waits" end
  if client.pending then words[#words + 1] = "? " .. client.pending.op end
  return words[1] and table.concat(words, ", ") or "-"
end

local function show_value(entry)
  local value, parts = entry.value, {}
  if entry.kind == "string" then return ("%q"):format(value) end
  if entry.kind == "list" then
    return "[" .. table.concat(value, " ") .. "]"
  end
  for field in pairs(value) do parts[#parts + 1] = field end
  table.sort(parts)
  for i, field in ipairs(parts) do
    local item = value[field]
    parts[i] = ("%s=%s"):format(field == "" and '""' or field,
      type(item) == "number" and ("%.14g"):format(item) or tostring(item))
  end
  return "{" .. table.concat(parts, " ") .. "}"
end

--- What the keys hold, a line for each.
-- @tparam table server
-- @treturn table
function trace.keys(server)
  local names, lines = {}, {}
  for name in pairs(server.entries) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local entry = server:entry(name)
    if entry then
      lines[#lines + 1] = ("%s %s %s"):format(name, show_value(entry),
        entry.expires and seconds(entry.expires - server:ms())
          or "without expiry")
    end
  end
  return lines
end

--- Replays steps.
-- @tparam table lock
-- @tparam table list steps
-- @treturn table a row for each: text, answer, beliefs (a list), keys (a list),
--   fault, where (the place of the operation in the policy)
function trace.rows(lock, list)
  local state, rows = world.new(lock.bounds, #lock.sides), {}
  for i, step in ipairs(list) do
    local row = { text = trace.text(lock, state, step), beliefs = {} }
    local verdict, fault, value = steps.take(lock, state, step)
    row.answer = verdict and (verdict .. (value and " "
      .. ("%.14g"):format(value) or "")) or ""
    row.fault = fault
    for k, client in ipairs(state.clients) do
      row.beliefs[k] = belief(lock, state, client)
    end
    row.keys = trace.keys(state.server)
    local op = step.op and lock.sides[step.side].ops[step.op]
    row.where = op and op.where
    rows[i] = row
  end
  return rows, state
end

return trace
