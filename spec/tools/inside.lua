--- A busted helper that lets the specs of rlockctl run unchanged inside nginx
--- (see suite): "rlock" is resty.rlock plus the additions of a libuv program,
--- "rlock.host.uv" is the part of that host that the specs use, and LuaJIT gets
--- the library functions of Lua 5.4 that it lacks.
---
---   spec/tools/in-nginx busted --helper=spec/tools/inside.lua FILE
---
--- A task is a separate timer, like another request. Cancelling one ends it at
--- any point, as nginx ends requests, and then does what log_by_lua would do.
--- rlock.open always returns a new client, like that of another worker.

local errors = require "rlock.redis.errors"
local ngx_host = require "resty.rlock.host"
local process = require "spec.tools.process"
local resty = require "resty.rlock"

local unpack = table.unpack or unpack

-- the libraries of 5.4 ------------------------------------------------------

local function pack(...) return { n = select("#", ...), ... } end

rawset(table, "unpack", unpack)
rawset(table, "pack", pack)
rawset(math, "tointeger", function(n) return n % 1 == 0 and n or nil end)
rawset(math, "type", function(n)
  if type(n) ~= "number" then return nil end
  return n % 1 == 0 and "integer" or "float"
end)

-- tasks ---------------------------------------------------------------------

local Task = {}
Task.__index = Task

local UNWIND = {}

local function run(self, fn, ...)
  self.results = pack(pcall(fn, ...))
  self.over:set()
end

local function timer(_, self, ...)
  local thread = ngx.thread.spawn(run, self, ...)
  self.over:wait()
  if not self.results then
    ngx.thread.kill(thread)
    resty.log_phase()
    self.results = { false, UNWIND, n = 2 }
  end
  self.is_over = true
  if self.joined then self.joined:set() end
end

local function spawn(...)
  local self = setmetatable({ over = ngx_host.event() }, Task)
  self.task = self
  assert(ngx.timer.at(0, timer, self, ...))
  return self
end

local function ended(self, seconds)
  if self.is_over then return true end
  self.joined = ngx_host.event()
  return self.joined:wait(seconds)
end

--- Waits for its end; returns its function's results or raises its error.
function Task:join(seconds)
  seconds = seconds or 30
  if not ended(self, seconds) then
    error(("the task did not end within %g s"):format(seconds), 2)
  end
  if not self.results[1] then error(self.results[2], 0) end
  return unpack(self.results, 2, self.results.n)
end

--- Ends it at any point.
function Task:cancel(seconds)
  self.over:set()
  if not ended(self, seconds or 30) then
    error("the cancelled task did not end", 2)
  end
end

local task = { start = spawn }

function task.run(...) return spawn(...):join() end

function task.many(n, fn, seconds)
  local all = {}
  for i = 1, n do all[i] = spawn(fn, i) end
  for i = 1, n do all[i]:join(seconds) end
end

-- the entry points ----------------------------------------------------------

local host = setmetatable({
  spawn = spawn, process = process.start,
  is_unwind = function(message) return message == UNWIND end,
}, { __index = ngx_host })

function host.connect(options)
  options.handshake = options.handshake or {}
  options.pool = options.pool
    or { name = options.path or options.host, idle = 1000, size = 30 }
  return ngx_host.connect(options)
end

local rlock = setmetatable({
  spawn = spawn, sleep = ngx_host.sleep, event = ngx_host.event,
}, { __index = resty })

-- Connects a client. A ZooKeeper has no commands.
local function connect(client)
  local open = client.session
  if tostring(open.options.url):find "^zk" then
    return open.server:connect(open.options.connect_timeout)
  end
  local ok, code, detail = client:call("PING")
  if code == "redis" then code = errors.classify(detail).code end
  return ok, code, detail
end

local count = 0

--- Opens a new client, connected unless it is lazy: a distinct pool size makes
--- the options differ, so that no client is shared.
function rlock.open(options)
  count = count + 1
  local its = { pool_size = 30 + count, keepalive_timeout = 5 }
  if type(options) == "string" then options = { url = options } end
  for key, value in pairs(options or {}) do its[key] = value end
  local is_lazy = its.lazy == true
  if is_lazy then its.lazy = nil end
  local ok, client, code, detail = pcall(resty.open, its)
  if not ok then error((client:gsub("^[^:]+:%d+: ", "")), 2) end
  if client and not is_lazy then
    ok, code, detail = connect(client)
    if not ok then
      client:close()
      return nil, code, detail
    end
  end
  return client, code, detail
end

package.preload["rlock"] = function() return rlock end
package.preload["rlock.host.uv"] = function() return host end
package.preload["spec.tools.task"] = function() return task end
