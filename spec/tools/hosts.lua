--- The hosts that run programs, for specs that hold for each: libuv, and the
--- simulated one on its virtual clock.
---
---   for _, which in ipairs(require "spec.tools.hosts") do
---     which.play(function(its) its.rlock.sleep(1) end)      -- in a task
---     local output, status, seconds = which.run "print(1)"  -- a program
---   end

local entry_point = require "rlock.host.uv.entry_point"
local program = require "spec.tools.program"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local sim = require "rlockctl.model.host"
local task = require "spec.tools.task"

local MOST = 1000                       -- seconds of virtual time

local uv = { name = "libuv" }

--- Calls fn(its) in a task. `its.rlock` is the public module of the host,
--- `its.task` starts tasks on it, as task.lua.
function uv.play(fn) fn { rlock = rlock, task = task } end

--- Runs a program in a process of its own.
---@param code string
---@return string # what it prints, with the error that ends it
---@return integer # its exit status
---@return number # after how many seconds it ends
function uv.run(code)
  local before = rlock.now()
  local output, status = program.run(redis.shared(), "-e", code)
  return output, status, rlock.now() - before
end

local simulated = { name = "the simulated host" }

local function new_host() return sim.new(1):host { name = "program" } end

--- As that of uv.
function simulated.play(fn)
  local host = new_host()
  local function start(...) return task.start_on(host, ...) end
  local its, ok, why = { rlock = entry_point(host), task = {
    start = start, run = function(...) return start(...):join() end,
  } }, nil, nil
  host.spawn(function() ok, why = pcall(fn, its) end)
  host.universe:run(MOST)
  if not ok then error(why or "the task does not end", 0) end
  assert(not host.faults[1], host.faults[1])
end

-- The globals of a program.
local function globals(host, public, output)
  local modules = { rlock = public, ["rlock.host.uv"] = host }
  return setmetatable({
    require = function(name) return modules[name] or require(name) end,
    os = setmetatable({ exit = host.exit }, { __index = os }),
    print = function(...)
      local words = table.pack(...)
      for i = 1, words.n do words[i] = tostring(words[i]) end
      output[#output + 1] = table.concat(words, "\t") .. "\n"
    end,
  }, { __index = _G })
end

--- As that of uv.
function simulated.run(code)
  local host, output, status, seconds = new_host(), {}, nil, nil
  local public, close_all = entry_point(host)
  host.start(function(ok, result, message)
    status, seconds = ok and 0 or result, host.universe.now
    output[#output + 1] = message
    host.daemon(close_all)
  end, assert(load(code, "=program", "t", globals(host, public, output))))
  host.universe:run(MOST)
  return table.concat(output), status, seconds
end

return { uv, simulated }
