--- Audits Redis for rlockctl doctor: one server; or the servers and Sentinels
--- of a master; or the nodes of a cluster. Each is asked by a client of its
--- own, all at the same time. redis_rules.lua judges what a server answers.
--- Here is what concerns all together: their clocks, versions and locks.

local common = require "rlockctl.doctor.common"
local permissions = require "rlockctl.doctor.permissions"
local report = require "rlockctl.doctor.report"
local rules = require "rlockctl.doctor.redis_rules"
local scan = require "rlockctl.cli.scan"
local sorted = require "rlock.util.sorted"
local url = require "rlock.redis.url"

local redis = {}

local SAMPLES = 20           -- of the round trip of a script
local TIMES = 5              -- of the clock
local SECONDS = 2            -- to look for keys
local PAGE = 1000            -- keys that one SCAN visits

local PARAMETERS = { "appendfsync", "save", "stop-writes-on-bgsave-error",
  "timeout", "tcp-keepalive", "client-output-buffer-limit", "maxclients",
  "min-replicas-to-write", "min-replicas-max-lag", "cluster-node-timeout",
  "cluster-require-full-coverage", "cluster-allow-reads-when-down" }

-- asking a server -------------------------------------------------------------

-- A client of one server of a system.
local function client_of(client, at)
  ---@type any
  local options = {}
  for name, value in pairs(client.session.options) do options[name] = value end
  options.sentinels, options.seeds, options.lazy = nil, nil, true
  for name, value in pairs(at) do options[name] = value or nil end
  return require("rlock.client").open(client.session.host, options)
end

local function now_of(client) return client.session.host.now() end

local function deadline_of(client)
  return now_of(client) + client.session.timeout
end

