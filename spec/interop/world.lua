--- The fixture of an interop spec: a private Redis, a process of ours, one of
--- theirs, and a connection for inspection.
---
---   local world = require "spec.interop.world"
---   local w = world.new("redisson4")
---   for a, b in w:both_ways() do ... end       -- ours, theirs; theirs, ours
---   w:stop()

local assert = require "luassert"
local eventually = require "spec.tools.eventually"
local host = require "rlock.host.uv"
local peer = require "spec.interop.peer"
local redis = require "spec.tools.redis"
local slow = require "spec.tools.slow"

local world = {}

local World = {}
World.__index = World

--- The watchdogs' lease, in seconds: what a process that is killed leaves.
world.WATCHDOG = 2

-- How much later than planned things may happen on a busy machine: less than
-- the shortest poll of a waiter that nobody wakes.
local SLACK = 2 * slow

local EARLY = 0.05                     -- the clocks of servers are coarse

local CALL = 5000                      -- milliseconds

-- Forms of names, of which keys and channels with braces are made in their own
-- ways.
local FORMS = { "interop:%d", "{i}:%d", "a{%d", "x{}:%d", "i%d}{" }

world.call = peer.call
world.now = host.now
world.eventually = eventually

local function connect(server)
  return assert(host.connect {
    path = server.socket, timeout = 5000, silent = 0,
  })
end

--- Starts the servers that have the locks, if they are not the one of all else.
---@param set table see world.new
local function start_set(self, set)
  self.set, self.forms = set.start(), set.forms or FORMS
  for _, own in ipairs { "asleep", "is_gone" } do
    self.set[own] = set[own] and function(...)
      return set[own](self.set, ...)
    end
  end
  self.options.environment = { LOCKS = self.set.url, SHARDED = set.sharded }
  self.nodes = {}
  for i, server in ipairs(set.nodes(self.set)) do
    self.nodes[i] = connect(server)
  end
end

--- Starts the servers and both processes.
---@param program string theirs, as spec/interop/run has prepared it
---@param members? integer how many servers for RedLocks; default: 0
---@param set? table the servers of the locks: start(), which returns an object
---  with `url` and `stop`; nodes(object), the servers with keys; forms of
---  names; sharded, Redisson's shardedSubscriptionMode; asleep and is_gone,
---  which replace those here; ours, the program of our side
function world.new(program, members, set)
  local self = setmetatable({
    program = program, members = {}, processes = {}, names = 0, forms = FORMS,
  }, World)
  self.server = redis.start { port = true }
  self.options = {
    watchdog = world.WATCHDOG * 1000, members = {},
    address = "redis://127.0.0.1:" .. self.server.port,
  }
  for i = 1, members or 0 do
    local member = redis.start { port = true }
    self.members[i] = member
    self.options.members[i] = "redis://127.0.0.1:" .. member.port
  end
  self.redis = connect(self.server)
  self.nodes = { self.redis }
  if set then start_set(self, set) end
  self.ours = self:start("ours", set and set.ours or "ours")
  self.theirs = self:start("theirs", program)
  return self
end

--- Ends everything.
function World:stop()
  for _, process in ipairs(self.processes) do process:kill() end
  for _, member in ipairs(self.members) do member:stop() end
  if self.set then self.set:stop() end
  self.server:stop()
end

function World:start(name, program)
  local process = peer.start(self.server, name, program, self.options)
  table.insert(self.processes, process)
  return process
end

--- One more process of the kind of `process`, to be killed.
function World:victim(process)
  return self:start("victim", process.program)
end

--- Iterates over the two processes as a, b and their words for people.
function World:both_ways()
  local turn = 0
  return function()
    turn = turn + 1
    if turn == 1 then return self.ours, self.theirs end
    if turn == 2 then return self.theirs, self.ours end
  end
end

