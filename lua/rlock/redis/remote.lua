--- Runs a policy's operation on a node; loads its script there. Operations are
--- idempotent, so a request whose outcome is unknown is retried until its
--- deadline.

local backoff = require "rlock.util.backoff"
local duration = require "rlock.util.duration"
local errors = require "rlock.redis.errors"
local evalsha = require "rlock.redis.evalsha"
local events = require "rlock.util.events"
local expiry = require "rlock.redis.expiry"
local naming = require "rlock.naming"

local remote = {}

--- Back-off limits between retries, in seconds.
local FIRST_PAUSE, LAST_PAUSE = 0.02, 0.5

--- Retries without a pause, for example after redirections.
local AT_ONCE = 6

--- Seconds. That a shorter attempt had no reply says less than the failure
--- before it.
local BRIEF = 0.1

local max, min = math.max, math.min
local ms_of = duration.ms

--- Rows as in errors.lua, for failures that are not the server's.
local unsent = {
  first = { applied = "no", retry = true, pause = false, code = "timeout" },
  cancelled = { applied = "maybe", retry = false, code = "cancelled" },
  refused = { applied = "no", retry = false, code = "refused" },
}

local function load_script(node, op)
  return node:load(op, op.text, node.host.now() + node.options.timeout)
end

--- The operation's sha on this node; loads the script if necessary.
---@return any # sha
---@return rlock.failure? code, string? detail
function remote.sha(node, op, deadline)
  op = expiry.shipped(node, op)
  local sha = node.shas[op]
  if sha then return sha end
  local code, detail
  sha, code, detail =
    node.singleflight:join(op, deadline, load_script, node, op)
  if code == "timeout" and not node.connection then
    return nil, "connect", ("no connection to %s in time"):format(node.where)
  end
  return sha, code, detail
end

--- Drops the cached script or clock offset that a failure reports as outdated,
--- so that the next use fetches it.
---@param node table
---@param op table
---@param class? table of the failure, see errors.lua
---@return boolean # whether it is such a failure
function remote.forget(node, op, class)
  local what = class and class.forget
  if what == "script" then node.shas[expiry.shipped(node, op)] = nil end
  if what == "clock" then expiry.invalidate(node) end
  return what ~= nil
end

local BUSY = "BUSY a script runs too long on the server%s; %s did not run; "
  .. "to end it: redis-cli %s"

-- The detail for BUSY: which script runs too long and how to end it; else nil.
local function busy(op, detail, suspect)
  local command = detail:match("^BUSY .- (%u+ KILL)")
  if not command then return nil end
  local guess = suspect
    and (", probably %s, which this client sent"):format(suspect.name)
  return BUSY:format(guess or "", op.name, command:lower())
end

-- The command that permits the keys of a lock, and those that begin with them,
-- if that is what is missing. None for names that a shell or Redis would read
-- as more than a name.
local function permit(class, detail, keys)
  if not class.permits or not keys or not detail:find " key" then return "" end
  local words = {}
  for i, key in ipairs(keys) do
    if key:find "[^%w_.:{}-]" then return "" end
    words[i] = (" '~%s*'"):format(key)
  end
  return ("redis-cli acl setuser USER%s; "):format(table.concat(words))
end

--- Classifies a failure.
---@param node table
---@param op table the compiled function that was run
---@param code string of node:call
---@param detail string of node:call
---@param name string of the lock
---@param keys? table of the request
---@return table # a row of errors.lua
---@return string # the detail, with the place in the policy's file
function remote.classify(node, op, code, detail, name, keys)
  ---@type any, string
  local class, shown = unsent[code] or errors.transport[code], detail
  if code == "redis" then
    class = errors.classify(detail)
    if class.redirects and node.options.seeds then class = errors.redirected end
    shown = require("rlock.script").translate(expiry.shipped(node, op), detail)
  end
  if class.names and shown == detail then
    shown = busy(op, detail, node.unanswered)
      or ("%s (%s)%s"):format(shown, op[class.names], class.advice or "")
  end
  if class.explain then
    local expected = class.expects
      and op.name:gsub("%.[^.]*$", " is expected, but ") or ""
    shown = ("%s for %s: %s%s%s"):format(shown, naming.show(name), expected,
      permit(class, detail, keys), class.explain)
  end
  return class, shown
