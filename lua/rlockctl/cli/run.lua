--- rlockctl run: runs a command while it holds locks.

local arguments = require "rlockctl.cli.run_arguments"
local time_limit = require "rlockctl.cli.time_limit"

local run = {}

run.usage, run.options = arguments.usage, arguments.options
run.advice = arguments.advice

local BUSY, LATE, LOST, GONE, INTERRUPTED, OVER = 200, 201, 203, 204, 205, 207
local NOT_EXECUTABLE, NOT_FOUND = 126, 127
local CONNECT = 10             -- seconds; many clients may connect at once

-- messages ----------------------------------------------------------------

local function line(...)
  return (("run: " .. string.format(...)):gsub("%c", "?"))
end

local function say(self, ...) self.cli.complain(line(...)) end

-- The same while it holds the lock: drops the message rather than wait.
local function say_or_drop(self, ...)
  self.host.write_log("rlockctl: " .. line(...) .. "\n")
end

local function emit(self, event, fields)
  local fd = self.chosen.status_fd
  if not fd then return end
  fields = fields or {}
  fields.event, fields.name = event, self.name
  self.host.write(fd, require("rlockctl.cli.json")(fields) .. "\n")
end

local function milliseconds(seconds) return math.floor(seconds * 1000 + 0.5) end

-- signals -----------------------------------------------------------------

local FORWARDED = { "QUIT", "USR1", "USR2", "WINCH" }

local function is_ending(self, signal)
  local signals = self.host.signals
  return signal == signals.INT or signal == signals.TERM
end

-- With --foreground, the terminal has sent the signal to the command, too.
local function is_of_terminal(self, signal)
  local signals = self.host.signals
  return self.chosen.foreground and (signal == signals.INT
    or signal == signals.QUIT or signal == signals.WINCH)
end

local function forward(self, signal)
  if is_of_terminal(self, signal) then return end
  if is_ending(self, signal) then
    self.endings = (self.endings or 0) + 1
    if self.endings > 1 then signal = self.host.signals.KILL end
  end
  self.run:send(signal)
end

-- A signal before the command runs ends the program, but WINCH does not.
local function on_signal(self, signal)
  if self.run then return forward(self, signal) end
  if signal == self.host.signals.WINCH or self.is_over then return end
  self.interrupted = true
  time_limit.leave(self.client)
  if not self.chosen.quiet then
    say(self, "interrupted while waiting for %q", self.name)
  end
  return INTERRUPTED
end

local function take_signals(self)
  local host = self.host
  require("rlock.host.uv.shutdown").pass_signals(function(signal)
    return on_signal(self, signal)
  end)
  for _, name in ipairs(FORWARDED) do
    host.on_signal(name, function()
      local status = on_signal(self, host.signals[name])
      if status then host.exit(status) end
    end)
  end
  host.on_signal("CONT", function()
    if self.run then self.run:resume() end
  end)
end

-- acquiring the lock ------------------------------------------------------

-- Limits the time of all further steps. `late` returns the exit status.
local function bound(self, seconds, late)
  if self.unbound then self.unbound() end
  self.unbound = time_limit.bound(seconds, function()
    time_limit.leave(self.client)
    return late()
  end)
end

-- Is a message to be printed if another client has the lock?
local function tells_holders(self)
  local chosen = self.chosen
  return not chosen.quiet and (chosen.conflict ~= 0 or chosen.verbose)
end

-- The exit status if another client has the lock. Names the holders.
local function conflict(self, status, detail)
  time_limit.leave(self.client)
  status = self.chosen.conflict or status
  if not tells_holders(self) then return status end
  local function tell(text)
    if not self.has_reported then say(self, "%s", text) end
    self.has_reported = true
    return status
  end
  bound(self, time_limit.LEAVE, function() return tell(detail) end)
  return tell(self.hold:holders() or detail)
end

