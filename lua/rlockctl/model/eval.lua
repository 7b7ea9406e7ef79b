--- Runs scripts on a model of Redis: the library `redis`, and the conversions
--- of arguments and replies.

local arguments = require "rlockctl.model.commands.arguments"
local lua51 = require "rlockctl.model.lua51"
local memory = require "rlockctl.model.memory"
local values = require "rlockctl.model.lua51.values"

local eval = {}

local type = type
local lacks, show = values.lacks, arguments.show

-- redis.call ------------------------------------------------------------------

local WRONG_NUMBER = "ERR Wrong number of args calling Redis command from "
  .. "script"
local NO_COMMAND = "ERR Please specify at least one argument for this "
  .. "redis.call() call"
local NO_TEXT = "ERR Lua redis lib command arguments must be strings or "
  .. "integers"

-- The text of a number as an argument. Redis 7.0 shows 17 digits, and -0; newer
-- ones the shortest text, and 0.
local function text_of(number)
  if number % 1 == 0 and number < 1e15 and number > -1e15
      and (number ~= 0 or 1 / number > 0) then
    return ("%d"):format(number)
  end
  local text = ("%.17g"):format(number)
  if number == 0 or number == number and text ~= show(number) then
    lacks(text .. " as an argument, which versions show differently")
  end
  return text
end

-- Converts a word of redis.call as Redis does.
local function argument(word)
  if type(word) ~= "number" then error({ err = NO_TEXT }, 0) end
  return text_of(word)
end

local host = {}                         -- its `server` runs a script

-- Executes a command for a script. Errors of the command are raised.
local function call(...)
  local server, words, n = host.server, { ... }, select("#", ...)
  if n == 0 then error({ err = NO_COMMAND }, 0) end
  for i = 1, n do
    local word = words[i]
    if type(word) ~= "string" then words[i] = argument(word) end
  end
  local run, name, is_unknown = server.find(words)
  if is_unknown then error({ err = values.UNKNOWN .. name:upper() }, 0) end
  if not run then error({ err = WRONG_NUMBER }, 0) end
  if not server.has_written then memory.note(server, words[1]) end
  return run(server, words)
end

local function replied_or_failed(ok, reply)
  if not ok and not (type(reply) == "table" and reply.err) then
    error(reply, 0)
  end
  return reply
end

-- the library -----------------------------------------------------------------

local BAD_ARGUMENTS = "ERR wrong number or type of arguments"

-- The error that a text means: with a code, if it has more than one word.
local function error_of(text)
  text = text:match("^%-?([^\0]*)")
  local code, rest = text:match("^([^ ]*) (.*)$")
  if not code then code, rest = "ERR", text end
  return { err = code .. " " .. rest:match("^[\r\n]*(.-)[\r\n]*$") }
end

local function error_reply(...)
  local text = ...
  if select("#", ...) ~= 1 or type(text) ~= "string" then
    return { err = BAD_ARGUMENTS }
  end
  return error_of(text)
end

local function status_reply(...)
  local text = ...
  if select("#", ...) ~= 1 or type(text) ~= "string" then
    return { err = BAD_ARGUMENTS }
  end
  return { ok = text }
end

local MISSING = {}
for name in ([[sha1hex set_repl setresp breakpoint debug acl_check_cmd
    REDIS_VERSION REDIS_VERSION_NUM SERVER_NAME VALKEY_VERSION
    VALKEY_VERSION_NUM REPL_ALL REPL_AOF REPL_NONE REPL_REPLICA
    REPL_SLAVE]]):gmatch("%S+") do
  MISSING[name] = true
end

local function log(level, ...)
  if select("#", ...) == 0 then
    error({ err = "ERR redis.log() requires two arguments or more." }, 0)
  end
  local number = type(level) == "string" and values.number_of(level) or level
  if type(number) ~= "number" then
    error({ err = "ERR First argument must be a number (log level)." }, 0)
  end
  number = values.long(number)
  if number < 0 or number > 3 then
    error({ err = "ERR Invalid log level." }, 0)
  end
end

local library = setmetatable({
  LOG_DEBUG = 0.0, LOG_VERBOSE = 1.0, LOG_NOTICE = 2.0, LOG_WARNING = 3.0,
  error_reply = error_reply, status_reply = status_reply, call = call,
  log = log, replicate_commands = function() return true end,
}, { __index = function(_, name)
  if MISSING[name] then lacks("redis." .. name) end
end })

