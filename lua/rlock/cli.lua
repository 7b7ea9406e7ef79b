--- rlockctl: reads the command line, runs the script or the command.

local cli = {}

local host, rlock, real_exit

local UNREACHABLE, USAGE = 202, 206
cli.UNREACHABLE, cli.USAGE = UNREACHABLE, USAGE

local commands = {
  status = "rlock.cli.status", ["local"] = "rlock.cli.embedded",
  script = "rlock.cli.script", help = "rlock.cli.help",
  version = "rlock.cli.version",
}

local function complain(...)
  io.stderr:write("rlockctl: ", ...)
  io.stderr:write("\n")
end

--- Tells on one line what happened, and gives the exit status for it.
-- @tparam string code   of errors.lua
-- @tparam string detail
function cli.fault(code, detail)
  complain((tostring(detail):gsub("%c", " ")))
  if code == "usage" then return USAGE end
  return (code == "redis" or code == "refused") and 1 or UNREACHABLE
end

-- the command line -----------------------------------------------------------------

-- Options that come before the script or the command.
local function take_value(arguments, i, name)
  local value = arguments[i]:match("^%-%-[%w-]+=(.*)$")
  if value then return value, i end
  if arguments[i + 1] == nil then
    return nil, nil, "option " .. name .. " needs a value"
  end
  return arguments[i + 1], i + 1
end

local valued = { ["--url"] = "url", ["--lua-path"] = "lua_path", ["-e"] = "code" }
local plain = {
  ["-v"] = "verbose", ["-q"] = "quiet", ["-h"] = "help", ["--help"] = "help",
  ["--version"] = "version", ["-V"] = "version",
}

-- @return options and the index of the first argument that is none
local function read_options(arguments)
  local options, i = {}, 1
  while arguments[i] do
    local argument = arguments[i]
    local name = argument:match("^(%-%-[%w-]+)=") or argument
    if name == "--" then
      return options, i + 1
    elseif valued[name] then
      local value, fault
      value, i, fault = take_value(arguments, i, name)
      if not value then return nil, nil, fault end
      options[valued[name]] = value
    elseif plain[name] then
      options[plain[name]] = true
    elseif argument:find("^%-.") then
      return nil, nil, "unknown option " .. argument
        .. " (see rlockctl help)"
    else
      break
    end
    i = i + 1
    if options.code then break end
  end
  return options, i
end

-- programs -------------------------------------------------------------------------

-- As os.exit, but tasks clean up first and held locks are released.
local function exit(status)
  if status == nil or status == true then status = 0 end
  if status == false then status = 1 end
  host.exit(math.tointeger(status) or 1)
end

local function watch_signals()
  for name, status in pairs { INT = 130, TERM = 143 } do
    local again = false
    host.on_signal(name, function()
      if again then real_exit(status) end
      again = true
      host.exit(status)
    end)
  end
end

local function load_program(options, arguments, first)
  local sources = require("rlock.script").sources
  local chunk, message
  local name = arguments[first]
  if options.code then
    name = "-e"
    sources["=(command line)"] = options.code
    chunk, message = load(options.code, "=(command line)")
    first = first - 1
  elseif name == "-" then
    local text = io.read("a")
    sources["=stdin"] = text
    chunk, message = load(text:gsub("^#[^\n]*", ""), "=stdin")
  else
    chunk, message = loadfile(name)
  end
  local program = {}
  for i = 0, #arguments do program[i - first] = arguments[i] end
  program[0] = name
  return chunk, message, program
end

local function run_program(options, arguments, first)
  local chunk, message, program = load_program(options, arguments, first)
  if not chunk then
    complain(message)
    return 1
  end
  arg = program                                        -- luacheck: ignore
  os.exit = exit                                       -- luacheck: ignore
  watch_signals()
  local ok, status, why = rlock.run(chunk, table.unpack(program))
  if ok then return 0 end
  if why then complain(why) end
  return status
end

local function run_command(name, arguments, first)
  local rest = {}
  for i = first, #arguments do rest[#rest + 1] = arguments[i] end
  local command = require(commands[name])
  watch_signals()
  local result
  local ok, status, why = rlock.run(function() result = command(rest, cli) end)
  if ok then return result or 0 end
  if why then complain(why) end
  return status
end

--- Runs rlockctl.
-- @tparam table arguments  [0] is the program
-- @tparam function embedded_text  "rlock/lock.lua" -> its text, if embedded
-- @treturn integer exit status
function cli.main(arguments, embedded_text)
  local options, first, fault = read_options(arguments)
  if not options then
    complain(fault)
    return USAGE
  end
  if options.lua_path then
    package.path = options.lua_path .. ";" .. package.path
  end
  host, rlock = require "rlock.host.uv", require "rlock"
  real_exit = os.exit
  setmetatable(require("rlock.script").sources, {
    __index = function(_, name)
      return name:sub(1, 1) == "@" and embedded_text(name:sub(2)) or nil
    end,
  })
  host.verbosity = options.quiet and 0 or options.verbose and 2 or 1
  rlock.default_url = options.url
  local name = arguments[first]
  if options.version then return run_command("version", {}, 1) end
  if options.help or (not name and not options.code) then
    return run_command("help", { name }, 1)
  end
  if not options.code and commands[name] then
    return run_command(name, arguments, first + 1)
  end
  return run_program(options, arguments, first)
end

return cli
