--- LMPOP and ZMPOP: they pop from the first of several keys that exists.

local arguments = require "rlockctl.model.commands.arguments"

local pops = {}

local NO_COUNT = "ERR count should be greater than 0"

-- The keys of a command, the word after them, which is in `sides`, and COUNT.
local function read(words, sides)
  local n, i = arguments.numbered_keys(words, 2,
    "ERR numkeys should be greater than 0")
  if n > #words - 3 then arguments.syntax() end
  ---@type any, any
  local side, count = words[i]:lower(), nil
  if not sides[side] then arguments.syntax() end
  for at = i + 1, #words, 2 do
    if count or words[at]:lower() ~= "count" or not words[at + 1] then
      arguments.syntax()
    end
    count = arguments.positive(words[at + 1], NO_COUNT)
    if count == 0 then arguments.fail(NO_COUNT) end
  end
  return { table.unpack(words, 3, i - 1) }, side, count or 1
end

-- The first of some keys that exists.
local function first(server, keys, kind)
  for _, key in ipairs(keys) do
    if server:entry(key, kind) then return key end
  end
end

-- Pops from a key by a command whose name depends on the side.
local function pop(kind, names, format)
  return { -4, function(server, words)
    local keys, side, count = read(words, names)
    local key = first(server, keys, kind)
    if not key then return false end
    return { key, format(server:call { names[side], key,
      ("%d"):format(count) }) }
  end }
end

pops.lmpop = pop("list", { left = "lpop", right = "rpop" }, function(items)
  return items
end)

pops.zmpop = pop("zset", { min = "zpopmin", max = "zpopmax" }, function(list)
  local pairs_of = {}
  for i = 1, #list, 2 do
    pairs_of[#pairs_of + 1] = { list[i], list[i + 1] }
  end
  return pairs_of
end)

return pops
