--- The notation for the steps of a lock. A step is one line:
---   A acquire [read|write] [2s] [wait] [lost|dropped]
---   A release|renew|refresh|leave [read|write] [lost|dropped]
---   A retry | A give up | A die
---   +1s | break [read|write] | evict KEY | expire KEY | jump -2s | late N
--- lost: no reply arrives; dropped, of an acquire: the request does not arrive,
--- and is abandoned. "acquire A" is the same as "A acquire".
--- `turned` at the end: replies without a defined order are reversed.

local notation = {}

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
  if step.reply ~= "received" then parts[#parts + 1] = step.reply end
  return table.concat(parts, " ")
end

--- A step of the server or the clock as text: time, evict, expire, jump, late.
---@param state table before the step
---@param step table
---@param tick integer ms
---@return string
function notation.of_server(state, step, tick)
  if step.what == "tick" then
    return "+" .. seconds(step.ms or tick)
  elseif step.what == "jump" then
    return ("jump %+gs"):format(step.ms / 1000)
  elseif step.what == "late" then
    return ("late %d (%s)"):format(step.copy, state.copies[step.copy].text)
  end
  return step.what .. " " .. step.key
end

--- A step as text.
---@param lock table
---@param state table before the step
---@param step table
---@return string
function notation.text(lock, state, step)
  if step.what == "request" then
    return request_text(lock, state, step) .. (step.is_turned and " turned"
      or "")
  elseif step.client then
    return state.clients[step.client].name .. " " .. step.what
  elseif step.what == "break" then
    return "break" .. (mode_of(lock, step.side) and " "
      .. mode_of(lock, step.side) or "")
  end
  return notation.of_server(state, step, lock.tick)
end

-- reading ---------------------------------------------------------------------

local OPS = {
  acquire = true, release = true, renew = true, refresh = true, leave = true,
}

-- The first words of a client's steps.
local CLIENT_STEPS = { acquire = true, release = true, renew = true,
  leave = true, retry = true, give = true, die = true }

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

local LONGEST = 1e8                     -- seconds

local function ms_of(word)
  local text = word:match("^(%d+%.?%d*)s$") or word:match("^(%d*%.%d+)s$")
  local number = tonumber(text)
  return number and number <= LONGEST and math.floor(number * 1000 + 0.5)
end

local function retry(i, client, is_turned)
  if not client.pending then
    return nil, client.name .. " has nothing to retry"
  end
  local step = { what = "request", client = i, reply = "received" }
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

-- Applies a word to a request; returns false if the word is unknown.
local function apply_word(lock, step, word)
  if word == "wait" then
    step.wait = -1
  elseif word == "lost" or word == "dropped" then
    step.reply = word
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
    what = "request", client = i, op = parts[2], reply = "received",
    side = waits and waits.side or 1, wait = 0, lease = lock.leases[1],
  }
  for k = 3, #parts do
    if not apply_word(lock, step, parts[k]) then
      return nil, "unknown word " .. parts[k]
    end
  end
  step.want = wanted(client, step)
  if step.reply == "dropped" and step.op ~= "acquire" then
    return nil, "only an acquire can be dropped"
  end
  if not lock.sides[step.side].ops[step.op] then
    return nil, ("policy %s has no %s"):format(lock.name, step.op)
  elseif step.op == "acquire" and step.want > 1
      and lock.sides[step.side].reenter == false then
    return nil, ("refused by the client: %s already holds it, and %s is not "
      .. "reentrant"):format(client.name, lock.name)
  end
  return step
end

local EXPECTED = "say acquire, release, renew, leave, retry, give up or die"

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
  return nil, ("unknown step %q: %s"):format(what, EXPECTED)
end

local function of_break(lock, word)
  local side = word and side_named(lock, word) or not word and 1
  if side and lock.sides[side].ops.break_ then
    return { what = "break", side = side }
  end
  return nil, ("policy %s cannot break %s"):format(lock.name, word or "it")
end

local EXPECTED_JUMP = "say jump +1s or jump -1s"
local EXPECTED_LATE =
  "late needs the number of an old request, and --faults late"

local function of_jump(word)
  local sign, ms = word:match("^([+-])"), ms_of(word:sub(2))
  if not sign or not ms then return nil, EXPECTED_JUMP end
  return { what = "jump", ms = sign == "-" and -ms or ms }
end

--- Reads a step of the server or the clock.
---@param state table before the step
---@param text string
---@return table? # the step; nil if it is not one of these
---@return string? # the problem
function notation.read_server(state, text)
  local what, rest = text:match("^%s*(%S+)%s*(.-)%s*$")
  ---@cast what -nil
  local ms = what:match("^%+") and ms_of(what:sub(2))
  if ms then return { what = "tick", ms = ms } end
  if (what == "evict" or what == "expire") and rest ~= "" then
    return { what = what, key = rest }
  elseif what == "jump" then
    return of_jump(rest)
  elseif what == "late" then
    ---@cast rest -nil
    local number = tonumber(rest:match("^%d+"))
    local is_known = number and state.copies and state.copies[number]
    if is_known then return { what = "late", copy = number } end
    return nil, EXPECTED_LATE
  end
end

--- The words of a client's step, with its name first: "A acquire" for "acquire
--- A"; nil if there is no such client.
---@param state table
---@param text string
---@return any ... # words, the client's index, the client
function notation.of_client(state, text)
  local parts = {}
  for word in text:gmatch("%S+") do parts[#parts + 1] = word end
  if client_named(state, parts[2]) then
    parts[1], parts[2] = parts[2], parts[1]
  end
  local i, client = client_named(state, parts[1])
  if client and parts[2] then return parts, i, client end
end

local SERVER = { ["break"] = true, evict = true, expire = true, jump = true,
  late = true }

--- The error for a step that names an unknown client.
---@param state table
---@param text string
---@param ops table the operations, as keys
---@return string?
function notation.unknown_client(state, text, ops)
  local first, second = text:match("^%s*(%S+)%s*(%S*)")
  if client_named(state, first) or SERVER[first] then return nil end
  ---@cast first -nil
  local name = ops[first] and second ~= "" and second
    or (ops[second] or first:find("^%u$")) and first
  if not name then return nil end
  local names = {}
  for i, client in ipairs(state.clients) do names[i] = client.name end
  return ("unknown client %s: there %s %s, see --clients"):format(name,
    names[2] and "are" or "is", table.concat(names, ", "))
end

--- Reads a step.
---@param lock table
---@param state table before the step
---@param text string
---@return table? # the step
---@return string? code # the problem
function notation.read(lock, state, text)
  local parts, i, client = notation.of_client(state, text)
  if parts then return of_client(lock, i, client, parts) end
  local side = text:match("^%s*break%s*(%S*)%s*$")
  if side then return of_break(lock, side ~= "" and side) end
  local step, problem = notation.read_server(state, text)
  if step or problem then return step, problem end
  problem = notation.unknown_client(state, text, CLIENT_STEPS)
  if problem then return nil, problem end
  return nil, ("unknown step %q: say %s acquire, +1s, break, evict KEY, expire "
    .. "KEY or jump -1s"):format(text, state.clients[1].name)
end

-- beliefs ---------------------------------------------------------------------

--- A client's belief as text.
---@param lock table
---@param state table
---@param client table
---@return string
function notation.belief(lock, state, client)
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

return notation
