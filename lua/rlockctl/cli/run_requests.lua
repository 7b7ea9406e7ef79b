--- What `rlockctl run --on-revoke SIGNAL` does when a client asks for its lock.

local host = require "rlock.host.uv"

local run_requests = {}

local LAST = 64              -- the greatest number of a signal

--- The signal with a name or number.
---@param given string
---@return integer?
---@return string? code # what it must be
function run_requests.signal(given)
  local signal = math.tointeger(tonumber(given))
    or host.signals[given:gsub("^SIG", "")]
  if signal and signal >= 1 and signal <= LAST then return signal end
  return nil, ("--on-revoke must be a signal: a name, such as TERM or USR1, "
    .. "or a number from 1 to %d"):format(LAST)
end

--- Sends the command its signal whenever a client asks for the lock.
---@param run table of run.lua
---@param say function prints a message
---@param emit function writes an event
function run_requests.heed(run, say, emit)
  run.hold.lock:on_release_request(function(_, reason)
    if not run.run then return end                  -- the command has ended
    if not run.chosen.quiet then
      say(run, "asked to release %q: %s", run.name, reason)
    end
    emit(run, "asked", { reason = reason })
    if run.run then run.run:send(run.chosen.on_revoke) end
  end)
end

return run_requests
