--- The globals of one simulated process. They are copies of Lua's globals, but
--- time and random numbers are simulated, `require` loads modules for this
--- process only, and what cannot be simulated raises an error.

local order = require "rlockctl.simulate.order"
local sandbox = require "rlock.script.sandbox"
local sim = require "rlockctl.model.host"
local unwind = require "rlock.host.uv.unwind"

local new_assert = require "rlock.host.uv".new_assert

local environment = {}

-- The error codes of rlock that may end a process. The code "usage" is a bug.
local CODES = {}
for code in ([[busy timeout deadlock lost not_held refused closed connect redis
  zookeeper quorum replicas failed cancelled]]):gmatch "%S+" do
  CODES[code] = true
end

-- Modules that reach the outside world, and those below them.
local OUTSIDE = {}
for name in ([[socket ssl luv cqueues posix copas http lfs hiredis resty]])
    :gmatch "%S+" do
  OUTSIDE[name] = true
end

--- The error code of rlock in the message of an uncaught error, or nil.
---@param message string with a traceback
function environment.code_of(message)
  ---@type any
  local first = message:match "^[^\n]*"
  local code = first:match "([%a_]+)$"
  if CODES[code] and (first == code or first:find ": [%a_]+$") then
    return code
  end
end

local function refusing(what, instead)
  return function()
    error(("%s cannot be simulated%s"):format(what, instead or ""), 2)
  end
end

local function copy(list)
  local result = {}
  for key, value in next, list do result[key] = value end
  return result
end

-- time and randomness ---------------------------------------------------------

--- Adds simulated time to the globals of a process.
---@param env table `os`
---@param process table `host`, `began`
function environment.add_time(env, process)
  local host = process.host
  function env.os.time(fields)
    if fields then return os.time(fields) end
    return host.time()
  end
  function env.os.date(format, time)
    return os.date(format, time or host.time())
  end
  function env.os.clock() return host.now() - process.began end
end

--- Adds simulated random numbers to the globals of a process.
---@param env table `math`
---@param process table `host`
function environment.add_random(env, process)
  local random = sim.stream(process.host.universe.seed,
    process.host.label .. " program")
  function env.math.random(first, last)
    if not first then return random() end
    if first == 0 and not last then
      return math.floor(random() * 2 ^ 32) << 32 | math.floor(random() * 2 ^ 32)
    end
    if not last then first, last = 1, first end
    if first > last then
      error("bad argument to 'random' (interval is empty)", 2)
    end
    local choice = math.floor(random() * (last - first + 1.0))
    return math.tointeger(first + choice) or first + choice
  end
  function env.math.randomseed() end
end

-- order -----------------------------------------------------------------------

local OBJECTS = { table = true, ["function"] = true, thread = true,
  userdata = true }

-- Records what depends on memory addresses: it is not reproducible, but the
-- report can name it.
local function add_order(env, process)
  local run = process.run
  function env.pairs(list)
    return order.pairs(list, function()
      run:depends_on_addresses "pairs of a table keyed by objects"
    end)
  end
  function env.next(list, key)
    local following, value = next(list, key)
    if key == nil and following ~= nil and type(following) ~= "number" then
      run:depends_on_addresses "next, whose order of keys has no seed"
    end
    return following, value
  end
  function env.tostring(value)
    local meta = OBJECTS[type(value)] and debug.getmetatable(value) or nil
    if OBJECTS[type(value)] and not (meta and (meta.__tostring or meta.__name))
    then
      run:depends_on_addresses("tostring of a " .. type(value))
    end
    return tostring(value)
  end
end

-- os.exit raises an error to unwind the task. The program must not catch it.
local function add_pcall(env, process)
  local function passed(ok, message, ...)
    if not ok and process.ending == "exit" and unwind.is(message) then
      error(message, 0)
    end
    return ok, message, ...
  end
  function env.pcall(...) return passed(pcall(...)) end
  function env.xpcall(...) return passed(xpcall(...)) end
end

-- input and output ------------------------------------------------------------

local function output(process, is_error)
  local file = {}
  function file.write(self, ...)
    process:printed(table.concat { ... }, is_error)
    return self
  end
  function file.close() return true end
  file.flush, file.setvbuf = file.close, file.close
  return file
end

