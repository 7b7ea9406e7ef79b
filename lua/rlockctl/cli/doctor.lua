--- rlockctl doctor: audits servers for locks.

local host = require "rlock.host.uv"
local json = require "rlockctl.cli.json"
local report = require "rlockctl.doctor.report"
local seconds_of = require "rlockctl.cli.seconds"
local stores = require "rlockctl.cli.stores"
local text = require "rlockctl.cli.text"

local doctor = {}

local WAIT = 10              -- seconds
local PROGRESS = 2           -- seconds before it says what it waits for
local SHORTEST, LONGEST = 0.03, 86400       -- a lease, in seconds

doctor.usage = [[
rlockctl doctor [URL...] [--name NAME] [--policy POLICY] [--lease DURATION]
                [-w DURATION] [--json]

Audits servers for locks; read-only. For each finding it prints what it found,
why that matters for a lock, and the command that fixes it. With Sentinel or in
a cluster, it audits each server; with zk://, each server of the ensemble. With
several URLs, such as those of the servers of a red lock, it audits all of them,
and whether they fail independently. Default: the server of --url.

Levels: a fault may break mutual exclusion or stops locks, a warning may do so
in a failure or under load, a note is good to know. What the server does not
tell, because it refuses CONFIG, INFO or four-letter words, is "unknown", which
is no failure.

In Redis: version, role, eviction, memory, persistence and fsync, forks,
replicas and min-replicas-to-write, timeout and keepalive, output buffers,
connections, the clocks of the servers and of this machine, the latency of
scripts, permissions, how lost connections are sealed, the timers of Sentinel
and of the cluster, locks without an expiry, and foreign keys with names of
rlock's keys. In ZooKeeper: version, quorum, tick and session time-outs, the
latency of fsync and of a sync, jute.maxbuffer, connections, permissions, access
control, and locks that do not end with their session.

It tries what the login may do without changing data, and kills only a test
connection of its own. It cannot try INCR, DECR, LPUSH and RPUSH without ACL
DRYRUN.

  --name NAME       also try the keys and channels, or the path, that a lock of
                    that name needs
  --policy POLICY   with --name: only those of this kind, or of a module of your
                    own; not with zk://
  --lease DURATION  the shortest lease of your locks, with which timers, clocks
                    and latencies are compared; default: the watchdog's, 30s
  -w, --wait DURATION  the longest time to wait for the servers: 30s, 500ms, 2m,
                    1h; a bare number is seconds (10s)
  --json            print one object per line, one for each server

Exit status: 0 no fault and no warning, 1 warnings, 2 faults, 202 no server is
reachable, 208 the only server refuses the login.
]]

doctor.options = {
  ["--json"] = { "json" }, ["--policy"] = { "policy", "POLICY" },
  ["--name"] = { "name", "NAME" }, ["--lease"] = { "lease", "DURATION" },
  ["-w"] = { "wait", "DURATION" }, ["--wait"] = { "wait", "DURATION" },
}

local STATUS = { fault = 2, warning = 1 }

-- auditing --------------------------------------------------------------------

---@return any # an audit for each client
---@return rlock.failure? code, string? detail
local function audits_of(urls, chosen, lease)
  local open, audits = require("rlock").open, {}
  for i = 1, math.max(#urls, 1) do
    local client, code, detail = open { url = urls[i], lazy = true }
    if not client then return nil, code, detail end
    audits[i] = report.audit { client = client, name = chosen.name,
      policy = chosen.policy, lease = lease or client.session.lease }
  end
  return audits
end

-- The servers whose reports are not complete.
local function pending(audits)
  local list = {}
  for _, audit in ipairs(audits) do
    for _, its in ipairs(audit.reports) do
      if not its.is_done then list[#list + 1] = its end
    end
  end
  return list
end

local function tell_progress(audits)
  local names = {}
  for i, its in ipairs(pending(audits)) do names[i] = its.where end
  if names[1] and host.is_terminal(2) then
    io.stderr:write("rlockctl: doctor: waiting for ",
      text.bare(table.concat(names, ", ")), "\n")
  end
end

-- Completes the reports at the deadline.
local function stop(audits, seconds)
  for _, its in ipairs(pending(audits)) do
    its:fail("timeout", ("%s: no answer within %g s"):format(its.where,
      seconds))
  end
  for _, audit in ipairs(audits) do
    if not audit.is_done then
      audit.reports[1]:add("end", "unknown", "there was no time for the rest: "
        .. "see --wait")
    end
  end
end

-- Audits all, at the same time, until the deadline.
local function run_all(audits, seconds)
  local done, left = host.event(), #audits
  for _, audit in ipairs(audits) do
    host.daemon(function()
      stores.of(audit.client).audit(audit)
      audit.is_done, left = true, left - 1
      if left == 0 then done:set() end
    end)
  end
  local first = math.min(seconds, PROGRESS)
  if done:wait(first) then return end
  tell_progress(audits)
  if not done:wait(seconds - first) then stop(audits, seconds) end
end

-- printing --------------------------------------------------------------------

local function print_report(its, chosen)
  if chosen.json then return print(json(its:record())) end
  local is_coloured = host.is_terminal(1) and not os.getenv "NO_COLOR"
  for _, line in ipairs(its:lines(is_coloured)) do print(line) end
end

-- All reports; and the first one, if it is of a wrong use or if no server was
-- reached.
local function reports_of(audits)
  local list, is_reached = {}, false
  for _, audit in ipairs(audits) do
    for _, its in ipairs(audit.reports) do
      list[#list + 1] = its
      is_reached = is_reached or not its.code
      if its.code == "usage" then return list, its end
    end
  end
  return list, not is_reached and list[1]
end

local function finish(cli, audits, chosen)
  local list, failed = reports_of(audits)
  if failed then return cli.fault(failed.code, "doctor: " .. failed.detail) end
  local status = 0
  for _, its in ipairs(list) do
    print_report(its, chosen)
    status = math.max(status, STATUS[its:sort()] or 0)
  end
  return status
end

---@return any # seconds; nil if it is no duration in these limits
local function duration_of(word, least, most)
  local seconds = seconds_of(word)
  return seconds and seconds >= least and seconds <= most and seconds or nil
end

function doctor.run(cli, operands, chosen)
  local lease = chosen.lease and duration_of(chosen.lease, SHORTEST, LONGEST)
  local wait = chosen.wait and duration_of(chosen.wait, 0.1, 3600) or nil
  if chosen.lease and not lease then
    return cli.fault("usage", "doctor: --lease must be a duration from 30ms to "
      .. "24h")
  elseif chosen.wait and not wait then
    return cli.fault("usage", "doctor: --wait must be a duration from 100ms to "
      .. "1h")
  elseif chosen.policy and not chosen.name then
    return cli.fault("usage", "doctor: --policy needs --name")
  end
  host.verbosity = 0                     -- printed, not logged
  local audits, code, detail = audits_of(operands, chosen, lease)
  if not audits then return cli.fault(code, "doctor: " .. detail) end
  run_all(audits, wait or WAIT)
  require("rlockctl.doctor.redis").compare(audits)
  return finish(cli, audits, chosen)
end

return doctor
