--- A table of failures: a row for each class of Redis error, found by its first
--- word, and for each way in which a connection fails. The fields of a row:
---   code       returned to the caller
---   applied    "no": the command certainly changed nothing; "maybe": it may
---              have been applied, wholly or in part
---   retry      sending the same request again later may succeed
---   node_down  the node is unusable: drop its connection, because a new one
---              may lead to another server
---   slot_down  no node has the slot: only requests for it wait
---   forget     the request used an outdated "script" or reading of the
---              server's "clock", which is fetched again before the retry
---   pause      false: retry without a back-off
---   redirects  another node of the cluster has the keys
---   gone       the key no longer holds a lock of ours
---   permits    whether messages tell how to permit the keys
---   explain    a clause for messages: what the server's terse message means
---   expects    add the expected kind of lock to the message
---   names      add the script to the message: its "name", or "where" its
---              source is
---   advice     a clause for messages: what the user can do

local errors = {}

local function row(code, applied, retry, node_down, more)
  local its = more or {}
  its.code, its.applied, its.retry, its.node_down =
    code, applied, retry, node_down
  return its
end

-- Another node of the cluster has the slot, or imports it.
local elsewhere = row("refused", "no", false, false, { redirects = true,
  explain = "the key is on another node of a cluster; open the client with "
    .. "redis+cluster:// instead of redis://" })

--- The row of these for the client of a cluster, which follows them until its
--- deadline.
errors.redirected = row("timeout", "no", true, false, { redirects = true,
  explain = "the nodes of the cluster keep redirecting it" })

local words = {
  -- A script runs longer than busy-reply-threshold and blocks the server.
  BUSY = row("redis", "no", true, false, { names = "name" }),
  -- The server is loading its data set after a start.
  LOADING = row("redis", "no", true, true),
  -- A script is refused at its first write, so nothing was applied.
  READONLY = row("redis", "no", true, true, { explain = "the server is a "
    .. "replica; connect to its primary, or through redis+sentinel:// or "
    .. "redis+cluster://" }),
  -- A replica without its primary, with replica-serve-stale-data no.
  MASTERDOWN = row("redis", "no", true, true),
  -- Saving to disk failed, and stop-writes-on-bgsave-error is on.
  MISCONF = row("redis", "no", true, false),
  -- Over maxmemory. Redis checks before a script's first write only.
  OOM = row("redis", "no", true, false),
  -- Fewer good replicas than min-replicas-to-write.
  NOREPLICAS = row("redis", "no", true, false),
  -- The cluster is down, for this node at least.
  CLUSTERDOWN = row("redis", "no", true, true),
  -- A slot is being migrated, and the keys are on two nodes.
  TRYAGAIN = row("redis", "no", true, false, { explain = "the slot migrates; "
    .. "redis-cli --cluster fix ends an interrupted migration" }),
  MOVED = elsewhere, ASK = elsewhere,
  CROSSSLOT = row("refused", "no", false, false, { explain = "the keys of "
    .. "this lock are in different slots of the cluster; give its name a hash "
    .. "tag" }),
  -- The script cache was emptied: load the script and send it again.
  NOSCRIPT = row("redis", "no", true, false,
    { forget = "script", pause = false }),
  -- Ours: a request carried a deadline, see expiry.lua.
  EXPIRED = row("timeout", "no", true, false,
    { forget = "clock", pause = false }),
  -- The connection is not authenticated.
  NOAUTH = row("connect", "no", false, false),
  WRONGPASS = row("connect", "no", false, false),
  -- Protected mode: the server accepts only loopback connections.
  DENIED = row("connect", "no", false, true),
  -- The user lacks a permission; in a script perhaps only for a later write.
  NOPERM = row("redis", "maybe", false, false, { permits = true,
    explain = "rlockctl doctor --name NAME lists what the user lacks" }),
  -- A script may have written to other keys before.
  WRONGTYPE = row("redis", "maybe", false, false, { gone = true,
    expects = true, explain = "a key of this name holds something else, such "
    .. "as a lock of another kind" }),
  -- The reply to SCRIPT KILL if the script has written already.
  UNKILLABLE = row("redis", "no", false, false),
  -- MULTI was refused earlier, so EXEC did nothing.
  EXECABORT = row("redis", "no", false, false),
  -- The generic error, also of a script that failed midway.
  ERR = row("redis", "maybe", false, false),
}

-- The other cause of CLUSTERDOWN: a slot has no owner. Other slots may work, so
-- the connection stays.
local slot_down = row("redis", "no", true, false, { slot_down = true })

-- Errors that Redis only calls ERR, by patterns of their text.
local plain = {
  -- The limit of connections is reached; the server closes this one.
  { "^max number of clients", row("connect", "no", true, true) },
  -- A primary that became a replica.
  { "^WAIT cannot be used", row("redis", "maybe", true, true) },
  -- WRONGPASS before Redis 6.0, and a password that the server does not want.
  { "^invalid password", words.WRONGPASS },
  { "AUTH", row("connect", "no", false, false) },
  { "^DB index is out of range", row("redis", "no", false, false) },
  -- It was renamed, or is not supported. Inside a script the error is another.
  { "^unknown command", row("redis", "no", false, false, { explain =
    "the server lacks the command: is it a Sentinel, or a proxy?" }) },
  -- What INCRBY says of a text. Commands say the same of their arguments.
  { "^value is not an integer", row("redis", "maybe", false, false,
    { expects = true,
      explain = "perhaps a key of this name holds something else" }) },
  -- What a script lacks, in Redis 7.0 and since 7.2.
  { "^The user executing the script can't ", words.NOPERM },
  { "^ACL failure in script: ", words.NOPERM },
  -- The script did not compile on the server, so it did not run.
  { "^Error compiling script", row("redis", "no", false, false) },
}

