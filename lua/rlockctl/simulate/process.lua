--- One simulated process: a program with globals, modules and clients of its
--  own. It ends when all of its tasks have, or by an error that nothing
--  catches; then its clients are closed, as rlockctl does.

local environment = require "rlockctl.simulate.environment"
local servers = require "rlockctl.simulate.servers"
local unwind = require "rlock.host.uv.unwind"

local process = {}
process.__index = process

local SPREAD = 0.01                     -- seconds in which processes start

local entry_point                       -- loaded when a program first runs

-- tasks -----------------------------------------------------------------------

local Mark = {}
function Mark.__close(self, message)
  local own = self.process
  own.count = own.count - 1
  if message ~= nil and not unwind.is(message) then return end    -- `failed`
  if own.count == 0 then own:finish() end
end

local function work(self, fn, ...)
  local _ <close> = setmetatable({ process = self }, Mark)
  return fn(...)
end

local function add_tasks(self, host)
  local daemon = host.daemon
  function host.spawn(fn, ...)
    self.count = self.count + 1
    local task = daemon(work, self, fn, ...)
    self.tasks[#self.tasks + 1] = task
    return task
  end
  function host.is_running() return true end
end

-- The only server, wherever the program thinks it is.
local function start_local(_, options)
  options.is_local, options.host, options.port = nil, "local", 6379
  return options
end

local function refuse_exec()
  error("rlock.exec cannot be simulated", 3)
end

-- the start -------------------------------------------------------------------

local function make_host(self)
  local run = self.run
  local label = ("%d.%d"):format(self.number, self.life)
  local random = run.universe.stream(run.seed, "process " .. label)
  local host = run.universe:host { name = label, offset = random() * 1000,
    speed = 1 + (random() - 0.5) * 0.0004 }
  host.start_local, host.exec = start_local, refuse_exec
  host.version = run.program.version
  host.faults = setmetatable({}, { __newindex = function(_, _, message)
    self:failed(message)
  end })
  self.host, host.process = host, self
  return random() * SPREAD
end

-- The public module, which knows its clients.
local function add_rlock(self)
  entry_point = entry_point or require "rlock.host.uv.entry_point"
  local rlock, close_all = entry_point(self.host)
  local open = rlock.open
  function rlock.open(options)
    local client, code, detail = open(servers.options(self.run, self.host,
      options, rlock.default_url))
    if client then self.clients[#self.clients + 1] = client end
    return client, code, detail
  end
  rlock.now = self.now
  self.rlock, self.close_all = rlock, close_all
end

--- Starts a process.
-- @tparam table run of programs.lua
-- @tparam integer number of the process, from 1
-- @tparam integer life how often it was started, with this one
-- @treturn table `host`; `clients`; `is_closed`, once it has ended; `ending`:
--   how: "done", "exit", "code", "error"
function process.start(run, number, life)
  local self = setmetatable({ run = run, number = number, life = life,
    clients = {}, tasks = {}, count = 0, open = {}, began = 0 }, process)
  local delay = make_host(self)
  local host = self.host
  self.began = host.now()
  add_tasks(self, host)
  self.env = environment.new(self)
  add_rlock(self)
  self.simulate = run.invariants:module_for(self)
  run.universe:after(life == 1 and delay or 0, function()
    host.spawn(environment.main(self), table.unpack(run.program.arg))
  end)
  return self
end

-- the end ---------------------------------------------------------------------

--- Closes the clients after all tasks have ended.
function process:finish()
  if self.ending then return end
  self.ending = "done"
  self.run:ending(self)
  self:close()
end

function process:close()
  local current = self.host.running
  self.host.daemon(function()
    for _, task in ipairs(self.tasks) do
      if task ~= current then task:cancel "the program ends" end
    end
    for _, task in ipairs(self.tasks) do task:join() end
    self.close_all()
    self.is_closed = true
    self.run:ended(self)
  end)
end

--- An error that nothing has caught.
-- @tparam string message with a traceback
function process:failed(message)
  if self.ending then return end
  local code = environment.code_of(message)
  self.ending, self.message = code and "code" or "error", message
  self.run:uncaught(self, code, message)
  self:close()
end

--- os.exit.
function process:exit(status)
  if not self.ending then
    self.ending, self.status = "exit", status
    self.run:ending(self)
    self:close()
  end
  error(unwind.new "the program has called os.exit", 0)
end

--- What the program prints.
function process:printed(text, is_error)
  self.run:printed(self, text, is_error)
end

return process
