--- Splits a request that runs an operation for many owners (script.batched)
--- into one request for each owner.

local batched = {}

local unpack = table.unpack

local known = {}                        -- script -> the result of `is`

--- Does this script run an operation for many owners?
function batched.is(text)
  local result = known[text]
  if result == nil and text then
    result = text:find("^%-%- rlock [^\n]* batched\n") ~= nil
    known[text] = result
  end
  return result
end

--- The keys and arguments of each owner.
---@param keys table KEYS of the script
---@param args table its ARGV
---@return table # list of { keys =, args = }
function batched.parts(keys, args)
  local width = tonumber(args[1]) --[[@as integer]]
  local shared = tonumber(args[2]) --[[@as integer]]
  local parts = {}
  for i = 1, #keys // width do
    parts[i] = {
      keys = { unpack(keys, (i - 1) * width + 1, i * width) },
      args = { args[shared + 2 + i], unpack(args, 3, shared + 2) },
    }
  end
  return parts
end

--- The keys and arguments of each owner in an EVALSHA command.
function batched.parts_of(words)
  local n = 3 + tonumber(words[3]) --[[@as integer]]
  return batched.parts({ unpack(words, 4, n) }, { unpack(words, n + 1) })
end

--- The parts whose reply is "held".
---@param parts table
---@param reply any the script's
function batched.held(parts, reply)
  local list, others = {}, {}
  for i = 2, #reply do others[reply[i]] = true end
  for i = 1, reply[1] or 0 do
    if not others[i] then list[#list + 1] = parts[i] end
  end
  return list
end

return batched
