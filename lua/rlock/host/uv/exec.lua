--- Runs a command under a lock. Its parent is the guard process (src/guard.h),
--- which enforces two deadlines even if this program is stopped or killed. At
--- the hard deadline, it kills the command and all its descendants, before the
--- lease ends and the server may grant the lock to another owner. It sends a
--- signal at the soft deadline, `kill_after` seconds earlier. Each renewal
--- moves both. If the guard is killed, its parent, the warden, kills them.

local check = require "rlock.util.options"
local host = require "rlock.host.uv"

local exec = {}

local huge, max, min = math.huge, math.max, math.min

local KILL_AFTER = 5                    -- default, if the lease is long enough
local UNWIND = 2                        -- seconds for a command to clean up
local GROWN = 0.001                     -- less is a rounding error
-- The kill precedes the end of the lease by this share of it, but at most by so
-- many seconds.
local MARGIN, MOST_MARGIN = 0.1, 0.5

---@class rlock.host.uv.exec.Run
---@field lock rlock.lock
---@field on_lost any
---@field ends number
---@field on_event any
---@field period number
---@field margin number
---@field kill_after number
---@field is_gone any
---@field job any
local Run = {}
Run.__index = Run

-- The soft and the hard deadline.
local function times(self)
  local soft, hard = huge, huge
  if self.on_lost ~= "ignore" and self.lock then
    hard = self.ends - self.margin
    soft = hard - self.kill_after
  end
  self.cause = self.over_soft < soft and "over" or "lost"
  return max(0, min(soft, self.over_soft)), min(hard, self.over)
end

local function set_deadlines(self, soft, hard)
  self.soft, self.hard = soft, hard
  self.job:limit(soft, hard)
end

local function emit(self, what, fields)
  if self.on_event then self.on_event(what, fields or {}) end
end

-- Reports once that the lock is lost.
local function report_loss(self)
  self.lost = self.lost or self.reason or "not renewed in time"
  if self.is_reported then return end
  self.is_reported = true
  emit(self, "lost", { reason = self.lost })
end

local function report_risk(self, left)
  if self.at_risk then return end
  self.at_risk = true
  emit(self, "at_risk", { valid = left })
end

-- The lock is certainly lost, so the grace period begins now.
local function lose(self)
  report_loss(self)
  if self.on_lost == "ignore" then return end
  local now = host.now()
  local grace = self.on_lost == "kill" and 0 or self.kill_after
  self.cause = "lost"
  set_deadlines(self, now, min(self.hard, now + grace))
end

local function watch(self)
  if not self.lock or self.lost then return end
  local left, state = self.lock:valid_for(), self.lock:state()
  if left <= 0 or state == "lost" then return lose(self) end
  local ends = host.now() + left
  if ends > self.ends + GROWN then
    self.ends, self.at_risk = ends, false
    emit(self, "renewed", { valid = left })
    set_deadlines(self, times(self))
  end
  if state == "at_risk" then report_risk(self, left) end
end

-- reports of the guard ----------------------------------------------------

local react = {}

function react.started(self, pid) self.pid = pid end

function react.unable(self, errno)
  local text, name = host.error_text(errno)
  self.unable, self.is_missing = text, name == "ENOENT"
end

function react.stopped(self)
  host.suspend()
  self.job:resume()
end

function react.ended(self, status)
  if self.unable then return end
  self.signal = status & 0x7f
  self.status = self.signal > 0 and 128 + self.signal or status >> 8 & 0xff
  emit(self, "child_exit", { status = self.status,
    signal = self.signal > 0 and self.signal or nil })
end

-- The lock may still be valid, and a renewal still in flight.
function react.softened(self)
  self.stopped = self.stopped or self.cause
  if self.cause == "lost" and not self.lost then
    report_risk(self, self.lock:valid_for())
  end
end

function react.killed(self)
  self.stopped = self.stopped or self.cause
  if self.cause == "lost" then report_loss(self) end
end

local LEFT = "its guards were killed, so processes of the command may still "
  .. "run: it is not released, and ends with its lease"

function react.gone(self, value)
  self.is_gone = true
  if value ~= 0 then
    self.stopped, self.lost = "lost", "its guard was killed"
  end
  if value < 0 then
    self.is_left, self.lost = true, LEFT
    if self.lock and self.lock.abandon then self.lock:abandon(LEFT) end
  end
  if self.stopped == "lost" then report_loss(self) end
end

local function attend(self, seconds)
  local what, value = self.job:next(seconds)
  if what then react[what](self, value) end
end

--- Waits until the command and all its descendants have ended, and renews the
--- lock meanwhile. Sets these fields of the run:
---   status   the exit status; 128 + N if signal N ended it
---   signal   N, or 0
---   unable   why it could not be executed; is_missing: it does not exist
---   lost     why the lock was lost
---   stopped  "lost" or "over" (hold_at_most) if the command was therefore sent
---            a signal
---   is_left  processes of the command may still run, so the lock must not be
---            released: its hold was abandoned
function Run:wait()
  while not self.is_gone do
    watch(self)
    attend(self, self.period)
  end
end

--- Sends a signal by number; SIGKILL kills all descendants.
function Run:send(number) self.job:signal(number) end

