--- Seals lost connections against late delivery. The network may deliver an
--  unanswered request after newer ones of the same owner: a late release would
--  free a newer hold. So each connection learns its CLIENT ID, and before
--  anything is sent on its successor the server has answered a CLIENT KILL of
--  the lost one. From then on the server executes nothing more from it.
--
--  Ids restart when a server restarts, so they belong to its run_id. A lost
--  connection of another server stays pending until we connect to that server
--  again. Where INFO is forbidden, id and address identify a connection.
--
--  A server may refuse CLIENT ID or CLIENT KILL, and a proxy may answer them
--  itself. Then requests carry a deadline instead (expiry.lua).

local errors = require "rlock.redis.errors"

local seal = {}
seal.__index = seal

local MOST = 100         -- pending lost connections, at most
local UNNAMED = ""       -- the run_id of a server that hides it
local SETTLE = 1         -- seconds before the test of a server
local GRACE = 5          -- seconds within which a killed connection must end

local NOBODY = "9223372036854775807"     -- a client id that no connection has

--- The commands that identify a connection. CLIENT INFO has its address. CLIENT
--  KILL finds out whether it is permitted: a request that is sent before a
--  refusal is known cannot be sealed. INFO replication has the role and the
--  replication id: a server that copies another one's data keeps its run_id.
seal.queries = { { "CLIENT", "ID" }, { "INFO", "server" },
  { "CLIENT", "INFO" }, { "CLIENT", "KILL", "ID", NOBODY },
  { "INFO", "replication" } }

--- Returns the role where INFO is forbidden. May be the last command of the
--  greeting.
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
-- @tparam table|nil identity nil: unknown
-- @tparam table options those of host.connect: `role`, "master" or nil
-- @treturn string|nil
function seal.wrong(identity, options)
  if not options.role or not identity then return nil end
  local role = identity.role
  if role == options.role then return nil end
  return ("%s:%d %s"):format(options.host, options.port,
    role and "is a replica, not the master"
      or "does not tell its role: permit +info or +hello")
end

--- A connection's identity, from the replies to `queries`.
-- @tparam table replies
-- @tparam table codes
-- @tparam table details
-- @tparam integer first the index of the first of these replies
-- @treturn[1] table identity: id, run_id or address; or `refused`, a detail;
--   and role, replication (an id)
-- @treturn[2] nil, code, detail: retry later
function seal.identity(replies, codes, details, first)
  for i = first, first + 1 do
    if replies[i] == nil
        and (codes[i] ~= "redis" or not is_refusal(details[i])) then
      return nil, codes[i], details[i]
    end
  end
  local id, server, own = replies[first], replies[first + 1], replies[first + 2]
  local kill, replication = first + 3, replies[first + 4]
  local identity = {
    run_id = server and tostring(server):match("run_id:(%w+)"),
    role = role_of(replication, replies[first - 1]),
    replication = replication
      and tostring(replication):match("master_replid:(%w+)"),
  }
  local address = own and tostring(own):match(" addr=(%S+)")
  if codes[kill] == "redis" and is_refusal(details[kill]) then
    identity.refused = details[kill]
  elseif type(id) ~= "number" then
    identity.refused = tostring(details[first]
      or "the reply to CLIENT ID is no number")
  elseif not identity.run_id and not address then
    identity.refused = "neither INFO nor CLIENT INFO identifies the server"
  else
    identity.id, identity.address = id, address
  end
  return identity
end

--- @tparam table node
-- @tparam string mode "kill", or "time": requests carry a deadline
function seal.new(node, mode)
  return setmetatable({ node = node, mode = mode, pending = {}, proven = {} },
    seal)
end

local function is_of(identity, run_id)
  return (identity.run_id or UNNAMED) == (run_id or UNNAMED)
end

-- Drops the oldest one of another server. This server's cannot accumulate: they
-- are sealed before a new connection is used.
local function make_room(pending, run_id)
  for i, identity in ipairs(pending) do
    if not is_of(identity, run_id) then return table.remove(pending, i) end
  end
end

