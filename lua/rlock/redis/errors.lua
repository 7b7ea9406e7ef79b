--- The closed set of error codes, and a table that classifies failures: one row
--  for each class of Redis error, found by its first word, and one for each way
--  in which a connection fails. The fields of a row:
--    code       returned to the caller (errors.codes)
--    applied    "no": the command certainly changed nothing; "maybe": it may
--               have been applied, wholly or in part
--    retry      sending the same request again later may succeed
--    node_down  the node is unusable: drop its connection, because a new one
--               may lead to another server
--    forget     only NOSCRIPT: load the script again before the retry
--    hint       a description, for messages
--    pause      false: retry without a back-off
--    gone       the key no longer holds a lock of ours
--    explain    the server's message is terse: add the hint to it
--    tell       add the script to the message: its "name", or "where" its
--               source is
--    advice     a clause for messages: what the user can do
--  @module rlock.errors

local errors = {}

--- The closed set of codes: `errors.codes[code]` is true.
errors.codes = {
  busy = true, timeout = true, lost = true, not_held = true, refused = true,
  closed = true, connect = true, redis = true, quorum = true, usage = true,
}

local function row(code, applied, retry, node_down, hint)
  return {
    code = code, applied = applied, retry = retry, node_down = node_down,
    hint = hint,
  }
end

local words = {
  -- A script runs longer than busy-reply-threshold and blocks the server.
  BUSY = row("redis", "no", true, false,
    "a slow script occupies the server"),
  -- The server is loading its data set after a start.
  LOADING = row("redis", "no", true, true,
    "the server is still loading its data"),
  -- A replica, or a demoted primary. A script is refused at its first write, so
  -- nothing was applied.
  READONLY = row("redis", "no", true, true,
    "the server is a read-only replica"),
  -- A replica without its primary, with replica-serve-stale-data no.
  MASTERDOWN = row("redis", "no", true, true,
    "the server is a replica that lost its primary"),
  -- Saving to disk failed, and stop-writes-on-bgsave-error is on.
  MISCONF = row("redis", "no", true, false,
    "the server refuses writes because it cannot save to disk"),
  -- Over maxmemory. Redis checks before a script's first write only.
  OOM = row("redis", "no", true, false,
    "the server is out of memory (maxmemory)"),
  -- Fewer good replicas than min-replicas-to-write.
  NOREPLICAS = row("redis", "no", true, false,
    "the server has too few replicas in reach to accept writes"),
  -- A part of the cluster's slots has no owner.
  CLUSTERDOWN = row("redis", "no", true, true,
    "the cluster is down"),
  -- A slot is being migrated, and the keys are on two nodes.
  TRYAGAIN = row("redis", "no", true, false,
    "the cluster is moving the slot of these keys"),
  -- Another node of the cluster has the slot. Redirections are not followed: a
  -- lock that silently moves between nodes does not exclude.
  MOVED = row("refused", "no", false, false,
    "the key is on another node of a cluster; rlock is not a cluster client"),
  ASK = row("refused", "no", false, false,
    "the key is on another node of a cluster; rlock is not a cluster client"),
  -- Keys of one command in different slots.
  CROSSSLOT = row("refused", "no", false, false,
    "the keys of this lock are in different slots of the cluster;"
    .. " give its name a hash tag"),
  -- The script cache was emptied: load the script and send it again.
  NOSCRIPT = row("redis", "no", true, false,
    "the server does not have the script"),
  -- Ours: a request carried a deadline, see expiry.lua.
  EXPIRED = row("timeout", "no", true, false,
    "the request reached the server after its deadline"),
  -- The connection is not authenticated.
  NOAUTH = row("connect", "no", false, false,
    "the server asks for a password"),
  WRONGPASS = row("connect", "no", false, false,
    "the user name or the password is wrong"),
  -- Protected mode: the server accepts only loopback connections.
  DENIED = row("connect", "no", false, true,
    "the server is in protected mode"),
  -- The user lacks a permission; in a script perhaps only for a later write.
  NOPERM = row("redis", "maybe", false, false,
    "the user may not run this command or use this key"),
  -- The key has another type; a script may have written to others before.
  WRONGTYPE = row("redis", "maybe", false, false,
    "a key of this name holds something else, such as a lock of another kind"),
  -- The reply to SCRIPT KILL if the script has written already.
  UNKILLABLE = row("redis", "no", false, false,
    "a script that has written cannot be killed"),
  -- MULTI was refused earlier, so EXEC did nothing.
  EXECABORT = row("redis", "no", false, false,
    "the transaction was discarded"),
  -- The generic error, also of a script that failed midway.
  ERR = row("redis", "maybe", false, false,
    "the server reported an error"),
}
words.NOSCRIPT.forget, words.NOSCRIPT.pause = true, false
words.WRONGTYPE.gone = true
for _, word in ipairs { "WRONGTYPE", "MOVED", "ASK", "CROSSSLOT" } do
  words[word].explain = true
end
words.BUSY.tell = "name"

-- Errors that Redis only calls ERR, by patterns of their text.
local plain = {
  -- The limit of connections is reached; the server closes this one.
  { "^max number of clients", row("connect", "no", true, true,
    "the server has reached its limit of connections") },
  -- WRONGPASS before Redis 6.0, and a password that the server does not want.
  { "^invalid password", words.WRONGPASS },
  { "AUTH", row("connect", "no", false, false,
    "the server did not accept the login") },
  { "^DB index is out of range", row("connect", "no", false, false,
    "the server has no such database") },
  -- A renamed or unsupported command; inside a script the error is another one.
  { "^unknown command", row("redis", "no", false, false,
    "the server does not know the command") },
  -- The script did not compile on the server, so it did not run.
  { "^Error compiling script", row("redis", "no", false, false,
    "the server cannot compile the script") },
}

-- Unknown first words come from scripts and modules.
local unknown = row("redis", "maybe", false, false,
  "the server reported an error")
unknown.tell = "where"

--- Rows for calls without a reply.
--  closed: the connection was lost during the call. timeout: no reply before
--  the call's deadline. connect: no connection, so nothing was sent.
errors.transport = {
  closed = row("closed", "maybe", true, true,
    "the connection was lost before the answer came"),
  timeout = row("timeout", "maybe", true, true,
    "the server did not answer in time"),
  connect = row("connect", "no", true, true,
    "the server cannot be reached"),
}
errors.transport.timeout.tell = "name"
errors.transport.timeout.advice = "; if the server answers BUSY, its script "
  .. "runs too long: redis-cli script kill"

-- Redis before 7.0 reports a command that failed inside a script as
-- "ERR Error running script (call to f_<sha>): @user_script:1: WRONGTYPE ...".
local function inside_script(message)
  return message:match("@?user_script: ?%d+: (%u%u+ .*)$")
end

--- Classifies a Redis error message.
--  @tparam string message as Redis sent it, without the leading "-"
--  @treturn table a row, see above; shared and read-only
function errors.classify(message)
  if type(message) ~= "string" then
    error("bad message: must be a string", 2)
  end
  local word, rest = message:match("^(%S+) ?(.*)$")
  if word ~= "ERR" then return words[word] or unknown end
  for _, case in ipairs(plain) do
    if rest:find(case[1]) then return case[2] end
  end
  local inner = inside_script(rest)
  return inner and words[inner:match("^%u+")] or words.ERR
end

--- Is this a passing error of a server that is there, such as LOADING or BUSY?
--  @tparam string message as for `classify`
--  @treturn boolean
function errors.is_passing(message)
  local class = errors.classify(message)
  return class.retry and class.code == "redis"
end

return errors
