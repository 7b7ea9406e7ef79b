--- Transcripts of a policy's operations on the model of Redis: their replies,
--- their messages, and the contents of the keys, at exact times.
---
---   transcript.check("reentrant", [[
---     0 acquire A 1000 1 -> held
---     400 acquire B 1000 1 -> busy 600
---     400 keys -> lock {A=1}, until 1000 lock
---     500 release A 1000 0 publish -> freed, sent channel=0
---   ]])
---
--- A line has the time in milliseconds, an operation and its arguments, then
--- the result. The operations of a policy with two sides are read.acquire,
--- write.acquire and so on. Other operations are `keys`, commands of Redis in
--- capitals, and `listen OWNER N`, which sets the number of subscribers of the
--- owner's channel. "-" is an empty argument; in commands, "@" is the name in
--- braces, and "+500" a time. In results, times are relative to 0, and keys and
--- channels lack the name, and locks the mark of a fair one; "t300+10" is 300
--- times 1024 plus 10, "p300" is in microseconds; "s:" precedes the channel of
--- SPUBLISH. "1,W*2" stands for 1 W1 1 W2; ".." continues a line.
---
--- `keys` shows what has changed since the last `keys`: keys and fields that
--- are new or have another value, those that are gone with a "-", and after
--- "until" the keys that expire at another time, 0 for never. `cost` before an
--- operation shows how many commands it calls, instead of its result.

local policy = require "rlock.policy"
local redis = require "rlockctl.model.redis"
local sorted = require "rlock.util.sorted"

local transcript = {}

local START = 1700000000000             -- ms
local NEAR = 100000000                  -- ms: what is a time
local NAME = "lock"
local SHOWN = 8                         -- messages, at most

local function sides_of(name)
  local definition = require("rlock.policy." .. name)
  if definition.server then return { [""] = policy.load(definition) } end
  return {
    read = policy.load(definition.read), write = policy.load(definition.write),
  }
end

-- showing ---------------------------------------------------------------------

local function near(n, unit) return math.abs(n / unit - START) < NEAR end

