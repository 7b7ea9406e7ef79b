--- Sends commands over the worker's pool of cosockets. A socket has at most one
--- command in flight. The whole pool acts as one connection: it is lost when no
--- socket can be connected, or when another server has the address.
---
--- A cosocket that nginx keeps alive has no Lua state. So each has a slot, with
--- an nginx pool for a single socket, and the slot stores the connection's
--- identity. If a command gets no reply, its connection counts as lost, and is
--- sealed before the next command is sent (seal.lua). nginx may end a request
--- at any moment without notice; its slot stays busy until the worker timer
--- (worker_timer.lua) reclaims it.

local clock = require "resty.rlock.host.clock"
local errors = require "rlock.redis.errors"
local evalsha = require "rlock.redis.evalsha"
local guard = require("resty.rlock.host.guard").call
local singleflight = require "rlock.util.singleflight"
local worker_timer = require "resty.rlock.host.worker_timer"
local resp = require "resty.rlock.host.resp"
local seal = require "rlock.redis.seal"
local socket = require "resty.rlock.host.socket"
local tasks = require "resty.rlock.host.tasks"

local remove = table.remove

local UNSEALED = seal.new(nil, "off")        -- for a pool without a node

---@class resty.rlock.host.pool
---@field options table
---@field worker any
---@field seals rlock.redis.seal
---@field idle integer
---@field size integer
---@field lost function
---@field run_id string?
---@field is_pool boolean
local pool = {}
pool.__index = pool

local pending_kills = singleflight.new {
  daemon = worker_timer.start, event = tasks.event, now = clock.now,
  guard = guard, is_over = tasks.is_over,
}

-- Pool name -> its state in this worker: the server's last known run_id; the
-- number of slots; the free slots; the busy ones: slot -> task. The generation
-- is incremented when a server is left.
local workers = {}

local function worker_of(name)
  local worker = workers[name]
  if not worker then
    worker = { name = name, generation = 0, slots = 0, free = {}, busy = {} }
    workers[name] = worker
  end
  return worker
end

---@param options table as for socket.get; and pool = { name = (each address has
---  a pool of its own), idle = (ms), size = }, lost = function(detail), called
---  once; seals of the node
function pool.new(options)
  local worker = worker_of(("%s:%s:%s"):format(options.pool.name,
    options.path or options.host, options.port or ""))
  local self = setmetatable({
    options = options, worker = worker, seals = options.seals or UNSEALED,
    idle = options.pool.idle, size = options.pool.size, lost = options.lost,
    run_id = worker.run_id, is_pool = true,
  }, pool)
  worker.pool = self
  return self
end

-- slots ---------------------------------------------------------------------

local function new_slot(worker)
  local number, generation = worker.slots + 1, worker.generation
  worker.slots = number
  return {
    number = number, generation = generation,
    pool = {
      pool = ("%s:%d:%d"):format(worker.name, generation, number),
      pool_size = 1,
    },
  }
end

