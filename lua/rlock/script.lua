--- Compiles a Lua function to the text of a server script.
--- The function's own source becomes the script's body. Its upvalues go before
--- it: helper functions (recursively), constants, and the fields used of
--- required modules. An upvalue that cannot be shipped is an error when the
--- policy is loaded. Opens source files; independent of locks.
---
---   parser           functions and names in a Lua text, by its lexer's tokens
---   scope            which variable a name means
---   source           a function's position in its text
---   constants        what % by infinity shows of constant expressions
---   sandbox          the globals inside Redis
---   differences      how Lua 5.1 differs
---   compiler, placement, emit   what is shipped, where, and as what text

local compiler = require "rlock.script.compiler"
local emit = require "rlock.script.emit"

local script = {}

--- Sources that are not files: chunkname ("@rlock/policy/reentrant.lua",
--- "=(command line)") -> text. They take precedence over files.
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
--- Raises a one-line error if something cannot be shipped; it names the policy,
--- the function with its file and line, and the upvalue.
---@param policy_name string
---@param op string "acquire"
---@param fn function takes (keys, args), or fewer
---@return table # `name` "reentrant.acquire", `op` "acquire", `where` (for
---  messages: policy, file and line, operation), `text` for SCRIPT LOAD,
---  `lines`: line of the text -> { file, line }
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

--- The same operation with a deadline: does nothing after its last argument, in
--- milliseconds of the server's clock. See expiry.lua.
---@param compiled table the result of script.compile
---@return table # as `compiled`
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

-- All of the text becomes a function. With its helpers outside, they could be
-- more than the 60 upvalues that a function of Lua 5.1 may have.
local BEFORE = " batched\nlocal function each(KEYS, ARGV)\n"
-- From 7.4 on there is os.clock, which runs on during a script.
local AFTER = [[
end
local width, shared = tonumber(ARGV[1]), tonumber(ARGV[2])
local os = rawget(_G, "os")
local finish = os and os.clock() + 0.001
local result, last = { #ARGV - 2 - shared }, shared + 2
local KEYS, ARGV, pcall, type, values = KEYS, ARGV, pcall, type, unpack
for i = 1, result[1] do
  local is_run, reply = pcall(each,
    { values(KEYS, (i - 1) * width + 1, i * width) },
    { ARGV[last + i], values(ARGV, 3, last) })
  if type(reply) == "table" then reply = reply[1] end
  if not is_run or reply ~= "held" then
    result[#result + 1] = i
  end
  if finish and i % 4 == 0 and os.clock() > finish then
    result[1] = i
    break
  end
end
return result
]]

--- The same operation for many owners, each of a lock of its own. It ends after
--- about 1 ms, where scripts have a clock.
---   KEYS  the keys of the first owner, then those of the second, ...
---   ARGV  the number of keys of each; the number of arguments after the owner,
---         which all share; these arguments; the owners
---   reply  how many owners were served, then the positions of those whose
---          reply was not "held", or who raised an error
---@param compiled table the result of script.compile
---@return table # as `compiled`, without places for messages
function script.batched(compiled)
  return {
    name = compiled.name, op = compiled.op, where = compiled.where, lines = {},
    text = compiled.text:gsub("\n", BEFORE, 1) .. AFTER,
  }
end

--- Adds the source's file and line to an error message of a script.
---@param compiled table the result of script.compile
---@param message string as Redis sent it
---@return string # with the same first word, unless Redis before 7.0 hid a
---  failed command's error class behind "ERR"
function script.translate(compiled, message)
  return emit.translate(compiled.lines, message)
end

return script