-- Unknown first words come from scripts and modules.
local unknown = row("redis", "maybe", false, false, { names = "where" })

--- Rows for calls without a reply, or with one that does not count.
--- closed: the connection was lost during the call. timeout: no reply before
--- the call's deadline. connect: no connection, so nothing was sent. replicas:
--- it was executed, but too few replicas have confirmed it.
errors.transport = {
  closed = row("closed", "maybe", true, true),
  timeout = row("timeout", "maybe", true, true, { names = "name", advice =
    "; if the server answers BUSY, its script runs too long: redis-cli script "
    .. "kill" }),
  connect = row("connect", "no", true, true),
  replicas = row("replicas", "maybe", true, false),
}

--- Classifies a Redis error message.
---@param message any as Redis sent it, without the leading "-"
---@return table # a row, see above; shared and read-only
function errors.classify(message)
  if type(message) ~= "string" then
    error("bad message: must be a string", 2)
  end
  local word, rest = message:match("^(%S+) ?(.*)$")
  ---@cast rest string
  if word == "CLUSTERDOWN" and not rest:find "^The cluster is down" then
    return slot_down
  elseif word ~= "ERR" then
    return words[word] or unknown
  end
  for _, case in ipairs(plain) do
    if rest:find(case[1]) then return case[2] end
  end
  -- Redis before 7.0 reports a command that failed inside a script as "ERR
  -- Error running script (call to f_<sha>): @user_script:1: WRONGTYPE ...".
  local inner = rest:match("@?user_script: ?%d+: (%u%u+ .*)$")
  return inner and errors.classify(inner) or words.ERR
end

-- Refusals of a login or a permission, anywhere in a text.
local denials = {
  "%f[%w]NOAUTH ", "%f[%w]WRONGPASS ", "%f[%w]NOPERM ", "%f[%w]DENIED ",
  "ERR invalid password", "ERR AUTH ", "ERR Client sent AUTH",
  "ERR The user executing the script can't ", "ERR ACL failure in script: ",
}

local function has_any(detail, patterns)
  for _, pattern in ipairs(patterns) do
    if detail:find(pattern) then return true end
  end
  return false
end

--- Is a login or a permission the reason for this failure?
---@param detail any may have more text around Redis's message
---@return boolean
function errors.is_denied(detail) return has_any(detail, denials) end

-- Failures of servers that have not answered, anywhere in a text.
local silences = {
  "no %l+ within %d", "silent for %d+ ms", "no connection in time",
  "no node answers in time", "no answer in time",
}

--- Has a server not answered? It may be there, and answer later.
---@return boolean
function errors.is_silence(detail)
  return not errors.is_denied(detail) and has_any(detail, silences)
end

--- For a failed or unanswered TLS handshake: what to try.
errors.use_plain = "; rediss:// was tried: if this port does not use TLS, use "
  .. "redis://"

-- How a server that expects TLS answers commands: it resets or closes the
-- connection, or sends an alert, which begins with the byte 0x15.
local function may_be_tls(detail)
  return detail == "closed" or detail:find("reset by peer", 1, true)
    or detail:find("server closed", 1, true)
    or detail:find("\\" .. "x15", 1, true)
    or detail:find("does not speak", 1, true)
end

-- A server that requires a certificate reports it by an alert, or a reset, only
-- after the client's part of the handshake.
local NO_CERT = "; the server may require a client certificate: tls = { cert = "
  .. "..., key = ... } (rlockctl: --cert and --key)"

-- For redis://word@host, whose word may be a password.
local LONE_USER = "; the URL names a user but no password: for a password "
  .. "alone, write :PASSWORD@"

--- May this failure of a command of the handshake be ignored? CLIENT only names
--- the connection, but it is the first command to fail if the server accepts
--- none.
---@param command table
---@param code string
---@return boolean
function errors.is_optional(command, code, detail)
  return (command[1] == "CLIENT" or command.is_optional) and code == "redis"
    and errors.classify(detail).code ~= "connect"
end

--- Explains why a server does not accept the handshake (handshake.lua). Never
--- shows the password, which a server that does not know AUTH echoes. A server
--- that expects TLS closes the connection without a reply. nginx reports a
--- timeout as "timeout".
---@param options table those of host.connect
---@param command table the command that failed
---@param code string
---@return string
function errors.of_handshake(options, command, code, detail)
  local verb = command[1]
  if detail == "timeout" then
    return detail
  elseif code == "closed" and not options.tls and not options.path
      and may_be_tls(detail) then
    return detail .. "; redis:// was tried: if this port expects TLS, use "
      .. "rediss://"
  elseif code ~= "redis" then
    local tls = options.tls
    local is_bare = code == "closed" and tls and not (tls.cert
      or tls.certificate)
    return ("%s (in reply to %s)%s"):format(detail, verb,
      is_bare and NO_CERT or "")
  end
  if verb == "AUTH" and detail:find("unknown command", 1, true) then
    detail = "the server does not know the command"
  end
  local is_lone_user = verb == "AUTH" and command[3] == ""
    and errors.is_denied(detail)
  return ("%s (in reply to %s, from %s)%s"):format(detail, verb, options.path
    or options.host .. ":" .. options.port, is_lone_user and LONE_USER or "")
end

--- Is this a passing error of a server that is there, such as LOADING or BUSY?
---@param message any as for `classify`
---@return boolean
function errors.is_passing(message)
  local class = errors.classify(message)
  return class.retry and class.code == "redis"
end

return errors
