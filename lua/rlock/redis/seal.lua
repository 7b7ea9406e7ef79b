--- Seals lost connections against late delivery: before anything is sent on a
--- connection, the server has answered a CLIENT KILL of its lost predecessors.
--- From then on it executes nothing more from them. Why, and where that does
--- not work: "Sealing" in README.md. There, requests carry a deadline instead
--- (expiry.lua).

local backoff = require "rlock.util.backoff"
local errors = require "rlock.redis.errors"

---@class rlock.redis.seal
---@field node rlock.redis.node
---@field mode any
---@field pending table
---@field probed table
---@field tests table
local seal = {}
seal.__index = seal

local MOST = 100         -- pending lost connections, at most
local SETTLE = 1         -- seconds before each test of a server
local LAST_PAUSE = 60    -- seconds between two tests, at most
local TESTS = 10         -- without a result, until the next connection
local GRACE = 5          -- seconds for the reply to a killed connection

local NOBODY = "9223372036854775807"     -- a client id that no connection has

--- The commands that identify a connection. CLIENT KILL tests its permission:
--- a request that is sent before a refusal is known cannot be sealed. INFO
--- replication has the role and the replication id, which changes when the
--- server copies another one's data; the run_id does not.
seal.queries = { { "CLIENT", "ID" }, { "INFO", "server" },
  { "CLIENT", "KILL", "ID", NOBODY }, { "INFO", "replication" } }

--- Returns the role where INFO is forbidden. May be the last command of the
--- handshake.
seal.hello = { "HELLO", "2", is_optional = true }

-- Is this a permanent error: no permission, or not supported?
local function is_refusal(detail)
  local class = errors.classify(detail)
  return class.code == "redis" and not class.retry
end

-- The role of the server: "master", "slave" or "replica"; nil if unknown.
local function role_of(replication, hello)
  local role = replication and tostring(replication):match("role:(%w+)")
  if role or type(hello) ~= "table" then return role end
  for i = 1, #hello - 1, 2 do
    if hello[i] == "role" then return hello[i + 1] end
  end
end

--- Why the server lacks the required role, or nil.
---@param identity? table nil: unknown
---@param options table those of host.connect: `role`, "master" or nil
---@return string?
function seal.wrong(identity, options)
  if not options.role or not identity then return nil end
  local role = identity.role
  if role == options.role then return nil end
  return ("%s:%d %s"):format(options.host, options.port,
    role and "is a replica, not the master"
      or "does not show its role: permit +info or +hello")
end

--- A connection's identity, from the replies to `queries`.
---@param replies table
---@param codes table
---@param details table
---@param first integer the index of the first of these replies
---@return table? # identity: id; or `refused`, a detail; and, if known, run_id,
---  role, replication (an id)
---@return rlock.failure? code
---@return string? detail # retry later
function seal.identity(replies, codes, details, first)
  for i = first, first + 1 do
    if replies[i] == nil
        and (codes[i] ~= "redis" or not is_refusal(details[i])) then
      return nil, codes[i], details[i]
    end
  end
  local id, server = replies[first], replies[first + 1]
  local kill, replication = first + 2, replies[first + 3]
  local identity = {
    run_id = server and tostring(server):match("run_id:(%w+)"),
    role = role_of(replication, replies[first - 1]),
    replication = replication
      and tostring(replication):match("master_replid:(%w+)"),
  }
  if codes[kill] == "redis" and is_refusal(details[kill]) then
    identity.refused = details[kill]
  elseif type(id) ~= "number" then
    identity.refused = tostring(details[first]
      or "the reply to CLIENT ID is no number")
  elseif not identity.run_id then
    identity.refused = tostring(details[first + 1]
      or "INFO does not identify the server")
  else
    identity.id = id
  end
  return identity
end

--- Sends the handshake, and queries the connection's identity.
---@param options table those of host.connect: `handshake`, `role`
---@param exchange function commands -> replies, codes, details
---@return table? # identity
---@return rlock.failure? code
---@return string? detail # "refused": the server lacks the role
---@return boolean? # false: the connection can still be used, once its identity
---  is known
function seal.handshake(options, exchange)
  local handshake, commands = options.handshake or {}, {}
  local n = #handshake
  for i, command in ipairs(handshake) do commands[i] = command end
  for i, query in ipairs(seal.queries) do commands[n + i] = query end
  local replies, codes, details = exchange(commands)
  for i, command in ipairs(handshake) do
    if replies[i] == nil
        and not errors.is_optional(command, codes[i], details[i]) then
      if codes[i] == "cancelled" then return nil, codes[i], details[i], true end
      return nil, codes[i], errors.of_handshake(options, command, codes[i],
        details[i]), true
    end
  end
  local identity, code, detail = seal.identity(replies, codes, details, n + 1)
  local wrong = seal.wrong(identity, options)
  if wrong then return nil, "refused", wrong, true end
  return identity, code, detail,
    options.role ~= nil or code == "cancelled"
end

---@param node? table
---@param mode string "kill", or "time": requests carry a deadline
function seal.new(node, mode)
  return setmetatable({
    node = node, mode = mode, pending = {}, probed = {},
    tests = {},              -- run_id -> the event that ends its test
  }, seal)
end

-- Removes the first (the oldest) pending connection for which is(it) is true.
local function remove(pending, is)
  for i, identity in ipairs(pending) do
    if is(identity) then return table.remove(pending, i) end
  end
