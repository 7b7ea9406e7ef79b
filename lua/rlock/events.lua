--- Events of a client, for people and programs: passed to the program's `log`
--  function or, without one, written as a line by the host.
--
--    waiting, acquired, at_risk, lost      of locks: kind, lock, and reason,
--                                          valid_for, wait (seconds), token
--    disconnected, reconnected, sealed, not_sealed, moved   of connections:
--                                          server, and reason or connections
--    retried, not_released, not_confirmed  of requests
--
--  All have `message`, a sentence without secrets, and `client`, its name.

local events = {}

--- Tells of an event. An error of the program's function is logged.
-- @tparam table host
-- @tparam table options of the client: log, name
-- @tparam string level "warn" or "info"
-- @tparam string event
-- @tparam string message
-- @tparam[opt] table fields modified
function events.tell(host, options, level, event, message, fields)
  if not options.log then return host.log(level, message) end
  fields = fields or {}
  fields.message, fields.client = message, options.name
  local ok, why = pcall(options.log, level, event, fields)
  if not ok then
    host.log("warn", "the function log raised: " .. tostring(why))
  end
end

return events
