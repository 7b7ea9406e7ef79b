--- A lock of one name: its operations, with the replies of a Redis policy (see
--- verdicts.lua). The server knows nodes, not owners. So each owner has an
--- *entry* here, while it holds the lock or waits for it:
---   owner     its name
---   place     its node, see place.lua
---   is_held   whether it holds the lock
---   want      its count of holds
---   token     the id of the transaction that made the node
---   deadline  when its lease ends, by host.now(); then the node is deleted
---   is_stale  another waiter has overtaken it, although it has its node
--- A renewal sends nothing for an entry: it moves this deadline.

local codec = require "rlock.zookeeper.codec"
local identity = require "rlock.util.identity"
local limit = require "rlock.zookeeper.limit"
local naming = require "rlock.naming"
local nodes = require "rlock.zookeeper.nodes"
local place = require "rlock.zookeeper.place"
local queues = require "rlock.zookeeper.queues"

---@class rlock.zookeeper.target
---@field check_kind function
---@field path string
---@field policy table of kinds.lua
---@field server table
---@field entries any
local target = {}
target.__index = target

target.leaves = true                    -- a waiter has a node

local max, min = math.max, math.min

local MOST = 100                  -- holders that are looked at
local UNKNOWN = -1                -- milliseconds until the lock may be free

---@param server table the back end
---@param policy table of kinds.lua
---@param path string
---@param class? table of a counter: it inherits from this one
function target.new(server, policy, path, class)
  return setmetatable({
    server = server, policy = policy, path = path,
    entries = {},                 -- owner -> entry
  }, class or target)
end

-- entries ---------------------------------------------------------------------

--- The channel that wakes this owner, which may wait for both sides of a
--- read/write lock; without an owner, all waiters.
function target:channel(owner)
  return ("%s#%s %s"):format(self.path, self.policy.name, owner or "")
end

--- Wakes all waiters at the next change of a node. Call this with the request
--- that sets the watch.
function target:watch(path)
  local link = self.server.connection
  if self.watched == link.link then return end
  self.watched = link.link
  link:watch(path, function()
    self.watched = nil
    self.server.channels:message(self:channel())
  end)
end

-- The owner's entry, or nil. Drops a hold whose session has ended.
local function entry_of(self, owner)
  local entry = self.entries[owner]
  if entry and entry.is_held
      and entry.place.epoch ~= self.server.connection.epoch then
    self:forget(entry)
    return nil
  end
  return entry
end

--- The owner's hold, or nil.
function target:held_by(owner)
  local entry = entry_of(self, owner)
  return entry and entry.is_held and entry or nil
end

-- The owner's hold of the other side of a read/write lock, or nil.
local function hold_at_peer(self, owner)
  local peer = self.policy.peer
  local other = peer and self.server:target_of(peer, self.path)
  return other and other:held_by(owner)
end

--- A place in one of its queues.
---@param folder string the path of the queue, below that of the lock
---@param queue table see kinds.lua
---@param owner string for the data of the node
---@param channel string of the waiter
---@return table # see place.lua
function target:new_place(folder, queue, owner, channel)
  local server, data = self.server, self.policy.data
  return place.new(server, { lock = self.path, parent = self.path .. folder,
    mark = queue.mark, blocks = queue.blocks, owner = owner,
    data = data and data(owner), lasts = self.policy.lasts,
    on_wake = function() server.channels:message(channel) end })
end

-- The place whose number a reader shares: that of its owner as the writer.
local function beside_of(self, owner)
  local writer = self.policy.is_shared and hold_at_peer(self, owner)
  return writer and writer.place or nil
end

-- Makes an entry. A writer that also reads has the same number as a reader. So
-- it stays first while it holds either side, as in Curator.
local function new_entry(self, owner)
  local server, policy = self.server, self.policy
  local entry = { target = self, owner = owner, is_held = false }
  local shown = policy.needs and identity.hex(owner) or owner
  local channel = self:channel(owner)
  if policy.leases then
    entry.gate = self:new_place("/locks", policy.queue, shown, channel)
    entry.place = self:new_place("/leases", policy.leases, shown, channel)
    entry.place.gate, entry.place.most = entry.gate, policy.most
  else
    entry.place = self:new_place("", policy.queue, shown, channel)
    entry.place.beside = beside_of(self, owner)
  end
  self.entries[owner] = entry
  server.entries[entry] = true
  return entry
end