--- Call this when the process is continued after a stop.
function Run:resume() self.job:resume() end

--- If the task is being unwound, ends the command before its lock is released.
function Run:__close()
  local deadline = host.now() + min(self.kill_after, UNWIND)
  if not self.is_gone then self:send(host.signals.TERM) end
  while not self.is_gone and host.now() < deadline do
    attend(self, deadline - host.now())
  end
  if not self.is_gone then self:send(host.signals.KILL) end
  while not self.is_gone do attend(self, 1) end
  self.job:close()
end

local function signal_of(on_lost)
  if on_lost == "kill" then return nil end
  local name = on_lost:match("^signal:(.+)$")
  return host.signals[name and name:gsub("^SIG", "") or "TERM"]
end

--- Whether this is a value of on_lost.
function exec.is_reaction(text)
  return text == "term" or text == "kill" or text == "ignore"
    or type(text) == "string" and text:find("^signal:") ~= nil
      and signal_of(text) ~= nil
end

-- hold_at_most is the time until the signal; without a signal, until the kill.
local function new_run(options)
  local lock, most = options.lock, options.hold_at_most
  local left = lock and lock:valid_for() or huge
  local self = setmetatable({
    lock = lock, on_lost = options.on_lost or "term", ends = host.now() + left,
    on_event = options.on_event, period = max(0.01, min(1, left / 30)),
    margin = min(MARGIN * left, MOST_MARGIN),
    kill_after = options.kill_after or min(KILL_AFTER, left / 3),
  }, Run)
  self.over_soft = most and host.now() + most or huge
  self.over = self.over_soft
  if self.on_lost ~= "kill" then self.over = self.over + self.kill_after end
  return self, left
end

--- Starts a command. Call this in the task that holds the lock.
---@param words table
---@param options table lock (a lock or hold), on_lost, kill_after, env (a list
---  of "K=V"), no_input, foreground, hold_at_most (seconds until the signal;
---  the kill follows kill_after later), farewell, on_event = function(what,
---  fields) for "renewed", "at_risk", "lost", "child_exit"
---@return any # the run, for a `<close>` variable
---@return rlock.failure? code, string? detail
function exec.start(words, options)
  local self, left = new_run(options)
  if left <= 0 then return nil, "not_held", "the lock is not held" end
  self.soft, self.hard = times(self)
  local code, detail
  self.job, code, detail = host.job {
    args = words, env = options.env, soft = self.soft, hard = self.hard,
    soft_signal = signal_of(self.on_lost), no_input = options.no_input,
    foreground = options.foreground, farewell = options.farewell,
  }
  if not self.job then return nil, code, detail end
  if self.lock then
    self.lock:on_lost(function(_, reason)
      self.reason = reason
      self.job:wake()
    end)
  end
  return self
end

-- rlock.exec --------------------------------------------------------------

local function is_command(words)
  if type(words) ~= "table" or not words[1] then return false end
  for _, word in ipairs(words) do
    if type(word) ~= "string" or word:find("\0", 1, true) then return false end
  end
  return true
end

---@class rlock.options.exec
---@field lock? rlock.handle | rlock.hold that protects the command
---@field on_lost? string "term" (default), "kill", "ignore" or "signal:NAME"
---@field kill_after? number seconds between the signal and the kill
---@field env? table<string, string | false>
---@field no_input? boolean
---@field foreground? boolean

---@alias rlock.exec_options rlock.options.exec & {
---   lock?: any, on_lost?: any, kill_after?: any, env?: any, no_input?: any,
---   foreground?: any, [string]: nil }

local check_options = check.table({
  lock = function(lock, name, level)
    if type(lock) == "table" and lock.valid_for and lock.on_lost then
      return lock
    end
    error(("bad %s: must be a lock or a hold"):format(name), level + 1)
  end,
  on_lost = check.that('"term", "kill", "ignore" or "signal:NAME"',
    exec.is_reaction),
  kill_after = check.duration(0, 86400), env = check.type "table",
  no_input = check.type "boolean", foreground = check.type "boolean",
}, "a table such as { lock = lock }", "rlock.exec")

local FAREWELL = "rlock: guard: kills %s: past its deadline for the lock\n"

-- The options of `start`.
local function with_defaults(words, given)
  local options = { env = {},
    farewell = FAREWELL:format((words[1]:gsub("%c", "?"))) }
  for name, value in pairs(given) do
    if name ~= "env" then options[name] = value end
  end
  for name, value in pairs(given.env or {}) do
    table.insert(options.env, value and ("%s=%s"):format(name, value) or name)
  end
  return options
end

--- rlock.exec.
function exec.call(words, options)
  if not is_command(words) then
    error("bad command of rlock.exec: must be a table of strings", 3)
  end
  options = check_options(options, 3)
  local run <close>, code, detail =
    exec.start(words, with_defaults(words, options))
  if not run then return nil, code, detail end
  run:wait()
  if run.unable then
    return nil, "refused", words[1] .. ": " .. run.unable
  elseif run.stopped then
    return nil, "lost", run.lost or "not renewed in time"
  end
  return run.status
end

return exec
