--- What a Redis server needs to keep locks: rules for the facts about one
--- server (report.lua). The sources are INFO, CONFIG and CLUSTER, by the names
--- that the server uses. Further facts:
---   lease       the shortest lease, in seconds
---   cli         how to run redis-cli for this server
---   place       "server", "sentinel" or "cluster"; `is_local`
---   CLOCK       ahead and error, in seconds: its clock, compared with ours
---   SCRIPTS     median and longest, in seconds: a script's round trip
---   PERMISSIONS permissions.inspect

local common = require "rlockctl.doctor.common"
local sorted = require "rlock.util.sorted"

local OLDEST = { 6, 0, 6 }              -- the first version with LPOS
local FULL = 0.9                        -- of memory or connections in use
local MOST = 100                        -- replicas to look at
local LAG = 10                          -- seconds that a replica may be behind
local SLOW_SCRIPT = 10000               -- microseconds
local ELECTION = 2                      -- seconds that a failover takes, about
local SHORT_TIMER = 1                   -- seconds; a pause may last longer

local seconds = common.duration

local rules = {}

local function bytes(n)
  local units, i = { "bytes", "KB", "MB", "GB", "TB" }, 1
  while n >= 1024 and units[i + 1] do n, i = n / 1024, i + 1 end
  return ("%.4g %s"):format(n, units[i])
end

local function set(f, name, value)
  return ("%s config set %s %s"):format(f.cli, name, value)
end

local function is_primary(f) return f:of("INFO", "role") == "master" end

-- the server ------------------------------------------------------------------

-- Is a version, such as 7.0.15, less than { 6, 0, 6 }?
local function is_older(version, other)
  local i = 0
  for part in version:gmatch "%d+" do
    i = i + 1
    local least = other[i] or 0
    if tonumber(part) ~= least then return tonumber(part) < least end
  end
  return false
end

function rules.version(f)
  local valkey = f:find("INFO", "valkey_version")
  local version = valkey or f:of("INFO", "redis_version")
  if not valkey and is_older(version, OLDEST) then
    return "fault", "it is Redis " .. version, "some scripts of rlock use "
      .. "commands that it does not have", "upgrade to Redis 6.2 or later"
  elseif f.place == "cluster" and not valkey and is_older(version, { 7 }) then
    return "note", "Redis " .. version .. " has no SPUBLISH", "releases are "
      .. "not published, and waiters poll, unless rlock.open has the option",
      'rlock.open { publish = "publish" }'
  end
  return "ok", version
end

function rules.role(f)
  if is_primary(f) then return "ok", "it is a primary" end
  if f.place == "server" then
    return "fault", "it is a replica", "a replica refuses locks",
      ("connect to its primary: redis://%s:%s"):format(
        f:of("INFO", "master_host"), f:of("INFO", "master_port"))
  elseif f:of("INFO", "master_link_status") ~= "up" then
    return "warning", "its link to the primary is down",
      "a failover to this replica loses the locks granted since",
      f.cli .. " info replication"
  end
  return "ok", "it follows its primary"
end

function rules.eviction(f)
  local policy = f:of("INFO", "maxmemory_policy")
  local most = f:number("INFO", "maxmemory")
  if policy == "noeviction" then return "ok", "noeviction" end
  return most == 0 and "note" or "fault",
    ("maxmemory-policy is %s, and maxmemory is %s"):format(policy,
      most == 0 and "not set" or bytes(most)),
    "the server may evict a lock that is held, and grant it to another client",
    set(f, "maxmemory-policy", "noeviction")
end

function rules.memory(f)
  local most = f:number("INFO", "maxmemory")
  local used = f:number("INFO", "used_memory")
  if most == 0 or used < FULL * most then return "ok", bytes(used) end
  return "warning", ("%s of %s are in use"):format(bytes(used), bytes(most)),
    "a full server grants no locks",
    set(f, "maxmemory", ("%.0f"):format(most * 2))
end

-- the disk --------------------------------------------------------------------

local RESTART = "after a crash the server may restart without a lock that is "
  .. "held, and grant it to another client"

-- With an append-only file.
local function fsync_of(f)
  local policy = f:of("CONFIG", "appendfsync")
  local what = "appendfsync is " .. policy
  if policy == "always" then return "ok", what end
  local window = policy == "everysec" and 1 or 30
  if f.lease < window then
    return "ok", what .. ", and a lease ends before the server is up again"
  end
  return policy == "everysec" and "note" or "warning",
    ("%s: a crash of the machine loses the last %d s"):format(what, window),
    RESTART, set(f, "appendfsync",
      policy == "everysec" and "always" or "everysec")