local function send(client, words)
  return client.session.server.node:call(deadline_of(client), words, #words)
end

-- The lines name:value of a reply; or a text, why there are none.
local function lines_of(command, reply, detail)
  if type(reply) ~= "string" then
    return common.refusal(command, tostring(detail or "no text"))
  end
  local its = {}
  for name, value in reply:gmatch "([^\r\n:#]+):([^\r\n]*)" do
    its[name] = value
  end
  return its
end

-- The values of the parameters; or a text.
local function parameters_of(replies, details, first)
  local its, refusal = {}, nil
  for i, name in ipairs(PARAMETERS) do
    local reply = replies[first + i]
    if type(reply) == "table" and type(reply[2]) == "string" then
      its[name] = reply[2]
    end
    refusal = refusal or details[first + i]
  end
  return next(its) and its or common.refusal("CONFIG", refusal or "no reply")
end

--- Adds INFO, COMMANDSTATS, CLUSTER and CONFIG.
---@return true?, rlock.failure? code, string? detail
local function ask(f, client)
  local commands = { { "INFO" }, { "INFO", "commandstats" },
    { "CLUSTER", "INFO" } }
  for i, name in ipairs(PARAMETERS) do
    commands[3 + i] = { "CONFIG", "GET", name }
  end
  local replies, codes, details =
    client.session.server.node:pipeline(deadline_of(client), commands)
  if not replies then return nil, codes, details end
  for i, command in ipairs { "INFO", "COMMANDSTATS", "CLUSTER" } do
    f[command] = lines_of(i == 2 and "INFO" or command, replies[i], details[i])
  end
  f.CONFIG = parameters_of(replies, details, 3)
  return true
end

-- The clock of a server, compared with host.now(): `ahead` in seconds, and
-- `error`, by which that may be wrong. Or a text.
local function clock_of(client)
  local best
  for _ = 1, TIMES do
    local began = now_of(client)
    local reply, _, detail = send(client, { "TIME" })
    local took = now_of(client) - began
    ---@type any, any
    local s, us = table.unpack(type(reply) == "table" and reply or {})
    if not tonumber(s) or not tonumber(us) then
      return common.refusal("TIME", tostring(detail or "malformed"))
    end
    if not best or took < best.error * 2 then
      best = { error = took / 2,
        ahead = tonumber(s) --[[@as number]]
          + tonumber(us) --[[@as number]] / 1e6 - began - took / 2 }
    end
  end
  return best
end

-- The clock of a server, compared with this machine's, which is known in whole
-- seconds.
local function compared(its, now)
  local wall = os.time() + 0.5 - now
  return type(its) == "table"
    and { ahead = its.ahead - wall, error = its.error + 0.5 } or its
end

-- The round trips of a script; or a text.
local function scripts_of(client)
  local sha, _, detail = send(client, { "SCRIPT", "LOAD", "return 0" })
  if type(sha) ~= "string" then
    return common.refusal("SCRIPT LOAD", tostring(detail))
  end
  local times = {}
  for i = 1, SAMPLES do
    local began = now_of(client)
    local reply
    reply, _, detail = send(client, { "EVALSHA", sha, 0 })
    if reply == nil then return common.refusal("EVALSHA", tostring(detail)) end
    times[i] = now_of(client) - began
  end
  table.sort(times)
  return { median = times[SAMPLES // 2], longest = times[SAMPLES] }
end

-- one server ------------------------------------------------------------------

-- How to run redis-cli for a server.
local function cli_of(options, at)
  local path = at.path or not at.host and options.path
  if path then return "redis-cli -s " .. common.quoted(path) end
  local host = at.host or options.host
  return ("redis-cli -h %s -p %d%s"):format(common.quoted(host),
    at.port or options.port, options.tls and " --tls" or "")
end

-- Describes a server in its report.
local function introduce(its, info)
  if type(info) ~= "table" then return end
  its.server = info.valkey_version and "valkey" or "redis"
  its.version = info.valkey_version or info.redis_version
  its.role = info.role == "slave" and "replica" or info.role and "primary"
end

---@return any # the facts about a server
---@return rlock.failure? code, string? detail
local function facts_of(audit, client, at)
  ---@type any
  local f = report.facts { lease = audit.lease, place = audit.place,
    is_local = client.session.options.is_local,
    cli = cli_of(client.session.options, at) }
  local ok, code, detail = ask(f, client)
  if not ok then return nil, code, detail end
  f.server_clock = clock_of(client)
  f.CLOCK = compared(f.server_clock, now_of(client))
  f.SCRIPTS = scripts_of(client)
  ---@type any
  local victim = client_of(client, at)
  f.PERMISSIONS, code, detail = permissions.inspect(client, victim,
    audit.place == "cluster", audit.name, audit.policy)
  victim:close()
  if code == "usage" then return nil, code, detail end
  f.PERMISSIONS = f.PERMISSIONS or tostring(detail)
  return f
end

local function audit_server(audit, at)
  local its = audit:add(at.where, "redis", at.is_spare)
  local client = at.client or client_of(audit.client, at)
  local ok, code, detail =
    client.session.server:connect(client.session.options.connect_timeout)
  local f
  if ok then f, code, detail = facts_of(audit, client, at) end
  if client ~= audit.client then client:close() end
  if f then
    introduce(its, f.INFO)
    its:apply(rules.server, f)
    if audit.place == "cluster" then its:apply(rules.cluster, f) end
    f.report = its
    table.insert(audit.facts, f)
    its.is_done = true
  else
    its:fail(code, detail)
  end
end

-- Adds an address, if there is one, to the servers to audit.
local function add_place(places, at, is_spare)
  local where = at and url.host_port(at)
  if not at or places[where] and is_spare then return end
  places[where] = { where = where, host = at.host, port = at.port,
    is_spare = is_spare }
end

-- Sentinels -------------------------------------------------------------------

-- A flat list of names and values, as a table.
local function fields_of(list)
  local its = {}
  for i = 1, type(list) == "table" and #list - 1 or 0, 2 do
    its[tostring(list[i])] = tostring(list[i + 1])
  end
  return its
end

-- Adds the replicas that a Sentinel names.
local function add_replicas(audit, reply)
  for _, entry in ipairs(type(reply) == "table" and reply or {}) do
    local its = fields_of(entry)
    add_place(audit.places, url.address(its.ip, its.port), true)
  end
end

-- The reply to CKQUORUM, as a list; or a text, why there is none.
local function quorum_of(reply, detail)
  if type(reply) == "string" then return { reply } end
  if detail:find "^NOQUORUM" then return { detail } end
  return common.refusal("SENTINEL CKQUORUM", detail)
end

local function ask_sentinel(audit, its, client, at)
  local name = audit.master
  local replies, codes, details =
    client.session.server.node:pipeline(deadline_of(client), {
      { "SENTINEL", "MASTER", name }, { "SENTINEL", "CKQUORUM", name },
      { "SENTINEL", "REPLICAS", name }, { "INFO", "server" } })
  if not replies then return its:fail(codes, details) end
  introduce(its, lines_of("INFO", replies[4], details[4]))
  its.role = "Sentinel"
  add_replicas(audit, replies[3])
  its:apply(rules.sentinel, report.facts { lease = audit.lease,
    name = common.quoted(name),
    cli = cli_of(client.session.options, at),
    SENTINEL = replies[1] and fields_of(replies[1])
      or common.refusal("SENTINEL MASTER", tostring(details[1])),
    QUORUM = quorum_of(replies[2], tostring(details[2])) })
end

local function audit_sentinel(audit, at)
  local its = audit:add(url.host_port(at), "redis", true)
  local own = audit.client.session.server.node.sentinel.options
  local place = { host = at.host, port = at.port, db = 0,
    username = own.username or false, password = own.password or false,
    tls = own.tls or false }
  local client = client_of(audit.client, place)
  ---@cast client -nil
  local ok, code, detail =
    client.session.server:connect(client.session.options.connect_timeout)
  its.role = "Sentinel"
  if ok then
    ask_sentinel(audit, its, client, place)
    its.is_done = true
  else
    its:fail(code, detail)
  end
  ---@cast client -nil
  client:close()
end

-- the servers of a system -----------------------------------------------------

---@type table<string, function>
local find = {}

local function places_of(audit)
  local list = {}
  for i, where in ipairs(sorted(audit.places)) do
    list[i] = audit.places[where]
  end
  return list
end

--- One server.
function find.server(audit)
  return { { where = audit.client.session.server.where,
    client = audit.client } }
end

--- Asks the Sentinels; returns the master and its replicas.
function find.sentinel(audit)
  local server = audit.client.session.server
  audit.master = server.options.master
  local ok, code, detail = server:connect(server.options.connect_timeout)
  if not ok then audit.set:fail(code, detail) end
  local its = server.node.sentinel
  common.each(audit, table.move(its.list, 1, #its.list, 1, {}), audit_sentinel)
  add_place(audit.places, its.address)
  return places_of(audit)
end

-- Adds the nodes in a reply to CLUSTER SLOTS: of each range, the primary first.
local function add_nodes(audit, reply, source)
  for _, range in ipairs(type(reply) == "table" and reply or {}) do
    for i = 3, type(range) == "table" and #range or 0 do
      local entry = type(range[i]) == "table" and range[i] or {}
      local name = entry[1] ~= "" and entry[1] or source.options.host
      if name ~= "?" then
        add_place(audit.places, url.address(name, entry[2]), i > 3)
      end
    end
  end
end

--- The nodes of a cluster.
function find.cluster(audit)
  local cluster = audit.client.session.server.node
  local ok, code, detail = audit.client.session.server:connect(
    cluster.options.connect_timeout)
  if not ok then
    audit.set:fail(code, detail)
    return {}
  end
  local source = cluster:any()
  add_nodes(audit, source:call(deadline_of(audit.client),
    { "CLUSTER", "SLOTS" }, 2), source)
  return places_of(audit)
end

-- what concerns all -----------------------------------------------------------

-- The types of our keys, by what precedes the first colon.
local TYPES = { redisson_lock_queue = "list", redisson_lock_timeout = "zset",
  redisson_lock_token = "string", rlock_fair_alive = "hash",
  rlock_fair_deaf = "hash", rlock_rw_holds = "zset", rlock_frw = "zset",
  rlock_frw_counts = "hash", rlock_frw_queue = "zset",
  rlock_frw_writers = "zset", rlock_frw_signs = "hash",
  rlock_request = "string", rlock_replicated = "string" }

--- Adds the keys of a page that have one of our names, but another type.
---@return any ... # true, or nil, detail
local function add_foreign(names, node, page, deadline)
  local keys, commands = {}, {}
  for _, key in ipairs(page) do
    if type(key) == "string" and TYPES[key:match "^[%l_]*"] then
      keys[#keys + 1] = key
      commands[#commands + 1] = { "TYPE", key }
    end
  end
  if not keys[1] then return true end
  local types, _, details = node:pipeline(deadline, commands)
  if not types then return nil, details end
  for i, key in ipairs(keys) do
    local its = types[i]
    if its and its ~= "none" and its ~= TYPES[key:match "^[%l_]*"] then
      names[#names + 1] = key
    end
  end
  return true
end

--- Looks at the keys of a node until `ends`.
---@return any ... # true, or nil, detail
local function scan_node(names, node, client, ends)
  local cursor = "0"
  repeat
    local page, _, detail = node:call(deadline_of(client),
      { "SCAN", cursor, "MATCH", "r[el]*", "COUNT", PAGE }, 6)
    if type(page) ~= "table" or type(page[2]) ~= "table" then
      return nil, common.refusal("SCAN", tostring(detail))
    end
    local ok, why = add_foreign(names, node, page[2], deadline_of(client))
    if not ok then return nil, why end
    cursor = tostring(page[1])
  until cursor == "0" or now_of(client) >= ends
  return true
end

local function check_keys(audit)
  local names, ends = {}, now_of(audit.client) + SECONDS
  local nodes, _, detail = scan.nodes(audit.client)
  local ok = nodes ~= nil
  for _, node in ipairs(nodes or {}) do
    ok, detail = scan_node(names, node, audit.client, ends)
    if not ok then break end
  end
  if names[1] then
    audit.set:add("keys", "warning", ("%d keys have names of rlock's keys, "
      .. "but other types: %s"):format(#names, common.some(names)),
      "the locks whose keys they are fail with WRONGTYPE",
      "rename them in the program that made them, or delete them")
  elseif ok then
    audit.set:add("keys", "ok", "no foreign key has a name of rlock's")
  else
    audit.set:add("keys", "unknown", tostring(detail))
  end
end

-- Are all servers there that have locks?
local function is_whole(audit)
  for _, its in ipairs(audit.reports) do
    if its.code and not its.is_spare then return false end
  end
  return true
end

--- Compares the servers of several URLs, which may be those of a red lock.
---@param audits table after `audit`
function redis.compare(audits)
  local others = {}
  for _, audit in ipairs(audits) do
    local f = audit.place == "server" and audit.facts[1]
    if f then
      f.host = audit.client.session.options.host or "this machine"
      f.report:apply(rules.independence, f, others)
      others[#others + 1] = f
    end
  end
end

--- Audits what a client connects to.
---@param audit table see stores.lua; gets the reports
function redis.audit(audit)
  local options = audit.client.session.options
  audit.place = options.sentinels and "sentinel" or options.seeds and "cluster"
    or "server"
  audit.facts, audit.places = {}, {}
  local is_set = audit.place ~= "server"
  audit.set = is_set and audit:add(audit.client.session.server.where,
    audit.place)
  common.each(audit, find[audit.place](audit), audit_server)
  audit.set = audit.set or audit.reports[#audit.reports]
  audit.set:apply(rules.set, audit)
  audit.set.is_done = true
  if is_whole(audit) then
    common.check_locks(audit.set, audit.client)
    check_keys(audit)
  end
end

return redis
