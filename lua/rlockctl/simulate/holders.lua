--- Checks mutual exclusion: two owners must never hold a lock at the same time.
--- If they do, that is a bug in rlock, not in the program. It checks only
--- built-in locks, because it does not know what a user's policy excludes.

local kinds = require "rlock.lock.kinds"

local holders = {}

-- Policy -> "exclusive" or "shared".
local SORTS = {}
for _, kind in ipairs(kinds) do
  if not kind.driver then
    for _, name in ipairs { kind.name, "fenced_" .. kind.name } do
      SORTS[name] = "exclusive"
      SORTS[name .. ".write"], SORTS[name .. ".read"] = "exclusive", "shared"
    end
  end
end

--- The host name of a client's server. The clients of a cluster, of Sentinels
--- or of ZooKeeper have no such name: they all share the same servers.
function holders.server_of(session) return session.options.host or "" end

-- Is the hold of an entry certainly valid? A release first removes the hold
-- from the grant. Another lock may reuse the table of a grant.
local function is_certain(entry)
  local grant, host = entry.grant, entry.host
  return not host.is_dead and grant.lock and grant.lock.record == entry.record
    and grant.owner_name == entry.owner_name and grant.holds[1]
    and grant:valid_for() > 0
end

local function report(run, a, b)
  run:found("rlock", ("processes %s and %s hold %s at the same time: this is a "
    .. "bug in rlock, not in the program; please report it"):format(
    a.host.label, b.host.label, a.grant:show()), { process = b.host.label })
end

-- Adds a grant to the holders of its lock, and removes those that have ended.
local function add(run, list, entry)
  for i = #list, 1, -1 do
    local other = list[i]
    if other.grant == entry.grant or not is_certain(other) then
      table.remove(list, i)
    elseif (entry.sort == "exclusive" or other.sort == "exclusive")
        and other.owner_name ~= entry.owner_name and is_certain(entry) then
      return report(run, other, entry)
    end
  end
  list[#list + 1] = entry
end

--- The key of a lock or a counter in the tables of a run. Both sides of a
--- read/write lock have the same one.
function holders.key_of(lock)
  local record = lock.record
  local stem = record.policy.name:gsub("^fenced_", ""):match "^[^.]*"
  return ("%s %s %s"):format(holders.server_of(lock.session), stem,
    record.name)
end

local key_of = holders.key_of

-- Called when the watchdog learns of a grant, at its first hold.
local function granted(grant)
  local session, record = grant.lock.session, grant.lock.record
  local process = session.host.process
  if not process or not grant.holds then return end
  local run, sort = process.run, SORTS[record.policy.name]
  local key = key_of(grant.lock)
  run.granted_at[key] = run.universe.now
  if not sort or run.broken or grant.owner.is_named
      or run.taken[record.name] then
    return
  end
  run.holders[key] = run.holders[key] or {}
  add(run, run.holders[key], { grant = grant, record = record,
    host = session.host, sort = sort, owner_name = grant.owner_name })
end

--- When a lock was last granted, or -1.
function holders.granted_at(run, lock)
  return run.granted_at[key_of(lock)] or -1
end

local function seeing_grants(keep)
  return function(self, grant, ...)
    granted(grant)
    return keep(self, grant, ...)
  end
end

-- The program takes a lock from its holders, now or later. This run no longer
-- checks that lock.
local function taken(run, name) run.taken[name] = true end

local TAKES = {}
for word in ([[DEL UNLINK EXPIRE PEXPIRE EXPIREAT PEXPIREAT
  PERSIST RENAME RENAMENX SET GETDEL HDEL HSET EVAL]]):gmatch "%S+" do
  TAKES[word] = true
end

--- The functions that a run replaces, see patch.lua. A run has `broken`: the
--- assumption of rlock that a fault has violated, if any. For this module, it
--- has three tables, empty at first: `holders` and `granted_at`, by lock, and
--- `taken`, the names of locks that the program takes from their holders.
holders.patches = {
  { "rlock.lock.watchdog", "watch", seeing_grants },
  { "rlock.lock.watchdog", "observe", seeing_grants },
  { "rlock.lock.lock", "break_lock", function(break_lock)
    return function(lock, ...)
      local process = lock.session.host.process
      if process then taken(process.run, lock.record.name) end
      return break_lock(lock, ...)
    end
  end },
  { "rlock.client", "call", function(call)
    return function(client, word, ...)
      local process = client.session.host.process
      if process and TAKES[tostring(word):upper()] then
        for _, key in ipairs { ... } do taken(process.run, key) end
      end
      return call(client, word, ...)
    end
  end },
}

return holders
