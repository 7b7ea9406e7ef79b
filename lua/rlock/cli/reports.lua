--- What rlockctl reports of the clients of a program: their events as lines of
--  JSON on standard error, and their metrics in a file.

local host = require "rlock.host.uv"
local json = require "rlock.cli.json"
local metrics = require "rlock.metrics"

local reports = {}

local PERIOD = 5               -- seconds between two writes of the file

--- Writes an event, see events.lua; the option `log` of clients.
function reports.log(level, event, fields)
  fields.time = os.date("!%Y-%m-%dT%H:%M:%SZ")
  fields.level, fields.event = level, event
  io.stderr:write(json(fields), "\n")
end

--- Writes the metrics into a file. A reader sees the old one or the new one.
-- @tparam string path
-- @treturn[1] boolean true
-- @treturn[2] nil
-- @treturn[2] string what is wrong
function reports.write(path)
  local temporary = ("%s.%d"):format(path, host.pid())
  local file, why = io.open(temporary, "w")
  if not file then return nil, why end
  local ok
  ok, why = file:write(metrics.text())
  if ok then ok, why = file:close() else file:close() end
  if ok then ok, why = os.rename(temporary, path) end
  if not ok then os.remove(temporary) end
  return ok, why
end

--- Keeps a file up to date until the program ends.
-- @tparam string path
-- @return as `write`, of the first time
function reports.keep(path)
  local ok, why = reports.write(path)
  if not ok then return nil, why end
  host.daemon(function()
    while true do
      host.sleep(PERIOD)
      reports.write(path)
    end
  end)
  return true
end

return reports
