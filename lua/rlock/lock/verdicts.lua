--- Checks the replies of a policy's operations: a verdict and its values. Each
--- reply is checked before use, because policies may be custom and proxies may
--- interfere. The error for a malformed one names the place in the policy's
--- file.

local naming = require "rlock.naming"

local verdicts = {}

-- Operation -> its verdicts -> the type of their value; true: none, or a token.
local words = {
  acquire = { held = true, busy = "number", lost = true, refused = "string" },
  renew = { held = true, lost = true },
  refresh = { busy = "number" },
  release = { freed = true, kept = true, lost = true },
  break_ = { freed = true, free = true, refused = "string" },
  peek = { held = true, free = true },
}

-- The same, for messages.
local wanted = {
  acquire = '"held", { "held", token }, { "busy", milliseconds }, '
    .. '{ "refused", "why" } or, if more than one hold is wanted, "lost"',
  renew = '"held" or "lost"',
  refresh = '{ "busy", milliseconds, owner, ... }',
  release = '"freed" when no hold is wanted, else "kept"; or "lost"',
  break_ = '"freed", "free" or { "refused", "why" }',
  peek = '{ "held", milliseconds, count of this owner, '
    .. '{ owner, count, ... } }, or the same with "free"',
}

---@type function
local show

local function show_all(list)
  local parts = {}
  for i = 1, math.min(#list, 4) do parts[i] = show(list[i]) end
  if #list > 4 then parts[5] = "..." end
  return #parts > 0 and "{ " .. table.concat(parts, ", ") .. " }" or "{}"
end

function show(value)
  if type(value) == "table" then return show_all(value) end
  if type(value) ~= "string" then return tostring(value or "nothing") end
  if #value > 40 then value = value:sub(1, 37) .. "..." end
  return '"' .. naming.printable(value) .. '"'
end

--- The error for a malformed reply.
---@param op table the result of script.compile
---@param must? string the replies allowed; default: those of a lock
---@return nil
---@return string # "redis"
---@return string detail
function verdicts.wrong(op, reply, must)
  return nil, "redis", ("%s: answered %s; it must answer %s"):format(op.where,
    show(reply), must or wanted[op.op])
end

local LONGEST = 256      -- bytes of a text in a reply to a driver

local TYPES = { n = "number", s = "string", t = "table" }

-- Formats shapes for messages: { "busy", number } or { "held" }
local function show_shapes(shapes)
  local parts = {}
  for word, shape in pairs(shapes) do
    parts[#parts + 1] = ('{ "%s"%s }'):format(word,
      (shape:gsub(".", function(letter) return ", " .. TYPES[letter] end)))
  end
  table.sort(parts)
  return table.concat(parts, " or ")
end

--- Checks the reply of an operation that a driver calls.
---@param op table the result of script.compile
---@param reply any from Redis
---@param shapes table verdict -> the types of its values, one letter each: n
---  for a number, s for a string, t for a table
---@return table? # the reply; strings without control characters, for messages
---@return string? code # "redis"
---@return string? detail
function verdicts.shaped(op, reply, shapes)
  if type(reply) == "string" then reply = { reply } end    -- a verdict alone
  local shape = type(reply) == "table" and shapes[reply[1]]
  for i = 1, shape and #shape or 0 do
    local item = reply[i + 1]
    if type(item) ~= TYPES[shape:sub(i, i)] then shape = nil break end
    if type(item) == "string" then
      reply[i + 1] = naming.printable(item:sub(1, LONGEST))
    end
  end
  if shape then return reply end
  return verdicts.wrong(op, reply, show_shapes(shapes))
end

--- The verdict of a reply, checked.
---@param op table the result of script.compile
---@param reply any from Redis
---@return string? # the verdict
---@return any # its value: a token, milliseconds, a reason; "redis"
---@return string? detail
function verdicts.of(op, reply)
  local word, value = reply, nil
  if type(reply) == "table" then word, value = reply[1], reply[2] end
  local kind = words[op.op][word]
  if kind == true then
    if value == nil then return word end
    kind = type(value) ~= "table"
  else
    kind = kind and type(value) == kind
  end
  if not kind then return verdicts.wrong(op, reply) end
  if word == "refused" then value = naming.printable(value) end
  return word, value
end

-- Is this nil, or a list of alternating names and values?
local function is_flat(list)
  if not list then return true end
  if type(list) ~= "table" then return false end
  for i = 1, #list, 2 do
    if type(list[i]) ~= "string" then return false end
  end
  return true
end

local function is_number(value) return type(value) == "number" end

local function are_texts(list)
  if type(list) ~= "table" then return false end
  for _, text in ipairs(list) do
    if type(text) ~= "string" then return false end
  end
  return true
end

-- What a field that is used here must be, if there is one.
local fields = { token = is_number, queue = are_texts, identities = are_texts }

-- Are these the further fields of a state?
local function are_fields(list)
  if not is_flat(list) then return false end
  for i = 1, list and #list or 0, 2 do
    local is_fit, value = fields[list[i]], list[i + 1]
    if is_fit and value and not is_fit(value) then return false end
  end
  return true
end

--- Checks a reply of `peek`.
---@return any ... # as verdicts.of
function verdicts.of_peek(op, reply)
  if type(reply) ~= "table" or type(reply[2]) ~= "number"
      or type(reply[3]) ~= "number" or not is_flat(reply[4])
      or not are_fields(reply[5]) then
    return verdicts.wrong(op, reply)
  end
  return verdicts.of(op, reply)
end

--- What "busy" means, for messages.
---@param ms any milliseconds, a number; its value
function verdicts.busy(ms)
  return "held by another owner"
    .. (ms > 0 and (" for %.1f s more"):format(ms / 1000) or "")
end

return verdicts