local function show_number(digits)
  local n = math.tointeger(tonumber(digits))
  if not n then return digits end
  if near(n, 1) then return tostring(n - START) end
  if near(n, 1000) then return "p" .. n - START * 1000 end
  if near(n, 1024) then
    return ("t%d+%d"):format(n // 1024 - START, n % 1024)
  end
  return digits
end

local function show(value)
  if type(value) ~= "table" then
    if type(value) == "number" then value = ("%.14g"):format(value) end
    return (tostring(value):gsub("%d+", show_number))
  end
  if value.err then return "error " .. value.err:sub(1, 20) end
  local words = {}
  for i, item in ipairs(value) do
    words[i] = type(item) == "table" and "[" .. show(item) .. "]" or show(item)
  end
  return value.ok or table.concat(words, " ")
end

-- Without the name of the lock and what precedes the last word.
local function short(key)
  key = key:gsub(":?{" .. NAME .. "}", ""):gsub("^[%a_]*_(%a+)", "%1")
  return key
end

-- The fields of a value; a string or a list is one.
local function fields_of(entry)
  if entry.kind == "string" then return { [""] = show(entry.value) } end
  if entry.kind == "list" then return { [""] = "(" .. show(entry.value) .. ")" }
  end
  local fields = {}
  for field, value in pairs(entry.value) do
    if type(value) == "number" then value = ("%.0f"):format(value) end
    if field ~= "" or value ~= "0" then     -- the mark of each fair lock
      fields[show(field) .. "="] = show(value)
    end
  end
  return fields
end

-- What differs between two tables of texts, as words.
local function changes(before, after)
  local both, words = {}, {}
  for field in pairs(before) do both[field] = true end
  for field in pairs(after) do both[field] = true end
  for _, field in ipairs(sorted(both)) do
    if not after[field] then
      words[#words + 1] = "-" .. field:gsub("=$", "")
    elseif after[field] ~= before[field] then
      words[#words + 1] = field .. after[field]
    end
  end
  return table.concat(words, " ")
end

local GONE = { fields = {}, expires = "0" }

local function state_of(model)
  local state = {}
  for key in pairs(model.entries) do
    local entry = model:entry(key)
    if entry then
      state[short(key)] = { fields = fields_of(entry), kind = entry.kind,
        expires = entry.expires and show(entry.expires) or "0" }
    end
  end
  return state
end

-- How a key has changed, apart from its expiry; or nil.
local function show_change(key, was, is)
  if not is then return "-" .. key end
  local text = changes(was.fields, is.fields)
  if text == "" then return end
  local has_fields = is.kind == "hash" or is.kind == "zset"
  return key .. (has_fields and " {" .. text .. "}" or " " .. text)
end

-- The keys whose expiry has changed, by the new expiry.
local function show_expiries(before, after)
  local lists, words = {}, {}
  for _, key in ipairs(sorted(after)) do
    local expires = after[key].expires
    if expires ~= (before[key] or GONE).expires then
      lists[expires] = (lists[expires] or "") .. " " .. key
    end
  end
  for _, expires in ipairs(sorted(lists)) do
    words[#words + 1] = "until " .. expires .. lists[expires]
  end
  return words
end

local function show_keys(self)
  local before, after, both, words = self.shown, state_of(self.model), {}, {}
  self.shown = after
  for key in pairs(before) do both[key] = true end
  for key in pairs(after) do both[key] = true end
  for _, key in ipairs(sorted(both)) do
    words[#words + 1] = show_change(key, before[key] or GONE, after[key])
  end
  for _, text in ipairs(show_expiries(before, after)) do
    words[#words + 1] = text
  end
  return not next(after) and "none" or words[1] and table.concat(words, ", ")
    or "same"
end

-- running ---------------------------------------------------------------------

-- "1,W*2" is 1 W1 1 W2.
local function add_many(words, what, n)
  for i = 1, n do
    for word in (what .. i):gmatch "[^,]+" do words[#words + 1] = word end
  end
end

local function words_of(line)
  local words = {}
  for word in line:gmatch("%S+") do
    local what, n = word:match("^(.-)%*(%d+)$")
    if what then
      add_many(words, what, tonumber(n))
    else
      words[#words + 1] = word == "-" and "" or word
    end
  end
  return words
end

local function operate(self, words)
  local side, name = words[1]:match("^(%a*)%.?([%a_]+)$")
  if not self.sides[side] then side, name = "", words[1] end
  local its = self.sides[side]
  local op = assert(its.ops[name], words[1])
  return show(self.model:eval(op.text, its.keys(NAME),
    { table.unpack(words, 2) }))
end

local function listen(self, owner, n)
  for _, its in pairs(self.sides) do
    self.model.listeners[its.channel(its.keys(NAME), owner)] = tonumber(n)
  end
end

local function sent(self)
  local words, all = {}, self.model.sent
  for i = 1, math.min(#all, SHOWN) do
    words[i] = (all[i][3] and "s:" or "") .. short(all[i][1]) .. "="
      .. all[i][2]
  end
  if #all > SHOWN then
    words[SHOWN] = ("and %d more"):format(#all - SHOWN + 1)
  end
  self.model.sent = {}
  return words[1] and ", sent " .. table.concat(words, " ") or ""
end

local function cost(self, words)
  local n, find = 0, self.model.find
  function self.model.find(...)
    n = n + 1
    return find(...)
  end
  operate(self, words)
  self.model.find, self.model.sent = nil, {}
  return n
end

local function run(self, line)
  local at, rest = line:match("^(%d+) (.*)$")
  self.model.now = (START + tonumber(at)) * 1000
  local words = words_of(rest)
  if words[1] == "cost" then return cost(self, { table.unpack(words, 2) }) end
  if words[1] == "keys" then return show_keys(self) end
  if words[1] == "listen" then
    return listen(self, words[2], words[3])
  elseif words[1]:find "^%u+$" then
    for i, word in ipairs(words) do
      words[i] = word:gsub("@", "{" .. NAME .. "}")
        :gsub("%+(%d+)$", function(ms) return ("%d"):format(START + ms) end)
    end
    return show(self.model:call(words))
  end
  return operate(self, words) .. sent(self)
end

--- Runs the lines of a transcript, and completes them.
---@param name string of a built-in policy
---@param text string
---@return string
function transcript.run(name, text)
  local self = { model = redis.new(), sides = sides_of(name), shown = {} }
  local lines = {}
  for line in text:gmatch("[^\n]+") do
    local call = line:match("^%s*(%d+ .-)%s*$")
    if call then
      call = call:match("^(.-) %->") or call
      local result = run(self, call)
      lines[#lines + 1] = result and call .. " -> " .. result or call
    end
  end
  return table.concat(lines, "\n")
end

--- Fails unless the results match the text.
function transcript.check(name, text)
  text = text:gsub("\n +%.%. ", " "):gsub("\n +", "\n"):gsub("^ +", "")
  text = text:gsub("%s+$", "")
  local got = transcript.run(name, text)
  if got ~= text then
    error(("expected:\n%s\ngot:\n%s"):format(text, got), 2)
  end
end

--- Returns a function that defines a test: (title, text).
---@param it function of busted
---@param name string of a built-in policy
function transcript.tests(it, name)
  return function(title, text)
    it(title, function() transcript.check(name, text) end)
  end
end

return transcript
