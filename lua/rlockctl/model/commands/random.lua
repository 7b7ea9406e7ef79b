--- Commands that choose random elements of a set, hash or sorted set.

local arguments = require "rlockctl.model.commands.arguments"

local random = {}

local MOST = math.maxinteger

-- The elements of a key, sorted; nil if there is no such key.
local function names_of(server, key, kind)
  local entry = server:entry(key, kind)
  return entry and arguments.sorted(entry.value), entry and entry.value
end

-- Moves `n` different random names to the front.
local function shuffle(choose, names, n)
  n = math.min(n, #names)
  for i = 1, n do
    local other = i - 1 + choose(#names - i + 1)
    names[i], names[other] = names[other], names[i]
  end
  return table.move(names, 1, n, 1, {})
end

-- The names that a count chooses: different ones, or any if it is negative.
local function chosen(choose, names, count)
  if count >= 0 then return shuffle(choose, names, count) end
  if count < -1000000 then arguments.lacks "counts below -1000000" end
  local list = {}
  for i = 1, -count do list[i] = names[choose(#names)] end
  return list
end

local function read_count(words, most)
  local count = arguments.integer(words[3])
  if count < -most or count > most then
    arguments.fail(most == MOST and ("ERR value is out of range, value must "
      .. "between %d and %d"):format(-most, most)
      or "ERR value is out of range")
  end
  return count
end

random.spop = { -2, function(server, words)
  local choose = arguments.random(server, words)
  if #words > 3 then arguments.syntax() end
  local count = words[3] and arguments.positive(words[3])
  local names = names_of(server, words[2], "set")
  if not names then return count and {} or false end
  local list = shuffle(choose, names, count or 1)
  arguments.remove(server, words[2], "set", list)
  return count and list or list[1]
end }

random.srandmember = { -2, function(server, words)
  local choose = arguments.random(server, words)
  if #words > 3 then arguments.syntax() end
  local count = words[3] and read_count(words, MOST)
  local names = names_of(server, words[2], "set")
  if not names then return count and {} or false end
  if not count then return names[choose(#names)] end
  return chosen(choose, names, count)
end }

-- `option` adds what the names have to the reply, as `show` shows it.
local function pick(kind, option, show)
  return { -2, function(server, words)
    local choose = arguments.random(server, words)
    local is_full = words[4] ~= nil
    local count = words[3] and read_count(words, MOST)
    if words[5] or is_full and words[4]:lower() ~= option then
      arguments.syntax()
    end
    if is_full then read_count(words, MOST // 2) end
    local names, value = names_of(server, words[2], kind)
    if not names then return count and {} or false end
    if not count then return names[choose(#names)] end
    local list = {}
    for _, name in ipairs(chosen(choose, names, count)) do
      list[#list + 1] = name
      if is_full then list[#list + 1] = show(value[name]) end
    end
    return list
  end }
end

random.hrandfield = pick("hash", "withvalues", function(value) return value end)
random.zrandmember = pick("zset", "withscores", arguments.show)

return random
