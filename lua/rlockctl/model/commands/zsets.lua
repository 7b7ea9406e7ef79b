--- Commands of sorted sets: member -> score. For ranges see zranges.lua.

local arguments = require "rlockctl.model.commands.arguments"

local zsets = {}

local double, show = arguments.double, arguments.show
local sorted = arguments.by_score
local NONE = {}

local function scores_of(server, key)
  local entry = server:entry(key, "zset")
  return entry and entry.value or NONE
end

local function remove(server, key, members)
  return arguments.remove(server, key, "zset", members)
end

zsets.zcard = { 2, function(server, words)
  return arguments.size(scores_of(server, words[2]))
end }

zsets.zscore = { 3, function(server, words)
  local score = scores_of(server, words[2])[words[3]]
  return score and show(score) or false
end }

zsets.zmscore = { -3, function(server, words)
  local scores, list = scores_of(server, words[2]), {}
  for i = 3, #words do
    local score = scores[words[i]]
    list[i - 2] = score and show(score) or false
  end
  return list
end }

local function rank(is_reverse)
  return { -3, function(server, words)
    if words[4] then arguments.lacks(words[1]:upper() .. " with WITHSCORE") end
    local scores = scores_of(server, words[2])
    if not scores[words[3]] then return false end
    local members = sorted(scores)
    for i, member in ipairs(members) do
      if member == words[3] then
        return (is_reverse and #members - i or i - 1) + 0.0
      end
    end
  end }
end

zsets.zrank, zsets.zrevrank = rank(false), rank(true)

-- writing ---------------------------------------------------------------------

local FLAGS = { nx = true, xx = true, gt = true, lt = true, ch = true,
  incr = true }

-- Do the flags permit this score?
local function permits(flags, before, after)
  if flags.nx and before or flags.xx and not before then return false end
  if before and flags.gt then return after > before end
  if before and flags.lt then return after < before end
  return true
end

--- Adds one member.
---@return any ... # whether it counts in the reply, and its score or false
local function add_one(scores, flags, member, score)
  local before = scores[member]
  if flags.nx and before then return 0, false end
  if flags.incr and before then score = before + score end
  if score ~= score then
    arguments.fail "ERR resulting score is not a number (NaN)"
  end
  if not permits(flags, before, score) then return 0, false end
  scores[member] = score + 0.0           -- no -0: small sets do not keep it
  local is_changed = before == nil or flags.ch and before ~= score
  return is_changed and 1 or 0, score
end

local function check_flags(flags, elements)
  if elements % 2 ~= 0 or elements <= 0 then arguments.syntax() end
  if flags.nx and flags.xx then
    arguments.fail("ERR XX and NX options at the same time are not compatible")
  elseif flags.nx and (flags.gt or flags.lt) or flags.gt and flags.lt then
    arguments.fail("ERR GT, LT, and/or NX options at the same time are not "
      .. "compatible")
  elseif flags.incr and elements > 2 then
    arguments.fail "ERR INCR option supports a single increment-element pair"
  end
end

-- The flags of ZADD, and the members with their scores. ZINCRBY is ZADD INCR.
local function elements_of(words)
  local flags, list, i = { incr = words[1]:lower() == "zincrby" }, {}, 3
  while words[i] and FLAGS[words[i]:lower()] do
    flags[words[i]:lower()], i = true, i + 1
  end
  check_flags(flags, #words - i + 1)
  for at = i, #words, 2 do
    list[#list + 1] = { words[at + 1], double(words[at]) }
  end
  return flags, list
end

local function add(server, words)
  local flags, list = elements_of(words)
  local count, score = 0.0, false
  if flags.xx and not server:entry(words[2], "zset") then
    return not flags.incr and 0.0
  end
  local scores = server:change(words[2], "zset", {}).value
  for _, element in ipairs(list) do
    local n
    n, score = add_one(scores, flags, element[1], element[2])
    count = count + n
  end
  if flags.incr then return score and show(score) end
  return count
end

zsets.zadd, zsets.zincrby = { -4, add }, { 4, add }

zsets.zrem = { -3, function(server, words)
  return remove(server, words[2], table.move(words, 3, #words, 1, {}))
end }

local function pop(is_highest)
  return { -2, function(server, words)
    if #words > 3 then arguments.syntax() end
    local count = words[3] and arguments.positive(words[3]) or 1
    local scores, reply = scores_of(server, words[2]), {}
    local members, popped = sorted(scores), {}
    for i = 1, math.min(count, #members) do
      popped[i] = members[is_highest and #members - i + 1 or i]
      reply[i * 2 - 1], reply[i * 2] = popped[i], show(scores[popped[i]])
    end
    remove(server, words[2], popped)
    return reply
  end }
end

zsets.zpopmin, zsets.zpopmax = pop(false), pop(true)

require "rlockctl.model.commands.zranges" (zsets, scores_of, remove)

zsets.zscan = { -3, function(server, words)
  return arguments.scan(server, words, "zset", function(list, member, score)
    list[#list + 1], list[#list + 2] = member, show(score)
  end)
end }

return zsets