function library.pcall(...)
  return replied_or_failed(pcall(library.call, ...))
end

-- replies ---------------------------------------------------------------------

local function in_one_line(text)
  return (text:match("^[^\0]*"):gsub("[\r\n]", " "))
end

---@type function
local replied

local function list_of(list)
  local result, i = {}, 1
  while true do
    local item = list[i]
    if item == nil then return result end
    result[i], i = type(item) == "string" and item or replied(item), i + 1
  end
end

-- Does a table have a field that makes it another reply than a list?
local function is_special(value)
  return value.double ~= nil or value.map ~= nil or value.set ~= nil
    or value.big_number ~= nil or value.verbatim_string ~= nil
end

-- Without the metatable.
local function bare(list)
  if getmetatable(list) == nil then return list end
  local copy = {}
  for key, value in next, list do copy[key] = value end
  return copy
end

local function table_of(value)
  value = bare(value)
  local err, ok = value.err, value.ok
  if type(err) == "string" then return { err = in_one_line(err) } end
  if type(ok) == "string" then return { ok = ok:gsub("[\r\n]", " ") } end
  if is_special(value) then lacks "replies of RESP3, such as { double = }" end
  return list_of(value)
end

-- A reply of a script as RESP2 has it.
function replied(value)
  local kind = type(value)
  if kind == "table" then return table_of(value) end
  if kind == "string" then return value end
  if kind == "number" then
    return values.long(value) --[[@as integer]] + 0.0
  end
  return value == true and 1.0
end

-- The reply if a script has failed.
local function failed(fault)
  if type(fault) ~= "table" then
    return { err = in_one_line("ERR " .. tostring(values.text_of(fault))) }
  end
  local err = values.text_of(fault.err)
  if type(err) ~= "string" then
    lacks "error with a table without err, which crashes Redis"
  end
  return { err = in_one_line(err) }
end

-- running ---------------------------------------------------------------------

-- All scripts share one environment, which they cannot change.
local seen, globals = lua51.environment(library)

local MOST_COMPILED = 1000
local compiled, count = {}, 0           -- text -> function

local function compile(text)
  local run, fault = lua51.load(text, seen)
  if not run then
    return nil, "ERR Error compiling script (new function): " .. fault
  end
  if count == MOST_COMPILED then compiled, count = {}, 0 end
  compiled[text], count = run, count + 1
  return run
end

local function texts_of(words)
  local list = { table.unpack(words) }
  for i, word in next, list do
    if type(word) == "number" then list[i] = text_of(word) end
  end
  return list
end

--- See redis.run_script.
function eval.run(server, text, keys, args)
  local run, fault = compiled[text], nil
  if not run then run, fault = compile(text) end
  if not run then return { err = fault } end
  host.server, globals.KEYS, globals.ARGV = server, keys, args
  server.has_written, server.needs_memory = nil, nil
  local ok, result = lua51.run(run)
  if ok then return replied(result) end
  if values.is_lack(result) then error(result, 0) end
  return failed(result)
end

--- See redis.eval.
function eval.eval(server, text, keys, args)
  return eval.run(server, text, texts_of(keys), texts_of(args))
end

-- the line of a failure ------------------------------------------------------

-- Calls fn(line_now), where line_now() returns the line of the script that
-- runs. A call in a `return` leaves no frame of its function, so a hook follows
-- the lines.
local function follow(fn)
  local line
  ---@diagnostic disable-next-line: param-type-mismatch
  debug.sethook(function(event)
    local at = debug.getinfo(event == "line" and 2 or 3, "Sl")
    if at and at.source == "@user_script" then line = at.currentline end
  end, "lr")
  fn(function() return line end)
  debug.sethook()
end

--- Executes a script on a server, to find the line that fails.
---@param server table which the script changes
---@param text string
---@param keys table
---@param args table
---@param message string with which a command fails, or what the model lacks
---@return integer? # nil if nothing fails with it
function eval.line_of(server, text, keys, args, message)
  local found
  follow(function(line_now)
    function library.call(...)
      local ok, reply = pcall(call, ...)
      if ok then return reply end
      local fault = type(reply) == "table" and reply.err or reply
      if fault == message then found = line_now() end
      error(reply, 0)
    end
    local _, fault = pcall(eval.eval, server, text, keys, args)
    if fault == message then found = line_now() end
    library.call = call
  end)
  return found
end

return eval
