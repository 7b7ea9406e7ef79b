--- A simulated ZooKeeper ensemble: servers that replicate transactions and
--- expire sessions, as real ones do:
---
--- - Writes go to the leader. It orders them, and commits what a majority of
---   the servers has logged. Followers apply commits in order.
--- - The leader pings its followers each half tick. Their answers name the
---   sessions that have been active since the last ping. A session expires at
---   the first tick after its time-out.
--- - A follower that has not heard from the leader for LIMIT ticks drops its
---   clients and looks for a leader. So does a leader that has lost its
---   majority. Until then, each server answers what it can answer alone.
--- - The next leader is the server with the longest log among those that have
---   followed the last leader. The time-outs of all sessions start again.
---
--- Messages between two servers arrive in order. A network partition delays
--- them. The fields on_... are callbacks for events.

local codec = require "rlock.zookeeper.codec"
local links = require "rlockctl.simulate.link"
local server = require "rlockctl.simulate.zookeeper.server"
local tree = require "rlockctl.simulate.zookeeper.tree"

---@class rlockctl.simulate.zookeeper.ensemble
---@field [any] any
local ensemble = {}
ensemble.__index = ensemble

local DELAY = 0.0005                    -- seconds, between servers
local LOOK = 0.05                       -- seconds between election attempts
local ELECTING = 0.2                    -- seconds, at least
local CONTAINERS = 0.7                  -- seconds between checks for empty ones
local TIMER = 1e-5                      -- seconds by which a timer may be late

local ops, max = codec.ops, math.max

local function nothing() end

-- Starts a server's process.
local function boot(self, one)
  one.host = self.universe:host { name = one.name, offset = one.number * 7.3,
    speed = 1 + (self.random() - 0.5) * 0.0004 }
  one.is_down, one.role, one.since = false, "looking", self.universe.now
end

---@param network table of network.lua
---@param options table count; tick (seconds); limit (ticks)
function ensemble.new(network, options)
  local universe = network.universe
  local self = setmetatable({
    network = network, universe = universe, tick = options.tick,
    limit = options.limit or 2, quorum = options.count // 2 + 1,
    random = universe.stream(universe.seed, "ensemble"), sessions = 0,
    cuts = {},                          -- server -> server -> until when
    on_request = nothing, on_session = nothing, on_apply = nothing,
  }, ensemble)
  for i = 1, options.count do
    local one = server.new(self, i)
    boot(self, one)
    self[i], self[one.name], self.cuts[one] = one, one, {}
  end
  universe:at(universe.now, { fire = function(item)
    self:elect()
    universe:at(universe.now + LOOK, item)
  end })
  return self
end

--- Elects a leader at once, as if the servers had run for a while.
function ensemble:warm_up()
  for _, one in ipairs(self) do one.since = self.universe.now - ELECTING end
  self:elect()
end

-- clients ---------------------------------------------------------------------

--- The address of all servers.
---@param chroot? string "/path"; created if it does not exist
function ensemble:url(chroot)
  local names = {}
  for i, one in ipairs(self) do names[i] = one.name end
  if chroot and chroot ~= "" then self:put(chroot, "") end
  return "zk://" .. table.concat(names, ",") .. (chroot or "")
end

--- Creates a node and its ancestors, unless they exist: without a transaction,
--- as if they had always existed.
---@param path string
---@param value string
function ensemble:put(path, value)
  local made = ""
  for part in path:gmatch "/[^/]+" do
    made = made .. part
    for _, one in ipairs(self) do
      one.tree:apply { zxid = one.tree.zxid, session = codec.NO_ID,
        op = ops.create, body = codec.create(made, made == path and value or "",
          codec.flags.persistent) }
    end
  end
end

--- Lets a process connect to the servers, as with host/uv/frames.lua.
---@param host table
function ensemble:connect(host)
  local function in_trouble() host.troubles = (host.troubles or 0) + 1 end
  function host.frames(options)
    local link, code, detail = links.dial(self.network:route(host,
      self[options.host]), {
        host = options.host, timeout = options.timeout,
        lost = function(why)
          in_trouble()
          options.lost(why)
        end,
        message = function(_, _, bytes) options.frame(bytes) end,
      })
    if not link then return nil, code, detail end
    return {
      send = function(_, bytes) return link:tell { bytes } end,
      address = function() return host.label end,
      close = function()
        in_trouble()
        link:close()
      end,
    }
  end
end

function ensemble:new_session()
  self.sessions = self.sessions + 1
  return (">I8"):pack(0x1000000 + self.sessions)
end

-- messages --------------------------------------------------------------------

