--- Commands of sorted sets: member -> score.

local arguments = require "rlock.check.commands.arguments"

local zsets = {}

local integer, double, show =
  arguments.integer, arguments.double, arguments.show
local NONE = {}

local function scores_of(server, key)
  local entry = server:entry(key, "zset")
  return entry and entry.value or NONE
end

-- The members, by score and then by name.
local function sorted(scores)
  local members = {}
  for member in pairs(scores) do members[#members + 1] = member end
  table.sort(members, function(a, b)
    if scores[a] ~= scores[b] then return scores[a] < scores[b] end
    return a < b
  end)
  return members
end

zsets.zcard = { 2, function(server, words)
  return #sorted(scores_of(server, words[2])) + 0.0
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
  return { 3, function(server, words)
    local members = sorted(scores_of(server, words[2]))
    for i, member in ipairs(members) do
      if member == words[3] then
        return (is_reverse and #members - i or i - 1) + 0.0
      end
    end
    return false
  end }
end

zsets.zrank, zsets.zrevrank = rank(false), rank(true)

-- writing ---------------------------------------------------------------------

local FLAGS = { nx = true, xx = true, gt = true, lt = true, ch = true,
  incr = true }
local BAD_SCORE = "ERR value is not a valid float"

-- Does the flag (NX, XX, GT, LT) permit this score?
local function permits(flags, before, after)
  if flags.nx and before or flags.xx and not before then return false end
  if before and flags.gt then return after > before end
  if before and flags.lt then return after < before end
  return true
end

local function add_one(scores, flags, member, score)
  local before = scores[member]
  if flags.incr then score = (before or 0) + score end
  if score ~= score then
    arguments.fail "ERR resulting score is not a number (NaN)"
  end
  if not permits(flags, before, score) then return 0, false end
  scores[member] = score
  local is_new, is_changed = before == nil, before ~= nil and before ~= score
  return (is_new or flags.ch and is_changed) and 1 or 0, score
end

local function flags_of(words)
  local flags, i = {}, 3
  while words[i] and FLAGS[words[i]:lower()] do
    flags[words[i]:lower()], i = true, i + 1
  end
  if (#words - i + 1) % 2 ~= 0 or i > #words then arguments.syntax() end
  if flags.nx and (flags.xx or flags.gt or flags.lt)
      or flags.gt and flags.lt then
    arguments.fail("ERR GT, LT, and/or NX options at the same time are not "
      .. "compatible")
  end
  if flags.incr and #words - i + 1 > 2 then
    arguments.fail "ERR INCR option supports a single increment-element pair"
  end
  return flags, i
end

zsets.zadd = { -4, function(server, words)
  local flags, first = flags_of(words)
  local pairs_, count, last = {}, 0, false
  for i = first, #words, 2 do
    pairs_[#pairs_ + 1] = { words[i + 1], double(words[i], BAD_SCORE) }
  end
  if flags.xx and not server:entry(words[2], "zset") then
    return not flags.incr and 0.0
  end
  local scores = server:change(words[2], "zset", {}).value
  for _, pair in ipairs(pairs_) do
    local n
    n, last = add_one(scores, flags, pair[1], pair[2])
    count = count + n
  end
  server:tidy(words[2])
  if flags.incr then return last and show(last) end
  return count + 0.0
end }

zsets.zincrby = { 4, function(server, words)
  local amount = double(words[3], BAD_SCORE)
  local scores = server:change(words[2], "zset", {}).value
  local _, score = add_one(scores, { incr = true }, words[4], amount)
  return show(score)
end }

-- Removes members; replies with their number.
local function remove(server, key, members)
  local removed = 0.0
  for _, member in ipairs(members) do
    if scores_of(server, key)[member] then
      server:change(key, "zset").value[member] = nil
      removed = removed + 1
    end
  end
  server:tidy(key)
  return removed
end

zsets.zrem = { -3, function(server, words)
  return remove(server, words[2], table.move(words, 3, #words, 1, {}))
end }

-- ranges ----------------------------------------------------------------------

local BAD_BOUND = "ERR min or max is not a float"

local function bound(text)
  local is_exclusive = text:sub(1, 1) == "("
  return double(is_exclusive and text:sub(2) or text, BAD_BOUND), is_exclusive
end

-- The members with scores between two bounds, in order.
local function between(scores, low, high)
  local min, above = bound(low)
  local max, below = bound(high)
  local found = {}
  for _, member in ipairs(sorted(scores)) do
    local score = scores[member]
    if (score > min or score == min and not above)
        and (score < max or score == max and not below) then
      found[#found + 1] = member
    end
  end
  return found
end

local function reversed(list)
  local result = {}
  for i = #list, 1, -1 do result[#result + 1] = list[i] end
  return result
end

-- The reply: members, and their scores if wanted.
local function with_scores(members, scores, wants)
  if not wants then return members end
  local list = {}
  for _, member in ipairs(members) do
    list[#list + 1] = member
    list[#list + 1] = show(scores[member])
  end
  return list
end

-- WITHSCORES, LIMIT offset count, BYSCORE, REV.
local function range_options(words, from, known)
  local options, i = {}, from
  while words[i] do
    local option = words[i]:lower()
    if not known[option] then
      arguments.syntax()
    elseif option == "limit" then
      if not words[i + 2] then arguments.syntax() end
      options.offset, options.count =
        integer(words[i + 1]), integer(words[i + 2])
      i = i + 2
    end
    options[option], i = true, i + 1
  end
  return options
end

local function limited(members, options)
  if not options.limit then return members end
  if options.offset < 0 then return {} end
  local last = options.count < 0 and #members or options.offset + options.count
  return table.move(members, options.offset + 1, math.min(last, #members), 1,
    {})
end

local BY_RANK = { withscores = true }
local BY_SCORE = { withscores = true, limit = true }
local EITHER = { withscores = true, limit = true, byscore = true, rev = true }

local function by_rank(server, words, options, is_reverse)
  local first, last = integer(words[3]), integer(words[4])
  local scores = scores_of(server, words[2])
  local members = sorted(scores)
  if is_reverse then members = reversed(members) end
  first, last = arguments.range(first, last, #members)
  return with_scores(table.move(members, first, last, 1, {}), scores,
    options.withscores)
end

local function by_score(server, words, options, is_reverse)
  local low, high = words[3], words[4]
  if is_reverse then low, high = high, low end
  local scores = scores_of(server, words[2])
  local members = between(scores, low, high)
  if is_reverse then members = reversed(members) end
  return with_scores(limited(members, options), scores, options.withscores)
end

zsets.zrange = { -4, function(server, words)
  local options = range_options(words, 5, EITHER)
  if options.byscore then
    return by_score(server, words, options, options.rev)
  elseif options.limit then
    arguments.fail("ERR syntax error, LIMIT is only supported in combination "
      .. "with either BYSCORE or BYLEX")
  end
  return by_rank(server, words, options, options.rev)
end }

zsets.zrevrange = { -4, function(server, words)
  return by_rank(server, words, range_options(words, 5, BY_RANK), true)
end }

zsets.zrangebyscore = { -4, function(server, words)
  return by_score(server, words, range_options(words, 5, BY_SCORE), false)
end }

zsets.zrevrangebyscore = { -4, function(server, words)
  return by_score(server, words, range_options(words, 5, BY_SCORE), true)
end }

zsets.zcount = { 4, function(server, words)
  return #between(scores_of(server, words[2]), words[3], words[4]) + 0.0
end }

zsets.zremrangebyscore = { 4, function(server, words)
  return remove(server, words[2],
    between(scores_of(server, words[2]), words[3], words[4]))
end }

zsets.zremrangebyrank = { 4, function(server, words)
  local first, last = integer(words[3]), integer(words[4])
  local members = sorted(scores_of(server, words[2]))
  first, last = arguments.range(first, last, #members)
  return remove(server, words[2], table.move(members, first, last, 1, {}))
end }

local function pop(is_highest)
  return { -2, function(server, words)
    if #words > 3 then arguments.syntax() end
    local count = words[3] and integer(words[3]) or 1
    local scores = scores_of(server, words[2])
    local members = sorted(scores)
    if is_highest then members = reversed(members) end
    members = table.move(members, 1, math.min(count, #members), 1, {})
    local reply = with_scores(members, scores, true)
    remove(server, words[2], members)
    return reply
  end }
end

zsets.zpopmin, zsets.zpopmax = pop(false), pop(true)

return zsets
