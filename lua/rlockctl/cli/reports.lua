--- Events of a program's clients as JSON lines on standard error, and their
--- metrics in a file or on a port.

local host = require "rlock.host.uv"
local json = require "rlockctl.cli.json"
local rlock = require "rlock"

local reports = {}

local PERIOD = 5               -- seconds between two writes of the file

--- The `log` callback of clients: writes an event, see events.lua. Its field
--- `dropped` counts the lines before it that were dropped.
function reports.log(level, event, fields)
  fields.time = os.date("!%Y-%m-%dT%H:%M:%SZ")
  fields.level, fields.event = level, event
  fields.dropped = host.dropped > 0 and host.dropped or nil
  host.write_log(json(fields) .. "\n")
end

--- Writes the metrics to a file, atomically.
---@param path string
---@return boolean? # true
---@return string? code # the problem
function reports.write(path)
  local temporary = ("%s.%d"):format(path, host.pid())
  local file, why = io.open(temporary, "w")
  if not file then return nil, why end
  local ok
  ok, why = file:write(rlock.metrics())
  if ok then ok, why = file:close() else file:close() end
  if ok then ok, why = os.rename(temporary, path) end
  if not ok then os.remove(temporary) end
  return ok, why
end

-- Keeps a file up to date.
local function keep(path)
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

-- The port given by the word; nil: the word is a file; or nil, the problem.
local function port_of(word)
  local port = word:find("^%d+$") and tonumber(word)
  if port and port > 0 and port < 65536 then return port end
  if port or word == "" or word:find("^[^/]*:%d+$") then
    return nil, "must be a port of this host, from 1 to 65535, or a file"
  end
end

local HEAD = "HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; "
  .. "charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"

local function response(status, text)
  return HEAD:format(status, #text) .. text
end

--- The response to a request.
---@param line string its first line
local function answer(line)
  local method, path = line:match("^(%u+) ([^%s?]+)%S* HTTP/1%.%d$")
  if not method then
    return response("400 Bad Request", "bad request\n")
  elseif method ~= "GET" then
    return response("405 Method Not Allowed", "only GET\n")
  elseif path ~= "/metrics" then
    return response("404 Not Found", "not found\n")
  end
  return response("200 OK", rlock.metrics())
end

--- Publishes the metrics until the program ends.
---@param where string a port of 127.0.0.1, or the path of a file
---@return function? # to be called at the end
---@return string? code # the problem
function reports.publish(where)
  local port, problem = port_of(where)
  if problem then return nil, problem end
  if not port then
    local ok, why = keep(where)
    return ok and function() reports.write(where) end, why
  end
  local ok, _, why = host.on_request(port, answer)
  if ok then return function() end end
  return nil, ("127.0.0.1:%d: %s"):format(port, why)
end

return reports