-- A connection of a follower to its leader. Each end learns separately that it
-- is closed.
local function new_channel(follower, leader)
  return { [follower] = true, [leader] = true, follower = follower,
    leader = leader, acked = 0, deadline = leader.ticks + leader.ensemble.limit,
    at = { [follower] = 0, [leader] = 0 } }
end

-- Calls fn at one end of a channel, after all that was sent to it earlier.
local function say(channel, to, fn)
  local self = to.ensemble
  local universe = self.universe
  local at = max(universe.now + DELAY * (0.5 + self.random()),
    channel.at[to] + 1e-7, self.cuts[channel.follower][channel.leader] or 0)
  channel.at[to] = at
  universe:at(at, { host = to.host, rank = 2, fire = function()
    if not channel[to] then return end
    if to == channel.leader then
      channel.deadline = to.ticks + self.limit
    else
      to.heard = to.host.now()
    end
    fn()
  end })
end

-- Closes one end of a channel; the other end learns of it later.
local function close(channel, from)
  local other = from == channel.leader and channel.follower or channel.leader
  channel[from] = false
  say(channel, other, function()
    channel[other] = false
    if other == channel.follower then other:look() end
  end)
end

-- Calls fn after some seconds, unless the server's role has changed by then.
local function after(self, seconds, fn, rank)
  local term = self.term
  self.universe:at(self.universe.now + seconds / self.host.speed, {
    host = self.host, rank = rank or 1, fire = function()
      if self.term == term then fn() end
    end })
end

-- roles -----------------------------------------------------------------------

local function leave_role(self)
  self.term = self.term + 1
  if self.role == "follower" then close(self.channel, self) end
  for _, channel in ipairs(self.role == "leader" and self.channels or {}) do
    if channel[self] then close(channel, self) end
  end
  self:drop_clients()
end

--- Ends the server's role. The server then looks for a leader.
function server:look()
  if self.role == "looking" then return end
  leave_role(self)
  self.role, self.since = "looking", self.universe.now
end

-- Ends a follower's role when it has not heard from its leader for too long.
local function await_leader(self)
  local left = self.heard + self.ensemble.limit * self.ensemble.tick
    - self.host.now()
  if left <= TIMER then return self:look() end
  after(self, left, function() await_leader(self) end, 3)
end

