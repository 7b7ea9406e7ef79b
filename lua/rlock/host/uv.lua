--- The libuv host: tasks, events, sleep, connections and child processes. The
--- files in host/uv/ implement it: tasks (and events), unwind, guard,
--- connection, process, job, frames. Only a host depends on where rlock runs;
--- no host depends on locks.

-- A Lua state has one loop, so it has one host, even if a program clears
-- package.loaded and requires this file again.
local registry, KEY = debug.getregistry(), "rlock.host.uv"
if registry[KEY] then return registry[KEY] --[[@as rlock.host.uv]] end

local core = require "rlock.core"

local version = "0.1.0"

if core.versions.rlock ~= version then
  error(("rlock.core is of rlock %s, but its Lua modules are of rlock %s")
    :format(core.versions.rlock or "before 0.1.0", version), 0)
end

local connection = require "rlock.host.uv.connection"
local guard = require "rlock.host.uv.guard"
local process = require "rlock.host.uv.process"
local tasks = require "rlock.host.uv.tasks"
local unwind = require "rlock.host.uv.unwind"

---@class rlock.host.uv: rlock.host
---@field entry_point? rlock
---@field run function
---@field finish function
---@field at_end? function of rlock.simulate
local host = {
  name = "uv", version = version, versions = core.versions,
  verbosity = 1,         -- 0 quiet, 1 warnings, 2 everything
  now = core.now,
  time = os.time,
  random = core.random,
  random_number = math.random,         -- for jitter only; [0,1)
  sleep = tasks.sleep,
  event = tasks.event,
  spawn = tasks.spawn,
  daemon = tasks.daemon,
  service = tasks.daemon,              -- nothing ends it but an error
  current = tasks.current,
  guard = guard,
  is_over = tasks.is_over,
  has_gone = tasks.is_over,            -- a task itself waits for its jobs
  is_running = tasks.is_running,
  is_unwinding = tasks.is_unwinding,
  is_finishing = tasks.is_finishing,
  is_unwind = unwind.is,
  explain_with = tasks.explain_with,
  revive = tasks.revive,
  run = tasks.run,
  finish = tasks.finish,
  exit = tasks.exit,
  connect = connection.open,
  process = process.start,
  error_text = core.error,             -- of an errno, and its name
  signals = core.signals,              -- name -> number
  --- Stops this process's group, as the terminal would, until it is resumed.
  suspend = core.suspend,
  --- Whether a descriptor is open. If so, sets its close-on-exec flag.
  keep = core.keep,
  --- Writes a text to a descriptor; drops it rather than wait.
  write = core.write,
  --- Has a write to a Lua file failed? "cut", or "unread" if the reader of the
  --- pipe has left; else nil.
  write_failure = core.write_failure,
  on_signal = process.on_signal,
  on_readable = process.on_readable,
  on_request = process.on_request,
  --- Calls a function with the number of a termination signal, inside a task
  --- that has not yielded since it arrived. nil: removes the function.
  on_interrupt = core.interrupt,
  --- As coroutine.resume, but the coroutine can be interrupted.
  resume = core.resume,
  new_assert = core.new_assert,
  private_dir = core.private_dir,
  check_private = core.check_private,
  lock_file = core.flock,
  uid = core.uid,
  pid = core.pid,
  program = nil,         -- for process_identity; default: from `arg`
  renews = nil,          -- the same; default: false
  is_terminal = core.isatty,
}
registry[KEY] = host

local STDERR = 2

local is_cut = false       -- the last line that was written has no end

--- How many log lines were dropped since the last one that was written.
host.dropped = 0

--- Writes a log line without waiting: a stalled reader must not stop renewals.
---@param text string with a newline
function host.write_log(text)
  if is_cut then text = "\n" .. text end
  local written = core.write(STDERR, text)
  if written > 0 then is_cut = written < #text end
  host.dropped = written < #text and host.dropped + 1 or 0
end

--- Opens a connection of frames, see host/uv/frames.lua (loaded on first use).
---@param options table
---@return any ...
function host.frames(options)
  return require("rlock.host.uv.frames").open(options)
end

--- Starts a command under a guard process, see host/uv/job.lua (loaded on first
--- use).
function host.job(options)
  return require("rlock.host.uv.job").start(options)
end

--- Writes a log line. Callers pass text without secrets.
---@param level string "warn" or "info"
---@param text string one line
function host.log(level, text)
  if host.verbosity < (level == "warn" and 1 or 2) then return end
  local told = host.dropped == 0 and "" or ("rlock: standard error was full: "
    .. "%d messages were dropped\n"):format(host.dropped)
  host.write_log(told .. "rlock: " .. text .. "\n")
end

--- The identity of this process, see identity.lua.
---@return table # host, pid, program, renews
function host.process_identity()
  local name = type(arg) == "table" and arg[0]
  return {
    host = core.hostname(), pid = core.pid(),
    program = host.program or name and tostring(name):match("[^/]*$")
      or "rlockctl",
    renews = host.renews,
  }
end

--- Runs fn to completion, even if the task ends earlier, which this host's
--- tasks never do.
function host.whole(fn, ...) return fn(...) end

--- As `whole`; the second argument of fn is the seconds that it waits.
host.whole_wait = host.whole

return host