end

-- the words of a request ----------------------------------------------------

local UNKNOWN = ("0"):rep(40)           -- matches no script

--- The operation's sha on this node, for a request in a pipeline. Does not
--- wait: without `ready`, the server may answer NOSCRIPT.
---@param node table
---@param op table
function remote.known_sha(node, op)
  return node.shas[expiry.shipped(node, op)] or UNKNOWN
end

--- Does `ready` certainly not wait?
---@param node table
---@param op table
function remote.is_ready(node, op)
  return node.shas[op] ~= nil and not expiry.is_on(node)
end

--- Prepares a node for an operation's requests in a pipeline. May wait. The
--- arguments are as for `run`.
---@param node table
---@param op table
---@param deadline number
---@return string? # the word for `command`: the deadline, or ""
---@return rlock.failure? code, string? detail
function remote.ready(node, op, deadline)
  local sha, code, detail = remote.sha(node, op, deadline)
  if not sha then return nil, code, detail end
  if expiry.is_on(node) then return expiry.word(node, deadline) end
  return ""
end

--- A request for a pipeline, see `known_sha`.
---@param node table
---@param op table
---@param word string from `ready`
---@return table # the command
function remote.command(node, op, word, keys, a, b, c, d)
  local words = {}
  local n = evalsha(words, remote.known_sha(node, op), keys, a, b, c, d)
  if word ~= "" then words[n + 1] = word end
  return words
end

-- running --------------------------------------------------------------------

-- Sends a request that carries a deadline, see expiry.lua.
local function send_guarded(node, call, op, deadline, keys, a, b, c, d, extra)
  local ok, code, detail = expiry.await_expiry(node, op, keys, a, deadline)
  if not ok then return nil, code, detail end
  local sha
  sha, code, detail = remote.sha(node, op, deadline)
  if not sha then return nil, code, detail end
  local words, ends = {}, min(deadline, node.host.now() + node.options.timeout)
  local n = evalsha(words, sha, keys, a, b, c, d, extra) + 1
  words[n], code, detail = expiry.word(node, ends)
  if code then return nil, code, detail end
  local reply, sent
  reply, code, detail, sent = call(node, ends, words, n)
  if reply == nil and code ~= "redis" and code ~= "connect" then
    expiry.mark_in_doubt(node, op, keys, a, ends)
  end
  return reply, code, detail, sent
end

--- Sends a request once.
---@param call function node.call, or one with the same arguments
---@return any ... # as node:call
local function send(node, call, op, deadline, keys, a, b, c, d, extra)
  local ok, code, detail = node:connect(deadline)
  if not ok then return nil, code, detail end
  if expiry.is_on(node) then
    return send_guarded(node, call, op, deadline, keys, a, b, c, d, extra)
  end
  local sha
  sha, code, detail = remote.sha(node, op, deadline)
  if not sha then return nil, code, detail end
  local words = {}
  return call(node, deadline, words,
    evalsha(words, sha, keys, a, b, c, d, extra))
end

-- Logs why an operation is retried.
local function log_retry(server, op, name, why)
  events.report(server.host, server.options, "info", "retried",
    ("%s of %s is retried: %s"):format(op.name, naming.show(name),
    tostring(why)), { lock = name, operation = op.name,
    reason = tostring(why) })
end

local function load_replicas()                           -- on first use
  return require "rlock.redis.replicas"
end

--- The dedicated connection for an owner's requests, which replicas must
--- confirm.
---@param node table
---@param keys table with the field `replicas`
---@param owner string
---@return table # see replicas.connection
function remote.dedicated(node, keys, owner)
  return load_replicas().connection(node, keys.replicas, owner)
