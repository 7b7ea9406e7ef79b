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

local pcall, xpcall = pcall, xpcall     -- whatever programs make of the names

-- How deep the frame at this level of the caller is, and how deep the first
-- pcall from there on: 0 if there is none, but the one that is a task's first.
local function depths(level)
  local n, found = 0, nil
  local frame = debug.getinfo(level + 1, "f")
  while frame do
    n = n + 1
    local func = frame.func
    frame = debug.getinfo(level + 1 + n, "f")
    if frame and not found and (func == pcall or func == xpcall) then
      found = n
    end
  end
  return n, found and n - found + 1 or 0
end

-- Raises what nobody can catch. While it unwinds, `<close>` variables are
-- closed above the pcall that is to catch it; once anything runs below, it was
-- caught, and is raised again.
local function raise(unwind)
  local _, catcher = depths(2)
  if catcher > 0 then
    debug.sethook(function()
      local depth, next_one = depths(2)
      if depth > catcher then return end
      catcher = next_one
      if catcher == 0 then debug.sethook() end
      error(unwind, 0)
    end, "", 1)
  end
  error(unwind, 0)
end

local function status_of(status)
  if status == nil or status == true then return 0 end
  if status == false then return 1 end
  local number = math.tointeger(status)
  if number then return number & 0xFF end
  error(("bad argument #1 to 'exit' (%s)"):format(type(status) == "number"
    and "number has no integer representation"
    or "number expected, got " .. type(status)), 3)
end

-- os.exit: does not return, but lets the tasks clean up. (It does return in a
-- finalizer that no task runs.)
local function exit(status)
  local _, unwind = pcall(host.exit, status_of(status))
  if unwind then raise(unwind) end
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
  os.exit = exit                                         -- luacheck: ignore
  return cli.run(chunk, table.unpack(arg))
end

return program
