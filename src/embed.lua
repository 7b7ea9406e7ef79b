--- Build tool: turns Lua files into one C file that defines rl_embedded.
---
---   embed src/embed.lua static|shared|cross FOLDER FILE... > embedded.c
---
--- Each FILE, in FOLDER, becomes bytecode with line numbers. Those that ship
--- functions to Redis keep their text too. The server scripts of the built-in
--- policies are compiled to modules of their own, rlock.prepared.*, so that
--- rlockctl parses neither at each start.
---
--- How rlockctl is linked with Lua decides what else it needs: shared, all
--- texts, because it may find another release; cross, no bytecode, because this
--- program's Lua is that of another machine.

local how, folder = arg[1], arg[2]
local files = table.move(arg, 3, #arg, 1, {})

local function read(path)
  local file <close> = assert(io.open(path, "rb"))
  return (file:read "a")
end

local texts = {}                        -- "rlock/client.lua" -> its text
for i, path in ipairs(files) do
  files[i] = path:sub(#folder + 2)
  texts[files[i]] = read(path)
end

local function bytecode(name, text)
  return string.dump(assert(load(text, "@" .. name, "t")))
end

-- the modules, as rlockctl will load them ------------------------------------

table.insert(package.searchers, 2, function(module)
  local name = module:gsub("%.", "/") .. ".lua"
  local text = texts[name]
  if not text then return "\n\tno embedded module '" .. module .. "'" end
  return assert(load(text, "@" .. name, "t")), name
end)

local script = require "rlock.script"
local policy = require "rlock.policy"

setmetatable(script.sources, { __index = function(_, chunk)
  return texts[chunk:sub(2)]
end })

-- server scripts -------------------------------------------------------------

local function sorted(map)
  local names = {}
  for name in pairs(map) do names[#names + 1] = name end
  table.sort(names)
  return names
end

-- The operations of a policy, as the text of a table constructor.
local function scripts_of(definition)
  local out, ops = {}, policy.load(definition).ops
  for _, name in ipairs(sorted(definition.server)) do
    local op, lines = ops[name], {}
    for _, number in ipairs(sorted(op.lines)) do
      lines[#lines + 1] = ("%d %s:%d"):format(number,
        table.unpack(op.lines[number]))
    end
    local fn = debug.getinfo(definition.server[name], "S")
    out[#out + 1] = ("  %s = { name = %q, op = %q, where = %q, text = %q,\n"
      .. "    home = '%s:%d', places = %q },\n"):format(name, op.name, op.op,
      op.where, op.text, fn.source:sub(2), fn.linedefined,
      table.concat(lines, "\n"))
  end
  return ("[%q] = {\n%s},\n"):format(definition.name, table.concat(out))
end

-- Adds the module of a policy's scripts, see rlock.policy.
local function prepare(name)
  local definition, out = require("rlock.policy." .. name), {}
  for _, each in ipairs { definition.server and definition or false,
    definition.read or false, definition.write or false } do
    if each then out[#out + 1] = scripts_of(each) end
  end
  local path = ("rlock/prepared/%s.lua"):format(name)
  files[#files + 1] = path
  texts[path] = "return {\n" .. table.concat(out) .. "}\n"
end

for _, kind in ipairs(require "rlock.lock.kinds") do
  prepare(kind.name)
  if not (kind.driver or kind.fenced) then prepare("fenced_" .. kind.name) end
end

-- the C file -----------------------------------------------------------------

local escapes = {}
for byte = 0, 255 do
  local char = string.char(byte)
  local is_plain = char:find("[%g ]") and not char:find('["\\?]')
  escapes[char] = is_plain and char or ("\\%03o"):format(byte)
end

-- A literal, which compilers read ten times faster than a list of numbers.
local function literal(text)
  local lines = {}
  for from = 1, #text, 1000 do
    lines[#lines + 1] = text:sub(from, from + 999):gsub(".", escapes)
      :gsub("\n", escapes)
  end
  return '"' .. table.concat(lines, '"\n"') .. '"'
end

local function put(format, ...) io.write(format:format(...)) end

-- The C expressions for a text and its length.
local function put_text(kind, number, text)
  if not text then return "NULL, 0" end
  put("\nstatic const char %s_%d[] =\n%s;\n", kind, number, literal(text))
  return ("%s_%d, sizeof(%s_%d) - 1"):format(kind, number, kind, number)
end

-- Do functions of this file run inside Redis?
local function is_shipped(name)
  return name:find("^rlock/policy/") or name == "rlock/naming.lua"
    or name == "rlockctl/cli/recognise.lua"
end

put('/* Written by embed.lua from the files of lua/. */\n#include "embed.h"\n')
put('#pragma GCC diagnostic ignored "-Woverlength-strings"\n')
local rows = {}
table.sort(files)
for i, name in ipairs(files) do
  local text = texts[name]
  rows[i] = ('    { "%s", %s, %s },\n'):format(name,
    put_text("text", i, (how ~= "static" or is_shipped(name)) and text),
    put_text("code", i, how ~= "cross" and bytecode(name, text)))
end
put('\nconst char rl_embedded_for[] = "%s";\n', (ident:gsub(".", escapes)))
put("\nconst struct rl_embedded rl_embedded[] = {\n%s", table.concat(rows))
put("};\n\nconst size_t rl_embedded_count = %d;\n", #files)
assert(io.stdout:flush())
