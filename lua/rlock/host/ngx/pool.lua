--- What sends commands: each over a cosocket of the worker's pool, which it has
--  to itself while it is under way. The pool as a whole is the connection: it
--  is lost when no socket is to be had, or when the server turns out to be
--  another than before.
--
--  A cosocket that nginx kept alive carries no Lua state, so each one has a
--  slot, with an nginx pool of its own for one socket: the slot knows which
--  connection that is. A command that is not answered makes its connection a
--  lost one, which is sealed before the next command is sent (seal.lua). A
--  request of nginx may end at any moment and tell nobody; its slot stays among
--  the busy ones until the home finds it there.

local clock = require "rlock.host.ngx.clock"
local errors = require "rlock.errors"
local flight = require "rlock.flight"
local home = require "rlock.host.ngx.home"
local resp = require "rlock.host.ngx.resp"
local seal = require "rlock.seal"
local socket = require "rlock.host.ngx.socket"
local tasks = require "rlock.host.ngx.tasks"

local remove = table.remove

local UNSEALED = seal.new(nil, "off")        -- for who opens a pool by itself

local pool = {}
pool.__index = pool

local flights = flight.new {
  daemon = home.start, event = tasks.event, now = clock.now,
}

-- Name of a pool -> what the worker knows of it: the run_id of its server, last
-- told; how many slots there are, and which are free, or busy: slot -> task.
-- The generation changes when a server is left.
local workers = {}

local function worker_of(name)
  local worker = workers[name]
  if not worker then
    worker = { name = name, generation = 0, slots = 0, free = {}, busy = {} }
    workers[name] = worker
  end
  return worker
end