--- Records a lost connection.
-- @tparam table|nil identity
function seal:lost(identity)
  local pending = self.pending
  if not identity or not identity.id or self.mode ~= "kill" then return end
  if #pending >= MOST then make_room(pending, identity.run_id) end
  pending[#pending + 1] = identity
end

--- Must anything be killed before this server is sent a request?
-- @tparam string|nil run_id
function seal:is_pending(run_id)
  for _, identity in ipairs(self.pending) do
    if is_of(identity, run_id) then return true end
  end
  return false
end

local function kill(identity)
  local words = { "CLIENT", "KILL", "ID", ("%d"):format(identity.id) }
  if not identity.run_id then
    words[5], words[6] = "ADDR", identity.address
  end
  return words
end

local function settled(self, identity)
  for i, other in ipairs(self.pending) do
    if other == identity then return table.remove(self.pending, i) end
  end
end

--- Falls back to requests with a deadline, because CLIENT KILL does not work.
-- @tparam string why
function seal:refuse(why)
  if self.mode ~= "kill" then return end
  self.mode, self.why, self.pending = "time", why, {}
  self.node:tell("warn", "not_sealed", ("%s: CLIENT ID and CLIENT KILL cannot "
    .. "seal lost connections (%s); requests expire by the server's clock "
    .. "instead"):format(self.node.where, why), { reason = why })
end

--- Seals the lost connections of this server.
-- @tparam table identity    of the connection that `exchange` uses
-- @tparam function exchange commands -> replies, codes, details
-- @treturn[1] boolean true
-- @treturn[2] nil, code, detail: something is still pending
function seal:discharge(identity, exchange)
  if identity.refused then self:refuse(identity.refused) end
  local victims, commands = {}, {}
  for _, lost in ipairs(self.pending) do
    if is_of(lost, identity.run_id) then
      victims[#victims + 1], commands[#commands + 1] = lost, kill(lost)
    end
  end
  if not victims[1] then return true end
  local replies, codes, details = exchange(commands)
  local code, detail
  for i, lost in ipairs(victims) do
    if replies[i] ~= nil then
      settled(self, lost)
    elseif codes[i] == "redis" and is_refusal(details[i]) then
      self:refuse(details[i])
      return true
    else
      code, detail = codes[i], details[i]
    end
  end
  if code then return nil, code, detail end
  self.node:tell("info", "sealed", ("sealed %d lost connection%s to %s"):format(
    #victims, #victims == 1 and "" or "s", self.node.where),
    { connections = #victims })
  return true
end

-- the proof -------------------------------------------------------------------

-- Kills a test connection by its id from the node's own connection.
-- @treturn boolean|nil whether that ended it; nil: unknown
-- @treturn string why not, if false
local function is_killed(node, victim, gone)
  local words = kill(victim.identity)
  local reply, code, detail = node:call(node.host.now() + GRACE, words, #words)
  if reply ~= nil then
    return gone:wait(GRACE), "CLIENT KILL by id left the connection open"
  elseif code == "redis" and is_refusal(detail) then
    return false, detail
  end
end

-- Runs as a background task.
local function run_proof(self, run_id)
  local node, key = self.node, run_id or UNNAMED
  local gone, verdict, why = node.host.event(), nil, nil
  node.host.sleep(SETTLE)
  local victim = not node.is_closed
    and node:open(function() gone:set() end, function() end)
  local identity = victim and victim.identity
  if identity and identity.id and is_of(identity, run_id) then
    verdict, why = is_killed(node, victim, gone)
  end
  if victim then victim:close() end
  self.proven[key] = verdict
  if verdict == false then self:refuse(why) end
end

--- Tests in the background, once for each server, whether one connection can
--  kill another: a proxy may answer CLIENT itself.
-- @tparam table identity of a connection to the server
function seal:prove(identity)
  local key = identity.run_id or UNNAMED
  if self.mode ~= "kill" or self.proven[key] ~= nil then return end
  self.proven[key] = false
  self.node.host.daemon(run_proof, self, identity.run_id)
end

return seal