local function add_files(env, process)
  local io_, os_ = env.io, env.os
  io_.stdout, io_.stderr = output(process), output(process, true)
  io_.write = function(...) return io_.stdout:write(...) end
  io_.read = function() return nil end  -- the input is empty
  io_.stdin = { read = io_.read, lines = function() return io_.read end,
    close = function() return true end }
  io_.input = refusing "io.input"
  io_.lines = function(path, ...)
    if path then return io.lines(path, ...) end
    return io_.read
  end
  io_.open = function(path, mode)
    if mode and not mode:find "^rb?$" then
      error(("writing %s cannot be simulated; what processes share is in "
        .. "rlock.simulate's shared()"):format(path), 2)
    end
    return io.open(path, mode)
  end
  io_.popen = refusing "io.popen"
  io_.tmpfile, io_.output = refusing "io.tmpfile", refusing "io.output"
  os_.execute, os_.remove = refusing "os.execute", refusing "os.remove"
  os_.rename, os_.tmpname = refusing "os.rename", refusing "os.tmpname"
  function os_.exit(status) process:exit(status) end
  function env.print(...)
    local words = table.pack(...)
    for i = 1, words.n do words[i] = tostring(words[i]) end
    process:printed(table.concat(words, "\t") .. "\n")
  end
end

-- modules ---------------------------------------------------------------------

-- The chunk of a file. Each search compiles a file once.
local function chunk_of(process, path, env)
  local cache = process.run.program.chunks
  if not cache[path] then
    local fn, problem = loadfile(path, "t")
    if not fn then return nil, problem end
    cache[path] = string.dump(fn)
  end
  return load(cache[path], "@" .. path, "b", env)
end

local function load_module(process, env, name)
  local given = env.package.preload[name]
  if given then return given(name, ":preload:") or true end
  if name == "rlock" then return process.rlock end
  if name == "rlock.simulate" then return process.simulate end
  if OUTSIDE[name:match "^[^.]*"] then
    error(("module %s cannot be simulated"):format(name), 3)
  end
  if name:find "^rlock%." or name:find "^rlockctl%." or package.loaded[name]
  then
    return require(name)
  end
  local path, tried = package.searchpath(name, env.package.path)
  if not path then
    local found, module = pcall(require, name)
    if found then return module end
    error(("module '%s' not found:%s"):format(name, tried), 3)
  end
  local fn, problem = chunk_of(process, path, env)
  if not fn then error(problem, 0) end
  local result = fn(name, path)
  if result == nil then result = true end
  return result
end

local function add_modules(env, process)
  local loaded = { _G = env }
  for _, name in ipairs { "string", "table", "math", "os", "io", "coroutine",
    "utf8", "debug" } do
    loaded[name] = env[name]
  end
  env.package = { path = package.path, cpath = package.cpath, loaded = loaded,
    preload = {}, config = package.config, searchpath = package.searchpath }
  loaded.package = env.package
  function env.require(name)
    if loaded[name] == nil then
      local module = load_module(process, env, name)
      if loaded[name] == nil then loaded[name] = module end
    end
    return loaded[name]
  end
  function env.load(text, name, mode, ...)
    local own = select("#", ...) > 0 and ... or env
    return load(text, name, mode, own)
  end
  function env.loadfile(path, mode, ...)
    local own = select("#", ...) > 0 and ... or env
    return loadfile(path, mode, own)
  end
  function env.dofile(path)
    local fn, problem = chunk_of(process, path, env)
    if not fn then error(problem, 0) end
    return fn()
  end
end

-- the environment -------------------------------------------------------------

-- Allows two functions of `debug`. The others can reach the simulation, or
-- modules that all processes share.
local function safe_debug()
  local safe = {}
  for name in next, debug do safe[name] = refusing("debug." .. name) end
  safe.traceback, safe.getinfo = debug.traceback, debug.getinfo
  return safe
end

--- Makes the globals of a process.
---@param process table of process.lua
---@return table
function environment.new(process)
  local env = copy(_G)
  for _, name in ipairs { "os", "io", "math", "table", "coroutine", "utf8" }
  do
    env[name] = copy(_G[name])
  end
  env.debug, env.assert = safe_debug(), new_assert(process.raised)
  env._G, env.arg = env, process.run.program.arg
  environment.add_time(env, process)
  environment.add_random(env, process)
  add_order(env, process)
  add_pcall(env, process)
  add_files(env, process)
  add_modules(env, process)
  -- A policy's server functions may use these.
  for _, name in ipairs { "math", "pairs", "next", "tostring", "pcall",
    "xpcall", "load", "assert" } do
    sandbox.stand_in(env[name], name)
  end
  return env
end

--- The program's main chunk, with the globals of a process.
function environment.main(process)
  return assert(chunk_of(process, process.run.program.path, process.env))
end

return environment