end

function rules.persistence(f)
  if f:of("INFO", "aof_enabled") == "1" then return fsync_of(f) end
  local save = type(f.CONFIG) == "table" and f.CONFIG.save
  return f.is_local and "note" or "warning",
    "there is no append-only file" .. (save and save ~= ""
      and (", only snapshots (save %s)"):format(save) or ""),
    RESTART, set(f, "appendonly", "yes")
end

function rules.disk(f)
  local refuses = f:find("INFO", "aof_last_write_status") == "err"
  if f:of("INFO", "rdb_last_bgsave_status") == "err" then
    refuses = refuses or f:find("CONFIG", "save") ~= ""
      and f:find("CONFIG", "stop-writes-on-bgsave-error") ~= "no"
  end
  if not refuses then return "ok", "the last write has succeeded" end
  return "fault", "it cannot write to its disk", "it refuses all writes, so "
    .. "locks can be neither acquired nor renewed (MISCONF)",
    f.cli .. " bgsave, once its disk has space and its folder is writable"
end

function rules.fork(f)
  local longest = f:number("INFO", "latest_fork_usec") / 1e6
  if longest < f.lease / 10 then
    return "ok", "the last fork took " .. seconds(longest)
  end
  return "warning", "the last fork took " .. seconds(longest),
    "the server does nothing meanwhile, so leases of "
    .. seconds(f.lease) .. " may end before they are renewed",
    "echo never >/sys/kernel/mm/transparent_hugepage/enabled; or persist on "
    .. "a replica only"
end

-- replicas --------------------------------------------------------------------

-- The replicas that are not online, or lag.
local function behind(f)
  local list = {}
  for i = 0, math.min(f:number("INFO", "connected_slaves"), MOST) - 1 do
    local line = f:find("INFO", "slave" .. i) or ""
    local lag = tonumber(line:match "lag=(%d+)") or 0
    if not line:find("state=online", 1, true) or lag > LAG then
      list[#list + 1] = ("%s:%s"):format(line:match "ip=([^,]*)" or "?",
        line:match "port=(%d+)" or "?")
    end
  end
  return table.concat(list, ", ")
end

function rules.replicas(f)
  if not is_primary(f) then return end
  local count, late = f:number("INFO", "connected_slaves"), behind(f)
  if late ~= "" then
    return "warning", "replicas are behind: " .. late,
      "a failover to one of them loses the latest locks",
      f.cli .. " info replication"
  elseif count == 0 and f.place ~= "server" then
    return "warning", "it has no replica", "if it fails, nothing replaces it",
      "redis-cli -h REPLICA replicaof HOST PORT, or cluster replicate"
  end
  return "ok", ("%.0f replicas"):format(count)
end

