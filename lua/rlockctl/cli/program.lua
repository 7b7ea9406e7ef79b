--- Runs a Lua program: a file, a chunk from the command line, or standard
--- input. The program gets arg and ... as under `lua`.

local program = {}

--- Source text of the chunks that are not files, by chunkname.
program.sources = {}

-- the chunk ------------------------------------------------------------------

-- Like luaL_loadfile, skips a byte order mark, and a first line that begins
-- with "#".
local function load_text(text, chunkname)
  text = text:gsub("^\xEF\xBB\xBF", ""):gsub("^#[^\n]*", "")
  program.sources[chunkname] = text
  return load(text, chunkname, "t")
end

local function load_stdin()
  local text, problem = io.read("a")
  if not text then return nil, "cannot read standard input: " .. problem end
  return load_text(text, "=stdin")
end

local function load_file(name, commands)
  local chunk, problem = loadfile(name)
  if chunk then return chunk end
  if problem:find("^cannot open") then
    if name:find("://", 1, true) then
      problem = "a URL comes after --url"
    elseif not name:find("[./]") then
      local similar = require "rlockctl.cli.similar"(name, commands)
      problem = ("%s; nor is there such a command (%ssee rlockctl help)")
        :format(problem, similar and ("did you mean %s? "):format(similar)
        or "")
    end
  end
  return nil, problem
end

-- arg[1] is the first argument, arg[0] the program's name; before it come
-- rlockctl and its options.
local function name_arguments(arguments, first, name)
  local result = {}
  for i = 0, #arguments do result[i - first] = arguments[i] end
  result[0] = name
  return result
end

-- running --------------------------------------------------------------------

local function load_program(name, code, commands)
  if code then return load_text(code, "=(command line)") end
  if name == "-" then return load_stdin() end
  return load_file(name, commands)
end

--- Runs a program.
---@param cli table
---@param arguments table the words of the command line
---@param first integer index of the program's name; with code, of the first
---  argument
---@param code? string
---@return integer # exit status
function program.run(cli, arguments, first, code)
  local name = arguments[first]
  if code then name, first = "-e", first - 1 end
  local chunk, problem = load_program(name, code, cli.commands)
  if not chunk then
    cli.complain(problem)
    return 1
  end
  arg = name_arguments(arguments, first, name)           -- luacheck: ignore
  return cli.run(chunk, table.unpack(arg))
end

return program
