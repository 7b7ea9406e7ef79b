--- One simulated process: a program with its own globals, modules and clients.
--- It ends when all of its tasks have ended, or with an uncaught error. Then
--- its clients are closed, as in rlockctl.

local environment = require "rlockctl.simulate.environment"
local servers = require "rlockctl.simulate.servers"

---@class rlockctl.simulate.process
---@field [any] any
local process = {}
process.__index = process

local SPREAD = 0.01                     -- seconds within which processes start
local STEPS = 20000000                  -- VM instructions between two checks

local entry_point                       -- loaded when a program first runs

-- the start -------------------------------------------------------------------

-- Stands in for a start of `local:`, because every URL leads to the simulated
-- server.
local function start_local(_, options)
  options.is_local, options.host, options.port = nil, "local", 6379
  return options
end

local function refuse_exec()
  error("rlock.exec cannot be simulated", 3)
end

--- Makes a host refuse what cannot be simulated.
function process.adapt(host)
  host.start_local, host.exec = start_local, refuse_exec
end

local ROOT = debug.getinfo(1, "S") --[[@as table]]
  .source:match "^(.*)rlockctl/simulate/process%.lua$"

-- Is this function part of Lua or rlock?
local function is_ours(info)
  local source = info.source
  return source == "=[C]" or source:sub(1, #ROOT) == ROOT
    and (source:find("^rlock/", #ROOT + 1)
      or source:find("^rlockctl/", #ROOT + 1)) ~= nil
end

-- Called by a hook: raises an error with the position in the program.
local function end_loop(message)
  local level = 4
  local info = debug.getinfo(level, "S")
  while info and is_ours(info) do
    level = level + 1
    info = debug.getinfo(level, "S")
  end
  error(message, level)
end

--- Ends loops that never wait: they would block the simulation forever. A loop
--- that reads the clock may last for the span.
---@param universe table
---@param span number seconds
---@param follow? function called for each line and each return, with the
---  coroutine and the arguments of a hook, until it returns false
function process.end_loops(universe, span, follow)
  local resumes, seen, since, before = 0, nil, 0, nil
  function universe.on_resumed() resumes, since = resumes + 1, universe.now end
  local function look()
    local now = universe.now
    if resumes ~= seen then
      seen = resumes
    elseif now == before then
      end_loop "a loop neither waits nor reads the clock"
    elseif now - since > span then
      universe.now = since + span       -- the same in each run of a seed
      end_loop(("a loop has not waited for %g s of virtual time"):format(span))
    end
    before = now
  end
  local function watch(co, fn)
    debug.sethook(co, function(event, line)
      if event == "count" then
        look()
      elseif not fn(co, event, line) then
        watch(co)
      end
    end, fn and "lr" or "", STEPS)
  end
  function universe.hook(co) watch(co, follow) end
end

local function make_host(self)
  local run = self.run
  local label = ("%d.%d"):format(self.number, self.life)
  local random = run.universe.stream(run.seed, "process " .. label)
  local host = run.universe:host { name = label, offset = random() * 1000,
    speed = 1 + (random() - 0.5) * 0.0004 }
  process.adapt(host)
  host.version = run.program.version
  function host.on_failure()           -- a copy: later asserts change it
    self.raised = { code = self.raised.code, detail = self.raised.detail }
  end
  local failed = host.failed
  function host.failed(message)
    self:failed(host.failure or message)
    failed(message)
  end
  self.host, host.process = host, self
  return random() * SPREAD
end

-- Adds the public module, and records the clients that it opens.
local function add_rlock(self)
  entry_point = entry_point or require "rlock.host.uv.entry_point"
  local rlock, close_all = entry_point(self.host)
  local open = rlock.open
  rlock.default_url = self.run.program.url
  function rlock.open(options)
    local client, code, detail = open(servers.options(self.run, self.host,
      options, rlock.default_url))
    if client then self.clients[#self.clients + 1] = client end
    return client, code, detail
  end
  self.rlock, self.close_all = rlock, close_all
end

--- Starts a process.
---@param run table of programs.lua
---@param number integer of the process, from 1
---@param life integer 1, plus the number of its restarts
---@return table # `host`; `clients`; `is_closed`, once it has ended; `ending`,
---  how it ends: "done", "exit", "code" or "error"; `ended_at`; `raised`, the
---  `code` and `detail` of the last failed assert before its first error
function process.start(run, number, life)
  local self = setmetatable({ run = run, number = number, life = life,
    clients = {}, open = {}, began = 0, raised = {} }, process)
  local delay = make_host(self)
  local host = self.host
  self.began = host.now()
  self.env = environment.new(self)
  add_rlock(self)
  self.simulate = run.invariants:module_for(self)
  run.universe:after(life == 1 and delay or 0, function()
    host.start(function(...) self:finish(...) end, environment.main(self),
      table.unpack(run.program.arg))
  end)
  return self
end

-- the end ---------------------------------------------------------------------

-- Records how and when it ends.
local function ends(self, how)
  self.ending, self.ended_at = how, self.host.universe.now
end

--- Called when all tasks have ended, see host.start: closes the clients.
function process:finish(is_done, _, message)
  if is_done then
    ends(self, "done")
    self.run:ending(self)
  elseif message then
    self:failed(message)
  end
  self.host.daemon(function()
    self.close_all()
    self.is_closed = true
    self.run:ended(self)
  end)
end

--- Called for an uncaught error.
---@param message string with a traceback
function process:failed(message)
  if self.ending then return end
  local code = environment.code_of(message)
  ends(self, code and "code" or "error")
  self.run:uncaught(self, code, message)
end

--- Adds the detail of a failed assert to a text that ends with its code, as
--- rlockctl does.
function process:explained(text)
  local code, detail = self.raised.code, self.raised.detail
  local ending = code and ": " .. code
  if not ending or (": " .. text):sub(-#ending) ~= ending then return text end
  return text .. ": " .. detail
end

--- Called by os.exit.
function process:exit(status)
  if not self.ending then
    ends(self, "exit")
    self.run:ending(self)
  end
  self.host.exit(status)
end

--- Called when the program prints.
function process:printed(text, is_error)
  self.run:printed(self, text, is_error)
end

return process