--- Drops an entry, whose node is left or gone.
function target:forget(entry)
  local server = self.server
  server.leases:remove(entry)
  server.entries[entry], entry.is_held = nil, false
  entry.place.is_over = true
  if entry.gate then entry.gate.is_over = true end
  if self.entries[entry.owner] == entry then self.entries[entry.owner] = nil end
end

--- Drops an entry, and deletes its node.
---@param entry table
---@param deadline number by host.now()
---@return any # as place:leave
function target:drop(entry, deadline)
  self:forget(entry)
  if entry.gate then self.server:leave_place(entry.gate) end
  return entry.place:leave(deadline)
end

-- Has the entry nothing to do until it is woken?
local function is_waiting(entry)
  local gate = entry.gate
  if not entry.place:is_waiting() then return gate and gate:is_waiting() end
  return not gate or entry.target.policy.most or gate.watching ~= nil
end

--- Asks whether it is the entry's turn in the queue, and finds how many leases
--- there may be.
---@return any ... # as place:ask
function target.ask_gate(entry, deadline, is_try)
  local is_first, code, detail = entry.gate:ask(deadline, is_try)
  if not is_first or entry.target.policy.most then
    return is_first, code, detail
  end
  local most
  most, code, detail = limit.watch(entry.target, entry.gate, deadline)
  entry.place.most = most
  return most and true, code, detail
end

-- Asks whether it is the entry's turn, see place:ask; if the session was
-- replaced, again from the gate.
local function ask_turn(entry, deadline, is_try)
  local gate = entry.gate
  if gate then
    local is_first, code, detail = target.ask_gate(entry, deadline, is_try)
    -- The node of the gate was deleted after the gate had opened. The waiter
    -- that is first now waits for the other node of this entry.
    entry.is_stale = is_first == false and entry.place.node
      and entry.place.epoch == gate.epoch
    if not is_first then return is_first, code, detail end
  end
  local is_first, code, detail = entry.place:ask(deadline, is_try)
  if is_first == false and entry.place:is_shut_out() then
    return ask_turn(entry, deadline, is_try)
  end
  if is_first and gate then entry.target.server:leave_place(gate) end
  return is_first, code, detail
end

-- Sets the time at which the hold ends.
local function hold_until(entry, deadline)
  local leases = entry.target.server.leases
  leases:remove(entry)
  entry.deadline = deadline
  leases:push(entry)
  entry.target.server.connection:wake(deadline)
end

--- Checks once that the path of a mutex or counter has no nodes of another
--- kind. (Other locks see that in the list of their queue.)
---@return true?, any code, string? detail
function target:check_kind(deadline)
  if self.is_checked or self.policy.queue and not self.policy.leases then
    return true
  end
  local names, code, detail =
    nodes.children(self.server, deadline, self.path)
  if not names then return nil, code, detail end
  for _, name in ipairs(names) do
    local mark = place.parse(name)
    if mark then
      return nil, "refused", ("%s has nodes of another kind of lock (%s)")
        :format(self.path, mark)
    end
  end
  self.is_checked = true
  return true
end

-- operations ------------------------------------------------------------------

-- Return the reply, or nil, code, detail, and whether the request may have been
-- applied; last, when it was sent.
local run = {}

-- Makes sure that the session is alive.
local function make_sure(self, deadline)
  local server = self.server
  server.bound = server.connection.validity.ends
  if server.bound > server.host.now() then return true end
  return server:sync(deadline)
end

-- The number of the writer protects a reader only if the writer still held the
-- lock when the reader's node was made. Otherwise another writer may hold it.
-- If the list lacks the writer's node, `is_there` also reports its loss.
local function is_beside(self, entry, deadline)
  local its, owner = entry.place, entry.owner
  if not its.beside then return true end
  if beside_of(self, owner) ~= its.beside then return false end
  return not its.is_alone
    or self.server:is_there(hold_at_peer(self, owner), deadline)
end

local function granted(self, entry, ms, want)
  local sent = entry.place.sent
  entry.is_held, entry.want = true, want
  entry.token = codec.number(entry.place.created)
  if entry.place.beside then
    entry.token = nil       -- those of waiters may be less
  elseif not entry.token then
    return nil, "zookeeper", "the token is beyond 2^53, and this Lua has no "
      .. "integers of that size", true
  end
  hold_until(entry, sent + ms / 1000)
  self.server:attend(entry)
  return { "held", entry.token }, nil, nil, false, sent
end

