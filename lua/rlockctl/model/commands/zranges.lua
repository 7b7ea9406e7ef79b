--- Ranges of sorted sets: by rank, by score and by name.

local arguments = require "rlockctl.model.commands.arguments"

local integer, show = arguments.integer, arguments.show
local sorted = arguments.by_score

-- the members of a range ------------------------------------------------------

local function reversed(list)
  local result = {}
  for i = #list, 1, -1 do result[#result + 1] = list[i] end
  return result
end

-- Each kind of range has: read(low, high), which parses the two bounds, and
-- select(members, scores, low, high), which returns those between.
local by_rank, by_score, by_name = {}, {}, {}

function by_rank.read(low, high) return integer(low), integer(high) end

function by_rank.select(members, _, low, high)
  local first, last = arguments.range(low, high, #members)
  return table.move(members, first, last, 1, {})
end

local function read_bound(text)
  local value, is_excluded = arguments.bound(text)
  return { value = value, is_excluded = is_excluded }
end

function by_score.read(low, high) return read_bound(low), read_bound(high) end

function by_score.select(members, scores, low, high)
  local found = {}
  for _, member in ipairs(members) do
    local score, min, max = scores[member], low.value, high.value
    if (score > min or score == min and not low.is_excluded)
        and (score < max or score == max and not high.is_excluded) then
      found[#found + 1] = member
    end
  end
  return found
end

local function read_name(text)
  if text == "-" or text == "+" then return { is_end = text } end
  local sign = text:sub(1, 1)
  if sign ~= "[" and sign ~= "(" then
    arguments.fail "ERR min or max not valid string range item"
  end
  return { value = text:sub(2), is_excluded = sign == "(" }
end

function by_name.read(low, high) return read_name(low), read_name(high) end

-- Is a name on the inner side of a bound? `sign` is "-" for the lower one.
local function is_inside(name, bound, sign)
  if bound.is_end then return bound.is_end == sign end
  if name == bound.value then return not bound.is_excluded end
  return (name > bound.value) == (sign == "-")
end

function by_name.select(members, scores, low, high)
  local found = {}
  for _, member in ipairs(members) do
    if scores[member] ~= scores[members[1]] then
      arguments.lacks "ranges by name of members with different scores"
    elseif is_inside(member, low, "-") and is_inside(member, high, "+") then
      found[#found + 1] = member
    end
  end
  return found
end

-- options ---------------------------------------------------------------------

local OPTIONS = { withscores = true, byscore = true, bylex = true, rev = true }
local OF_STORE = { byscore = true, bylex = true, rev = true }
local LEGACY = { withscores = true }

-- WITHSCORES, LIMIT offset count and, if `known` has them, BYSCORE, BYLEX, REV.
local function options_of(words, known)
  ---@type any, integer
  local options, i = {}, 5
  while words[i] do
    ---@type any
    local option = words[i]:lower()
    if option == "limit" and words[i + 2] then
      options.offset = integer(words[i + 1])
      options.limit = integer(words[i + 2])
      i = i + 2
    elseif known[option] then
      options[option] = true
    else
      arguments.syntax()
    end
    i = i + 1
  end
  return options
end

local function check(options, by)
  if by == by_rank and options.limit and options.limit ~= -1 then
    arguments.fail("ERR syntax error, LIMIT is only supported in combination "
      .. "with either BYSCORE or BYLEX")
  elseif by == by_name and options.withscores then
    arguments.fail("ERR syntax error, WITHSCORES not supported in combination "
      .. "with BYLEX")
  end
end

local function limited(members, options)
  ---@type any, any
  local offset, limit = options.offset, options.limit
  if offset < 0 or offset >= #members then return {} end
  ---@type any
  local last = #members
  if limit >= 0 and limit < last - offset then last = offset + limit end
  return table.move(members, offset + 1, last, 1, {})
end

-- The reply: members, and their scores if wanted.
local function with_scores(members, scores)
  local list = {}
  for _, member in ipairs(members) do
    list[#list + 1] = member
    list[#list + 1] = show(scores[member])
  end
  return list
end

-- commands --------------------------------------------------------------------

--- Adds the commands of ranges.
---@param zsets table the commands
---@param scores_of function of a key
---@param remove function removes members of a key
return function(zsets, scores_of, remove)
  ---@return table # members
  ---@return table # the scores of all
  local function select(server, words, by, options, is_reverse)
    check(options, by)
    local one, two = words[3], words[4]
    if is_reverse and by ~= by_rank then one, two = two, one end
    local low, high = by.read(one, two)
    local scores = scores_of(server, words[2])
    local members = sorted(scores)
    if is_reverse and by == by_rank then members = reversed(members) end
    local found = by.select(members, scores, low, high)
    if is_reverse and by ~= by_rank then found = reversed(found) end
    if options.limit and by ~= by_rank then found = limited(found, options) end
    return found, scores
  end

  local function range(server, words, by, options, is_reverse)
    local found, scores = select(server, words, by, options, is_reverse)
    return options.withscores and with_scores(found, scores) or found
  end

  local function legacy(by, is_reverse)
    return { -4, function(server, words)
      return range(server, words, by, options_of(words, LEGACY), is_reverse)
    end }
  end

  zsets.zrevrange = legacy(by_rank, true)
  zsets.zrangebyscore = legacy(by_score)
  zsets.zrevrangebyscore = legacy(by_score, true)
  zsets.zrangebylex = legacy(by_name)
  zsets.zrevrangebylex = legacy(by_name, true)

  -- The options of ZRANGE, and what they select by.
  local function read(words, known)
    local options = words[5] and options_of(words, known) or {}
    if options.byscore and options.bylex then
      arguments.lacks "ZRANGE with BYSCORE and BYLEX"
    end
    return options, options.byscore and by_score or options.bylex and by_name
      or by_rank
  end

  zsets.zrange = { -4, function(server, words)
    local options, by = read(words, OPTIONS)
    return range(server, words, by, options, options.rev)
  end }

  zsets.zrangestore = { -5, function(server, words)
    local own, result = { words[1], table.unpack(words, 3) }, {}
    local options, by = read(own, OF_STORE)
    local found, scores = select(server, own, by, options, options.rev)
    for _, member in ipairs(found) do result[member] = scores[member] end
    return arguments.replace(server, words[2], "zset", result)
  end }

  -- The members between two bounds.
  local function between(server, words, by)
    local low, high = by.read(words[3], words[4])
    local scores = scores_of(server, words[2])
    return by.select(sorted(scores), scores, low, high)
  end

  local function count(by)
    return { 4, function(server, words)
      return #between(server, words, by) + 0.0
    end }
  end

  zsets.zcount, zsets.zlexcount = count(by_score), count(by_name)

  local function remove_range(by)
    return { 4, function(server, words)
      return remove(server, words[2], between(server, words, by))
    end }
  end

  zsets.zremrangebyscore = remove_range(by_score)
  zsets.zremrangebyrank = remove_range(by_rank)
  zsets.zremrangebylex = remove_range(by_name)
end
