--- What the operations of a policy answer: a verdict, and what goes with it.
--  A policy may be anybody's, so the answer is looked at before it is believed;
--  one that is wrong is told with the place in the policy's file.

local answer = {}

local function set(...)
  local result = {}
  for _, word in ipairs { ... } do result[word] = true end
  return result
end

-- Operation -> its verdicts.
local words = {
  acquire = set("held", "busy", "lost", "refused"),
  renew = set("held", "lost"),
  release = set("freed", "kept", "lost"),
  break_ = set("freed", "free", "refused"),
  peek = set("held", "free"),
}

-- The same, for people.
local wanted = {
  acquire = '{ "held" }, { "held", token }, { "busy", milliseconds }, '
    .. '{ "refused", "why" } or, to who wants more than one hold, { "lost" }',
  renew = '{ "held" } or { "lost" }',
  release = '{ "freed" } when no hold is wanted, else { "kept" }; or '
    .. '{ "lost" }',
  break_ = '{ "freed" }, { "free" } or { "refused", "why" }',
  peek = '{ "held", milliseconds, how often the asker has it, '
    .. '{ owner, count, ... } }, or the same with "free"',
}

-- Verdict -> the type of what comes with it.
local second = { busy = "number", refused = "string" }

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
  return '"' .. value:gsub("%c", "?") .. '"'
end

--- What is told of a wrong answer.
-- @tparam table op what script.compile gave
-- @param reply
-- @treturn nil
-- @treturn string "redis"
-- @treturn string detail
function answer.wrong(op, reply)
  return nil, "redis", ("%s: answered %s; it must answer %s"):format(op.where,
    show(reply), wanted[op.op])
end

--- The verdict of an answer.
-- @tparam table op what script.compile gave
-- @param reply     as Redis gave it
-- @treturn[1] string the verdict
-- @return[1] what comes with it: a token, milliseconds, a reason
-- @treturn[2] nil, "redis", detail
function answer.of(op, reply)
  local word, value = reply, nil
  if type(reply) == "table" then word, value = reply[1], reply[2] end
  local kind = second[word]
  if not words[op.op][word] or kind and type(value) ~= kind
      or type(value) == "table" then
    return answer.wrong(op, reply)
  end
  return word, value
end

--- Is it an answer of `peek`?
-- @return as answer.of
function answer.of_peek(op, reply)
  if type(reply) ~= "table" or type(reply[2]) ~= "number"
      or type(reply[3]) ~= "number" or type(reply[4] or {}) ~= "table" then
    return answer.wrong(op, reply)
  end
  return answer.of(op, reply)
end

return answer
