--- Describes ZooKeeper servers, for rlockctl status --server. Changes nothing:
--  a transaction that fails in any case tells what the login may do.

local codec = require "rlock.zookeeper.codec"
local connection = require "rlock.zookeeper.connection"
local errors = require "rlock.zookeeper.errors"
local identity = require "rlock.util.identity"
local requests = require "rlockctl.cli.stores.requests"
local text = require "rlockctl.cli.text"

local ensemble = {}

local SYNCS = 5              -- requests to measure
local LEAST, MOST = 0.001, 2000000   -- session time-outs to request, seconds
local LONGEST = 65536        -- bytes of the answer to a word

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

-- What a server says of itself. It answers this even without a quorum.
local function describe(client, at)
  local answer, problem = says(client, at, "srvr")
  local its = { where = ("%s:%d"):format(at.host, at.port) }
  if not answer then
    its.problem = problem:gsub("^" .. its.where:gsub("%W", "%%%0") .. ": ", "")
  elseif answer:find "not currently serving" then
    its.problem = "it serves no requests: it may have no quorum"
  elseif answer:find "whitelist" then
    its.problem = "it does not answer srvr (4lw.commands.whitelist)"
  end
  its.version = (answer or ""):match "[vV]ersion: (%d[%w.]*)"
  its.mode = (answer or ""):match "\nMode: ([%w-]+)"
  return its
end

local function describe_all(client)
  local list, tasks, spawn = {}, {}, require("rlock").spawn
  for i, at in ipairs(client.session.options.hosts) do
    tasks[i] = spawn(function() list[i] = describe(client, at) end)
  end
  for _, task in ipairs(tasks) do task:join() end
  return list
end

-- the session -----------------------------------------------------------------

local function never() return math.huge end

-- The time-out that the server grants if asked for this one, or nil.
local function granted(client, seconds)
  local session = client.session
  local options = setmetatable({ watchdog = seconds,
    log = function() end }, { __index = session.options })
  local link = connection.new(session.host, options, { on_ready = never,
    on_dropped = never, on_ended = never, on_tick = never })
  local ends = session.host.now() + options.connect_timeout
  local is_open = link:connect(ends)
  link:close(ends)
  return is_open and link.timeout or nil
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

-- The deepest node that exists, of those on the way to a path.
-- @return its path, or nil, code, detail
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

-- Tries to list, make and delete children of a node.
-- @return a list of what is permitted, one of what is not; or nil, code, detail
local function probe(client, path, deadline)
  local server = client.session.server
  local child = (path == "/" and "" or path) .. "/rlock-"
    .. identity.uuid(server.host)
  local ops = codec.ops
  local calls, code, detail = requests.send(server, deadline, {
    { "children", path, codec.read(path) },
    { "multi", path, codec.multi {
      { ops.create, codec.create(child, "", codec.flags.ephemeral) },
      { ops.delete, codec.versioned(child) },
      { ops.check, codec.versioned(child) },     -- fails, so nothing is done
    } } })
  if not calls then return nil, code, detail end
  local results = calls[2].err == 0 and codec.results(calls[2].its) or {}
  local permitted, refused = {}, {}
  local function note(what, err)
    table.insert(err == errors.NO_AUTH and refused or permitted, what)
  end
  note("list", calls[1].err)
  note("create", results[1])
  if results[1] ~= errors.NO_AUTH then note("delete", results[2]) end
  return permitted, refused
end

local function milliseconds(seconds)
  return seconds and math.floor(seconds * 1000 + 0.5)
end

-- Adds what needs a session.
-- @return true, or nil, code, detail
local function ask_session(client, state, path)
  local server, options = client.session.server, client.session.options
  local ok, code, detail = server:connect(options.connect_timeout)
  if code == "cancelled" then error(detail, 0) end
  if not ok then return nil, code, detail end
  local link, deadline = server.connection,
    server.host.now() + client.session.timeout
  state.connected = link.link.where
  state.session_ms = milliseconds(link.timeout)
  state.path, code, detail = deepest(client, path, deadline)
  if not state.path then return nil, code, detail end
  state.permitted, state.refused, detail = probe(client, state.path, deadline)
  if not state.permitted then return nil, state.refused, detail end
  local seconds
  seconds, code, detail = time_of_sync(client)
  if not seconds then return nil, code, detail end
  state.sync_ms = seconds * 1000
  state.least_session_ms = milliseconds(granted(client, LEAST))
  state.most_session_ms = milliseconds(granted(client, MOST))
  return true
end

--- Describes the servers of a client.
-- @tparam table client perhaps not connected
-- @tparam[opt] string name of a lock, to try the permissions at its path
-- @tparam[opt] string which refused: for Redis
-- @treturn[1] table server, where; `servers`, each with where, version and
--   mode, or a problem; then, if there is a session: connected (the server
--   that has it), session_ms, least_session_ms, most_session_ms, sync_ms, user,
--   path (whose permissions were tried), permitted and refused
-- @treturn[2] table|nil the same without a session, or nil
-- @treturn[2] string code
-- @treturn[2] string detail
function ensemble.inspect(client, name, which)
  local options = client.session.options
  local path = options.chroot
  if which then return nil, "usage", "--policy is for Redis" end
  if name then
    local ok, bound = pcall(client.session.server.bind, client.session.server,
      options.backend.load "reentrant", name)
    if not ok then return nil, "usage", tostring(bound) end
    path = bound.path
  end
  local state = { server = "zookeeper", where = client.session.server.where,
    user = options.username, servers = describe_all(client) }
  local ok, code, detail = ask_session(client, state, path)
  if not ok then return state, code, detail end
  return state
end

-- printing --------------------------------------------------------------------

local function duration(ms)
  return ms and ("%.4g s"):format(ms / 1000) or "?"
end

--- Prints the result of `inspect` in readable form.
-- @tparam table state
function ensemble.print(state)
  for _, its in ipairs(state.servers) do
    local words = its.problem and text.bare(its.problem)
      or ("ZooKeeper %s, %s"):format(its.version or "?", its.mode or "?")
    print(("%s: %s%s"):format(its.where, words,
      its.where == state.connected and ", has the session" or ""))
  end
  if not state.session_ms then return end
  print(("  the session ends after %s; the server grants %s to %s"):format(
    duration(state.session_ms), duration(state.least_session_ms),
    duration(state.most_session_ms)))
  print(("  a sync takes %.3g ms"):format(state.sync_ms or 0))
  if state.user then
    print(("  logged in as %s; only an ACL that names this login checks its "
      .. "password"):format(text.bare(state.user)))
  end
  local path = text.bare(state.path)
  if not state.refused[1] then
    print(("  permitted below %s: all that rlock needs"):format(path))
  else
    print(("  not permitted below %s: %s; to permit it, see setAcl"):format(
      path, table.concat(state.refused, ", ")))
  end
end

return ensemble
