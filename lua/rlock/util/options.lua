--- Checks the arguments of public calls: options, names and counts. A table
--- declares the options of a call: name -> the check of its value, a
--- function(value, name, level) that returns the value or raises an error.
--- Levels are as in error(); the default is 2, where the checking function was
--- called.

local deadline = require "rlock.util.deadline"
local duration = require "rlock.util.duration"
local sorted = require "rlock.util.sorted"

local options = {}

local MAX_NAME = 1048576           -- bytes
local NONE = {}

--- Returns the check of a duration, see duration.check.
---@param min number seconds
---@param max? number seconds
function options.duration(min, max)
  max = max or duration.max
  return function(value, name, level)
    if type(value) == "number" and value >= min and value <= max then
      return value                      -- most calls; faster
    end
    return (duration.check(value, name, min, max, level + 1))
  end
end

--- The check of a lease.
options.lease = options.duration(duration.least_lease)

--- The check of a value.
---@alias rlock.check fun(value: any, name: string, level: integer): any

--- Returns the check that a value has this type.
---@param wanted string
---@return rlock.check
function options.type(wanted)
  return function(value, name, level)
    local found = type(value)
    if found == wanted then return value end
    error(("bad %s: must be a %s, is a %s"):format(name, wanted, found),
      level + 1)
  end
end

--- Returns the check that is(value) is true.
---@param must string what the value must be, for messages
---@param is function
function options.that(must, is)
  return function(value, name, level)
    if is(value) then return value end
    error(("bad %s: must be %s"):format(name, must), level + 1)
  end
end

--- The check of the allowance for clock drift, a fraction of a lease.
options.drift = options.that("a number from 0 to 0.5", function(drift)
  return type(drift) == "number" and drift >= 0 and drift <= 0.5
end)

local function unknown(name, known, of, level)
  error(("bad option %s%s: must be one of %s"):format(tostring(name), of,
    table.concat(sorted(known), ", ")), level + 1)
end

-- A copy with another value.
local function with(given, name, value)
  local copy = {}
  for key, old in pairs(given) do copy[key] = old end
  copy[name] = value
  return copy
end

--- Returns the check of a call's options.
---@param known table option -> the check of its value
---@param must string what the options must be, for messages
---@param call? string its name, for messages
---@return fun(given?: table, level?: integer): table # the options: `given`
---  itself, a copy if a duration was clamped, or an empty table for nil;
---  read-only
function options.table(known, must, call)
  local of = call and " of " .. call or ""
  return function(given, level)
    if given == nil then return NONE end
    level = (level or 2) + 1
    if type(given) ~= "table" then
      error(("bad options%s: must be %s"):format(of, must), level)
    end
    local checked = given
    for name, value in pairs(given) do
      local check = known[name] or unknown(name, known, of, level)
      local result = check(value, name, level)
      if result ~= value then checked = with(checked, name, result) end
    end
    return checked
  end
end

--- Returns the check of an option that is a table of options itself.
---@param known table as for `table`
---@param must string what the table must be, for messages
function options.group(known, must)
  return function(given, name, level)
    level = level + 1
    if type(given) ~= "table" then
      error(("bad %s: must be %s"):format(name, must), level)
    end
    for key, value in pairs(given) do
      local check = known[key] or unknown(key, known, " of " .. name, level)
      check(value, ("%s.%s"):format(name, key), level)
    end
    return given
  end
end

local seconds = options.duration(0, math.huge)

--- The check of a wait: seconds, or a deadline. A negative result means that
--- the deadline has passed.
function options.wait(value, name, level)
  if type(value) == "number" and value >= 0 then return value end   -- faster
  if type(value) == "table" then
    local left = deadline.wait_of(value)
    if left ~= value then return left end
  end
  local checked = seconds(value, name, level + 1)   -- no tail call: `level`
  return checked
end

local wait = options.wait

---@class rlock.options.wait
---@field wait? rlock.wait at most, for the whole call; default: forever

---@class rlock.options.lock: rlock.options.wait
---@field lease? number seconds to hold it, at least 0.002; without it the
--- watchdog renews it

--- Seconds, or a deadline for several calls.
---@alias rlock.wait number | rlock.deadline

-- The second part refuses other names.
---@alias rlock.wait_options rlock.options.wait & { wait?: any, [string]: nil }
---@alias rlock.lock_options rlock.options.lock & {
---   wait?: any, lease?: any, [string]: nil }

--- Checks the options of a call that waits.
options.of_wait = options.table({ wait = wait }, "a table such as { wait = 5 }")

--- Checks the options of a call that waits and takes a lease.
options.of_lock = options.table({ wait = wait, lease = options.lease },
  "a table such as { wait = 5, lease = 10 }")

--- Checks a command of the user and its arguments.
---@param method string for messages: "client:call"
---@param level integer as in error()
---@param ... any strings and numbers
---@return table # the words
function options.words(method, level, ...)
  local words = { ... }
  if words[1] == nil then
    error(('bad argument #1 of %s: must be a command, such as "PING", is nil')
      :format(method), level + 1)
  end
  for i = 1, select("#", ...) do
    local kind = type(words[i])
    if kind ~= "string" and kind ~= "number" then
      error(("bad argument #%d of %s: must be a string or a number, is a %s")
        :format(i, method, kind), level + 1)
    end
  end
  return words
end

--- Checks the name of a lock.
function options.name(name, level)
  level = (level or 2) + 1
  if type(name) ~= "string" or name == "" then
    error("bad name: must be a string that is not empty, is "
      .. (name == "" and "empty" or type(name)), level)
  elseif #name > MAX_NAME then
    error(("bad name: longer than %d bytes"):format(MAX_NAME), level)
  end
end

local MAX_VALUE = 1000000          -- bytes: a server takes a request of 1 MB

local check_text = options.type "string"

--- Checks the path of a node.
function options.path(path, level)
  check_text(path, "path", (level or 2) + 1)
end

--- Checks what is to be set: a path, a value and an optional version.
---@return integer? # the version
function options.node(path, value, version, level)
  level = (level or 2) + 1
  options.path(path, level)
  check_text(value, "value", level)
  if #value > MAX_VALUE then
    error(("bad value: longer than %d bytes"):format(MAX_VALUE), level)
  end
  return version and tonumber(options.count(version, "version", 0, level))
end

--- Checks a count. Counts are Java's int, as in Redisson.
---@param name string for messages
---@param least integer
---@param level? integer default: 2
---@param most? integer
---@return any # n, in digits
function options.count(n, name, least, level, most)
  most = most or 2147483647
  if type(n) ~= "number" or n % 1 ~= 0 or n < least or n > most then
    error(("bad %s: %s: must be a whole number from %d to %d"):format(name,
      tostring(n), least, most), (level or 2) + 1)
  end
  return ("%d"):format(n)
end

return options