-- Whether the lock was busy. Otherwise the server did not reply in time.
local function was_in_use(self, detail)
  return self.was_busy or detail:find("not free in time", 1, true)
end

-- The exit status for a failure to acquire the lock.
local function not_taken(self, code, detail)
  if code == "busy" then return conflict(self, BUSY, detail) end
  if code == "timeout" and was_in_use(self, detail) then
    return conflict(self, LATE, detail)
  end
  time_limit.leave(self.client)
  return self.cli.fault(code, "run: " .. detail)
end

-- The exit status when the wait is over, but a server has not replied.
local function too_late(self)
  if self.was_busy then
    return conflict(self, LATE, ("%q: not free in time"):format(self.name))
  end
  return self.cli.fault("timeout", "run: "
    .. time_limit.problem(self.chosen.wait))
end

local passing = { connect = true, timeout = true, closed = true }

-- Why a leader does not reach the server, which it retries.
local function report(self, detail)
  if self.chosen.quiet or require("rlock.redis.errors").is_denied(detail) then
    return
  end
  say(self, "%s; it keeps trying", detail)
end

local function take(self)
  local lock, wait = self.hold.lock, self.chosen.wait
  local deadline = self.started + wait
  local ok, code, detail = lock:try_lock()
  if (code == "busy" or passing[code]) and self.host.now() < deadline then
    self.was_busy = code == "busy"
    if not self.was_busy and self.chosen.leader then report(self, detail) end
    emit(self, "waiting")
    if wait < math.huge and tells_holders(self) then self.hold:look() end
    ok, code, detail = lock:lock {
      wait = math.max(0, deadline - self.host.now()) }
  end
  if code == "busy" and wait > 0 then code = "timeout" end
  return ok, code, detail
end

local function took(self)
  local waited, former = self.host.now() - self.started,
    self.hold.lock.former_limit
  if former and not self.chosen.quiet then
    say_or_drop(self, "%q had a limit of %d: it is %d now", self.name, former,
      self.chosen.limit)
  end
  local env, owner, token = self.hold:environment(self.name, self.chosen.ttl)
  if self.chosen.verbose then
    say_or_drop(self, "acquired %q after %.3f s", self.name, waited)
  end
  emit(self, "acquired", { waited_ms = milliseconds(waited), owner = owner,
    token = token })
  return env
end

-- the command -------------------------------------------------------------

local function on_event(self)
  return function(event, fields)
    fields.valid_ms = fields.valid and milliseconds(fields.valid)
    fields.valid = nil
    emit(self, event, fields)
  end
end