function run.acquire(self, deadline, now, owner, ms, want, request)
  local entry = entry_of(self, owner)
  ms = tonumber(ms)
  if entry and entry.is_held then
    entry.want = want
    hold_until(entry, max(entry.deadline, now + ms / 1000))
    return { "held", entry.token }, nil, nil, false, now
  elseif want ~= "1" then
    return { "lost" }
  end
  if not entry and not self.policy.is_shared
      and hold_at_peer(self, owner) then
    return { "refused",
      "upgrade: this owner reads, and a writer waits for all readers" }
  end
  if entry and beside_of(self, owner) ~= entry.place.beside then
    self.server:leave_later(entry)      -- it began before the writer's hold
    entry = nil
  end
  entry = entry or new_entry(self, owner)
  if is_waiting(entry) then return { "busy", UNKNOWN } end
  local is_try = request and request.wait_ms == 0
  local is_first, code, detail = self:check_kind(deadline)
  if is_first then
    is_first, code, detail = ask_turn(entry, deadline, is_try)
  end
  if is_first then is_first, code, detail = make_sure(self, deadline) end
  if is_first then is_first, code, detail = is_beside(self, entry, deadline) end
  if is_first == false and (entry.place.beside or entry.is_stale) then
    self.server:leave_later(entry)
    return { "busy", 0 }
  end
  if is_first and self.entries[owner] == entry
      and entry.place.epoch == self.server.connection.epoch then
    return granted(self, entry, ms, want)
  elseif code == "refused" then
    self.server:leave_later(entry)
    return { "refused", detail }
  elseif is_first == nil then
    return nil, code, detail, true
  elseif is_try then
    self.server:leave_later(entry)
  end
  -- If it was first: given up, or of a session that has ended.
  return { "busy", is_first and 0 or UNKNOWN }
end

function run.release(self, deadline, now, owner, ms, want)
  local entry = entry_of(self, owner)
  if not entry then return { "lost" } end
  if want ~= "0" then
    if not entry.is_held then return { "lost" } end
    local is_there, code, detail = self.server:is_there(entry, deadline)
    if is_there == nil then return nil, code, detail, true end
    if not entry.is_held then return { "lost" } end
    entry.want = want
    hold_until(entry, now + tonumber(ms) --[[@as number]] / 1000)
    return { "kept" }, nil, nil, false, now
  end
  local was_there, code, detail = self:drop(entry, deadline)
  if was_there == nil then return nil, code, detail, true end
  return { was_there and "freed" or "lost" }, nil, nil, false, now
end

function run.leave(self, deadline, _, owner)
  local entry = self.entries[owner]
  if not entry or entry.is_held then return { "left" } end
  local was_there, code, detail = self:drop(entry, deadline)
  if was_there == nil then return nil, code, detail, true end
  return { "left" }
end

--- Renews a hold, after a sync that was sent then: its validity begins there.
---@return any # the reply
function target:renew(owner, sent, ms)
  local entry = self:held_by(owner)
  if not entry then return { "lost" } end
  hold_until(entry, max(entry.deadline, sent + ms / 1000))
  return { "held" }
end

function run.renew(self, deadline, _, owner, ms)
  local ok, code, detail, sent = self.server:sync(deadline)
  if not ok then return nil, code, detail, true end
  return self:renew(owner, sent, tonumber(ms))
end

-- The nodes of a queue, in order.
local function queue_of(self, path, deadline)
  local names, code, detail = nodes.children(self.server, deadline, path)
  if not names then return nil, code, detail end
  return queues.sorted(names, path)
end

--- Reads a node of a list: its `data`, and `created`.
---@return any # whether it is there
---@return any code, string? detail
local function read(self, node, deadline)
  local data, version, made = nodes.get(self.server, deadline, node.path)
  if not data then return data, version, made end
  node.data, node.created = data, codec.number(made)
  return true
end

