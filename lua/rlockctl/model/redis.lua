--- A model of one Redis server: its keys, their expiry, its clock, and the
--- commands that scripts use (commands/). Replies have the form in which a
--- script sees them: numbers are floats, nil is false, errors are { err = }. An
--- unsupported command raises an error that names it; nothing is guessed. What
--- is random follows `random`, a function that returns a number in [0,1); a
--- server without it lacks the commands that need it.
---
--- Time stands still unless the caller moves `now`, in microseconds. A state is
--- cheap to keep: `fork` shares all entries with its origin, and an entry is
--- copied when it is first changed. A set in `touched` collects the names of
--- the keys that commands use.

local is_known = require "rlockctl.model.commands.is_known"
local eval = require "rlockctl.model.eval"
local sorted = require "rlock.util.sorted"
local values = require "rlockctl.model.lua51.values"

---@class rlockctl.model.redis
---@field now number
---@field entries table
---@field listeners table
---@field sent number
---@field token table
---@field turned any
---@field random any
---@field touched any
local redis = {}
redis.__index = redis

--- Command -> { arity, function(server, words, by_client) }; as in Redis, an
--- arity of -n means n words or more. `by_client` is true unless a script calls
--- it.
local commands = {}

local function load(modules)
  for _, module in ipairs(modules) do
    for name, command in pairs(require("rlockctl.model.commands." .. module)) do
      commands[name] = command
    end
  end
end

load { "keys", "strings", "hashes", "lists", "sets", "zsets", "general" }

-- Those that few locks use, loaded with the first name that is not above.
---@type string[]?
local rare = { "bits", "keyspace", "pops", "random", "scripts", "sorting",
  "stores", "streams" }

local function load_rare()
  if rare then load(rare) end
  rare = nil
end

local WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of "
  .. "value"

--- Creates an empty server.
---@return table
function redis.new()
  return setmetatable({
    now = 1700000000000000, entries = {}, listeners = {}, sent = {}, token = {},
  }, redis)
end

--- A copy of the server that changes independently.
function redis:fork()
  local entries = {}
  for key, entry in pairs(self.entries) do entries[key] = entry end
  self.token = {}                        -- it owns its entries no longer
  return setmetatable({
    now = self.now, entries = entries, listeners = self.listeners, sent = {},
    token = {}, turned = self.turned, random = self.random,
  }, redis)
end

-- entries ---------------------------------------------------------------------

--- The server's clock in whole milliseconds.
function redis:ms() return self.now // 1000 end

-- Prefixes texts with their lengths, so that different lists stay different
-- when they are joined.
local function marked(text) return #text .. " " .. text end

local MARKS = { string = "s", hash = "h", list = "l", set = "t", zset = "z",
  stream = "x" }

local function parts_of_stream(value)
  local parts = { value.last .. " " .. value.room }
  for i, item in ipairs(value) do
    local words = { item.id, value.node - item.node }
    for j, word in ipairs(item.words) do words[j + 2] = marked(word) end
    parts[i + 1] = #words .. " " .. table.concat(words, " ")
  end
  return parts
end

local function parts_of(entry)
  local value, parts = entry.value, {}
  if entry.kind == "list" then
    for i, item in ipairs(value) do parts[i] = marked(item) end
    return parts
  elseif entry.kind == "stream" then
    return parts_of_stream(value)
  end
  for i, field in ipairs(sorted(value)) do
    local item = value[field]
    if entry.kind == "zset" then item = ("%.17g"):format(item) end
    parts[i] = marked(field) .. (item == true and "" or marked(item))
  end
  return parts
end

-- The kind and value of an entry as text, kept until the entry changes.
local function text_of(entry)
  if not entry.text then
    local value = entry.kind == "string" and marked(entry.value)
      or table.concat(parts_of(entry), " ")
    entry.text = MARKS[entry.kind] .. value
  end
  return entry.text
end

