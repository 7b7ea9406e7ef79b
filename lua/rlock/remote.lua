--- Runs a policy's operation on a node. Every operation can be repeated, so
--  it is repeated, within its deadline, whenever nothing certain came back.

local backoff = require "rlock.backoff"
local errors = require "rlock.errors"
local script = require "rlock.script"

local remote = {}

--- Seconds between repeats of an operation that failed for a passing reason.
local FIRST_PAUSE, LAST_PAUSE = 0.02, 0.5

local function load_script(node, op)
  local deadline = node.host.now() + node.options.timeout
  local sha, sent, detail = node:call(deadline, "SCRIPT", "LOAD", op.text)
  if sha then node.shas[op] = sha end
  return sha, sent, detail
end

--- The script's sha on this node; loads it there if the node lacks it.
-- @return sha, or nil, code, detail
function remote.sha(node, op, deadline)
  local sha = node.shas[op]
  if sha then return sha end
  return node.flights:join(op, deadline, function()
    return load_script(node, op)
  end)
end

--- What a failure means.
-- @tparam table op the compiled function that was run
-- @tparam string code   of node:call
-- @tparam string detail of node:call
-- @treturn table a row of errors.lua
-- @treturn string the detail, with the place in the policy's file
function remote.judge(op, code, detail)
  if code ~= "redis" then
    return errors.transport[code] or errors.transport.closed, detail
  end
  return errors.classify(detail), script.translate(op, detail)
end

--- Runs an operation.
-- @tparam table node
-- @tparam table op       a compiled server function (script.lua)
-- @tparam number deadline when to give up, by host.now()
-- @tparam integer nkeys  how many of the arguments are keys
-- @param ... keys, then arguments
-- @return[1] the reply
-- @treturn[1] number when the request that was answered was sent
-- @treturn[1] boolean whether an earlier request may have been applied too
-- @treturn[2] nil
-- @treturn[2] string code of errors.lua
-- @treturn[2] string detail
-- @treturn[2] boolean whether a request may have been applied
function remote.run(node, op, deadline, nkeys, ...)
  local may_be_applied, pause = false, nil
  while true do
    local reply, sent, detail
    local sha, code, why = node.shas[op], nil, nil
    if not sha then sha, code, why = remote.sha(node, op, deadline) end
    if sha then
      reply, sent, detail = node:call(deadline, "EVALSHA", sha, nkeys, ...)
      if reply ~= nil then return reply, sent, may_be_applied end
      code, why = sent, detail
    end
    local class
    class, why = remote.judge(op, code, why)
    if class.forget then node.shas[op] = nil end
    if sha and class.applied ~= "no" then may_be_applied = true end
    local left = deadline - node.host.now()
    if not class.retry or left <= 0 or node.is_closed then
      return nil, class.code, why, may_be_applied
    end
    pause = pause or backoff.new(FIRST_PAUSE, LAST_PAUSE,
      node.host.random_number)
    if not class.forget then node.host.sleep(math.min(pause:next(), left)) end
  end
end

--- The command that `run` would send, for a pipeline.
-- @return array, or nil, code, detail
function remote.command(node, op, deadline, nkeys, ...)
  local sha, code, detail = remote.sha(node, op, deadline)
  if not sha then return nil, code, detail end
  return { "EVALSHA", sha, nkeys, ... }
end

return remote
