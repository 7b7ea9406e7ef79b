--- Turns a function into the text of a server script.
--  The text is the function's own source: its body becomes the body of the
--  script, and what it captures goes before: helper functions (recursively),
--  constants, and of required modules the fields that are named. What cannot
--  go along is an error when the policy is loaded. Opens source files, and
--  does not know what a lock is.
--
--    lexer, scope, expression, parser   names and functions of a Lua text
--    source                             a function's place in its text
--    sandbox                            what there is inside Redis
--    differences                        what its Lua 5.1 takes otherwise
--    compiler, emit                     what goes along, and how it is written
--  @module rlock.script

local compiler = require "rlock.script.compiler"
local emit = require "rlock.script.emit"

local script = {}

--- Sources that are not files: chunkname ("@rlock/policy/reentrant.lua",
--  "=(command line)") -> text. Looked at before a file is opened.
script.sources = {}

local function read_source(chunkname)
  local text = script.sources[chunkname]
  if text then return text end
  local kind, name = chunkname:sub(1, 1), chunkname:sub(2)
  if kind == "=" then
    return nil, "its source is not known; load it from a file"
  end
  if kind ~= "@" then return chunkname end
  local file, why = io.open(name, "rb")
  if not file then return nil, "cannot read its source: " .. why end
  text = file:read("*a")
  file:close()
  return text
end

--- Compiles one operation of a policy.
--  Raises one line that names the policy, the function with its file and line,
--  and the upvalue, for what cannot be shipped.
--  @tparam string policy_name
--  @tparam string op "acquire"
--  @tparam function fn takes (keys, args), or fewer
--  @treturn table `name` "reentrant.acquire", `op` "acquire", `where` (for
--    people: the policy, file and line, the operation), `text` for SCRIPT LOAD,
--    `lines`: line of the text -> { file, line }
function script.compile(policy_name, op, fn)
  if type(policy_name) ~= "string" then
    error("bad policy_name: must be a string", 2)
  elseif type(op) ~= "string" then
    error("bad op: must be a string", 2)
  elseif type(fn) ~= "function" then
    error("bad fn: must be a function", 2)
  end
  return compiler.compile(policy_name, op, fn, read_source)
end

local PROLOGUE = [[
do
  local time = redis.call("time")
  if time[1] * 1000 + time[2] / 1000 > tonumber(table.remove(ARGV)) then
    return redis.error_reply("EXPIRED the request came after its deadline")
  end
end
]]
local PROLOGUE_LINES = select(2, PROLOGUE:gsub("\n", ""))

--- The same operation, but it does nothing when its last argument, the deadline
--  in milliseconds of the server's clock, has passed. See expiry.lua.
--  @tparam table compiled what script.compile gave
--  @treturn table as `compiled`
function script.with_deadline(compiled)
  local result, lines = {}, {}
  for key, value in pairs(compiled) do result[key] = value end
  for number, place in pairs(compiled.lines) do
    lines[number > 1 and number + PROLOGUE_LINES or number] = place
  end
  result.lines = lines
  result.text = compiled.text:gsub("\n", "\n" .. PROLOGUE, 1)
  return result
end

--- Puts file and line of the source into an error message of a script.
--  @tparam table compiled what script.compile gave
--  @tparam string message as Redis sent it
--  @treturn string its first word is the same, unless Redis before 7.0 hid
--    the class of a failed command behind "ERR"
function script.translate(compiled, message)
  return emit.translate(compiled.lines, message)
end

return script