end

-- How to send a request: a function as node.call.
local function caller(node, op, keys, owner)
  if not keys.replicas or load_replicas().direct[op.op] then
    return node.call
  end
  local connection = remote.dedicated(node, keys, owner)
  local is_confirmed = not load_replicas().unconfirmed[op.op]
  return function(_, deadline, words)
    return connection:call(deadline, words, is_confirmed, op.is_once)
  end
end

--- Finds the node of the keys and sends a request once.
---@param asked? table the node that ASK named, for this request only
---@return any ... # the node; then as node:call
local function find_and_send(server, asked, op, deadline, keys, ...)
  if asked and not keys.replicas then
    return asked, send(asked, asked.ask, op, deadline, keys, ...)
  end
  local node, code, detail = server:find(keys, deadline)
  if not node then return server, nil, code, detail end
  return node,
    send(node, caller(node, op, keys, ...), op, deadline, keys, ...)
end

--- Waits before a retry.
---@param pause table|false a back-off; false: retry at once
---@return boolean? # whether there is time for a retry
---@return string? # "cancelled"
---@return any # the value to raise
local function rest(host, pause, deadline)
  local left = deadline - host.now()
  if pause and left > 0 then
    local slept, code, unwind = host.event():pause(min(pause:next(), left))
    if slept == nil then return nil, code, unwind end
  end
  return host.now() < deadline
end

--- What to do after a failure.
---@return boolean # whether a retry may succeed
---@return boolean # whether it should follow at once
---@return table? # the node for a single retry, after ASK
local function next_step(server, node, class, detail)
  if class.redirects and server.redirect then
    local target, is_once = server:redirect(detail, node)
    return true, target, is_once and target
  end
  if class.node_down or class.slot_down then server:suspect(node) end
  return class.retry, class.pause == false
end

--- The failure to report: a time-out of the last attempt may say less than an
--- earlier failure.
---@param known table of earlier attempts: `replicas` and `redis`, with why
---@param is_brief boolean whether the last attempt was short, or not sent
---@param where string the server
---@param limit number of the request, in seconds
---@return any ... # code, why
local function reported(code, why, known, is_brief, where, limit)
  if code == "timeout" and known.replicas then
    return "replicas", known.replicas
  elseif code == "timeout" and known.redis and is_brief then
    return "redis", known.redis
  end
  return code, why or ("%s: no time left, of %.2g s"):format(where, limit)
end

--- Retries an operation while that may succeed.
---@param now number when the first attempt began, by host.now()
local function again(server, node, op, deadline, now, code, detail, keys, ...)
  local host, may_be_applied, hurried = server.host, false, 0
  local known, sent = {}, now
  local pause = backoff.new(FIRST_PAUSE, LAST_PAUSE, host.random_number)
  while true do
    if code == "timeout" then node.unanswered = node.unanswered or op end
    local class, why = remote.classify(node, op, code, detail, keys[1],
      keys)
    remote.forget(node, op, class)
    if class.applied ~= "no" then may_be_applied = true end
    if class.retry and not class.forget then
      known[class.code or code] = why
    end
    ---@type any, any, any
    local goes_on, at_once, asked = next_step(server, node, class, detail)
    if op.is_once and class.applied ~= "no" then goes_on = false end
    if at_once then hurried = hurried + 1 end
    if goes_on and server.is_closed then
      return nil, "closed", "the client was closed", may_be_applied
    end
    ---@type any, any
    local cancelled, unwind
    if goes_on then
      local least = code == "replicas" and keys.replicas.ms / 1000 or 0
      goes_on, cancelled, unwind =
        rest(host, (not at_once or hurried > AT_ONCE) and pause,
          deadline - least)
    end
    if cancelled then return nil, cancelled, unwind, may_be_applied end
    if not goes_on then
      code, why = reported(class.code or code, why, known,
        not sent or deadline - sent < BRIEF, node.where, deadline - now)
      return nil, code, why, may_be_applied
    end
    if code ~= "first" then log_retry(server, op, keys[1], why) end
    local reply
    node, reply, code, detail, sent =
      find_and_send(server, asked, op, deadline, keys, ...)
    if reply ~= nil then
      node.unanswered = false
      return reply, nil, nil, may_be_applied, sent
    end
  end
