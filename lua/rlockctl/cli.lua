--- rlockctl: parses the command line and runs the program or the command. Loads
--- modules lazily, to start fast.

local option_parser = require "rlockctl.cli.option_parser"

local cli = {}

local UNREACHABLE, USAGE, DENIED = 202, 206, 208
local FOLDER = debug.getinfo(1, "S") --[[@as table]]
  .source:match("^(.*)/cli%.lua$")

--- The commands and their modules in cli/.
cli.commands = {
  ["break"] = "break", ["check"] = "check", ["deadlocks"] = "deadlocks",
  ["doctor"] = "doctor", ["help"] = "help",
  ["local"] = "local", ["ls"] = "ls", ["revoke"] = "revoke", ["run"] = "run",
  ["script"] = "print_script", ["simulate"] = "simulate",
  ["status"] = "status", ["top"] = "top",
  ["try"] = "try", ["version"] = "version", ["wait"] = "wait",
}

--- Options that every command has.
local common = {
  ["--url"] = { "url", "URL" }, ["--tls"] = { "tls" },
  ["--cacert"] = { "cacert", "FILE" }, ["--cert"] = { "cert", "FILE" },
  ["--key"] = { "key", "FILE" }, ["--sni"] = { "sni", "HOST" },
  ["--insecure"] = { "insecure" },
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
---@param text string
function cli.complain(text)
  io.stderr:write("rlockctl: ", text, "\n")
end

--- Prints an error on one line, without passwords; returns the exit status.
---@param code string of errors.lua
---@param detail string
---@return integer
function cli.fault(code, detail)
  local line = detail:gsub("%s*%c%s*", " "):gsub("://%S*@", "://")
  cli.complain(line)
  if code == "usage" then return USAGE end
  if require("rlock.redis.errors").is_denied(detail) then return DENIED end
  local is_ours = code == "redis" or code == "zookeeper" or code == "refused"
  return is_ours and 1 or UNREACHABLE
end

-- options --------------------------------------------------------------------

---@type any
local named                  -- `path`: the user's search path for modules
local metrics_target         -- the value of --metrics

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

-- The address with TLS, for --tls; nil if it cannot have TLS.
local function secure(address)
  local found
  address, found = address:gsub("^([rR][eE][dD][iI][sS])[sS]?([+:])", "%1s%2")
  if found == 0 then
    address, found = address:gsub("^([zZ][kK])[sS]?:", "%1s:")
  end
  return found > 0 and address or nil
end

--- Sets the defaults of rlock.open.
---@return true?, rlock.failure? code, string? detail
local function set_server(chosen)
  local source = chosen.url and "--url: " or "RLOCK_URL: "
  if chosen.tls then
    chosen.url = secure(chosen.url or os.getenv "RLOCK_URL" or "")
    if not chosen.url then
      return nil, "usage", "--tls: the server must be redis://... or zk://..."
    end
  end
  if chosen.cacert or chosen.cert or chosen.key or chosen.sni
      or chosen.insecure then
    require("rlock").default_tls = { ca = chosen.cacert, cert = chosen.cert,
      key = chosen.key, server_name = chosen.sni,
      verify = not chosen.insecure }
  end
  if not chosen.url then return true end
  local parsed, code, detail =
    require("rlockctl.cli.address").parse(chosen.url)
  if not parsed then return nil, code, source .. detail end
  require("rlock").default_url = chosen.url
  return true
end

local function apply(chosen)
  if chosen.lua_path then search_first(chosen.lua_path) end
  local fits, host = pcall(require, "rlock.host.uv")
  if not fits then return nil, "refused", host end
  host.verbosity = chosen.quiet and 0 or chosen.verbose and 2 or 1
  metrics_target = chosen.metrics
  if chosen.log == "json" then
    require("rlock").default_log = require("rlockctl.cli.reports").log
  elseif chosen.log then
    return nil, "usage", "--log: must be json"
  end
  return set_server(chosen)
end

-- Gives rlock.script, once it is loaded, the sources that are not files: it
-- reads the source text of the functions that it ships to Redis.
local function offer_sources(embedded_text)
  local function load_script(name)
    package.preload[name] = nil
    local script = require(name)
    package.preload[name] = load_script
    setmetatable(script.sources, { __index = function(_, chunk)
      if chunk:sub(1, 1) == "@" then return embedded_text(chunk:sub(2)) end
      return require("rlockctl.cli.program").sources[chunk]
    end })
    return script
  end
  package.preload["rlock.script"] = load_script
end

-- running --------------------------------------------------------------------

--- Runs fn as a task; returns when this and all tasks it starts have ended.
---@param fn function
---@param ... any its arguments
---@return integer # exit status
function cli.run(fn, ...)
  local shutdown = require "rlock.host.uv.shutdown"
  shutdown.prepare(FOLDER)
  local finish, why
  if metrics_target then
    finish, why = require("rlockctl.cli.reports").publish(metrics_target)
    if not finish then return cli.fault("refused", "--metrics: " .. why) end
  end
  ---@type any, any, any
  local ok, status, message = require("rlock").main(fn, ...)
  if finish then finish() end
  if message then cli.complain(message) end
  return ok and 0 or status
end

local function run_command(name, words, first, chosen)
  local module = cli.commands[name] or name
  local command, operands = require("rlockctl.cli." .. module), {}
  local known = setmetatable(command.options or {}, { __index = common })
  local _, problem = option_parser.read(words, first, known, chosen, operands,
    name)
  if problem then
    local advice = command.advice and command.advice(operands)
    return cli.fault("usage", name .. ": " .. (advice or problem))
  end
  if chosen.help then
    command, operands = require "rlockctl.cli.help", { name }
  end
  ---@type any, any, any
  local ok, code, detail = apply(chosen)
  if not ok then return cli.fault(code, detail) end
  local result
  local status = cli.run(function()
    result = command.run(cli, operands, chosen)
  end)
  ok, detail = io.stdout:flush()
  local failure = require("rlock.host.uv").write_failure(io.stdout)
  if failure == "unread" then
    return require("rlock.host.uv.shutdown").UNREAD
  elseif not ok then
    return cli.fault("refused", "cannot write: " .. detail)
  elseif failure then
    return cli.fault("refused", "cannot write: the output is incomplete")
  end
  return status == 0 and result or status
end

--- Runs rlockctl.
---@param arguments table [0] is the program
---@param embedded_text function "rlock/client.lua" -> its text, if embedded
---@param user_named table `path`: searched for modules before the embedded ones
---@return integer # exit status
function cli.main(arguments, embedded_text, user_named)
  named = user_named
  -- The default of 200 takes more memory with many live tasks. A smaller value
  -- visits them so often that they push each other out of the cache.
  collectgarbage("setpause", 132)
  collectgarbage("step", -1024)         -- the first MB is not worth a cycle
  local chosen = {}
  ---@type any, any
  local first, problem = option_parser.read(arguments, 1, leading, chosen)
  if not first then return cli.fault("usage", problem) end
  offer_sources(embedded_text)
  local name = arguments[first]
  if chosen.version then return run_command("version", {}, 1, {}) end
  if chosen.help then return run_command("help", arguments, first, {}) end
  if chosen.prompt then
    return run_command("prompt", arguments, first, chosen)
  elseif not chosen.code and cli.commands[name] then
    return run_command(name, arguments, first + 1, chosen)
  elseif not chosen.code and not name then
    io.stderr:write(require("rlockctl.cli.help").general)
    return USAGE
  end
  ---@type any, any, any
  local ok, code, detail = apply(chosen)
  if not ok then return cli.fault(code, detail) end
  return require("rlockctl.cli.program").run(cli, arguments, first, chosen.code)
end

return cli
