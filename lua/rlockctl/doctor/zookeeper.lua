--- Audits ZooKeeper for rlockctl doctor: each server of the URL, by four-letter
--- words, and the ensemble, by a session. Changes nothing: a transaction that
--- fails in any case tells what the login may do. zookeeper_rules.lua judges
--- the answers.

local codec = require "rlock.zookeeper.codec"
local common = require "rlockctl.doctor.common"
local connection = require "rlock.zookeeper.connection"
local errors = require "rlock.zookeeper.errors"
local identity = require "rlock.util.identity"
local report = require "rlockctl.doctor.report"
local requests = require "rlockctl.cli.stores.requests"
local rules = require "rlockctl.doctor.zookeeper_rules"
local url = require "rlock.redis.url"

local zookeeper = {}

local SYNCS = 5              -- requests to measure
local LEAST, MOST = 0.001, 2000000   -- session time-outs to request, seconds
local LONGEST = 262144       -- bytes of the answer to a word
local LARGE = 1000000        -- bytes of a request that must fit

-- each server -----------------------------------------------------------------

-- Sends a four-letter word; returns the answer, or nil and why.
local function says(client, at, word)
  local session, parts, size = client.session, {}, 0
  local host, options = session.host, session.options
  local ended = host.event()
  local link, _, detail = host.frames {
    host = at.host, port = at.port, tls = options.tls, is_plain = true,
    timeout = math.ceil(options.connect_timeout * 1000),
    frame = function(bytes)
      size = size + #bytes
      if size <= LONGEST then parts[#parts + 1] = bytes end
    end,
    lost = function() ended:set() end,
  }
  if not link then return nil, detail end
  link:send(word)
  local has_ended = ended:wait(session.timeout)
  link:close()
  if not has_ended then return nil, "no answer in time" end
  return table.concat(parts)
end

-- The lines of an answer, as a table; or a text, why there are none.
local function lines_of(word, answer, pattern)
  if answer:find "whitelist" then
    return word .. " is not permitted (4lw.commands.whitelist)"
  end
  local its = {}
  for line in answer:gmatch "[^\r\n]+" do
    local name, value = line:match(pattern)
    if name then its[name] = value end
  end
  return its
end

local WORDS = { SRVR = "^([^:]+): ?(.*)$", CONF = "^([^=]+)=(.*)$",
  MNTR = "^(%S+)%s+(.*)$" }

--- Adds SRVR, CONF and MNTR.
---@return true?, rlock.failure? code, string? detail
local function ask(f, client, at)
  for word, pattern in pairs(WORDS) do
    local answer, problem = says(client, at, word:lower())
    if not answer then return nil, "connect", problem end
    f[word] = lines_of(word:lower(), answer, pattern)
  end
  if type(f.SRVR) == "table" then
    f.SRVR.version = f.SRVR["Zookeeper version"]
      and f.SRVR["Zookeeper version"]:match "^%d[%w.]*"
  end
  return true
end

-- The numbers of servers of the ensemble, and of those that vote, in an answer
-- to conf: server.1=HOST:PEER:ELECTION:ROLE
local function members_of(conf)
  local members, voters = 0, 0
  for name, value in pairs(type(conf) == "table" and conf or {}) do
    if name:find "^server%.%d+$" then
      members = members + 1
      if not value:find ":observer" then voters = voters + 1 end
    end
  end
  return members, voters
end

-- the session -----------------------------------------------------------------

local function milliseconds(seconds)
  return seconds and math.floor(seconds * 1000 + 0.5)
end

local function never() return math.huge end

--- Opens a session of its own, and calls use(link, deadline).
---@return any # the result of `use`; nil: no session
local function try(client, its, use)
  local session = client.session
  its.log = function() end
  local options = setmetatable(its, { __index = session.options })
  local link = connection.new(session.host, options, { on_ready = never,
    on_dropped = never, on_ended = never, on_tick = never })
  local ends = session.host.now() + options.connect_timeout
  local result = link:connect(ends) and use(link, ends) or nil
  link:close(ends)
  return result
end

-- The time-out that the server grants if asked for this one, in ms; or nil.
local function granted(client, seconds)
  return try(client, { watchdog = seconds }, function(link)
    return milliseconds(link.timeout)
  end)
end

-- Does a server accept a large request? It closes the connection otherwise.
local function is_large_accepted(client, at)
  return try(client, { hosts = { at } }, function(link, ends)
    local err, code = link:post(codec.ops.exists,
      codec.read("/" .. ("x"):rep(LARGE))):wait(ends)
    return { fits = err and "yes" or code == "timeout" and "?" or "no" }
  end) or "it grants no session"
end

-- The median time of a sync, or nil, code, detail.
local function time_of_sync(client)
  local session, times = client.session, {}
  for i = 1, SYNCS do
    local began = session.host.now()
    local ok, code, detail = session.server:sync(began + session.timeout)
    if not ok then return nil, code, detail end
    times[i] = session.host.now() - began
  end
  table.sort(times)
  return times[(SYNCS + 1) // 2]
end

-- permissions -----------------------------------------------------------------

--- The deepest node that exists, of those on the way to a path.
---@return any # its path
---@return rlock.failure? code, string? detail
local function deepest(client, path, deadline)
  local reads, last = {}, "/"
  for at in (path .. "/"):gmatch "()/" do
    if at > 1 then reads[#reads + 1] = { "exists", path:sub(1, at - 1) } end
  end
  local answers, code, detail =
    requests.read(client.session.server, deadline, reads)
  if not answers then return nil, code, detail end
  for i, answer in ipairs(answers) do
    if answer.err ~= 0 then break end
    last = reads[i][2]
  end
  return last
end

--- Tries to list, make and delete children of a node.
---@return any # a list of what is not permitted, whether anyone may delete them
---@return rlock.failure? code, string? detail
local function probe(client, path, deadline)
  local server = client.session.server
  local child = (path == "/" and "" or path) .. "/rlock-"
    .. identity.uuid(server.host)
  local ops = codec.ops
  local calls, code, detail = requests.send(server, deadline, {
    { "children", path, codec.read(path) },
    { "get_acl", path, codec.text(path) },
    { "multi", path, codec.multi {
      { ops.create, codec.create(child, "", codec.flags.ephemeral) },
      { ops.delete, codec.versioned(child) },
      { ops.check, codec.versioned(child) },     -- fails, so nothing is done
    } } })
  if not calls then return nil, code, detail end
  local results = calls[3].err == 0 and codec.results(calls[3].its) or {}
  local refused = {}
  local function note(what, err)
    if err == errors.NO_AUTH then refused[#refused + 1] = what end
  end
  note("list", calls[1].err)
  note("create", results[1])
  if results[1] ~= errors.NO_AUTH then note("delete", results[2]) end
  return refused, calls[2].err == 0 and calls[2].its:is_open()
end

-- the audit -------------------------------------------------------------------

-- The path whose permissions to try; or nil, "usage", detail.
local function path_of(audit)
  local session = audit.client.session
  if not audit.name then return session.options.chroot end
  local ok, bound = pcall(session.server.bind, session.server,
    session.options.backend.load "reentrant", audit.name)
  if not ok then return nil, "usage", tostring(bound) end
  return bound.path
end

--- Adds what needs a session.
---@return true?, rlock.failure? code, string? detail
local function ask_session(audit, path)
  local client, server = audit.client, audit.client.session.server
  local ok, code, detail =
    server:connect(client.session.options.connect_timeout)
  if not ok then return nil, code, detail end
  local deadline = server.host.now() + client.session.timeout
  audit.session_ms = milliseconds(server.connection.timeout)
  audit.path, code, detail = deepest(client, path, deadline)
  if not audit.path then return nil, code, detail end
  audit.refused, audit.is_open, detail = probe(client, audit.path, deadline)
  if not audit.refused then return nil, audit.is_open, detail end
  ok, code, detail = time_of_sync(client)
  if not ok then return nil, code, detail end
  audit.sync_ms = ok * 1000
  audit.least_ms = granted(client, LEAST)
  audit.most_ms = granted(client, MOST)
  return true
end

-- Asks one server; adds its facts.
local function audit_server(audit, at)
  local its = audit:add(url.host_port(at), "zookeeper", #audit.hosts > 1)
  local f = report.facts { report = its }
  local ok, code, detail = ask(f, audit.client, at)
  if ok then
    its.version = type(f.SRVR) == "table" and f.SRVR.version or nil
    its.role = type(f.SRVR) == "table" and f.SRVR.Mode or nil
    f.JUTE = is_large_accepted(audit.client, at)
    f.members, f.voters = members_of(f.CONF)
    audit.members = math.max(audit.members, f.members)
    table.insert(audit.facts, f)
  else
    its:fail(code, detail)
  end
end

-- Judges what the servers have answered, once the session is known.
local function judge(audit)
  for _, f in ipairs(audit.facts) do
    f.session_ms = audit.session_ms or audit.lease * 1000
    f.report:apply(rules.server, f)
    f.report.is_done = true
  end
end

--- Audits the servers of a client.
---@param audit table see stores.lua; gets the reports, and the fields
---  session_ms, least_ms, most_ms (time-outs), sync_ms; path, whose permissions
---  were tried, refused, is_open; members, their number; facts
function zookeeper.audit(audit)
  local options = audit.client.session.options
  audit.hosts, audit.members, audit.facts = options.hosts, 0, {}
  local set = audit:add(audit.client.session.server.where, "ensemble")
  if audit.policy then return set:fail("usage", "--policy is for Redis") end
  local path, code, detail = path_of(audit)
  if not path then return set:fail(code, detail) end
  common.each(audit, options.hosts, audit_server)
  local ok
  ok, code, detail = ask_session(audit, path)
  judge(audit)
  if ok or audit.facts[1] then set:apply(rules.ensemble, audit) end
  if not ok then return set:fail(code, detail) end
  set:apply(rules.session, audit)
  set.is_done = true
  common.check_locks(set, audit.client)
end

return zookeeper
