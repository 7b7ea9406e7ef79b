--- The identity of the servers of red locks. Each new connection identifies its
--- server: this detects two clients of one server, and a restarted server that
--- has lost its grants.

local server_identity = {}

local max = math.max

-- connection -> { run_id, replication, is_replica, is_shared: whether another
-- node may show the same server }
local identities = setmetatable({}, { __mode = "k" })
-- node -> the latest of these, for while it has no connection: a replica that
-- refuses a write loses its connection
local latest = setmetatable({}, { __mode = "k" })
-- node -> { run_id, seen, forgot } of its server: when it was last identified,
-- and when it forgot its grants (nil: it did not), both by host.now()
local known = setmetatable({}, { __mode = "k" })

local sections = {
  { "INFO", "server" }, { "INFO", "replication" }, { "INFO", "persistence" },
}

-- Records the server's identity. If it was already running when its predecessor
-- last answered, it is a replacement with other data, not a restart, and its
-- append-only file does not help.
local function note(node, run_id, text, now)
  local before = known[node]
  if before and before.run_id == run_id then return end
  local server = { run_id = run_id, seen = now }
  known[node] = server
  if not before then return end
  local started = now - (tonumber(text:match("uptime_in_seconds:(%d+)")) or 0)
  if started < before.seen then
    server.forgot = now
  elseif not text:find("aof_enabled:1", 1, true) then
    server.forgot = started
  end
end

local function read(node, text, now)
  local run_id = text:match("run_id:(%w+)")
  if run_id then note(node, run_id, text, now) end
  return {
    run_id = run_id,
    replication = text:match("master_replid:(%w+)"),
    is_replica = text:find("role:slave", 1, true) ~= nil,
  }
end

local function ask(node, deadline)
  local replies, codes, details = node:pipeline(deadline, sections)
  if not replies then return nil, codes, details end
  local texts = {}
  for i = 1, #sections do
    if replies[i] == nil and codes[i] ~= "redis" then
      return nil, codes[i], details[i]
    end
    texts[i] = tostring(replies[i] or "")     -- INFO may be forbidden
  end
  return table.concat(texts, "\n")
end

--- The identity of the server of a connection, if `identify` has run on it.
function server_identity.at(connection) return identities[connection] end

--- The server's identity, if `identify` has run on its current connection.
---@param node table
---@return table? # as `identify` returns it
function server_identity.of(node)
  return node.connection and identities[node.connection]
end

-- Marks a new identity, and those of other nodes with the same run or
-- replication id. So nodes without the mark need not be compared.
local function mark_shared(node, new)
  for other, last in pairs(latest) do
    local its = server_identity.of(other) or last
    if other ~= node and (its.run_id == new.run_id
        or its.replication == new.replication) then
      its.is_shared, new.is_shared = true, true
    end
  end
end

--- Identifies the server, once for each connection.
---@param node table
---@param deadline number by host.now()
---@return table? # identity
---@return rlock.failure? code, string? detail
function server_identity.identify(node, deadline)
  local connection, code, detail = node:connect(deadline)
  if not connection then return nil, code, detail end
  if identities[connection] then
    if known[node] then known[node].seen = node.host.now() end
    return identities[connection]
  end
  local text
  text, code, detail = ask(node, deadline)
  if not text then return nil, code, detail end
  if not identities[connection] then
    local new = read(node, text, node.host.now())
    identities[connection], latest[node] = new, new
    mark_shared(node, new)
  end
  return identities[connection]
end

--- The server's identity, if that is known without asking and the server
--- counts, see `quarantine`.
---@param node table
---@param lease number seconds
---@param now number by host.now()
---@return table? # as `identify` returns it
function server_identity.standing(node, lease, now)
  local its, server = identities[node.connection], known[node]
  if not its or not server then return nil end
  server.seen = now
  if server.forgot and server.forgot + lease > now then return nil end
  return its
end

-- Why two servers are not independent, or nil.
local function bond(a, b)
  if not a or not b or not a.run_id or not b.run_id then return nil end
  if a.run_id == b.run_id then return "the same server" end
  if a.replication == b.replication and (a.is_replica or b.is_replica) then
    return "a server and its replica"
  end
end

--- Is the server a duplicate of another one, or its replica?
---@param node table identified before
---@param other table another node
---@return string? # why it does not count
function server_identity.clash(node, other)
  local its = server_identity.of(node)
  if not its or not its.is_shared then return nil end
  local what = bond(its, server_identity.of(other) or latest[other])
  if not what then return nil end
  identities[node.connection] = nil          -- may change: retry
  return ("%s and %s are %s, not independent servers"):format(other.where,
    node.where, what)
end

--- Seconds until a restarted or replaced server counts again: until the leases
--- that it forgot have ended.
---@param node table identified before
---@param lease number seconds
---@param now number by host.now()
function server_identity.quarantine(node, lease, now)
  local server = known[node]
  if not server or not server.forgot then return 0 end
  return max(0, server.forgot + lease - now)
end

return server_identity
