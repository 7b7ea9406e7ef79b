--- A model of one Redis server: its keys, their expiry, its clock, and the
--  commands that scripts use (commands/). Replies have the form in which a
--  script sees them: numbers are floats, nil is false, errors are { err = }. A
--  command that is missing raises an error that names it; nothing is guessed.
--
--  Time stands still unless the caller moves `now`, in microseconds. A state is
--  cheap to keep: `fork` shares all entries with its origin, and an entry is
--  copied when it is first changed.

local lua51 = require "rlock.check.lua51"

local redis = {}
redis.__index = redis

--- Command -> { arity, function(server, words) }; as in Redis, an arity of -n
--  means n words or more.
local commands = {}
for _, module in ipairs { "keys", "strings", "hashes", "lists", "sets", "zsets",
    "server" } do
  for name, command in pairs(require("rlock.check.commands." .. module)) do
    commands[name] = command
  end
end

local WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of "
  .. "value"

--- Creates an empty server.
-- @treturn table
function redis.new()
  return setmetatable({
    now = 1700000000000000, entries = {}, listeners = {}, sent = {},
    scripts = setmetatable({}, { __mode = "k" }),
  }, redis)
end

--- A copy of the server that changes independently.
function redis:fork()
  local entries = {}
  for key, entry in pairs(self.entries) do entries[key] = entry end
  return setmetatable({
    now = self.now, entries = entries, listeners = self.listeners, sent = {},
    scripts = self.scripts, shared = entries, origin = self.origin,
  }, redis)
end

-- entries ---------------------------------------------------------------------

--- Whole milliseconds of the server's clock.
function redis:ms() return self.now // 1000 end

local function sorted_keys(map)
  local keys = {}
  for key in pairs(map) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

-- The value of an entry as text, kept until the entry changes.
local function text_of(entry)
  if entry.text then return entry.text end
  local value, parts = entry.value, nil
  if entry.kind == "list" then
    parts = value
  elseif type(value) == "table" then
    parts = {}
    for i, field in ipairs(sorted_keys(value)) do
      parts[i] = ("%s=%s"):format(field, value[field])
    end
  end
  entry.text = parts and table.concat(parts, "\t") or value
  return entry.text
end