-- A primary that is cut off from its replicas.
function rules.isolation(f)
  local count = is_primary(f) and f:number("INFO", "connected_slaves") or 0
  if not is_primary(f) or f.place == "server" and count == 0 then return end
  local good = tonumber(f:find("INFO", "min_slaves_good_slaves"))
  if not good then
    return f.place == "server" and "note" or "warning",
      "min-replicas-to-write is 0", "a primary that is cut off goes on "
        .. "granting locks that its successor grants, too; unless clients use "
        .. 'the option replicas = "majority"',
      set(f, "min-replicas-to-write", "1")
  end
  local wanted = f:number("CONFIG", "min-replicas-to-write")
  if good < wanted then
    return "fault", ("min-replicas-to-write is %.0f, but %.0f replicas are "
      .. "good"):format(wanted, good),
      "the server refuses all writes (NOREPLICAS)",
      "start the replicas, or " .. set(f, "min-replicas-to-write", good)
  end
  local lag = f:number("CONFIG", "min-replicas-max-lag")
  if lag < f.lease then return "ok", "min-replicas-to-write " .. wanted end
  return "note", "min-replicas-max-lag is " .. seconds(lag), "a primary that "
    .. "is cut off goes on granting locks as long",
    set(f, "min-replicas-max-lag", math.max(1, f.lease // 3))
end

-- connections -----------------------------------------------------------------

function rules.timeout(f)
  local timeout = f:number("CONFIG", "timeout")
  if timeout == 0 then return "ok", "0" end
  local renewal = f.lease / 3
  return timeout <= renewal and "warning" or "note",
    "timeout is " .. seconds(timeout), "the server closes connections that "
    .. "are idle as long" .. (timeout <= renewal and (": a client that renews "
    .. "every %s connects again each time"):format(seconds(renewal)) or ""),
    set(f, "timeout", 0)
end

function rules.keepalive(f)
  local period = f:number("CONFIG", "tcp-keepalive")
  if period > 0 and period <= 3600 then return "ok", seconds(period) end
  return "note", period == 0 and "tcp-keepalive is 0"
      or "tcp-keepalive is " .. seconds(period),
    "connections of machines that have gone stay open; a release may be sent "
    .. "to a waiter that has gone", set(f, "tcp-keepalive", 300)
end

local LEAST = 262144                    -- bytes: thousands of messages

-- The limits of a class of clients: hard, soft, and seconds of soft.
local function limits_of(f, class)
  local text = f:of("CONFIG", "client-output-buffer-limit")
  local hard, soft, period = text:match(class .. " (%d+) (%d+) (%d+)")
  return tonumber(hard), tonumber(soft), tonumber(period)
end

function rules.buffers(f)
  local hard, soft, period = limits_of(f, "pubsub")
  if not hard then return "unknown", "the reply to CONFIG GET is malformed" end
  local what = ("client-output-buffer-limit pubsub is %.0f %.0f %.0f"):format(
    hard, soft, period)
  local mend = set(f, "client-output-buffer-limit",
    "'pubsub 33554432 8388608 60'")
  if hard > 0 and hard < LEAST or soft > 0 and soft < LEAST then
    return "warning", what, "the server disconnects waiters that are slow to "
      .. "read; until they have connected again, they miss releases", mend
  elseif hard == 0 and soft == 0 then
    return "note", what, "a subscriber that reads nothing fills the memory of "
      .. "the server", mend
  end
  return "ok", what
end

function rules.connections(f)
  local most = tonumber(f:find("INFO", "maxclients"))
    or f:number("CONFIG", "maxclients")
  local used = f:number("INFO", "connected_clients")
  local what = ("%.0f of %.0f connections are in use"):format(used, most)
  if used < FULL * most then return "ok", what end
  return "warning", what, "the server refuses further clients, which then "
    .. "cannot renew their locks", set(f, "maxclients", ("%.0f"):format(
      most * 2))
end

-- time ------------------------------------------------------------------------

function rules.clock(f)
  local ahead = f:number("CLOCK", "ahead")
  local certain = math.abs(ahead) - f:number("CLOCK", "error")
  if certain < math.min(0.5, f.lease / 10) then
    return "ok", "within a second of this machine's"
  end
  return certain < f.lease / 10 and "note" or "warning",
    ("its clock is about %s %s this machine's"):format(
      seconds(math.abs(ahead)), ahead < 0 and "behind" or "ahead of"),
    "one of the two clocks is wrong. The server measures leases by its own: "
      .. "when it is set forward, they end early",
    "timedatectl set-ntp true, on both machines"
end

function rules.latency(f)
  local longest = f:number("SCRIPTS", "longest")
  local what = ("a script takes %s, at most %s"):format(
    seconds(f:number("SCRIPTS", "median")), seconds(longest))
  if longest < f.lease / 10 then return "ok", what end
  return "warning", what, "a renewal that takes as long may be late for "
    .. "leases of " .. seconds(f.lease), f.cli .. " --latency"
end

function rules.scripts(f)
  ---@type any, any
  local worst, name = 0, "eval"
  for _, command in ipairs { "eval", "evalsha", "fcall" } do
    local line = f:find("COMMANDSTATS", "cmdstat_" .. command) or ""
    local usec = tonumber(line:match "usec_per_call=([%d.]+)") or 0
    if usec > worst then worst, name = usec, command end
  end
  local what = ("%s takes %s on average"):format(name, seconds(worst / 1e6))
  if worst < SLOW_SCRIPT then return "ok", what end
  return "warning", what, "the server does nothing else while a script runs, "
    .. "so locks wait for it", f.cli .. " slowlog get"
end

-- permissions -----------------------------------------------------------------

-- Without these, connections are sealed by time: see `sealing`.
local OPTIONAL = { info = true, ["client|id"] = true, ["client|kill"] = true }

-- What is missing for a name, as texts.
local function missing_of(its)
  local list = {}
  for _, entry in ipairs(its.missing or {}) do
    list[#list + 1] = ("%s %s (for %s)"):format(entry.what, entry.pattern,
      table.concat(entry.kinds, ", "))
  end
  return list
end

function rules.permissions(f)
  local refused = f:of("PERMISSIONS", "refused")
  local list = missing_of(f.PERMISSIONS)
  local is_fault = list[1] ~= nil
  for i, command in ipairs(refused) do
    table.insert(list, i, command)
    is_fault = is_fault or not OPTIONAL[command]
  end
  if not list[1] then return "ok", "all that rlock needs" end
  return is_fault and "fault" or "note",
    "the user may not use: " .. table.concat(list, ", "),
    is_fault and "locks that need it fail"
      or "lost connections are sealed by time", f.PERMISSIONS.grant
end

function rules.sealing(f)
  if f:of("PERMISSIONS", "sealed") == "kill" then
    return "ok", "by CLIENT KILL"
  end
  return "note", ("lost connections are sealed by time (%s)"):format(
    f.PERMISSIONS.why or "?"), "a request that was given up changes nothing "
    .. "after its deadline, by the server's clock: if that is set back, a late "
    .. "request may free a newer hold", "permit +info '+client|id' "
    .. "'+client|kill', and connect without a proxy"
end

-- failovers -------------------------------------------------------------------

-- Compares the time that a failover takes with the lease.
local function failover(f, name, detection, mend_of)
  local total, left = detection + ELECTION, f.lease * 2 / 3
  local what = ("%s is %s"):format(name, seconds(detection))
  if total > left then
    return "warning", what, ("a failover takes about %s, but a lock that was "
      .. "renewed a third of its lease ago is valid for %s more: it is lost")
      :format(seconds(total), seconds(left)),
      mend_of(math.max(SHORT_TIMER, left - ELECTION))
        .. ("; or rlock.open { watchdog = %.0f }"):format(
          math.ceil(total * 3 / 2))
  elseif detection < SHORT_TIMER then
    return "warning", what, "a pause of the server, such as a fork, causes a "
      .. "failover, which may lose the latest locks", mend_of(SHORT_TIMER)
  end
  return "ok", what
end

function rules.cluster_timer(f)
  return failover(f, "cluster-node-timeout",
    f:number("CONFIG", "cluster-node-timeout") / 1000, function(least)
      return set(f, "cluster-node-timeout", ("%.0f"):format(least * 1000))
    end)
end

function rules.cluster_state(f)
  local state = f:of("CLUSTER", "cluster_state")
  local slots = f:number("CLUSTER", "cluster_slots_ok")
  if state == "ok" and slots == 16384 then return "ok", "all slots" end
  return "fault", ("cluster_state is %s, and %.0f of 16384 slots work"):format(
    state, slots), "locks in the other slots cannot be acquired or renewed",
    f.cli:match "^%S+" .. " --cluster check HOST:PORT"
end

function rules.cluster_size(f)
  local size = f:number("CLUSTER", "cluster_size")
  if size >= 3 then return "ok", ("%.0f primaries"):format(size) end
  return "warning", ("%.0f primaries have slots"):format(size), "a failover "
    .. "needs a majority of at least 3 primaries", "redis-cli --cluster "
    .. "add-node NEW:PORT HOST:PORT, then --cluster rebalance"
end

function rules.coverage(f)
  if f:of("CONFIG", "cluster-require-full-coverage") ~= "yes" then
    return "ok", "no"
  end
  return "note", "cluster-require-full-coverage is yes", "while one shard is "
    .. "down, no lock of any shard can be acquired or renewed",
    set(f, "cluster-require-full-coverage", "no")
end

function rules.stale_reads(f)
  local its = f:find("CONFIG", "cluster-allow-reads-when-down")
  if its ~= "yes" then return "ok", "no" end
  return "note", "cluster-allow-reads-when-down is yes", "a node that is cut "
    .. "off shows locks that may have been released",
    set(f, "cluster-allow-reads-when-down", "no")
end

-- Sentinel --------------------------------------------------------------------

-- The facts about a Sentinel: SENTINEL, the fields of its master, with
-- `cli`, `name` and QUORUM, the reply to CKQUORUM.

function rules.sentinel_timer(f)
  return failover(f, "down-after-milliseconds",
    f:number("SENTINEL", "down-after-milliseconds") / 1000, function(least)
      return ("%s sentinel set %s down-after-milliseconds %.0f"):format(f.cli,
        f.name, least * 1000)
    end)
end

function rules.failover_timeout(f)
  local timeout = f:number("SENTINEL", "failover-timeout") / 1000
  local down = f:number("SENTINEL", "down-after-milliseconds") / 1000
  local what = "failover-timeout is " .. seconds(timeout)
  local set_it = ("%s sentinel set %s failover-timeout "):format(f.cli, f.name)
  if timeout < down then
    return "warning", what, "a failover is given up before a replica can be "
      .. "promoted", set_it .. "60000"
  elseif timeout > 180 then
    return "note", what, "if a failover fails, the next begins after twice as "
      .. "long; no lock is granted meanwhile", set_it .. "60000"
  end
  return "ok", what
end

function rules.master(f)
  local flags = f:of("SENTINEL", "flags")
  if not flags:find "_down" and not flags:find "disconnected" then
    return "ok", "it is up"
  end
  return "fault", ("it says that %s is %s"):format(f.name, flags),
    "until a failover, no lock can be acquired or renewed",
    ("%s sentinel failover %s"):format(f.cli, f.name)
end

function rules.sentinels(f)
  local total = f:number("SENTINEL", "num-other-sentinels") + 1
  local quorum = f:of("QUORUM", 1)
  if not quorum:find "^OK" then
    return "fault", quorum, "too few Sentinels are there to begin a failover",
      "start the other Sentinels"
  elseif total >= 3 then
    return "ok", ("%.0f Sentinels"):format(total)
  end
  return "warning", ("there are %.0f Sentinels"):format(total), "a failover "
    .. "needs a majority of them: with less than 3, none may fail",
    "add Sentinels on other machines"
end

-- all servers -----------------------------------------------------------------

-- The facts about all servers are `facts`, with `lease`.

-- The clocks that are least and most ahead.
local function extremes(facts)
  local first, last
  for _, f in ipairs(facts) do
    local its = f.server_clock
    if type(its) == "table" then
      if not first or its.ahead < first.ahead then first = its end
      if not last or its.ahead > last.ahead then last = its end
    end
  end
  return first, last
end

function rules.clocks(audit)
  ---@type any, any
  local first, last = extremes(audit.facts)
  if not first or not audit.facts[2] then return end
  local apart = last.ahead - first.ahead
  local certain = apart - first.error - last.error
  local what = "the clocks differ by " .. seconds(apart)
  if certain < audit.lease / 10 then return "ok", what end
  return certain < audit.lease / 2 and "warning" or "fault", what,
    "after a failover to a server whose clock is ahead, leases end as much "
      .. "earlier, while their holders rely on them",
    "timedatectl set-ntp true, on each server"
end

function rules.versions(audit)
  local seen = {}
  for _, f in ipairs(audit.facts) do
    if f.report.version then seen[f.report.version] = true end
  end
  local list = sorted(seen)
  if not list[2] then return end
  return "note", "the servers have the versions " .. table.concat(list, ", "),
    "an older replica may not understand a newer primary",
    "upgrade the older ones, replicas first"
end

-- servers of several URLs -----------------------------------------------------

-- What the server shares with one of the `others`.
function rules.independence(f, others)
  local level, what
  for _, other in ipairs(others) do
    local where = other.report.where
    if f:of("INFO", "run_id") == other:of("INFO", "run_id") then
      level, what = "warning", "it is the same server as " .. where
    elseif f:of("INFO", "master_replid")
        == other:of("INFO", "master_replid") then
      level, what = "warning", "it and " .. where .. " replicate the same data"
    elseif f.host == other.host and not level then
      level, what = "note", "it is on the host of " .. where
    end
    if level == "warning" then break end
  end
  if not level then return others[1] and "ok" end
  return level, what, "a red lock needs servers that fail independently: it "
    .. "would count one failure or one grant twice",
    "give a red lock servers on different hosts, without replication"
end

-- lists -----------------------------------------------------------------------

local function list_of(...) return common.list_of(rules, ...) end

return {
  --- For each server.
  server = list_of("version", "role", "eviction", "memory", "persistence",
    "disk", "fork", "replicas", "isolation", "timeout", "keepalive", "buffers",
    "connections", "clock", "latency", "scripts", "permissions", "sealing"),
  --- For each node of a cluster.
  cluster = list_of("cluster_state", "cluster_size", "cluster_timer",
    "coverage", "stale_reads"),
  --- For all servers together.
  set = list_of("clocks", "versions"),
  --- For the servers of several URLs.
  independence = list_of("independence"),
  --- For each Sentinel.
  sentinel = list_of("master", "sentinels", "sentinel_timer",
    "failover_timeout"),
}
