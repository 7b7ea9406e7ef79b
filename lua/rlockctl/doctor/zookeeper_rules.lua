--- What ZooKeeper needs to keep locks: rules for the facts about one server,
--- and about the ensemble (report.lua). The sources about a server are SRVR,
--- CONF and MNTR, the answers to these four-letter words, and JUTE. Those about
--- the ensemble are fields of `audit`, see zookeeper.lua.

local common = require "rlockctl.doctor.common"

local OLDEST = { 3, 5 }                 -- the first version with containers
local FEW = 60                          -- connections of one machine

local rules = {}

local function ms(n) return common.duration(n / 1000) end

-- one server ------------------------------------------------------------------

function rules.serving(f)
  local mode = f:find("SRVR", "Mode")
  if not mode then
    return "fault", "it serves no requests", "it may have no quorum: without a "
      .. "majority of the servers, no lock can be acquired or renewed",
      "start the other servers, or look at this one's log"
  elseif mode == "read-only" then
    return "fault", "it is read-only", "it is cut off from the other servers, "
      .. "and refuses locks", "reconnect it to the other servers"
  end
  return "ok", mode
end

function rules.version(f)
  local version = f:of("SRVR", "version")
  local major, minor = version:match "^(%d+)%.(%d+)"
  major, minor = tonumber(major), tonumber(minor)
  if not minor then return "unknown", "its version is " .. version end
  if major > OLDEST[1] or major == OLDEST[1] and minor >= OLDEST[2] then
    return "ok", version
  end
  return "fault", "it is ZooKeeper " .. version, "rlock makes containers, "
    .. "which it does not have", "upgrade to ZooKeeper 3.8 or later"
end

function rules.tick(f)
  local tick = f:number("CONF", "tickTime")
  if tick <= 2000 then return "ok", ms(tick) end
  return "note", "tickTime is " .. ms(tick), ("the locks of a killed program "
    .. "are free after %s at the earliest"):format(ms(tick * 2)),
    "tickTime=2000 in zoo.cfg"
end

function rules.sessions(f)
  local tick, least = f:number("CONF", "tickTime"),
    f:number("CONF", "minSessionTimeout")
  local what = ("minSessionTimeout is %s, tickTime %s"):format(ms(least),
    ms(tick))
  if least >= 2 * tick then return "ok", what end
  return "fault", what, "with less than two ticks, a session may end earlier "
    .. "than its client can know: two holders", "remove minSessionTimeout from "
    .. "zoo.cfg, or set it to 2 ticks at least"
end

function rules.fsync(f)
  local average = f:number("MNTR", "zk_avg_fsynctime")
  local slow = tonumber(f:find("MNTR", "zk_fsync_threshold_exceed_count")) or 0
  local worst = tonumber(f:find("MNTR", "zk_p99_fsynctime")) or average
  local what = ("fsync takes %s, p99 %s, and exceeded its threshold %.0f times")
    :format(ms(average), ms(worst), slow)
  if worst < f.session_ms / 20 and slow == 0 then return "ok", what end
  return "warning", what, "each lock waits for it, and so do the syncs that "
    .. "keep holds valid", "dataLogDir=... in zoo.cfg: a disk of its own"
end

function rules.latency(f)
  local least, average, most =
    f:of("SRVR", "Latency min/avg/max"):match "([%d.]+)/([%d.]+)/([%d.]+)"
  average, most = tonumber(average), tonumber(most)
  if not least or not average or not most then
    return "unknown", "the latency is malformed"
  end
  local what = ("requests take %s on average, at most %s"):format(ms(average),
    ms(most))
  if average < f.session_ms / 50 then return "ok", what end
  return "warning", what, "holds are valid only while syncs are answered in "
    .. "time", "echo srst | nc HOST PORT resets it; look at disk, heap, network"
end

function rules.followers(f)
  if f:find("SRVR", "Mode") ~= "leader" or f.voters == 0 then return end
  local synced = f:number("MNTR", "zk_synced_followers")
  local what = ("%.0f of %d followers are in sync"):format(synced, f.voters - 1)
  if synced >= f.voters - 1 then return "ok", what end
  return "warning", what, "when a majority of the servers is not in sync, no "
    .. "lock can be acquired or renewed", "start the others, or look at their "
    .. "logs"
end

function rules.connections(f)
  local most = f:number("CONF", "maxClientCnxns")
  if most == 0 or most >= FEW then return "ok", ("%.0f"):format(most) end
  return "note", ("maxClientCnxns is %.0f"):format(most), "each client has a "
    .. "connection, each worker of nginx too; the server refuses more of one "
    .. "address", ("maxClientCnxns=%d in zoo.cfg"):format(FEW)
end