-- The command inherits RLOCK_URL; it gets --url without its password.
local function add_url(self, env)
  if self.chosen.url then
    env[#env + 1] = "RLOCK_URL="
      .. require("rlockctl.cli.address").show(self.chosen.url)
  end
  return env
end

local FAREWELL = "rlockctl: guard: kills %s: past its deadline for %q"

local function options_of(self, env)
  local chosen = self.chosen
  return {
    lock = self.hold.lock, env = add_url(self, env), on_lost = chosen.on_lost,
    kill_after = chosen.kill_after, hold_at_most = chosen.hold_at_most,
    no_input = chosen.no_stdin, foreground = chosen.foreground,
    on_event = on_event(self),
    farewell = not chosen.quiet and (FAREWELL:format(self.words[1], self.name)
      :gsub("%c", "?") .. "\n") or nil,
  }
end

-- Does it campaign again? Not if a signal has asked the command to end, or if
-- processes of the command may still run.
local function goes_on(self, outcome)
  return self.chosen.leader and outcome.stopped == "lost"
    and not (outcome.is_left or self.endings) or false
end

local function unable(self, outcome)
  say(self, "%s: %s", self.words[1], outcome.unable)
  return outcome.is_missing and NOT_FOUND or NOT_EXECUTABLE
end

-- The exit status, after the command has ended and the lock was released.
local function result(self, outcome, released, code, detail)
  if outcome.unable then return unable(self, outcome) end
  if outcome.is_left then
    say(self, "lost %q: %s", self.name, outcome.lost)
    return LOST
  elseif outcome.stopped == "over" then
    say(self, "%q was held for %gs: the command was stopped", self.name,
      self.chosen.hold_at_most)
    return OVER
  elseif outcome.stopped then
    say(self, "lost %q (%s): the command was stopped%s", self.name,
      outcome.lost or "not renewed in time",
      self.is_over and "" or "; it campaigns again")
    return LOST
  elseif not released then
    say(self, "%q: %s", self.name, detail)
    if outcome.status == 0 and (outcome.lost or code == "lost") then
      return GONE
    end
  end
  return outcome.status
end

local function execute(self, env)
  local run_ <close>, code, detail =
    require("rlock.host.uv.exec").start(self.words, options_of(self, env))
  if not run_ then return nil, code, detail end
  self.run = run_
  if self.chosen.on_revoke and self.hold.lock then
    require("rlockctl.cli.run_requests").heed(self, say, emit)
  end
  run_:wait()
  self.run, self.is_over = nil, not goes_on(self, run_)
  return run_
end

-- After a loss the server may still not answer.
local function release(self, is_lost)
  if not self.hold.lock then return true end
  time_limit.shorten(self.client, self.chosen.wait)
  if is_lost then time_limit.leave(self.client) end
  local ok, code, detail = self.hold.lock:unlock()
  emit(self, "released", { ok = ok == true })
  if not ok then time_limit.leave(self.client) end
  return ok, code, detail
end

local function hold_and_run(self)
  local env = {}
  if self.hold.lock then
    local ok, code, detail = take(self)
    if not ok then return not_taken(self, code, detail) end
    env = took(self)
  end
  self.unbound()
  if self.interrupted then
    release(self)
    return INTERRUPTED
  end
  local outcome, code, detail = execute(self, env)
  if not outcome then
    self.is_over = code ~= "not_held" or not self.chosen.leader
    release(self)
    say(self, "%s", detail)
    return code == "not_held" and LOST or NOT_EXECUTABLE
  end
  return result(self, outcome, release(self, outcome.stopped == "lost"))
end

-- A leader that loses the lock campaigns again: `is_over` is false then.
local function keep_running(self)
  local session = self.client.session
  ---@diagnostic disable-next-line: unbalanced-assignments
  local timeout, status = session.timeout
  repeat
    self.is_over, self.was_busy, session.timeout = nil, nil, timeout
    status = hold_and_run(self)
    self.started = self.host.now()
  until self.is_over ~= false
  return status
end

local function open(self)
  self.host.program = self.words[1]:match("[^/]*$")   -- for `status`
  self.host.renews = true
  local wait = self.chosen.wait
  local client, code, detail = time_limit.open({ watchdog = self.chosen.ttl,
    connect_timeout = wait > 0 and CONNECT or nil,
    lazy = self.chosen.leader }, wait)      -- it campaigns until it connects
  if not client then return nil, code, detail end
  self.client = client
  self.hold, code, detail =
    require("rlockctl.cli.run_locks").new(client, self.names, self.chosen)
  return self.hold, code, detail
end

function run.run(cli, operands, chosen)
  local names, words = arguments.read(operands, chosen)
  if not names then return cli.fault("usage", "run: " .. words) end
  local self = { cli = cli, chosen = chosen, names = names, words = words,
    host = require "rlock.host.uv" }
  self.name, self.started = operands[1], self.host.now()
  bound(self, time_limit.of(chosen.wait), function() return too_late(self) end)
  take_signals(self)
  local ok, code, detail = open(self)
  if not ok then
    if code ~= "lost" then return cli.fault(code, "run: " .. detail) end
    say(self, "%s", detail)
    return LOST
  end
  return keep_running(self)
end

return run
