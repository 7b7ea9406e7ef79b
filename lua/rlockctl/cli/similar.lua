--- Finds the word that was probably meant.

local sorted = require "rlock.util.sorted"

local min = math.min

-- The number of letters to change, add or remove (Levenshtein).
local function distance(a, b)
  ---@type table<integer, any>
  local row = {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    ---@type any
    local diagonal = row[0]
    row[0] = i
    for j = 1, #b do
      local same = a:byte(i) == b:byte(j)
      diagonal, row[j] = row[j],
        min(same and diagonal or diagonal + 1, row[j] + 1, row[j - 1] + 1)
    end
  end
  return row[#b]
end

-- How much two words differ; a beginning of three letters differs little.
local function difference(word, other)
  local letters = word:gsub("^%-+", "")
  if #letters > 2 and other:sub(1, #word) == word then return 1 end
  return distance(word, other)
end

--- The most similar word, if one is similar.
---@param word string
---@param words table a set
---@return string?
return function(word, words)
  local best, least = nil, #word / 3 + 0.1
  for _, other in ipairs(sorted(words)) do
    local its = difference(word, other)
    if its < least then best, least = other, its end
  end
  return best
end
