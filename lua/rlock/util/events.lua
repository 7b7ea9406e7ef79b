--- Events of a client: passed to the program's `log` callback or, without one,
--- logged as a line by the host.
---
---   waiting, acquired, at_risk, lost      of locks: kind, lock, and reason,
---                                         valid_for, wait (seconds), token
---   asked                                 to release a lock: kind, lock, and
---                                         reason
---   disconnected, reconnected, sealed, not_sealed, moved   of connections:
---                                         server, and reason or connections
---   retried, not_released, not_confirmed  of requests
---
--- All have `message`, a sentence without secrets, and `client`, its name.

local events = {}

--- Reports an event. An error in the callback is logged.
---@param host table
---@param options table of the client: log, name
---@param level string "warn" or "info"
---@param event string
---@param message string
---@param fields? table modified
function events.report(host, options, level, event, message, fields)
  if not options.log then return host.log(level, message) end
  fields = fields or {}
  fields.message, fields.client = message, options.name
  local ok, why = pcall(options.log, level, event, fields)
  if not ok then
    host.log("warn", "the log callback raised: " .. tostring(why))
  end
end

return events
