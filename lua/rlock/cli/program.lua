--- Runs a Lua program: a file, a chunk from the command line, or what comes on
--  standard input. It finds what it would find in `lua`: arg, ..., and an
--  os.exit that does not return, though the tasks clean up first here.

local host = require "rlock.host.uv"

local program = {}

--- Text of what was no file, by chunkname.
program.sources = {}

-- the chunk ------------------------------------------------------------------

-- As luaL_loadfile does: without a byte order mark, and the first line is a
-- comment if it begins with "#".
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

local function load_file(name)
  local chunk, problem = loadfile(name)
  if chunk then return chunk end
  if problem:find("^cannot open") then
    if name:find("://", 1, true) then
      problem = "a URL comes after --url"
    elseif not name:find("[./]") then
      problem = problem .. "; nor is there such a command (see rlockctl help)"
    end
  end
  return nil, problem
end

-- arg[1] is the first argument; before it come the program's name, what led to
-- it, and rlockctl.
local function name_arguments(arguments, first, name)
  local result = {}
  for i = 0, #arguments do result[i - first] = arguments[i] end
  result[0] = name
  return result
end

-- the way out ----------------------------------------------------------------

-- What os.exit raised, so that it is known when it is caught.
local exits = setmetatable({}, { __mode = "k" })

local pcall, xpcall = pcall, xpcall

local function status_of(status)
  if status == nil or status == true then return 0 end
  if status == false then return 1 end
  local number = math.tointeger(status)
  if number then return number & 0xFF end
  error(("bad argument #1 to 'exit' (%s)"):format(type(status) == "number"
    and "number has no integer representation"
    or "number expected, got " .. type(status)), 3)
end

local function exit(status)
  local _, unwind = pcall(host.exit, status_of(status))
  if not unwind then return end         -- a finalizer, and no task, wants it
  exits[unwind] = true
  error(unwind, 0)
end

-- A program cannot catch os.exit: it passes through, to the task's end.
local function pass_on(ok, ...)
  if not ok and exits[...] and debug.getinfo(2, "l") then error((...), 0) end
  return ok, ...
end

local function protect()
  os.exit = exit                                         -- luacheck: ignore
  function _G.pcall(...) return pass_on(pcall(...)) end  -- luacheck: ignore
  function _G.xpcall(fn, handler, ...)                   -- luacheck: ignore
    return pass_on(xpcall(fn, function(problem)
      if exits[problem] then return problem end
      return handler(problem)
    end, ...))
  end
end

-- running --------------------------------------------------------------------

local function load_program(name, code)
  if code then return load_text(code, "=(command line)") end
  if name == "-" then return load_stdin() end
  return load_file(name)
end

--- Runs a program.
-- @tparam table cli
-- @tparam table arguments the words of the command line
-- @tparam integer first   which of them is the program's name; with code, its
--   first argument
-- @tparam[opt] string code
-- @treturn integer exit status
function program.run(cli, arguments, first, code)
  local name = arguments[first]
  if code then name, first = "-e", first - 1 end
  local chunk, problem = load_program(name, code)
  if not chunk then
    cli.complain(problem)
    return 1
  end
  arg = name_arguments(arguments, first, name)           -- luacheck: ignore
  protect()
  return cli.run(chunk, table.unpack(arg))
end

return program
