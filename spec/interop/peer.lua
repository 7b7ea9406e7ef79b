--- A process of another client library, or of ours, that does what a spec
--- tells it to. They all do the same things, so that a spec can set any two
--- against each other, either way round.
---
---   local theirs = peer.start(server, "theirs", "redisson4", options)
---   local task = theirs:task()
---   task:ask("take", "lock", "x", -1, -1)      --> true
---   local waiting = theirs:task():send("take", "lock", "x", -1, -1)
---   waiting:is_answered()                      --> false
---   task:ask("give", "lock", "x")              --> true
---   waiting:answer()                           --> true
---   theirs:kill()
---
--- A program is "ours", in rlockctl; "nginx", the same there; or started with
--- the words in the file $B/interop/PROGRAM.command, which spec/interop/run
--- writes. Further words are: a name for this process, the watchdog's
--- lease in milliseconds, the address of the server, and those of the servers
--- for RedLocks. If the environment has LOCKS, a URL, the locks are there, and
--- the rest on the server. It prints "ready", takes lines from the list
--- NAME:commands, "ID TASK VERB KIND THING ...", does what each task is told,
--- in order, and appends "ID ANSWER" to NAME:answers, where the answer is
--- "ok ...", "no", or "error TEXT". Each task is its own holder of locks.
---
---   take WAIT LEASE [milliseconds; -1: the watchdog's]   ok [TOKEN]
---   give [TOKEN]          gives it back; no: it was not that task's. A member
---                         of a double barrier enters and leaves
---   force                 frees it by force; no: there was nothing to free
---   heed                  takes it, and releases it on a release request
---   revoke                asks the holders to give it back; no: nobody can be
---                         asked
---   state                 ok LOCKED(0|1) COUNT(of that task) TTL(ms)
---   renew TOKEN LEASE     gives it a new lease
---   visit LIST            takes it, appends NAME:TASK to the list, gives it
---   contend KEY ROUNDS    takes it, adds one to KEY in two round trips, to
---                         KEY:sum in one, its name to KEY:last, its fencing
---                         token to KEY:token, gives it. ok SWITCHES BACK: it
---                         followed another process, a token was not greater
---   compare KEY ROUNDS    as a reader: ok N, how often KEY was not KEY:sum
---   crowd KEY ROUNDS      ok N, how many were in there at most
---   set N, add N, count, acquired, drain            semaphore and permits
---   leader                ok WHO, of an election
---   set N, count, down, await WAIT, delete          latch
---   set N, await WAIT, delete                       barrier

local files = require "spec.tools.files"
local host = require "rlock.host.uv"
local rlockctl = require "spec.tools.rlockctl"
local shell = require "spec.tools.shell"

local peer = {}

local Peer, Task, Pending = {}, {}, {}
Peer.__index, Task.__index, Pending.__index = Peer, Task, Pending

local SECONDS = 30
local CALL = 5000                                      -- milliseconds

local folder = (os.getenv("B") or "build") .. "/interop/"

-- The shell words that start a program.
local function command_of(program)
  if program == "ours" then
    return shell.quote(rlockctl) .. " spec/interop/ours.lua"
  elseif program == "nginx" then
    return "spec/tools/in-nginx spec/interop/ours.lua"
  end
  local words = files.read(folder .. program .. ".command")
  if not words then
    error(program .. " has not been prepared: make interop does that", 0)
  end
  return (words:gsub("%s+$", ""))
end

-- Shell words before the command.
local function environment_of(options)
  local words = { "env" }
  for name, value in pairs(options.environment or {}) do
    words[#words + 1] = name .. "=" .. shell.quote(value)
  end
  return table.concat(words, " ") .. " "
end

local function connect(server)
  return assert(host.connect {
    path = server.socket, timeout = CALL, silent = 0,
  })
end

--- One raw command to a server; raises what goes wrong.
function peer.call(connection, ...)
  local reply, code, detail = connection:call(CALL, ...)
  if reply == nil then error(("%s: %s"):format(code, detail), 2) end
  return reply
end

-- Hands the answers to those who wait for them.
local function listen(self)
  local answers = connect(self.server)
  while true do
    local reply = answers:call(0, "BLPOP", self.name .. ":answers", 0)
    if not reply then return end                       -- the end of the run
    local id, answer = reply[2]:match("^(%d+) (.*)$")
    local pending = self.pending[tonumber(id)]
    self.pending[tonumber(id)] = nil
    pending.text, pending.at = answer, host.now()
    pending.event:set()
  end
end

local serial = 0

--- Starts a process.
---@param server table an object of spec/tools/redis.lua
---@param name string
---@param program string what spec/interop/run has prepared
---@param options table watchdog (milliseconds), address, members (addresses);
---  environment (additions to it)
function peer.start(server, name, program, options)
  serial = serial + 1
  local self = setmetatable({
    server = server, name = ("%s%d"):format(name, serial), pending = {},
    program = program, connection = connect(server), count = 0,
  }, Peer)
  local words = { self.name, ("%d"):format(options.watchdog), options.address }
  table.move(options.members or {}, 1, #(options.members or {}), 4, words)
  local log, pid = shell.daemon(nil, "ready", environment_of(options)
    .. command_of(program) .. " " .. shell.words(words))
  if not log then error(("%s did not start:\n%s"):format(program, pid), 0) end
  self.folder, self.pid = log, pid
  host.daemon(listen, self)
  return self
end

--- A task in it: a holder of its own.
function Peer:task()
  self.count = self.count + 1
  return setmetatable({ peer = self, name = "task" .. self.count }, Task)
end

--- What it has printed.
function Peer:output()
  if self.printed then return self.printed end
  return assert(files.read(self.folder .. "/log"))
end

function Peer:is_alive()
  local file = io.open(("/proc/%d/stat"):format(self.pid or 0))
  if not file then return false end
  local state = file:read("a"):match("%) (%a)")
  file:close()
  return state ~= "Z"
end

--- Ends it as a power failure does, and removes what it left.
function Peer:kill()
  if not self.pid then return end
  os.remove(self.folder .. "/pid")
  shell.finish(self.pid)
  self.pid, self.printed = nil, self:output()
  shell.run("rm -rf " .. shell.quote(self.folder))
end

local last_id = 0

--- Tells the task to do something, and does not wait.
function Task:send(...)
  if not self.peer:is_alive() then
    error(("%s has ended; it printed:\n%s"):format(self.peer.program,
      self.peer:output()), 0)
  end
  last_id = last_id + 1
  local words = { last_id, self.name, ... }
  for i, word in ipairs(words) do
    words[i] = math.type(word) == "float" and ("%d"):format(word)
      or tostring(word)
  end
  local pending = setmetatable({
    event = host.event(), task = self, line = table.concat(words, " "),
  }, Pending)
  self.peer.pending[last_id] = pending
  peer.call(self.peer.connection, "RPUSH", self.peer.name .. ":commands",
    pending.line)
  return pending
end

--- Tells the task to do something and waits for the answer.
function Task:ask(...) return self:send(...):answer() end

function Pending:is_answered() return self.text ~= nil end

--- Waits for the answer.
---@param seconds? number at most; default: 30
---@return boolean # true for "ok", false for "no"
---@return string? # ... the words after it; numbers where they are
function Pending:answer(seconds)
  local who = self.task.peer
  local left = seconds or SECONDS
  while not self.text and left > 0 and who:is_alive() do
    self.event:wait(math.min(left, 1))
    left = left - 1
  end
  if not self.text then
    error(("%s %s \"%s\" within %g s; it printed:\n%s"):format(who.program,
      who:is_alive() and "did not answer to" or "has ended, and not answered",
      self.line, seconds or SECONDS, who:output()), 0)
  end
  local verdict, rest = self.text:match("^(%S+) ?(.*)$")
  if verdict == "error" then
    error(("%s: \"%s\": %s\n%s"):format(who.program, self.line, rest,
      who:output()), 0)
  end
  local words = {}
  for word in rest:gmatch("%S+") do
    words[#words + 1] = #word < 19 and math.tointeger(tonumber(word)) or word
  end
  return verdict == "ok", table.unpack(words)
end

return peer
