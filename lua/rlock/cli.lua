--- rlockctl: reads the command line and runs the program or the command. Loads
--  modules lazily, to start fast.

local options = require "rlock.cli.options"

local cli = {}

local UNREACHABLE, USAGE = 202, 206

local commands = {
  ["break"] = true, ["check"] = true, ["help"] = true, ["local"] = true,
  ["ls"] = true, ["run"] = true, ["script"] = true, ["status"] = true,
  ["top"] = true, ["try"] = true, ["version"] = true, ["wait"] = true,
}

--- Options that every command has.
local common = {
  ["--url"] = { "url", "URL" },
  ["--lua-path"] = { "lua_path", "PATH", all = true },
  ["--log"] = { "log", "json" }, ["--metrics"] = { "metrics", "PORT|FILE" },
  ["-v"] = { "verbose" }, ["-q"] = { "quiet" },
  ["-h"] = { "help" }, ["--help"] = { "help" },
}

--- Options that come before a program or a command name.
local leading = setmetatable({
  ["-e"] = { "code", "CODE", last = true }, ["-i"] = { "prompt" },
  ["-V"] = { "version" }, ["--version"] = { "version" },
}, { __index = common })

-- messages -------------------------------------------------------------------

--- Prints a message to standard error.
-- @tparam string text
function cli.complain(text)
  io.stderr:write("rlockctl: ", text, "\n")
end

--- Prints an error on one line, never with a password; returns the exit status.
-- @tparam string code   of errors.lua
-- @tparam string detail
-- @treturn integer
function cli.fault(code, detail)
  local line = detail:gsub("%s*%c%s*", " "):gsub("://%S*@", "://")
  cli.complain(line)
  if code == "usage" then return USAGE end
  return (code == "redis" or code == "refused") and 1 or UNREACHABLE
end

-- options --------------------------------------------------------------------

local named                  -- `path`: the user's search path for modules
local metrics_place          -- the value of --metrics

-- Prepends to the search paths. A folder stands for the modules in it.
local function search_first(paths)
  for i = #paths, 1, -1 do
    local path = paths[i]
    if not path:find("?", 1, true) then
      path = ("%s/?.lua;%s/?/init.lua"):format(path, path)
    end
    package.path = path .. ";" .. package.path
    named.path = path .. ";" .. named.path
  end
end

local function obey(chosen)
  if chosen.lua_path then search_first(chosen.lua_path) end
  local fits, host = pcall(require, "rlock.host.uv")
  if not fits then return nil, "refused", host end
  host.verbosity = chosen.quiet and 0 or chosen.verbose and 2 or 1
  metrics_place = chosen.metrics
  if chosen.log == "json" then
    require("rlock").default_log = require("rlock.cli.reports").log
  elseif chosen.log then
    return nil, "usage", "--log: must be json"
  end
  if not chosen.url then return true end
  local parsed, code, detail = require("rlock.redis.url").parse(chosen.url)
  if not parsed then return nil, code, "--url: " .. detail end
  require("rlock").default_url = chosen.url
  return true
end

-- Gives rlock.script, when it is loaded, the sources that are not files: it
-- reads the source text of the functions that it ships to Redis.
local function offer_sources(embedded_text)
  local function load_script(name)
    package.preload[name] = nil
    local script = require(name)
    package.preload[name] = load_script
    setmetatable(script.sources, { __index = function(_, chunk)
      if chunk:sub(1, 1) == "@" then return embedded_text(chunk:sub(2)) end
      return require("rlock.cli.program").sources[chunk]
    end })
    return script
  end
  package.preload["rlock.script"] = load_script
end

-- running --------------------------------------------------------------------

--- Runs fn as a task; returns when it and all tasks that it starts have ended.
-- @tparam function fn
-- @param ... its arguments
-- @treturn integer exit status
function cli.run(fn, ...)
  local shutdown = require "rlock.shutdown"
  shutdown.prepare()
  local finish, why
  if metrics_place then
    finish, why = require("rlock.cli.reports").publish(metrics_place)
    if not finish then return cli.fault("refused", "--metrics: " .. why) end
  end
  local ok, status, message = require("rlock").main(fn, ...)
  if finish then finish() end
  if message then cli.complain(shutdown.explained(message)) end
  return ok and 0 or status
end

local function run_command(name, words, first, chosen)
  local command, operands = require("rlock.cli." .. name), {}
  local known = setmetatable(command.options or {}, { __index = common })
  local _, problem = options.read(words, first, known, chosen, operands)
  if problem then return cli.fault("usage", name .. ": " .. problem) end
  if chosen.help then command, operands = require "rlock.cli.help", { name } end
  local ok, code, detail = obey(chosen)
  if not ok then return cli.fault(code, detail) end
  local result
  local status = cli.run(function()
    result = command.run(cli, operands, chosen)
  end)
  ok, detail = io.stdout:flush()
  if not ok then return cli.fault("refused", "cannot write: " .. detail) end
  return status == 0 and result or status
end

--- Runs rlockctl.
-- @tparam table arguments  [0] is the program
-- @tparam function embedded_text  "rlock/lock.lua" -> its text, if embedded
-- @tparam table user_named  `path`: searched for modules before the embedded
--   ones
-- @treturn integer exit status
function cli.main(arguments, embedded_text, user_named)
  named = user_named
  collectgarbage("setpause", 115)       -- saves memory with many live tasks
  local chosen = {}
  local first, problem = options.read(arguments, 1, leading, chosen)
  if not first then return cli.fault("usage", problem) end
  offer_sources(embedded_text)
  local name = arguments[first]
  if chosen.version then return run_command("version", {}, 1, {}) end
  if chosen.help then return run_command("help", arguments, first, {}) end
  if chosen.prompt then
    return run_command("prompt", arguments, first, chosen)
  elseif not chosen.code and commands[name] then
    return run_command(name, arguments, first + 1, chosen)
  elseif not chosen.code and not name then
    io.stderr:write(require("rlock.cli.help").general)
    return USAGE
  end
  local ok, code, detail = obey(chosen)
  if not ok then return cli.fault(code, detail) end
  return require("rlock.cli.program").run(cli, arguments, first, chosen.code)
end

return cli