end

--- Records a lost connection.
---@param identity? table
function seal:lost(identity)
  local pending = self.pending
  if not identity or not identity.id or self.mode ~= "kill" then return end
  -- This server's cannot accumulate: they are sealed before a new connection
  -- is used.
  if #pending >= MOST then
    remove(pending, function(its) return its.run_id ~= identity.run_id end)
  end
  pending[#pending + 1] = identity
end

--- Must anything be killed before this server is sent a request?
---@param run_id? string
function seal:is_pending(run_id)
  for _, identity in ipairs(self.pending) do
    if identity.run_id == run_id then return true end
  end
  return false
end

local function kill(identity)
  return { "CLIENT", "KILL", "ID", ("%d"):format(identity.id) }
end

--- Falls back to requests with a deadline, because CLIENT KILL does not work.
---@param why string
function seal:refuse(why)
  if self.mode ~= "kill" then return end
  self.mode, self.why, self.pending = "time", why, {}
  self.node.shas = {}      -- of scripts without a deadline, see remote.run
  self.node:report("warn", "not_sealed",
    ("%s: CLIENT ID and CLIENT KILL cannot seal lost connections (%s); "
      .. "requests expire by the server's clock instead"):format(
      self.node.where, why), { reason = why })
end

--- Seals the lost connections of this server.
---@param identity table of the connection that `exchange` uses
---@param exchange function commands -> replies, codes, details
---@return boolean? # true
---@return rlock.failure? code
---@return string? detail # something is still pending
function seal:kill_pending(identity, exchange)
  if identity.refused then self:refuse(identity.refused) end
  local victims, commands = {}, {}
  for _, lost in ipairs(self.pending) do
    if lost.run_id == identity.run_id then
      victims[#victims + 1], commands[#commands + 1] = lost, kill(lost)
    end
  end
  if not victims[1] then return true end
  local replies, codes, details = exchange(commands)
  local code, detail
  for i, lost in ipairs(victims) do
    if replies[i] ~= nil then
      remove(self.pending, function(its) return its == lost end)
    elseif codes[i] == "redis" and is_refusal(details[i]) then
      self:refuse(details[i])
      return true
    else
      code, detail = codes[i], details[i]
    end
  end
  if code then return nil, code, detail end
  self.node:report("info", "sealed",
    ("sealed %d lost connection%s to %s"):format(#victims,
      #victims == 1 and "" or "s", self.node.where),
    { connections = #victims })
  return true
end

-- the probe -------------------------------------------------------------------

--- Opens a connection for the test, to this run of the server.
---@return any # it, or nil
local function open(node, run_id)
  local connection = node:open(function() end, nil, true)
  local identity = connection and connection.identity
  if identity and identity.id and identity.run_id == run_id then
    return connection
  end
  if connection then connection:close() end
end

--- Kills a connection by its id over another one, then sends a command on it.
--- An answer shows that a proxy keeps the connection open. Silence shows
--- nothing: the end of the connection may be lost.
---@return any ... # whether the kill ended it; nil: unknown; and why not, if
---  false
local function is_killed(killer, victim)
  local words, ping = kill(victim.identity), { "PING" }
  local reply, code, detail = killer:send(GRACE * 1000, words, #words)
  if reply == nil then
    if code == "redis" and is_refusal(detail) then return false, detail end
    return nil
  end
  reply, code = victim:send(GRACE * 1000, ping, #ping)
  if reply ~= nil or code == "redis" then
    return false, "CLIENT KILL by id left the connection open"
  elseif code == "closed" or code == "connect" then
    return true
  end
end

-- Tests the server once; returns as is_killed. Opens two connections to the
-- same run of the server. The node's own connection may by now lead to a
-- restarted server, where another client has the victim's id.
local function test(node, run_id)
  local victim = open(node, run_id)
  local killer = victim and open(node, run_id)
  local verdict, why
  if killer then verdict, why = is_killed(killer, victim) end
  if victim then victim:close() end
  if killer then killer:close() end
  return verdict, why
end

-- Tests the server until there is a result. Runs as a background task.
local function run_probe(self, run_id)
  local node, verdict, why = self.node, nil, nil
  ---@type any, any
  local host, seconds = node.host, SETTLE
  local pauses = backoff.new(SETTLE, LAST_PAUSE, host.random_number)
  local close = host.event()
  self.tests[run_id] = close
  for _ = 1, TESTS do
    -- Stop if `close` is set or the task is cancelled.
    if close:pause(seconds) ~= false or node.is_closed
        or self.mode ~= "kill" then
      break
    end
    verdict, why = test(node, run_id)
    if verdict ~= nil then break end
    seconds = SETTLE + pauses:next()
  end
  self.probed[run_id], self.tests[run_id] = verdict, nil
  if verdict == false then self:refuse(why) end
end

--- Tests in the background, once for each server, whether one connection can
--- kill another: a proxy may answer CLIENT itself.
---@param identity table of a connection to the server
function seal:probe(identity)
  local run_id, probed = identity.run_id, self.probed
  if self.mode ~= "kill" or not run_id or probed[run_id] ~= nil then return end
  probed[run_id] = false
  self.node.host.service(run_probe, self, run_id)
end

--- Ends the tests: the node was closed.
function seal:close()
  for _, close in pairs(self.tests) do close:set() end
end

return seal
