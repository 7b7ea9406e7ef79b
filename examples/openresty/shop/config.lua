--- A configuration of several parts, which is slow to write and to read.
--- Requests read it concurrently, but never half-written.
---
---   curl http://127.0.0.1:8080/config
---   curl -X POST 'http://127.0.0.1:8080/config?version=2'
---
--- The lock is fair: otherwise a writer would starve under constant reading.

local answer = require "shop.answer"
local locks = require "shop.locks"

local config = {}

local PARTS = { "hosts", "limits", "prices" }

config.lock = locks:fair_read_write_lock("config")

local function read()
  local lines = {}
  for i, part in ipairs(PARTS) do
    local value, code, detail = locks:call("GET", "config:" .. part)
    if value == nil then return nil, code, detail end
    lines[i] = value or part .. ", version 0"
  end
  return table.concat(lines, "\n")
end

local function write(lock, version)
  for _, part in ipairs(PARTS) do
    local ok, code, detail = lock:need(1)
    if not ok then return nil, code, detail end
    ok, code, detail = locks:call("SET", "config:" .. part,
      part .. ", version " .. version)
    if not ok then return nil, code, detail end
    ngx.sleep(0.01)                      -- stands for more work
  end
  return "version " .. version
end

---@return any # the parts, one a line
---@return rlock.failure? code
---@return string? detail
function config.read()
  return config.lock:read_lock():with({ wait = 10 }, read)
end

---@return any # a text
---@return rlock.failure? code
---@return string? detail # some parts may then be new
function config.write(version)
  return config.lock:write_lock():with({ wait = 10 }, write, version)
end

function config.serve()
  if ngx.req.get_method() ~= "POST" then return answer(config.read()) end
  local version = tonumber(ngx.var.arg_version)
  if not version then
    return answer(nil, "usage", "POST /config?version=NUMBER")
  end
  answer(config.write(version))
end

return config
