--- Commands that combine sets or sorted sets, and those that store the result.

local arguments = require "rlockctl.model.commands.arguments"

local stores = {}

local fail, integer = arguments.fail, arguments.integer
local NONE = {}

-- combining -------------------------------------------------------------------

-- What is in all collections; `merge` joins what two have of a name.
local function intersection(all, merge)
  local result = {}
  for name, value in pairs(all[1]) do
    for i = 2, #all do
      local other = all[i][name]
      value = value ~= nil and other ~= nil and merge(value, other) or nil
    end
    result[name] = value
  end
  return result
end

local function union(all, merge)
  local result = {}
  for _, each in ipairs(all) do
    for name, value in pairs(each) do
      local before = result[name]
      result[name] = before == nil and value or merge(before, value)
    end
  end
  return result
end

local function difference(all)
  local result = {}
  for name, value in pairs(all[1]) do
    for i = 2, #all do
      if all[i][name] ~= nil then value = nil end
    end
    result[name] = value
  end
  return result
end

-- LIMIT of SINTERCARD and ZINTERCARD, from word `i` on; 0: none.
local function read_limit(words, i)
  local limit = 0
  while words[i] do
    if words[i]:lower() ~= "limit" or not words[i + 1] then
      arguments.syntax()
    end
    limit = arguments.positive(words[i + 1], "ERR LIMIT can't be negative")
    i = i + 2
  end
  return limit
end

local function counted(result, limit)
  local n = arguments.size(result)
  return limit > 0 and math.min(n, limit) + 0.0 or n
end

-- sets ------------------------------------------------------------------------

local function set_of(server, key)
  local entry = server:entry(key, "set")
  return entry and entry.value or NONE
end

local function sets_of(server, words, first, last)
  local all = {}
  for i = first, last do all[#all + 1] = set_of(server, words[i]) end
  return all
end

local function either(a) return a end

local function store_set(combine)
  return { -3, function(server, words)
    local all = sets_of(server, words, 3, #words)
    return arguments.replace(server, words[2], "set", combine(all, either))
  end }
end

stores.sinterstore = store_set(intersection)
stores.sunionstore = store_set(union)
stores.sdiffstore = store_set(difference)

stores.sintercard = { -3, function(server, words)
  local n, i = arguments.numbered_keys(words, 2,
    "ERR numkeys should be greater than 0")
  if n > #words - 2 then
    fail "ERR Number of keys can't be greater than number of args"
  end
  local limit = read_limit(words, i)
  local all = sets_of(server, words, 3, i - 1)
  return counted(intersection(all, either), limit)
end }

-- sorted sets -----------------------------------------------------------------

-- The scores of a sorted set, or those of a set, which are 1.
local function scores_of(server, key)
  local entry = server:entry(key)
  if not entry then return NONE end
  if entry.kind ~= "set" then return server:entry(key, "zset").value end
  local scores = {}
  for name in pairs(entry.value) do scores[name] = 1.0 end
  return scores
end

local MERGE = {
  sum = function(a, b)
    local score = a + b
    return score == score and score or 0.0
  end,
  min = math.min,
  max = math.max,
}

local READ = {}                   -- option -> function(options, words, i, n)

function READ.weights(options, words, i, n)
  if #words < i + n then arguments.syntax() end
  for j = 1, n do
    local ok, weight = pcall(arguments.double, words[i + j])
    if not ok then fail "ERR weight value is not a float" end
    options.weights[j] = weight
  end
  return i + n + 1
end

function READ.aggregate(options, words, i)
  options.merge = words[i + 1] and MERGE[words[i + 1]:lower()]
    or arguments.syntax()
  return i + 2
end

function READ.withscores(options, _, i)
  options.has_scores = true
  return i + 1
end

local function options_of(words, i, n, known)
  local options = { weights = {}, merge = MERGE.sum }
  while words[i] do
    local option = words[i]:lower()
    if not known[option] then arguments.syntax() end
    i = READ[option](options, words, i, n)
  end
  return options
end

local function weighted(scores, weight)
  if not weight then return scores end
  local result = {}
  for name, score in pairs(scores) do
    score = score * weight
    result[name] = score == score and score or 0.0
  end
  return result
end

-- The number of keys at word `i`, and their scores.
local function read_keys(server, words, i)
  local n = integer(words[i])
  if n < 1 then
    fail(("ERR at least 1 input key is needed for '%s' command"):format(
      words[1]:lower()))
  elseif n > #words - i then
    arguments.syntax()
  end
  local all = {}
  for j = 1, n do all[j] = scores_of(server, words[i + j]) end
  return n, all
end

-- Sorts collections by their sizes, as Redis does: sums depend on the order.
local function sort_by_size(all)
  local sizes, places = {}, {}
  for i, each in ipairs(all) do
    sizes[each], places[each] = arguments.size(each), places[each] or i
  end
  table.sort(all, function(a, b)
    if sizes[a] ~= sizes[b] then return sizes[a] < sizes[b] end
    return places[a] < places[b]
  end)
end

---@return table # name -> score
---@return table # options
local function combined(server, words, i, combine, known)
  local n, all = read_keys(server, words, i)
  local options = options_of(words, i + n + 1, n, known)
  for j = 1, n do all[j] = weighted(all[j], options.weights[j]) end
  if combine ~= difference then sort_by_size(all) end
  local result = combine(all, options.merge)
  for name, score in pairs(result) do result[name] = score + 0.0 end
  return result, options
end

local function store_scores(combine, known)
  return { -4, function(server, words)
    return arguments.replace(server, words[2], "zset",
      (combined(server, words, 3, combine, known)))
  end }
end

local function reply_scores(combine, known)
  return { -3, function(server, words)
    local scores, options = combined(server, words, 2, combine, known)
    local list = {}
    for _, name in ipairs(arguments.by_score(scores)) do
      list[#list + 1] = name
      if options.has_scores then
        list[#list + 1] = arguments.show(scores[name])
      end
    end
    return list
  end }
end

local STORED = { weights = true, aggregate = true }
local REPLIED = { weights = true, aggregate = true, withscores = true }

stores.zinterstore = store_scores(intersection, STORED)
stores.zunionstore = store_scores(union, STORED)
stores.zdiffstore = store_scores(difference, {})
stores.zinter = reply_scores(intersection, REPLIED)
stores.zunion = reply_scores(union, REPLIED)
stores.zdiff = reply_scores(difference, { withscores = true })

stores.zintercard = { -3, function(server, words)
  local n, all = read_keys(server, words, 2)
  local limit = read_limit(words, n + 3)
  return counted(intersection(all, MERGE.sum), limit)
end }

return stores