--- @tparam table options as for socket.get; and pool = { name =, idle = (ms),
--   size = }, lost = function(detail), called once; seals of the node
function pool.new(options)
  local worker = worker_of(options.pool.name)
  local self = setmetatable({
    options = options, worker = worker, seals = options.seals or UNSEALED,
    idle = options.pool.idle, size = options.pool.size, lost = options.lost,
    run_id = worker.run_id,
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

-- Leaves the socket to nginx, or closes it where there are enough of them.
local function keep_alive(self, slot)
  local is_wanted = slot.number <= self.size
    and slot.generation == self.worker.generation
  if not is_wanted or not slot.socket:setkeepalive(self.idle, 1) then
    slot.socket:close()
    slot.identity = nil
  end
  free(self, slot)
end

-- Sockets are kept a little while in the home, which is all one request, and
-- then given to nginx.
local function give_back(self, slot)
  local its_home = tasks.home()
  self.worker.busy[slot] = nil
  if not its_home then return keep_alive(self, slot) end
  local kept = its_home.kept[self]
  if kept then
    kept[#kept + 1] = slot
  else
    its_home.kept[self] = { slot }
  end
end

-- The command on it is not answered, and may still be executed.
local function abandon(self, slot)
  self.worker.busy[slot] = nil
  self.seals:lost(slot.identity)
  slot.identity = nil
  free(self, slot)
end

--- Gives sockets that a home has kept to nginx.
function pool:put_away(kept)
  for i = 1, #kept do
    keep_alive(self, kept[i])
    kept[i] = nil
  end
end

-- taking a socket -----------------------------------------------------------

local function lose(self, why)
  local lost = self.lost
  self.lost = nil
  if lost then lost(why) end
end

-- Is a new socket one to the server that we know? (It may not tell.)
local function is_same(self, run_id)
  local known = self.run_id
  self.run_id, self.worker.run_id = run_id, run_id
  return not known or run_id == known
end

-- The socket of this slot: the one that nginx kept, unless another server has
-- taken the address since, or a new one.
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
  elseif taken and not is_same(self, slot.identity.run_id) then
    taken:close()
    slot.identity = nil
    taken, code, detail = nil, "connect", "the server was restarted"
    lose(self, detail)
  end
  return taken, code, detail
end

-- Frees the slots of requests of nginx that ended while they waited for an
-- answer.
local function reclaim(self)
  for slot, task in pairs(self.worker.busy) do
    if tasks.is_over(task) then abandon(self, slot) end
  end
end

local function free_slot(self)
  local worker = self.worker
  if not worker.free[1] then reclaim(self) end
  return remove(worker.free) or new_slot(worker)
end

-- A slot with its socket.
local function take_slot(self, ms)
  local its_home = tasks.home()
  local kept = its_home and its_home.kept[self]
  local slot = kept and remove(kept)
  if slot then
    socket.limit(slot.socket, ms)
    return slot
  end
  slot = free_slot(self)
  if not its_home then self.worker.busy[slot] = tasks.current() end
  local code, detail
  slot.socket, code, detail = open(self, slot, ms)
  if slot.socket then return slot end
  self.worker.busy[slot] = nil
  free(self, slot)
  return nil, code, detail
end

-- sealing ---------------------------------------------------------------------

-- Kills what was lost, over a connection of its own. In the home.
local function discharge(self, ms)
  local slot = {}
  local taken, code, detail = socket.get(self.options, ms, slot)
  if not taken then return nil, code, detail end
  local ok
  ok, code, detail = self.seals:discharge(slot.identity, function(commands)
    return socket.exchange(taken, commands)
  end)
  taken:close()
  return ok, code, detail
end

-- Has everything been sealed that was lost of this server? Waits for it. A
-- connection that is lost meanwhile takes a second turn.
local function is_sealed(self, identity, ms)
  local seals, deadline = self.seals, clock.now() + ms / 1000
  if identity.refused then seals:refuse(identity.refused) end
  for _ = 1, 2 do
    if not seals:is_pending(identity.run_id) then return true end
    local ok, code, detail =
      flights:join(self.worker, deadline, discharge, self, ms)
    if not ok then return nil, code, detail end
  end
  if not seals:is_pending(identity.run_id) then return true end
  return nil, "connect", "the server was restarted, or connections get lost"
end

local function take(self, ms)
  local why = tasks.refusal()
  if why then return nil, "refused", why end
  if self.closed then return nil, "closed", self.closed end
  local slot, code, detail = take_slot(self, ms)
  if not slot then return nil, code, detail end
  local ok
  ok, code, detail = is_sealed(self, slot.identity, ms)
  if ok then return slot end
  give_back(self, slot)
  return nil, code, detail
end

-- Seals what requests of nginx have left behind.
home.visits[#home.visits + 1] = function()
  for _, worker in pairs(workers) do
    local self = worker.pool
    reclaim(self)
    if self.seals:is_pending(self.run_id) and not self.closed then
      flights:start(worker, discharge, self, self.options.timeout)
    end
  end
end

-- sending -------------------------------------------------------------------

-- What a reply that did not come means: code, detail.
local function unanswered(why, ms)
  if why == "timeout" then
    return "timeout", ("no answer within %d ms"):format(ms)
  end
  return "closed", "the connection was lost: " .. why
end

-- The command was not answered, or more than that.
local function fail(self, slot)
  slot.socket:close()
  abandon(self, slot)
end

--- Sends one command and waits for its reply.
-- @tparam integer ms  the command's deadline
-- @tparam table words the command and its arguments; free to be used again
-- @tparam integer n   how many words
-- @treturn[1] any the reply; false for a Redis nil
-- @treturn[2] nil
-- @treturn[2] string code "redis", "timeout", "closed", "connect", "refused"
-- @treturn[2] string detail
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
    return nil, unanswered(detail or "more came than was asked for", ms)
  end
  give_back(self, slot)
  return reply, code, detail
end

--- As `send`, with the words as arguments.
function pool:call(ms, ...)
  return self:send(ms, { ... }, select("#", ...))
end

--- Sends several commands at once and waits for all their replies.
-- @tparam integer ms deadline
-- @tparam table commands array of arrays
-- @treturn table replies; where one is nil,
-- @treturn table codes and
-- @treturn table details say why
function pool:pipeline(ms, commands)
  local n, slot, code, detail = #commands, take(self, ms)
  if not slot then
    local codes, details = {}, {}
    for i = 1, n do codes[i], details[i] = code, detail end
    return {}, codes, details
  end
  local replies, codes, details = socket.exchange(slot.socket, commands)
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

--- Does the server answer? What it says matters only if it does not want us.
-- @return true, or nil, code, detail
function pool:make_ready(ms)
  local reply, code, detail = self:send(ms, { "PING" }, 1)
  local class = code == "redis" and errors.classify(detail)
  if reply == nil and not (class and class.code ~= "connect") then
    return nil, code, detail
  end
  if self.run_id then self.seals:prove { run_id = self.run_id } end
  return true
end

--- Takes no socket any more.
-- @tparam[opt] string why for people: the sockets that nginx keeps lead to a
--   server that is left, and are not used again
function pool:close(why)
  local worker = self.worker
  self.closed = why or "the client was closed"
  if not why then return end
  worker.generation, worker.slots = worker.generation + 1, 0
  worker.free, worker.run_id = {}, nil
end

return pool
