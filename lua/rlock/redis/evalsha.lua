--- The words of EVALSHA.

local NUMBER = {}
for i = 1, 99 do NUMBER[i] = ("%d"):format(i) end

--- Writes the words of an EVALSHA: the keys, the arguments up to the first nil,
--- then those of the table `extra`.
---@param words table gets them
---@param sha string
---@param keys table at most 99
---@param a any arguments
---@param extra? table
---@return integer # the number of words
local function evalsha(words, sha, keys, a, b, c, d, extra)
  local n = #keys
  words[1], words[2], words[3] = "EVALSHA", sha, NUMBER[n]
  for i = 1, n do words[3 + i] = keys[i] end
  n = n + 3
  if a then n = n + 1 words[n] = a end
  if b then n = n + 1 words[n] = b end
  if c then n = n + 1 words[n] = c end
  if d then n = n + 1 words[n] = d end
  if extra then
    for i = 1, #extra do words[n + i] = extra[i] end
    n = n + #extra
  end
  return n
end

return evalsha
