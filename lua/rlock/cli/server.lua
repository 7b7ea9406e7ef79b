--- Describes a server and its permissions, for rlockctl status --server.
--  Tries each command in a form that changes nothing, because the ACL commands
--  that would tell are restricted themselves.

local server = {}

local NAME = "rlock:status"       -- an unused key and channel
local SECONDS = 5                 -- to wait for the reply to SUBSCRIBE

--- The commands that rlock sends, and those of its scripts for each key type.
local needs = {
  { "EVALSHA", ("0"):rep(40), 0 }, { "SCRIPT", "LOAD", "return 0" },
  { "TIME" }, { "PUBLISH", NAME, "" }, { "EXISTS", NAME },
  { "GET", NAME }, { "SET", NAME, "", "XX" }, { "HGET", NAME, "" },
  { "HDEL", NAME, "" }, { "ZSCORE", NAME, "" }, { "ZREM", NAME, "" },
  { "LRANGE", NAME, 0, 0 }, { "LREM", NAME, 0, "" }, { "PTTL", NAME },
  { "PEXPIRE", NAME, 1 }, { "DEL", NAME }, { "INFO", "server" },
  { "CLIENT", "ID" }, { "CLIENT", "KILL", "ID", 0 },
}

--- More of them in a cluster. CLUSTER SLOTS has been answered already.
local cluster_needs = {
  { "ASKING" }, { "SPUBLISH", NAME, "" }, { "COMMAND", "INFO", "GET" },
  { "COMMAND", "GETKEYS", "GET", NAME },
}

local containers = { script = true, client = true, command = true }

local function name_of(words)
  local name = words[1]:lower()
  if containers[name] then
    name = name .. "|" .. words[2]:lower()
  end
  return name
end

-- Was the command itself refused, not its key or channel?
local function is_forbidden(detail)
  return detail:find("NOPERM .* to run ") ~= nil
    or detail:find("unknown command", 1, true) ~= nil
end

-- Tries SUBSCRIBE on a separate connection, because a refusal closes it.
local function subscribe(client)
  local session, refusal = client.session, nil
  local answered = session.host.event()
  local connection, code, detail = session.node:open(function(why)
    refusal = why
    answered:set()
  end, function() answered:set() end)
  if not connection then return nil, code, detail end
  connection:listen("subscribe", NAME)
  if not answered:wait(SECONDS) then
    return nil, "timeout", "no reply to SUBSCRIBE"
  end
  connection:close()
  return not (refusal and is_forbidden(refusal))
end

-- @return the permitted commands, the refused ones; or nil, code, detail
local function permissions(client)
  local permitted, refused = {}, {}
  local function note(name, is_permitted)
    table.insert(is_permitted and permitted or refused, name)
  end
  local more = client.session.options.seeds and cluster_needs or {}
  for i = 1, #needs + #more do
    local words = needs[i] or more[i - #needs]
    local reply, code, detail = client:call(table.unpack(words))
    if reply == nil and code ~= "redis" then return nil, code, detail end
    note(name_of(words), reply ~= nil or not is_forbidden(detail))
  end
  local ok, code, detail = subscribe(client)
  if ok == nil then return nil, code, detail end
  note("subscribe", ok)
  return permitted, refused
end

-- The id of the client's connection. Reconnects if that was killed.
local function id_of(client)
  local id, code, detail = client:call("CLIENT", "ID")
  if code == "closed" then id, code, detail = client:call("CLIENT", "ID") end
  if id == nil then return nil, code, detail end
  if type(id) ~= "number" then
    return nil, "redis", "the reply to CLIENT ID is no number"
  end
  return id
end

-- Can one connection kill another by its id? A proxy that answers CLIENT itself
-- may claim so falsely.
local function can_kill(client, victim)
  local seals = client.session.node.seals
  if seals.mode == "time" then return false, seals.why end
  local id, _, detail = id_of(victim)
  if not id then return false, detail end
  local killed
  killed, _, detail = client:call("CLIENT", "KILL", "ID", id)
  if not killed then return false, detail end
  if killed == 1 and id_of(victim) ~= id then return true end
  return false, "CLIENT KILL by id left the connection open"
end

-- The addresses of the nodes of a cluster.
local function nodes_of(cluster)
  local list
  for i, its in ipairs(cluster.masters or {}) do
    list = list or {}
    list[i] = its.where
  end
  return list
end

local function about(client)
  local text = tostring(client:call("INFO") or "")
  local function field(name)
    return text:match("\n" .. name .. ":([^\r\n]+)")
  end
  local valkey, role = field("valkey_version"), field("role")
  local node, master = client.session.node:master()
  return {
    where = client.session.node.where, node = node, master = master,
    nodes = nodes_of(client.session.node),
    server = valkey and "valkey" or field("redis_version") and "redis"
      or "unknown",
    version = valkey or field("redis_version"),
    role = role == "slave" and "replica" or role and "primary",
  }
end

--- Inspects the server of a client.
-- @tparam table client
-- @tparam table victim another client of the same server, whose connection is
--   killed as a test
-- @treturn[1] table where, node and master (with Sentinel), nodes (of a
--   cluster), server, version and role (nil if INFO is refused), permitted and
--   refused (names of commands), sealed ("kill" or "time"), why
-- @treturn[2] nil, code, detail
function server.inspect(client, victim)
  local state = about(client)
  local permitted, refused, detail = permissions(client)
  if not permitted then return nil, refused, detail end
  state.permitted, state.refused = permitted, refused
  local can_seal, why = can_kill(client, victim)
  state.sealed, state.why = can_seal and "kill" or "time", why
  return state
end

local sealing = {
  kill = "by CLIENT KILL", time = "by time: requests expire by its clock",
}

--- Prints the result of `inspect` for people.
-- @tparam table state
function server.print(state)
  if state.master then
    print(("%s is %s"):format(state.master, state.node))
  end
  print(("%s: %s%s%s"):format(state.where, state.server == "unknown"
    and "unknown server, INFO is not permitted" or state.server,
    state.version and " " .. state.version or "",
    state.role and ", " .. state.role or ""))
  if state.nodes then
    print("  nodes with slots: " .. table.concat(state.nodes, ", "))
  end
  if #state.refused == 0 then
    print("  permitted: all that rlock needs")
  else
    print("  not permitted: " .. table.concat(state.refused, ", "))
  end
  print(("  lost connections are sealed %s%s"):format(sealing[state.sealed],
    state.why and (" (%s)"):format(state.why) or ""))
end

return server
