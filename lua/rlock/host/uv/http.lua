--- Answers HTTP requests on a port of 127.0.0.1.

local core = require "rlock.core"
local tasks = require "rlock.host.uv.tasks"

local http = {}

local HEAD = "HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; "
  .. "charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"

local function response(status, text)
  return HEAD:format(status, #text) .. text
end

local function answer(line, pages)
  local method, path = line:match("^(%u+) ([^%s?]+)%S* HTTP/1%.%d$")
  if not method then return response("400 Bad Request", "bad request\n") end
  if method ~= "GET" then
    return response("405 Method Not Allowed", "only GET\n")
  elseif not pages[path] then
    return response("404 Not Found", "not found\n")
  end
  return response("200 OK", pages[path]())
end

--- Serves pages until the program ends.
-- @tparam integer port
-- @tparam table pages path -> a function that returns its text, and cannot wait
-- @treturn[1] boolean true
-- @treturn[2] nil, "refused", detail
function http.serve(port, pages)
  local server, code, detail
  server, code, detail = tasks.open(function(line)
    server:answer(answer(line, pages))
  end, core.serve, port)
  if server then return true end
  return nil, code, detail
end

return http
