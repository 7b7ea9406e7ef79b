--- The words for the steps of a lock. A step is one line:
--    A acquire [read|write] [2s] [wait] [lost]    lost: no reply arrives
--    A release|renew|leave [read|write] [lost]
--    A retry | A give up | A die
--    +1s | break [read|write] | remove KEY | late N
--  `turned` at the end: replies without a defined order come in the other one.

local words = {}

local function seconds(ms) return ("%gs"):format(ms / 1000) end

local function mode_of(lock, side)
  return #lock.sides > 1 and lock.sides[side].name:match("%.(.*)$") or nil
end

-- writing ---------------------------------------------------------------------

local function request_text(lock, state, step)
  local client = state.clients[step.client]
  local parts = { client.name, step.op, mode_of(lock, step.side) }
  if client.pending then return client.name .. " retry" end
  if step.op == "acquire" then
    parts[#parts + 1] = seconds(step.lease)
    if step.wait ~= 0 then parts[#parts + 1] = "wait" end
  end
  if step.reply == "lost" then parts[#parts + 1] = "lost" end
  return table.concat(parts, " ")
end

--- A step in words.
-- @tparam table lock
-- @tparam table state before the step
-- @tparam table step
-- @treturn string
function words.text(lock, state, step)
  if step.what == "request" then
    return request_text(lock, state, step) .. (step.is_turned and " turned"
      or "")
  end
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

local function retry(i, client, is_turned)
  if not client.pending then
    return nil, client.name .. " has nothing to retry"
  end
  local step = { what = "request", client = i, reply = "told" }
  step.is_turned = is_turned or nil
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

-- Adds what a word says to a request; false if the word is unknown.
local function obey(lock, step, word)
  if word == "wait" then
    step.wait = -1
  elseif word == "lost" then
    step.reply = "lost"
  elseif word == "turned" then
    step.is_turned = true
  elseif ms_of(word) then
    step.lease = ms_of(word)
  elseif side_named(lock, word) then
    step.side = side_named(lock, word)
  else
    return false
  end
  return true
end

local function request(lock, i, client, parts)
  local waits = client.waits
  local step = {
    what = "request", client = i, op = parts[2], reply = "told",
    side = waits and waits.side or 1, wait = 0, lease = lock.leases[1],
  }
  for k = 3, #parts do
    if not obey(lock, step, parts[k]) then
      return nil, "unknown word " .. parts[k]
    end
  end
  step.want = wanted(client, step)
  if not lock.sides[step.side].ops[step.op] then
    return nil, ("policy %s has no %s"):format(lock.name, step.op)
  end
  return step
end

local SAY = "say acquire, release, renew, leave, retry, give up or die"

local function of_client(lock, i, client, parts)
  local what = table.concat(parts, " ", 2):gsub(" turned$", "")
  local pending = client.pending
  if client.is_dead then
    return nil, client.name .. " is dead"
  elseif what == "die" or what == "give up" and pending
      and pending.op == "acquire" then
    return { what = what, client = i }
  elseif what == "retry" then
    return retry(i, client, parts[#parts] == "turned")
  elseif pending then
    return nil, client.name .. " has a request without a reply: say retry, "
      .. "give up (if it was an acquire) or die"
  elseif OPS[parts[2]] then
    return request(lock, i, client, parts)
  end
  return nil, ("unknown step %q: %s"):format(what, SAY)
end

local function of_break(lock, word)
  local side = word and side_named(lock, word) or not word and 1
  if side and lock.sides[side].ops.break_ then
    return { what = "break", side = side }
  end
  return nil, ("policy %s cannot break %s"):format(lock.name, word or "it")
end

local function of_late(state, word)
  local number = tonumber(word)
  if state.copies and state.copies[number] then
    return { what = "late", copy = number }
  end
  return nil, "late needs the number of an old request, and --faults late"
end

--- Reads a step.
-- @tparam table lock
-- @tparam table state before the step
-- @tparam string text
-- @treturn[1] table the step
-- @treturn[2] nil
-- @treturn[2] string why it is none
function words.read(lock, state, text)
  local parts = {}
  for word in text:gmatch("%S+") do parts[#parts + 1] = word end
  local i, client = client_named(state, parts[1])
  if client and parts[2] then return of_client(lock, i, client, parts) end
  local ms = parts[1]:match("^%+") and ms_of(parts[1]:sub(2))
  if ms then return { what = "tick", ms = ms } end
  if parts[1] == "break" then
    return of_break(lock, parts[2])
  elseif parts[1] == "remove" and parts[2] then
    return { what = "remove", key = text:match("^%s*remove%s+(.-)%s*$") }
  elseif parts[1] == "late" then
    return of_late(state, parts[2])
  end
  return nil, ("unknown step %q: say %s acquire, +1s, break, remove KEY")
    :format(text, state.clients[1].name)
end

-- beliefs ---------------------------------------------------------------------

--- What a client believes, in words.
-- @tparam table lock
-- @tparam table state
-- @tparam table client
-- @treturn string
function words.belief(lock, state, client)
  if client.is_dead then return "dead" end
  local now, parts = state.server.now, {}
  for side, hold in ipairs(client.holds) do
    if hold.count > 0 then
      local left = math.max(hold.valid - now, 0)
      parts[#parts + 1] = ("%s%s%s"):format(
        hold.count > 1 and hold.count .. "x " or "",
        left > 0 and "holds " .. seconds(left) or "expired",
        mode_of(lock, side) and " " .. mode_of(lock, side) or "")
    end
  end
  if client.waits then parts[#parts + 1] = "waits" end
  if client.pending then parts[#parts + 1] = "? " .. client.pending.op end
  return parts[1] and table.concat(parts, ", ") or "-"
end

return words