--- The nodes that hold the lock, the first of them with the fields that `read`
--- sets; for a read/write lock, those of both sides.
---@return any # the nodes, how many wait, and the list of both unless waiting
---  has a queue of its own
---@return any code, string? detail
function target:holders(deadline)
  local policy = self.policy
  local path = self.path .. (policy.leases and "/leases" or "")
  while true do
    local list, code, detail = queue_of(self, path, deadline)
    if not list then return nil, code, detail end
    local holders = queues.holders(list, policy.most or policy.needs and #list)
    local waiting, is_there = #list - #holders, true
    for i = 1, min(#holders, MOST) do
      is_there, code, detail = read(self, holders[i], deadline)
      if is_there == nil then return nil, code, detail end
      if not is_there then break end
    end
    if is_there and policy.most then
      list, code, detail = queue_of(self, self.path .. "/locks", deadline)
      if not list then return nil, code, detail end
      waiting = #list
    end
    if is_there then return holders, waiting, list end
  end
end

-- Who made a node, as text; then the name of its client's connections.
local function show(node)
  local holder, name = queues.maker(node.data)
  return naming.printable(holder or node.data ~= "" and node.data or node.name),
    name
end

-- Those that wait in a list behind `n` holders, MOST at most.
local function tell_queue(self, list, n, deadline)
  local waiters = {}
  for i = n + 1, min(#list, n + MOST) do
    local is_there, code, detail = read(self, list[i], deadline)
    if is_there == nil then return nil, code, detail end
    if is_there then waiters[#waiters + 1] = show(list[i]) end
  end
  return waiters
end

function run.peek(self, deadline, now, owner)
  local holders, waiting, all = self:holders(deadline)
  if not holders then return nil, waiting, all end
  local queue = false
  if self.policy.tells_queue then
    local code, detail
    queue, code, detail = tell_queue(self, all, #holders, deadline)
    if not queue then return nil, code, detail end
  end
  ---@type any, any, any, any
  local entry, mine, list, identities = self.entries[owner], 0, {}, {}
  local token, mark = nil, self.policy.peer and self.policy.queue.mark
  for _, node in ipairs(holders) do
    if node.data and (not mark or node.mark == mark) then
      local is_mine = entry and entry.is_held and entry.place.node == node.name
      if is_mine then mine = tonumber(entry.want) end
      local holder, name = show(node)
      list[#list + 1] = holder
      list[#list + 1] = is_mine and entry.want or "1"
      identities[#identities + 1] = name or ""
      token = token or node.created
    end
  end
  local left = UNKNOWN           -- until ours would end if the client died now
  if mine > 0 then
    left = max(0, (min(entry.deadline, self.server.bound) - now) * 1000)
  end
  return { list[1] and "held" or "free", left, mine, list,
    { "token", token or false, "waiting", waiting, "identities", identities,
      "queue", queue } }
end

function run.break_(self, deadline, _, token)
  local holders, code, detail = self:holders(deadline)
  if not holders then return nil, code, detail end
  if not holders[1] then return { "free" } end
  if token ~= "" and tonumber(token) ~= holders[1].created then
    return { "refused", "the hold with that token is over" }
  end
  for _, node in ipairs(holders) do
    local was_there
    was_there, code, detail = nodes.delete(self.server, deadline, node.path)
    if was_there == nil then return nil, code, detail, true end
  end
  return { "freed" }
end

--- The operations by name; those of a counter's class differ.
target.operations = run

--- Runs an operation, see the back end contract.
---@return any ...
function target:run(name, deadline, now, a, b, c, more)
  return self.operations[name](self, deadline, now, a, b, c, more)
end

-- its server ------------------------------------------------------------------

--- Announces a wait to other processes, in the data of the waiter's node.
---@param deadline number by host.now()
---@param owner string
---@param text? string default: the wait is over, and its node is gone
---@return true?, rlock.failure? code, string? detail
function target:announce(deadline, owner, text)
  if self.policy.data then return true end      -- what Curator's clients read
  local entry, server = self.entries[owner], self.server
  local queued = entry and (entry.gate or entry.place)
  if not text or not queued or not queued.node or entry.is_held
      or not server.options.connection_name then
    return true
  end
  local ok, code, detail = server.connection:reach(deadline)
  if ok and (not queued.node or entry.is_held) then return true end
  if ok then
    ok, code, detail = nodes.set(server, deadline, queued:path(),
      server:data(queued.owner) .. " " .. text)
  end
  return ok and true, code, detail
end

--- The module that delivers release requests: ask, listen.
function target.requests() return require "rlock.zookeeper.revoker" end

--- The server and the path, by which several locks are sorted.
function target:address() return self.server.where, self.path end

function target:route() return self.server end

function target:is_closed() return self.server.connection.is_closed end

function target:ping(deadline) return self.server:sync(deadline) end

--- Locks on ZooKeeper have no options but their owner.
function target.check(_, _, options)
  for _, name in ipairs { "replicas", "replica_timeout" } do
    if options and options[name] then
      error(("bad option %s: it is for Redis; a ZooKeeper server answers when "
        .. "most servers have agreed"):format(name), 0)
    end
  end
end

return target