--- The state of all keys as text. Expiry is relative to the clock.
---@param is_absolute boolean include the clock
---@return string
function redis:text(is_absolute)
  local parts, now = {}, self:ms()
  for _, key in ipairs(sorted(self.entries)) do
    local entry = self:entry(key)
    if entry then
      parts[#parts + 1] = ("%s %s %s"):format(marked(key),
        entry.expires and entry.expires - now or "-", text_of(entry))
    end
  end
  if is_absolute then parts[#parts + 1] = self.now end
  return table.concat(parts, "\n")
end

--- The unexpired entry of a key: `kind`, `value`, `expires` (ms); nil if there
--- is none. Raises WRONGTYPE if it is of another kind.
---@param key string
---@param kind? string "string", "hash", "list", "set", "zset", "stream"
function redis:entry(key, kind)
  local entry, touched = self.entries[key], self.touched
  if touched then touched[key] = true end
  if not entry then return nil end
  local expires = entry.expires
  if expires and expires <= self.now // 1000 then
    self.entries[key] = nil
    return nil
  end
  if kind and entry.kind ~= kind then
    error({ err = WRONGTYPE }, 0)
  end
  return entry
end

local function copy(value)
  if type(value) ~= "table" then return value end
  local result = {}
  for key, item in pairs(value) do result[key] = item end
  return result
end

--- The entry of a key, to be changed; created if there is none.
---@param key string
---@param kind string
---@param empty any the value of a new one: a table, or a string
function redis:change(key, kind, empty)
  local entry = self:entry(key, kind)
  if entry and entry.owner == self.token then
    entry.text = nil
    return entry
  end
  entry = entry and {
    kind = entry.kind, value = copy(entry.value), expires = entry.expires,
  } or { kind = kind, value = empty }
  entry.owner = self.token
  self.entries[key] = entry
  return entry
end

--- Deletes a key if its value is empty, as Redis does.
function redis:tidy(key)
  local entry = self.entries[key]
  if entry and type(entry.value) == "table" and next(entry.value) == nil then
    self.entries[key] = nil
  end
end

--- A list whose order Redis does not promise: sorted, or reversed if `turned`.
--- Sets `is_ordered` if there is another order.
function redis:in_some_order(list)
  self.is_ordered = self.is_ordered or #list > 1
  if not self.turned then return list end
  local result = {}
  for i = #list, 1, -1 do result[#result + 1] = list[i] end
  return result
end

-- commands --------------------------------------------------------------------

--- Finds the command of some words, and checks their number. Raises an error
--- that names the command if the model lacks it.
---@param words table
---@return function? # called with the server, the words, and whether a client
---  rather than a script calls it
---@return string? # the command's name, if the number of words is wrong
---@return boolean? # whether Redis does not have the command either
function redis.find(words)
  ---@type any
  local command = commands[words[1]] or commands[words[1]:lower()]
  if not command then
    load_rare()
    command = commands[words[1]:lower()]
  end
  if not command and is_known(words[1]:lower()) then
    values.lacks("command " .. words[1]:upper())
  elseif not command then
    return nil, words[1], true
  end
  local arity, n = command[1], #words
  if n == arity or arity < 0 and n >= -arity then return command[2] end
  return nil, words[1]:lower()
end

--- Executes a command, as a client sends it. Raises an error of which
--- values.lack_of knows the reason, if the model lacks something.
---@param words table strings
---@return any # the reply
function redis:call(words)
  local run, name, is_unknown = redis.find(words)
  if is_unknown then
    return { err = ("ERR unknown command '%s'"):format(name) }
  elseif not run then
    return { err = ("ERR wrong number of arguments for '%s' command"):format(
      name) }
  end
  local ok, reply = pcall(run, self, words, true)
  if not ok and not (type(reply) == "table" and reply.err) then
    error(reply, 0)
  end
  return reply
end

--- Runs a script. The reply is { err = } if it failed.
---@type fun(text: string, keys: table, args: table): any
redis.eval = eval.eval

--- The line of a script that fails.
redis.line_of = eval.line_of

--- As `eval`, of strings only: the tables become KEYS and ARGV.
redis.run_script = eval.run

return redis