local function free(self, slot)
  local worker = self.worker
  slot.socket = nil
  if slot.generation ~= worker.generation then return end
  worker.free[#worker.free + 1] = slot
end

-- Returns the socket to nginx, or closes it if the pool is full.
local function keep_alive(self, slot)
  local is_wanted = slot.number <= self.size
    and slot.generation == self.worker.generation
  if not is_wanted or not slot.socket:setkeepalive(self.idle, 1) then
    slot.socket:close()
    slot.identity = nil
  end
  free(self, slot)
end

-- Returns the slot after a reply. The worker timer is long-lived, so it keeps
-- sockets for reuse before it returns them to nginx.
local function give_back(self, slot)
  local timer = tasks.worker_timer()
  self.worker.busy[slot] = nil
  if not timer then return keep_alive(self, slot) end
  timer.sending[slot] = nil
  local kept = timer.kept[self]
  if kept then
    kept[#kept + 1] = slot
  else
    timer.kept[self] = { slot }
  end
end

--- Frees the slot of a command that has no reply and may still be executed:
--- records the connection as lost.
function pool:abandon(slot)
  local timer = tasks.worker_timer()
  if timer then timer.sending[slot] = nil end
  self.worker.busy[slot] = nil
  self.seals:lost(slot.identity)
  slot.identity = nil
  free(self, slot)
end

--- Returns to nginx the sockets that the worker timer has kept.
function pool:put_away(kept)
  for i = 1, #kept do
    keep_alive(self, kept[i])
    kept[i] = nil
  end
end

--- Frees the slots of the sockets that a dead worker timer had kept.
function pool:forget(kept)
  for _, slot in ipairs(kept) do
    slot.identity = nil
    free(self, slot)
  end
end

-- taking a socket -----------------------------------------------------------

local function lose(self, why)
  local lost = self.lost
  self.lost = nil
  if lost then lost(why) end
end

-- Does a new socket lead to the known server? (The run_id may be unknown.)
local function is_same(self, identity)
  local known, run_id = self.run_id, identity.run_id
  self.run_id, self.worker.run_id = run_id, run_id
  self.replication = identity.replication
  return not known or run_id == known
end

-- The slot's socket: the one that nginx kept, unless another server has the
-- address now, or a new one.
local function get(self, slot, ms)
  local identity = slot.identity
  local taken, code, detail = socket.get(self.options, ms, slot)
  if not taken or slot.identity ~= identity
      or identity.run_id == self.worker.run_id then
    return taken, code, detail
  end
  taken:close()
  slot.identity = nil
  return socket.get(self.options, ms, slot)
end

local function open(self, slot, ms)
  local taken, code, detail = get(self, slot, ms)
  if code == "connect" then
    lose(self, detail)
  elseif taken and not is_same(self, slot.identity) then
    taken:close()
    slot.identity = nil
    taken, code, detail = nil, "connect", "the server was restarted"
    lose(self, detail)
  end
  return taken, code, detail
end

-- Reclaims the slots of requests that ended while they waited for a reply.
local function reclaim(self)
  for slot, task in pairs(self.worker.busy) do
    if tasks.is_over(task) then self:abandon(slot) end
  end
end

-- Takes a slot, and connects its socket.
local function take_slot(self, ms)
  local timer = tasks.worker_timer()
  local kept = timer and timer.kept[self]
  local slot = kept and remove(kept)
  if slot then
    timer.sending[slot] = self
    socket.limit(slot.socket, ms)
    return slot
  end
  slot = remove(self.worker.free) or new_slot(self.worker)
  if timer then
    timer.sending[slot] = self
  else
    self.worker.busy[slot] = tasks.current()
  end
  local code, detail
  ---@cast slot any
  slot.socket, code, detail = open(self, slot, ms)
  if slot.socket then return slot end
  if timer then timer.sending[slot] = nil end
  self.worker.busy[slot] = nil
  free(self, slot)
  return nil, code, detail
end

-- sealing ---------------------------------------------------------------------

-- Kills lost connections, over a new connection. Runs in the worker timer.
local function kill_pending(self, ms)
  ---@type any
  local slot = {}
  local taken, code, detail = socket.get(self.options, ms, slot)
  if not taken then return nil, code, detail end
  local ok
  ok, code, detail = self.seals:kill_pending(slot.identity, function(commands)
    return socket.exchange(taken, commands)
  end)
  taken:close()
  return ok, code, detail
end

-- Waits until all lost connections of this server are sealed.
local function is_sealed(self, identity, ms)
  local seals, deadline = self.seals, clock.now() + ms / 1000
  if identity.refused then seals:refuse(identity.refused) end
  for _ = 1, 2 do
    if not seals:is_pending(identity.run_id) then return true end
    local ok, code, detail =
      pending_kills:join(self.worker, deadline, kill_pending, self, ms)
    if not ok then return nil, code, detail end
  end
  if not seals:is_pending(identity.run_id) then return true end
  return nil, "connect", "the server was restarted, or connections get lost"
end

local function take(self, ms)
  local why = tasks.refusal()
  if why then return nil, "refused", why end
  if self.closed then return nil, "closed", self.closed end
  reclaim(self)                        -- so that they are sealed before we send
  local slot, code, detail = take_slot(self, ms)
  if not slot then return nil, code, detail end
  local ok
  ok, code, detail = is_sealed(self, slot.identity, ms)
  if ok then return slot end
  give_back(self, slot)
  return nil, code, detail
end

-- Seals the connections of requests that ended with a command in flight.
worker_timer.on_tick[#worker_timer.on_tick + 1] = function()
  for _, worker in pairs(workers) do
    local self = worker.pool
    reclaim(self)
    if self.seals:is_pending(self.run_id) and not self.closed then
      pending_kills:start(worker, kill_pending, self, self.options.timeout)
    end
  end
end

-- sending -------------------------------------------------------------------

-- Code and detail for a missing reply.
local function unanswered(why, ms)
  if why == "timeout" then
    return "timeout", ("no answer within %d ms"):format(ms)
  end
  return "closed", "the connection was lost: " .. why
end

-- The reply is missing or followed by unexpected data.
local function fail(self, slot)
  slot.socket:close()
  self:abandon(slot)
end

--- Sends one command and waits for its reply.
---@param ms integer the command's deadline
---@param words table the command and its arguments; may be reused afterwards
---@param n integer the number of words
---@return any # the reply; false for a Redis nil
---@return rlock.failure? code # "redis", "timeout", "closed", "connect",
---  "refused"
---@return string? detail
function pool:send(ms, words, n)
  local text = resp.request(words, n)
  local slot, code, detail = take(self, ms)
  if not slot then return nil, code, detail end
  local ok, why = slot.socket:send(text)
  if not ok then
    fail(self, slot)
    return nil, unanswered(why, ms)
  end
  local reader = socket.reader(slot.socket)
  local reply
  reply, code, detail = reader:read()
  if code == "closed" or not reader:is_done() then
    fail(self, slot)
    return nil, unanswered(detail or "unexpected data after the reply", ms)
  end
  give_back(self, slot)
  return reply, code, detail
end

local scratch = {}

--- As `send`, for EVALSHA, see evalsha.lua.
function pool:eval(ms, ...)
  return self:send(ms, scratch, evalsha(scratch, ...))
end

--- As `send`, with the words as arguments.
function pool:call(ms, ...)
  return self:send(ms, { ... }, select("#", ...))
end

--- Sends several commands at once and waits for all their replies.
---@param ms integer deadline
---@param commands table array of arrays
---@param replies? table gets them as they arrive
---@return table # replies; where one is nil,
---@return table? # codes and
---@return table? # details say why
function pool:pipeline(ms, commands, replies)
  local n, slot, code, detail = #commands, take(self, ms)
  if not slot then
    local codes, details = {}, {}
    for i = 1, n do codes[i], details[i] = code, detail end
    return {}, codes, details
  end
  local codes, details
  replies, codes, details = socket.exchange(slot.socket, commands, replies)
  if codes[n] ~= "closed" then
    give_back(self, slot)
    return replies, codes, details
  end
  fail(self, slot)
  for i = 1, n do
    if codes[i] == "closed" then
      codes[i], details[i] = unanswered(details[i], ms)
    end
  end
  return replies, codes, details
end

--- Checks that the server replies. An error reply counts, unless it means that
--- the server accepts no commands.
---@return true?, rlock.failure? code, string? detail
function pool:make_ready(ms)
  local reply, code, detail = self:send(ms, { "PING" }, 1)
  local class = code == "redis" and errors.classify(detail)
  if reply == nil and not (class and class.code ~= "connect") then
    return nil, code, detail
  end
  self.seals:probe { run_id = self.run_id }
  return true
end

--- Closes the pool: it takes no more sockets.
---@param why? string the detail; given if the server is left, so the sockets
---  that nginx keeps are not reused
function pool:close(why)
  local worker = self.worker
  self.closed = why or "the client was closed"
  if not why then return end
  worker.generation, worker.slots = worker.generation + 1, 0
  worker.free, worker.run_id = {}, nil
end

return pool