local function join(self, leader)
  self.term, self.role, self.epoch = self.term + 1, "follower", leader.epoch
  self.log = table.move(leader.log, 1, #leader.log, 1, {})
  self.channel, self.heard = new_channel(self, leader), self.host.now()
  self.channel.acked = #self.log
  table.insert(leader.channels, self.channel)
  self:apply(leader.applied)
  await_leader(self)
end

-- the leader ------------------------------------------------------------------

local function is_followed(self)
  local count = 1
  for _, channel in ipairs(self.channels) do
    if channel[self] and self.ticks <= channel.deadline then
      count = count + 1
    end
  end
  return count >= self.ensemble.quorum
end

--- Records at the leader that a session is active, which extends it.
local function track(self, session, timeout, owner)
  local its = self.tracker[session] or {}
  local tick, ends = self.ensemble.tick, self.host.now() + timeout / 1000
  self.tracker[session], its.timeout = its, timeout
  its.owner = owner or its.owner
  its.ends = max(its.ends or 0, (ends // tick + 1) * tick)
end

local function touch(self, session)
  local its = self.tracker[session]
  if its and not its.is_closing then track(self, session, its.timeout) end
end

-- Commits what a majority of the servers has logged.
local function commit(self)
  local counts = { self.stored }
  for _, channel in ipairs(self.channels) do
    if channel[self] then counts[#counts + 1] = channel.acked end
  end
  table.sort(counts, function(a, b) return a > b end)
  local length = counts[self.ensemble.quorum] or 0
  if length <= self.applied then return end
  self:apply(length)
  for _, channel in ipairs(self.channels) do
    say(channel, channel.follower, function()
      channel.follower:apply(length)
    end)
  end
  while self.syncs[1] and self.syncs[1].length <= length do
    table.remove(self.syncs, 1).fn()
  end
end

-- Calls fn when a server has written what it has received to its disk.
local function store(self, fn)
  local left = (self.disk_until or 0) - self.universe.now
  if left > 0 then after(self, left, fn) else fn() end
end

local function propose(self, txn)
  self.count = self.count + 1
  txn.zxid = self.epoch << 32 | self.count
  local length = #self.log + 1
  self.log[length] = txn
  for _, channel in ipairs(self.channels) do
    say(channel, channel.follower, function()
      channel.follower.log[length] = txn
      store(channel.follower, function()
        say(channel, self, function()
          channel.acked = max(channel.acked, length)
          commit(self)
        end)
      end)
    end)
  end
  store(self, function()
    self.stored = max(self.stored, length)
    commit(self)
  end)
end

-- Queues an item at the leader, so that its reads for a session wait for the
-- requests that other servers have forwarded for that session.
local function queue(self, item)
  local own = { session = item.session, op = item.op, is_sent = true }
  self.queues[own.session] = self.queues[own.session] or {}
  table.insert(self.queues[own.session], own)
  return own
end

-- Checks a request, and proposes its transaction.
local function prepare(self, from, term, item)
  local its, err = self.tracker[item.session], nil
  if item.op == tree.OPEN then
    track(self, item.session, item.timeout, from)
  elseif not its or its.is_closing then
    err = tree.EXPIRED
  elseif its.owner and its.owner ~= from then
    err = tree.MOVED
  else
    its.owner, its.is_closing = from, item.op == ops.close
  end
  propose(self, { session = item.session, op = item.op, body = item.body,
    timeout = item.timeout, err = err, from = from, of = term, item = item,
    leader = self, own = from ~= self and queue(self, item) or nil })
end

local function expire(self)
  local now = self.host.now() + 1e-9
  local sessions = {}
  for session, its in next, self.tracker do
    if its.ends <= now and not its.is_closing then
      sessions[#sessions + 1] = session
    end
  end
  table.sort(sessions)
  for _, session in ipairs(sessions) do
    self.tracker[session].is_closing = true
    propose(self, { session = session, op = ops.close, is_expired = true })
  end
  local tick = self.ensemble.tick
  after(self, (now // tick + 1) * tick - now + TIMER, function()
    expire(self)
  end)
end

local function remove_containers(self)
  for _, path in ipairs(self.tree:empty_containers()) do
    propose(self, { op = tree.REMOVE, body = path })
  end
  after(self, CONTAINERS, function() remove_containers(self) end)
end

-- Drops the followers that have been silent for too long; pings the others.
local function ping(self)
  for i = #self.channels, 1, -1 do
    local channel = self.channels[i]
    if not channel[self] or self.ticks > channel.deadline then
      if channel[self] then close(channel, self) end
      table.remove(self.channels, i)
    end
  end
  for _, channel in ipairs(self.channels) do
    local follower = channel.follower
    say(channel, follower, function()
      local touched = follower.touched
      follower.touched = {}
      say(channel, self, function()
        for session in next, touched do touch(self, session) end
      end)
    end)
  end
end

-- Called each half tick.
local function beat(self)
  self.half = not self.half
  if self.half then
    self.ticks = self.ticks + 1
    if not is_followed(self) then return self:look() end
  end
  ping(self)
  after(self, self.ensemble.tick / 2, function() beat(self) end)
end

local function lead(self, epoch)
  self.term, self.role, self.epoch = self.term + 1, "leader", epoch
  self.count, self.ticks, self.half = 0, 0, false
  self.channels, self.tracker, self.syncs = {}, {}, {}
  self.stored = #self.log
  self:apply(#self.log)
  for session, timeout in next, self.tree.sessions do
    track(self, session, timeout)
  end
end

local function start_leading(self)
  beat(self)
  expire(self)
  remove_containers(self)
end

-- elections -------------------------------------------------------------------

function ensemble:is_cut(a, b)
  return (self.cuts[a][b] or 0) > self.universe.now
end

-- Can a server take part in an election now?
local function is_ready(self, one)
  return one.role == "looking" and not one.is_down
    and one.host.stalls_until <= self.universe.now
    and self.universe.now - one.since >= ELECTING
end

-- The leader that a majority follows, if this server can reach it.
local function leader_for(self, one)
  local leader = self:leader()
  if leader and leader.host.stalls_until <= self.universe.now
      and leader.epoch >= one.epoch and not self:is_cut(one, leader) then
    return leader
  end
end

local function last_of(one)
  local last = one.log[#one.log]
  return last and last.zxid or 0
end

-- The servers of a list that a server can reach, itself included.
local function reached(self, list, one)
  local group = {}
  for _, other in ipairs(list) do
    if not self:is_cut(one, other) then group[#group + 1] = other end
  end
  return group
end

-- Is a server at least as up to date as another one? A server that has followed
-- a later leader is, even if that leader has proposed nothing.
local function is_ahead(one, other)
  if one.epoch ~= other.epoch then return one.epoch > other.epoch end
  return last_of(one) >= last_of(other)
end

-- Elects the server that is most up to date.
local function elect(self, group)
  local best = group[1]
  for _, one in ipairs(group) do
    if is_ahead(one, best) then best = one end
  end
  local epoch = best.epoch
  group = reached(self, group, best)
  if #group < self.quorum then return end
  lead(best, epoch + 1)
  for _, one in ipairs(group) do
    if one ~= best then join(one, best) end
  end
  start_leading(best)
end

--- Lets servers without a leader find or elect one.
function ensemble:elect()
  for _, one in ipairs(self) do
    local leader = is_ready(self, one) and leader_for(self, one)
    if leader then join(one, leader) end
  end
  local ready = {}
  for _, one in ipairs(self) do
    if is_ready(self, one) then ready[#ready + 1] = one end
  end
  for _, one in ipairs(ready) do
    local group = reached(self, ready, one)
    if one.role == "looking" and #group >= self.quorum then
      return elect(self, group)
    end
  end
end

--- The leader that a majority follows, or nil.
function ensemble:leader()
  local found
  for _, one in ipairs(self) do
    if one.role == "leader" and is_followed(one)
        and (not found or one.epoch > found.epoch) then
      found = one
    end
  end
  return found
end

--- Is a server down, or cut off?
function ensemble:is_broken()
  for _, one in ipairs(self) do
    if one.is_down or one.role == "looking" then return true end
    for _, till in next, self.cuts[one] do
      if till > self.universe.now then return true end
    end
  end
  return false
end

--- The server that has applied the latest transaction.
function ensemble:newest()
  local found = self[1]
  for _, one in ipairs(self) do
    if one.tree.zxid > found.tree.zxid then found = one end
  end
  return found
end

-- requests to the leader ------------------------------------------------------

--- Sends a request to the leader.
function server:forward(item)
  local term = self.term
  if self.role == "leader" then return prepare(self, self, term, item) end
  local channel = self.channel
  local leader = channel.leader
  if item.op ~= ops.sync then
    return say(channel, leader, function()
      prepare(leader, self, term, item)
    end)
  end
  local function done()
    say(channel, self, function()
      item.err, item.reply = 0, item.body
      self:answer(item.session)
    end)
  end
  say(channel, leader, function()
    if leader.applied == #leader.log then return done() end
    table.insert(leader.syncs, { length = #leader.log, fn = done })
  end)
end

--- Asks the leader whether a session is alive, and calls fn with the answer. A
--- live session then belongs to this server.
function server:revalidate(session, timeout, fn)
  local function check(leader)
    local its = leader.tracker[session]
    if not its or its.is_closing then return false end
    track(leader, session, timeout, self)
    return true
  end
  if self.role == "leader" then return fn(check(self)) end
  local channel = self.channel
  say(channel, channel.leader, function()
    local is_valid = check(channel.leader)
    say(channel, self, function() fn(is_valid) end)
  end)
end

--- Records that a session is active.
function server:touch(session)
  if self.role == "leader" then return touch(self, session) end
  self.touched[session] = true
end

-- faults ----------------------------------------------------------------------

--- Stops a server for a while, as SIGSTOP does.
function ensemble:freeze(one, seconds)
  if one.is_down then return end
  self.universe:stall(one.host, seconds)
  one.thaws = one.host.stalls_until
  self.universe:after(seconds, function()
    if one.thaws > self.universe.now then return end
    local inbox = one.inbox
    one.inbox = {}
    for _, call in ipairs(inbox) do call:fire() end
  end)
end

--- Kills a server, and restarts it after some seconds.
function ensemble:restart(one, seconds)
  if one.is_down then return end
  leave_role(one)
  self.universe:kill(one.host)
  one.is_down, one.role, one.inbox, one.thaws = true, "looking", {}, 0
  self.universe:after(seconds, function() boot(self, one) end)
end

--- Partitions a server from another one, or from all others, for a while.
--- Messages arrive after that.
function ensemble:cut(one, other, seconds)
  local till = self.universe.now + seconds
  for _, each in ipairs(self) do
    if each ~= one and (not other or each == other) then
      self.cuts[one][each], self.cuts[each][one] = till, till
    end
  end
end

--- Slows down the disk of a server for a while.
function ensemble:slow_disk(one, seconds)
  one.disk_until = max(one.disk_until or 0, self.universe.now + seconds)
end

--- Deletes a node, as an operator does.
function ensemble:delete(path)
  local leader = self:leader()
  if leader then
    propose(leader, { session = codec.NO_ID, op = ops.delete,
      body = codec.versioned(path) })
  end
end

--- Delays the leader's messages to a follower for a while.
function ensemble:lag(one, seconds)
  if one.role ~= "follower" then return end
  local at = one.channel.at
  at[one] = max(at[one], self.universe.now + seconds)
end

return ensemble