--- A name that nobody has used. With a number it is one of several forms.
function World:name(i)
  self.names = self.names + 1
  return self.forms[((i or 1) - 1) % #self.forms + 1]:format(self.names)
end

--- One raw command to the server of counters and lists.
function World:call(...) return peer.call(self.redis, ...) end

--- One raw command about a lock, to the server that has its keys.
function World:look(...)
  local reply, code, detail
  for _, node in ipairs(self.nodes) do
    reply, code, detail = node:call(CALL, ...)
    if reply ~= nil then return reply end
    if not tostring(detail):find "^MOVED" then break end
  end
  error(("%s: %s"):format(code, detail), 2)
end

--- Connections to the servers that a lock of this kind is on.
function World:stores(kind)
  if not kind:find("^red") then return { self.redis } end
  if not self.member_connections then
    self.member_connections = {}
    for i, member in ipairs(self.members) do
      self.member_connections[i] = connect(member)
    end
  end
  return self.member_connections
end

--- After a server was restarted.
function World:forget_stores() self.member_connections = nil end

--- A counter for `contend`, at zero.
function World:counter()
  local key = self:name()
  for _, suffix in ipairs { "", ":sum", ":token" } do
    self:call("SET", key .. suffix, 0)
  end
  self:call("SET", key .. ":last", "nobody")
  return key
end

--- The counter's value, and what it should be.
function World:counted(key)
  return tonumber(self:call("GET", key)), tonumber(self:call("GET",
    key .. ":sum"))
end

-- The calls of what waiters ask: scripts, and the counts of latches.
local function calls_of_waiters(w)
  local calls = 0
  for _, node in ipairs(w.nodes) do
    local stats = peer.call(node, "INFO", "commandstats")
    for name, n in stats:gmatch "cmdstat_(%l*):calls=(%d+)" do
      if name:find "^eval" or name == "get" then calls = calls + tonumber(n) end
    end
  end
  return calls
end

--- How often processes have subscribed to the channels of `name`.
---@param name string
---@param kind string "" for those of PUBLISH, "SHARD" for those of SPUBLISH
function World:subscriptions(name, kind)
  local n = 0
  for _, node in ipairs(self.nodes) do
    local channels = peer.call(node, "PUBSUB", kind .. "CHANNELS",
      "*" .. name .. "*")
    local counts = peer.call(node, "PUBSUB", kind .. "NUMSUB",
      table.unpack(channels))
    for i = 2, #counts, 2 do n = n + counts[i] end
  end
  return n
end

--- How many processes listen on the channels of `name`. In a cluster, some hear
--- messages of one kind, and some of both.
function World:listeners(name)
  local n = self:subscriptions(name, "")
  return self.set and math.max(n, self:subscriptions(name, "SHARD")) or n
end

--- Is nothing left of a lock?
function World:is_gone(name)
  if self.set and self.set.is_gone then return self.set.is_gone(name) end
  return self:look("EXISTS", name) == 0
end

--- Waits until processes (1) listen on the channels of `name` and nobody asks
--- any server anything any more: the waiters sleep.
function World:asleep(name, processes)
  if self.set and self.set.asleep then
    return self.set.asleep(name, processes)
  end
  eventually(function()
    return self:listeners(name) >= (processes or 1)
  end, 30, "waiters for " .. name)
  local before, quiet = nil, 0
  eventually(function()
    local calls = calls_of_waiters(self)
    quiet = calls == before and quiet + 1 or 0
    before = calls
    return quiet == 4
  end, 30, "quiet after a waiter came for " .. name)
end

--- Checks that most of the times (seconds) are far below any poll, and all of
--- them below the shortest poll of a lock with a channel.
function world.prompt(times, what)
  table.sort(times)
  local middle, most = times[(#times + 1) // 2], times[#times]
  assert.is_true(middle < 0.1 * SLACK and most < SLACK,
    ("%s: %.3f s, %.3f s at most"):format(what, middle, most))
end

-- Checks that `pending` is answered by ok, `least` to `most` seconds after
-- `since`.
local function within(pending, since, least, most)
  assert.is_true((pending:answer(most + 10)))
  local took = pending.at - since
  assert.is_true(took >= least and took <= most,
    ("\"%s\" took %.3f s, not %g to %g s"):format(pending.line, took, least,
      most))
end

--- Checks that `pending` is answered by ok at once.
---@param pending table
---@param since number when it was made possible
function world.at_once(pending, since) within(pending, since, 0, SLACK) end

--- Checks that `pending` is answered by ok when a lease is over that was
--- renewed until now at most.
---@param pending table
---@param taken number a time before the lease began
---@param lease? number seconds; default: the watchdog's
---@param more? number seconds that it may take besides; default: 0
function world.after_lease(pending, taken, lease, more)
  lease = lease or world.WATCHDOG
  within(pending, taken, lease - EARLY,
    host.now() - taken + lease + SLACK + (more or 0))
end

return world