--- The state of all keys as text. Expiry is relative to the clock.
-- @tparam boolean is_absolute include the clock
-- @treturn string
function redis:text(is_absolute)
  local parts, now = {}, self:ms()
  for _, key in ipairs(sorted_keys(self.entries)) do
    local entry = self:entry(key)
    if entry then
      parts[#parts + 1] = ("%s %s %s"):format(key,
        entry.expires and entry.expires - now or "-", text_of(entry))
    end
  end
  if is_absolute then parts[#parts + 1] = self.now end
  return table.concat(parts, "\n")
end

--- The live entry of a key: `kind`, `value`, `expires` (ms); nil if there is
--  none. Raises WRONGTYPE if it is of another kind.
-- @tparam string key
-- @tparam[opt] string kind "string", "hash", "list", "set", "zset"
function redis:entry(key, kind)
  local entry = self.entries[key]
  if entry and entry.expires and entry.expires <= self:ms() then
    self.entries[key] = nil
    return nil
  end
  if entry and kind and entry.kind ~= kind then
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
-- @tparam string key
-- @tparam string kind
-- @param empty the value of a new one: a table, or a string
function redis:change(key, kind, empty)
  local entry = self:entry(key, kind)
  if entry and entry.owner == self then
    entry.text = nil
    return entry
  end
  entry = entry and {
    kind = entry.kind, value = copy(entry.value), expires = entry.expires,
  } or { kind = kind, value = empty }
  entry.owner = self
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

--- A list whose order Redis does not promise: sorted, or backwards if `turned`.
--  Sets `is_ordered` if there is another order.
function redis:in_some_order(list)
  self.is_ordered = self.is_ordered or #list > 1
  if not self.turned then return list end
  local result = {}
  for i = #list, 1, -1 do result[#result + 1] = list[i] end
  return result
end

-- commands --------------------------------------------------------------------

local function fails(text) return { err = text } end

local function arity_fits(arity, n)
  if arity < 0 then return n >= -arity end
  return n == arity
end

--- Executes a command.
-- @tparam table words strings
-- @return the reply
function redis:call(words)
  local name = words[1]:lower()
  local command = commands[name]
  if not command then error(lua51.LACKS .. "command " .. name:upper(), 0) end
  if not arity_fits(command[1], #words) then
    return fails(("ERR wrong number of arguments for '%s' command")
      :format(name))
  end
  local ok, reply = pcall(command[2], self, words)
  if ok then return reply end
  if type(reply) == "table" and reply.err then return reply end
  error(reply, 0)
end

-- scripts ---------------------------------------------------------------------

-- The words of redis.call, checked and converted as Redis does.
local function words_of(...)
  local n, words = select("#", ...), { ... }
  if n == 0 then
    error({ err = "ERR Please specify at least one argument for this "
      .. "redis.call() call" }, 0)
  end
  for i = 1, n do
    local word = words[i]
    if type(word) == "number" then
      words[i] = ("%.17g"):format(word)
    elseif type(word) ~= "string" then
      error({ err = "ERR Lua redis lib command arguments must be strings or "
        .. "integers" }, 0)
    end
  end
  return words
end

local function library(host)
  local lib = {
    LOG_DEBUG = 0.0, LOG_VERBOSE = 1.0, LOG_NOTICE = 2.0, LOG_WARNING = 3.0,
    log = function() end,
    error_reply = function(text)
      return { err = text:find("^%S*%u") and text or "ERR " .. text }
    end,
    status_reply = function(text) return { ok = text } end,
  }
  function lib.pcall(...)
    local ok, words = pcall(words_of, ...)
    if not ok then return words end
    return host.server:call(words)
  end
  function lib.call(...)
    local reply = lib.pcall(...)
    if type(reply) == "table" and reply.err then error(reply, 0) end
    return reply
  end
  return setmetatable(lib, { __index = function(_, name)
    error(lua51.LACKS .. "redis." .. tostring(name), 0)
  end })
end

-- A reply of a script as RESP2 has it.
local function replied(value)
  local kind = type(value)
  if kind == "number" then
    return (value < 0 and math.ceil(value) or math.floor(value)) + 0.0
  elseif kind == "string" then
    return value
  elseif kind == "boolean" then
    return value and 1.0
  elseif kind ~= "table" then
    return false
  elseif value.err or value.ok then
    return value.err and { err = value.err } or { ok = value.ok }
  end
  for _, name in ipairs { "double", "map", "set", "big_number",
      "verbatim_string" } do
    if value[name] then error(lua51.LACKS .. "replies with " .. name, 0) end
  end
  local list = {}
  for i, item in ipairs(value) do list[i] = replied(item) end
  return list
end

-- Compiled scripts are shared by all servers: text -> { run, host, globals }.
local compiled = {}

local function compile(text)
  local script = compiled[text]
  if script then return script end
  script = { host = {} }
  script.globals = lua51.environment(library(script.host))
  rawset(script.globals, "KEYS", {})
  rawset(script.globals, "ARGV", {})
  local fault
  script.run, fault = lua51.load(text, script.globals)
  if not script.run then
    return nil, "ERR Error compiling script (new function): " .. fault
  end
  compiled[text] = script
  return script
end

local function list_of(words)
  local list = {}
  for i, word in ipairs(words) do
    list[i] = type(word) == "number" and ("%.17g"):format(word) or word
  end
  return list
end

--- Runs a script.
-- @tparam string text
-- @tparam table keys
-- @tparam table args strings and numbers
-- @return the reply; { err = } if the script failed
function redis:eval(text, keys, args)
  local script, fault = compile(text)
  if not script then return fails(fault) end
  script.host.server = self
  rawset(script.globals, "KEYS", list_of(keys))
  rawset(script.globals, "ARGV", list_of(args))
  local ok, result = pcall(script.run)
  if ok then return replied(result) end
  if type(result) == "table" and result.err then
    return { err = tostring(result.err) }
  end
  if type(result) == "string" and result:find(lua51.LACKS, 1, true) then
    error(result, 0)
  end
  return fails("ERR " .. tostring(result))
end

return redis
