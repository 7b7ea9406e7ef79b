--- Locks in Redis, for the commands: see stores.lua.

local deadlock = require "rlock.lock.deadlock"
local graph = require "rlockctl.cli.wait_graph"
local inspect = require "rlockctl.cli.inspect"
local scan = require "rlockctl.cli.scan"
local who = require "rlockctl.cli.who"

local store = { names = scan.names, by = inspect.by, locks = inspect.locks,
  free = inspect.free }

-- Kinds that wake only their next waiter, and seconds between two polls. A
-- fair lock without waiters looks like a reentrant one.
local OFTEN = { policy = { ops = {}, poll = 0.5 } }
local QUIET = { reentrant = OFTEN, mutex = OFTEN, fenced = OFTEN,
  fair = OFTEN, fair_readwrite = OFTEN }

--- See stores.lua.
function store.at(client, name, known)
  return inspect.at(client, name, known and (known.proven[name] or false))
end

--- See stores.lua.
function store.complete(client, states, known)
  for _, state in ipairs(states) do
    state.node, state.master, state.slot =
      client.session.server.node:master(state.name)
  end
  local nodes, code, detail = scan.nodes(client)
  if not nodes then return nil, code, detail end
  known = known or {}
  known.clients = known.clients or {}
  local failed, alive = known.failed or {}, {}
  for _, node in ipairs(nodes) do
    if not failed[node] then alive[#alive + 1] = node end
  end
  who.name(alive, client.session.timeout, states, known.clients)
  return true
end

-- Reads announcements. One may end meanwhile.
local function read_waits(waits, node, keys)
  local commands = {}
  for i, key in ipairs(keys) do
    commands[2 * i - 1], commands[2 * i] = { "GET", key }, { "PTTL", key }
  end
  local replies, code, detail =
    node:pipeline(node.host.now() + node.options.timeout, commands)
  if not replies then return nil, code, detail end
  for i = 1, #keys do
    local words, ms = replies[2 * i - 1], replies[2 * i]
    local wait = type(words) == "string" and graph.parse(words)
    if wait and type(ms) == "number" and ms > 0 then
      wait.waited = wait.waited + math.max(deadlock.kept - ms / 1000, 0)
      waits[#waits + 1] = wait
    end
  end
  return true
end

--- See stores.lua.
function store.waits(client)
  local nodes, code, detail = scan.nodes(client)
  if not nodes then return nil, code, detail end
  local waits = {}
  local failed
  failed, code, detail = scan.each(nodes, function(node)
    return scan.visit(client, node, "rlock_waits:*",
      function(keys) return not keys[1] or read_waits(waits, node, keys) end)
  end)
  if not failed then return nil, code, detail end
  return waits, failed.code, failed.detail
end

--- See stores.lua.
function store.audit(audit)
  return require("rlockctl.doctor.redis").audit(audit)
end

-- waiting ---------------------------------------------------------------------

---@type any
local waiting                           -- loaded by `waiter` only

---@class rlockctl.cli.stores.redis.Waiter
---@field client rlock.client
---@field name string
---@field which any
---@field deadline number
---@field channel any
local Waiter = {}
Waiter.__index = Waiter

--- See stores.lua.
function store.waiter(client, name, which, deadline)
  waiting = require "rlock.lock.waiting"
  return setmetatable({ client = client, name = name, which = which,
    deadline = deadline }, Waiter)
end

--- Leaves the waiters of the channel.
function Waiter:leave()
  if self.waiter then waiting.leave(self.client.session, self.waiter) end
  self.waiter = nil
end

--- Joins the waiters of a channel; leaves those of another. On return it is
--- subscribed, if possible.
---@return any # as waiting.pause
local function join(self, channel, hands_over)
  local session = self.client.session
  self:leave()
  self.channel = channel
  self.waiter = waiting.join(session, channel, nil, nil, hands_over)
  self.waiter.wait_deadline = self.deadline
  return waiting.pause(session, self.waiter, nil)
end

--- Waits for a message about the lock, the end of its lease, or the next poll.
---@param state table
---@return any # as waiting.pause
function Waiter:pause(state)
  local channel, hands_over =
    inspect.channel(self.client, state, self.name, self.which)
  if not self.waiter or self.channel ~= channel then
    return join(self, channel, hands_over)
  end
  return waiting.pause(self.client.session, self.waiter,
    state.ttl and math.ceil(state.ttl * 1000) or -1,
    QUIET[state.kind])
end

return store
