--- A full-duplex connection. Only the request that opened a cosocket can use
--- it: here, that is the worker timer (worker_timer.lua). One of its light
--- threads reads, and another writes what callers queue. The timer lives at
--- least as long as the connection.
---
--- A class has these methods:
---   connect(options)  returns a socket, or nil, code, detail
---   read()            reads, by `receiveany`, until the connection ends;
---                     returns why, or nil if it was closed here
---   quiet(n)          called after n seconds without a byte; returns why the
---                     connection is dead, or nil

local guard = require("resty.rlock.host.guard").call
local worker_timer = require "resty.rlock.host.worker_timer"
local tasks = require "resty.rlock.host.tasks"

local duplex = {}

local READ = 1000        -- timeout of one read, in milliseconds
local CLOSED = "the connection was closed"
local DIED = "nginx has ended its timer"

local Duplex = {}

--- Does nothing.
function Duplex.quiet() end

--- Reads bytes.
---@param size integer at most
---@return string? # bytes; or nil, why
---@return any ...
function Duplex:receiveany(size)
  local quiet = 0
  while true do
    local bytes, why = self.socket:receiveany(size)
    if self.failure then return nil, self.failure end
    if bytes then return bytes end
    if self.is_closed then return nil, CLOSED end
    if why ~= "timeout" then return nil, why end
    quiet = quiet + 1
    ---@cast self any
    why = self:quiet(quiet)
    if why then return nil, why end
  end
end

-- LuaJIT would compile the code after a read once more for each number of
-- waiters that a message wakes, without bound.
jit.off(Duplex.receiveany)

local function write(self)
  while not self.is_over do
    self.change:block()
    local texts = self.unsent
    self.unsent = {}
    if texts[1] and not self.is_over then
      local ok, why = self.socket:send(texts)
      if not ok then self.failure = "cannot send: " .. why end
    end
  end
end

local function lose(self, options, why)
  if self.is_closed then return end
  self.is_closed = true
  options.lost(why)
end

-- The reader thread.
local function listen(self, options)
  local code, detail
  self.socket, code, detail = self:connect(options)
  self.fault = { code, detail }
  self.standing:set()
  if not self.socket then return end
  self.socket:settimeouts(READ, options.timeout, READ)
  local writer = ngx.thread.spawn(write, self)
  local ok, why = pcall(self.read, self)
  self.is_over = true
  self.change:set()
  ngx.thread.wait(writer)
  self.socket:close()
  lose(self, options, ok and why or tostring(why))
  if not ok then error(why, 0) end
end

-- Called if the reader thread dies with its timer, or raises an error.
local function fail(what)
  local self = what.self
  self.is_over = true
  self.change:set()                     -- ends the writer
  if self.fault then return lose(self, what.options, DIED) end
  self.fault = { "closed", DIED }
  self.standing:set()
end

local function run(self, options)
  guard(fail, { self = self, options = options }, listen, self, options)
end

--- Makes a class: it gets the methods of this file that it lacks.
---@return table # class
function duplex.class(class)
  for name, method in pairs(Duplex) do class[name] = class[name] or method end
  class.__index = class
  return class
end

--- Opens a connection.
---@param self table an object of such a class
---@param options table timeout (ms, to connect), lost = function(detail),
---  called once outside of any task; and those of `connect`
---@return any # self
---@return rlock.failure? code, string? detail
function duplex.open(self, options)
  self.unsent, self.change = {}, tasks.event()
  self.standing = tasks.event()
  ---@type any, any, any
  local ok, code, detail = worker_timer.start(run, self, options)
  if not ok then return nil, code, detail end
  ok, code, detail = self.standing:pause(2 * options.timeout / 1000 + 1)
  if ok and self.socket then return self end
  self.is_closed = true
  if ok then return nil, self.fault[1], self.fault[2] end
  return nil, code or "connect", detail or "the connection did not start"
end

--- Queues a text.
---@return true?, rlock.failure? code, string? detail
function Duplex:write(text)
  if self.is_closed then return nil, "closed", CLOSED end
  self.unsent[#self.unsent + 1] = text
  self.change:set()
  return true
end

--- Closes the connection, within a second. Nothing is delivered or sent
--- afterwards.
function Duplex:close()
  self.is_closed, self.is_over = true, true
  self.change:set()
end

return duplex