function rules.jute_maxbuffer(f)
  if f:of("JUTE", "fits") == "yes" then return "ok", "1 MB at least" end
  return "warning", "jute.maxbuffer is less than 1 MB", "larger values of "
    .. "hold:set, and lists of many waiters, end the connection",
    "-Djute.maxbuffer=1048575, for all servers and clients"
end

-- the ensemble ----------------------------------------------------------------

-- How many servers have each mode; and how many serve.
local function modes_of(audit)
  local modes, serving = { leader = 0, standalone = 0, ["read-only"] = 0 }, 0
  for _, f in ipairs(audit.facts) do
    local mode = type(f.SRVR) == "table" and f.SRVR.Mode
    if mode then
      modes[mode] = (modes[mode] or 0) + 1
      serving = serving + (mode ~= "read-only" and 1 or 0)
    end
  end
  return modes, serving
end

-- An ensemble whose servers all serve.
local function size_of(total)
  if total == 1 then
    return "note", "there is one server", "if it or its disk fails, so do all "
      .. "locks", "an ensemble of 3 servers"
  elseif total % 2 == 0 then
    return "note", ("there are %d servers"):format(total), ("they tolerate no "
      .. "more failures than %d would"):format(total - 1),
      "add a server, or remove one"
  end
  return "ok", ("%d servers"):format(total)
end

function rules.quorum(audit)
  local modes, serving = modes_of(audit)
  local total = #audit.hosts
  local what = ("%d of %d servers serve"):format(serving, total)
  if serving == 0 then
    return "fault", what, "without a majority, no lock can be acquired or "
      .. "renewed", "start the other servers"
  elseif modes.leader > 1 or modes.standalone > 0 and total > 1 then
    return "fault", "the servers are not of one ensemble", "two clients may "
      .. "hold one lock, on two servers", "server.N=... of all servers in each "
      .. "zoo.cfg; list only these in the URL"
  elseif serving < total then
    return "warning", what, "fewer of the others may fail",
      "start the other servers"
  end
  return size_of(math.max(total, audit.members))
end

function rules.members(audit)
  if audit.members == 0 then return end
  local what = ("%d of %d servers are in the URL"):format(#audit.hosts,
    audit.members)
  if #audit.hosts >= audit.members then return "ok", what end
  return "note", what, "clients do not try the others", "add them to the URL"
end

function rules.session(audit)
  local granted, wanted = audit.session_ms, audit.lease * 1000
  local what = ("the session time-out is %s; the server grants %s to %s")
    :format(ms(granted), ms(audit.least_ms or granted),
      ms(audit.most_ms or granted))
  if math.abs(granted - wanted) < 1 then return "ok", what end
  return "note", what, ("it was asked for %s: the locks of a killed program "
    .. "end after %s, and so do those of one that is cut off"):format(
      ms(wanted), ms(granted)),
    ("rlock.open { watchdog = %g }, or min- or maxSessionTimeout in zoo.cfg")
      :format(granted / 1000)
end

function rules.sync(audit)
  local what = "a sync takes " .. ms(audit.sync_ms)
  if audit.sync_ms < audit.session_ms / 10 then return "ok", what end
  return "warning", what, "the client sends one every "
    .. ms(audit.session_ms / 10) .. ", and a hold is valid only while they are "
    .. "answered", "look at disk, heap and network of the leader"
end

function rules.permissions(audit)
  local refused = table.concat(audit.refused, ", ")
  if refused == "" then
    return "ok", "all that rlock needs, below " .. audit.path
  end
  return "fault", ("the login may not %s below %s"):format(refused,
    audit.path), "locks there fail with NOAUTH",
    ("zkCli.sh setAcl %s ACL, as a login that may"):format(
      common.quoted(audit.path))
end

function rules.access(audit)
  local user = audit.client.session.options.username
  if not user then return end
  if audit.is_open then
    return "note", ("anyone may delete the nodes below %s"):format(audit.path),
      "whoever reaches the servers can free a lock that is held",
      'rlock.open { acl = "creator" }, with a path of its own'
  end
  return "ok", "only logins that its access control names"
end

function rules.login(audit)
  local options = audit.client.session.options
  if not options.username or options.tls then return end
  return "note", "the login crosses the network in clear text", "whoever "
    .. "reads it can free locks", "zks:// instead of zk://"
end

-- lists -----------------------------------------------------------------------

local function list_of(...) return common.list_of(rules, ...) end

return {
  --- For each server.
  server = list_of("serving", "version", "tick", "sessions", "fsync", "latency",
    "followers", "connections", "jute_maxbuffer"),
  --- For the ensemble.
  ensemble = list_of("quorum", "members"),
  --- For the ensemble, with a session.
  session = list_of("session", "sync", "permissions", "access", "login"),
}