end

--- Runs an operation.
---@param server table a node or a cluster
---@param op table a compiled server function (script.lua); with the field
---  `is_once`, it is not retried if it may have been applied
---@param deadline number by host.now()
---@param now number by host.now()
---@param keys table at most 99; its field `replicas`: see replicas.connection
---@param a any arguments, up to the first nil
---@param extra? table more arguments
---@return any # the reply, or nil
---@return string? # why there is none: a code of errors.lua, or "cancelled"
---@return any # its detail; for "cancelled", the value to raise
---@return boolean # whether a request that failed may have been applied
---@return number? # when the answered request was sent, by host.now()
function remote.run(server, op, deadline, now, keys, a, b, c, d, extra)
  local node, connection = server, server.connection
  if not connection then                                -- as in a cluster
    node = server:of(keys) or server
    connection = node.connection
  end
  local sha = node.shas[op]
  -- Where requests carry deadlines, only scripts with a deadline have a sha.
  if not connection or not sha or keys.replicas then
    return again(server, node, op, deadline, now, "first", nil, keys, a, b, c,
      d, extra)
  end
  local ms = node.timeout_ms
  if deadline - now < node.options.timeout then
    ms = max(1, ms_of(deadline - now))
  end
  local reply, code, detail =
    connection:eval(ms, sha, keys, a, b, c, d, extra)
  if reply ~= nil then
    node.unanswered = false
    return reply, nil, nil, false, now
  end
  node:handle(connection, code, detail)
  return again(server, node, op, deadline, now, code, detail, keys, a, b, c, d,
    extra)
end

--- The words of an operation's posted requests on a target: all but the
--- arguments are the same each time. `at` is the index of the first of these.
---@return table? # nil if the request cannot be posted
local function words_of(target, connection, name)
  local op, node = target.ops[name], target.node
  local sha = node.shas[op]
  if not sha or not connection.post or target.replicas then return nil end
  local words, publishes = { op = op }, target.publishes[name] == 4
  words.at = evalsha(words, sha, target) + 1
  words.n = words.at + (publishes and 3 or 2)
  if publishes then words[words.n] = target.publish end
  target.posts = target.posts or {}
  target.posts[name] = words
  return words
end

--- Sends a request once, without waiting for its reply.
---@param target table see backend.lua; not of a cluster
---@param name string of an operation of a lock, with three arguments
---@param receiver table gets the reply, see the host contract
---@param deadline number by host.now()
---@param now number by host.now()
---@param a any the arguments
---@return boolean # whether it was sent; else use `run`
function remote.post(target, name, receiver, deadline, now, a, b, c)
  local node, posts = target.node, target.posts
  local connection, words = node.connection, posts and posts[name]
  if not connection or node.unanswered then return false end
  if not words or words[2] ~= node.shas[words.op] then
    words = words_of(target, connection, name)
    if not words then return false end
  end
  local ms, at = node.timeout_ms, words.at
  if deadline - now < node.options.timeout then
    ms = max(1, ms_of(deadline - now))
  end
  words[at], words[at + 1], words[at + 2] = a, b, c
  return connection:post(ms, words, words.n, receiver)
end

--- Goes on with a request that was posted and has failed, as `run` would.
---@param node table
---@param connection table of the request
---@param op table
---@param deadline number by host.now()
---@param now number when it was sent
---@param code any of the failure
---@return any ... # as `run`
function remote.retry(node, connection, op, deadline, now, code, detail, keys,
    ...)
  node:handle(connection, code, detail)
  return again(node, node, op, deadline, now, code, detail, keys, ...)
end

return remote
