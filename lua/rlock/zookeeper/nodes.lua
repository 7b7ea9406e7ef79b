--- Requests for the nodes of programs and counters, not of locks.

local codec = require "rlock.zookeeper.codec"
local errors = require "rlock.zookeeper.errors"

local nodes = {}

local ops = codec.ops
local UNKNOWN = "no reply: it may have been executed"
local MALFORMED = "protocol error: a malformed reply"

--- Waits for the answer to a request.
---@param call table of connection:post
---@param deadline number by host.now()
---@param path string for messages
---@return any # 0, or errors.NO_NODE; false: the connection was lost, so retry
---@return any # a reader of the reply; or the code
---@return string? detail
function nodes.answer(call, deadline, path)
  local err, its, detail = call:wait(deadline)
  if err == 0 or err == errors.NO_NODE then return err, its end
  if its == "cancelled" or its == "timeout" then return nil, its, detail end
  if not err or errors.of(err).ends then return false end
  return nil, "zookeeper", errors.says(err, path)
end

--- Sends a request, and retries until there is a reply.
---@param server table the back end
---@param deadline number by host.now()
---@param op integer one of codec.ops
---@param path string for messages
---@param body string
---@return integer? # 0, or errors.NO_NODE
---@return any # a reader of the reply
---@return string? detail
function nodes.ask(server, deadline, op, path, body)
  local connection = server.connection
  while true do
    local ok, code, detail = connection:reach(deadline)
    if not ok then return nil, code, detail end
    local err, its
    err, its, detail = nodes.answer(connection:post(op, body), deadline, path)
    if err ~= false then return err, its, detail end
  end
end

--- Reads a node.
---@param server table
---@param deadline number
---@param path string
---@param is_watched? boolean by connection:watch
---@return string|boolean|nil # its value; false: there is no such node
---@return any # its version
---@return string? # the id of the transaction that made it; detail
function nodes.get(server, deadline, path, is_watched)
  while true do
    local err, its, detail = nodes.ask(server, deadline, ops.get, path,
      codec.read(path, is_watched))
    if not err then return nil, its, detail end
    if err ~= 0 then return false end
    local value, stat = its:text() or "", its:stat()
    if not its.is_bad then return value, stat.version, stat.created end
    server.connection:leave(MALFORMED)
  end
end

--- Reads after a sync on the same connection. The read then sees all earlier
--- writes of other clients, although a server may lag behind the leader.
---@param server table
---@param deadline number
---@param read function returns its result, or nil, code, detail
---@return any ... # the results of `read`
function nodes.current(server, deadline, read)
  local connection = server.connection
  while true do
    local ok, code, detail = connection:reach(deadline)
    if not ok then return nil, code, detail end
    local link = connection.link
    connection:sync(true)
    local result
    result, code, detail = read()
    if result == nil or connection.link == link then
      return result, code, detail
    end
  end
end

--- The names in the reply to a request for children. Leaves the connection if
--- the reply is malformed.
---@return table? # nil: it is malformed
function nodes.names(server, its)
  local names = its:texts()
  if not its.is_bad then return names end
  server.connection:leave(MALFORMED)
end

--- Lists the children of a node, none if there is no such node.
---@return any # their names
---@return rlock.failure? code, string? detail
function nodes.children(server, deadline, path, is_watched)
  while true do
    local err, its, detail = nodes.ask(server, deadline, ops.children, path,
      codec.read(path, is_watched))
    if not err then return nil, its, detail end
    local names = err ~= 0 and {} or nodes.names(server, its)
    if names then return names end
  end
end

--- Deletes a node.
---@return any # whether it was there
---@return rlock.failure? code, string? detail
function nodes.delete(server, deadline, path)
  local err, code, detail = nodes.ask(server, deadline, ops.delete, path,
    codec.versioned(path))
  if not err then return nil, code, detail end
  return err == 0
end

--- Sets the value of a node, once. The server must be connected.
---@param server table
---@param deadline number
---@param path string
---@param value string
---@param version? integer that it must have; default: any
---@param own? string the path of a node that must exist
---@return integer? # its new version
---@return rlock.failure? code # "closed" or "timeout": it may have been set;
---  "lost": the node `own` is gone; "zookeeper", "connect": it was not set
---@return string? detail # for "cancelled", the value to raise
---@return integer? # the error of the server
function nodes.set(server, deadline, path, value, version, own)
  local op, body = ops.set, codec.set(path, value, version)
  if own then
    op, body = ops.multi, codec.multi { { ops.check, codec.versioned(own) },
      { op, body } }
  end
  local err, its, detail = server.connection:post(op, body):wait(deadline)
  if not err then return nil, its, detail end
  local list, stat = {}, nil
  if err == 0 and own then       -- a multi that has failed has no error there
    list, stat = codec.results(its)
    err = list[1] == 0 and list[2] or list[1]
  elseif err == 0 then
    stat = its:stat()
  end
  if its.is_bad then
    server.connection:leave(MALFORMED)
    return nil, "closed", UNKNOWN
  elseif list[1] == errors.NO_NODE then
    return nil, "lost", "its node is gone: nothing was set"
  elseif err == 0 then
    return stat and stat.version
  end
  if errors.of(err).ends then return nil, "closed", UNKNOWN end
  return nil, "zookeeper", errors.says(err, path), err
end

--- Errors to ignore when the nodes above a path are made: another client made
--- one, or the server has deleted it again, because it was empty.
local FINE = { [0] = true, [errors.NODE_EXISTS] = true,
  [errors.NO_NODE] = true }

--- Makes a path below the chroot, as containers. The server must be connected.
--- Anyone has access to those above the lock: other locks may be below them.
---@param server table
---@param deadline number by host.now()
---@param path string
---@param lock string the path of the lock: `path`, or above it
---@param lasts? boolean whether the node at `lock` is persistent, no container
---@return true?, rlock.failure? code, string? detail
function nodes.make_containers(server, deadline, path, lock, lasts)
  local connection, calls, chroot = server.connection, {}, server.options.chroot
  local made, flags = chroot, codec.flags
  for part in path:sub(#chroot + 1):gmatch "/[^/]+" do
    made = made .. part
    local is_kept = lasts and made == lock
    calls[#calls + 1] = connection:post(is_kept and ops.create2
      or ops.create_container, codec.create(made, "",
      is_kept and flags.persistent or flags.container,
      #made >= #lock and server.access or nil))
    calls[#calls].path = made
  end
  if not calls[1] then return true end
  local _, code, detail = calls[#calls]:wait(deadline)
  if code == "cancelled" or code == "timeout" then return nil, code, detail end
  for _, call in ipairs(calls) do
    if call.err and not FINE[call.err] and not errors.of(call.err).ends then
      return nil, "zookeeper", errors.says(call.err, call.path)
    end
  end
  return true
end

--- Asks who may delete the children of a node, with `acl = "creator"`.
---@return table? # a call
function nodes.ask_access(server, path)
  return server.access
    and server.connection:post(ops.get_acl, codec.text(path)) or nil
end

--- The code and detail if its children are not for this login only.
---@param acl? table a completed call of `ask_access`
---@param path string
---@param is_value? boolean it has a value, which others must not set
function nodes.refusal(acl, path, is_value)
  local permission = is_value and codec.WRITE or codec.DELETE
  if not acl or acl.err == 0 and not acl.its:is_open(permission) then
    return nil
  end
  return "refused", ("anyone may %s %s, which was made without "
    .. "acl = \"creator\": delete it, or use another name"):format(
    is_value and "set" or "delete nodes of", path)
end

--- As `get`, of a counter's node. With `acl = "creator"`, refuses one that
--- others may set or delete.
---@param target table whose `safe` is the node that was checked last
function nodes.get_own(target, deadline, path, is_watched)
  local server = target.server
  local value, version, made = nodes.get(server, deadline, path, is_watched)
  if not value or not server.access or target.safe == made then
    return value, version, made
  end
  for _, each in ipairs { target.path, path } do
    local acl = nodes.ask_access(server, each)
    ---@cast acl -nil
    local err, code, detail = acl:wait(deadline)
    if not err then return nil, code, detail end
    if err == errors.NO_NODE then return false end
    code, detail = nodes.refusal(acl, each, each == path)
    if code then return nil, code, detail end
  end
  target.safe = made
  return value, version, made
end

--- Makes a persistent node.
---@return integer? # the server's error; NO_NODE: it has deleted the empty
---  parent
---@return any code, string? detail
local function make_once(server, deadline, parent, path, value)
  local ok, code, detail = server.connection:reach(deadline)
  if ok then
    ok, code, detail = nodes.make_containers(server, deadline, parent, parent)
  end
  if not ok then return nil, code, detail end
  local acl = nodes.ask_access(server, parent)
  if acl then
    local err
    err, code, detail = acl:wait(deadline)
    if not err or err == errors.NO_NODE then return err, code, detail end
    code, detail = nodes.refusal(acl, parent)
    if code then return nil, code, detail end
  end
  return server.connection:post(ops.create2, codec.create(path, value,
    codec.flags.persistent, server.access)):wait(deadline)
end

--- Makes a persistent node. Retries until the deadline if the server deletes
--- the empty parent.
---@param server table
---@param deadline number
---@param parent string of a counter, made as a container
---@param path string
---@param value string
---@return boolean? # true, or false if it exists already
---@return rlock.failure? code
---@return string? detail # after "closed" it may have been made
function nodes.make(server, deadline, parent, path, value)
  local err, code, detail
  repeat
    err, code, detail = make_once(server, deadline, parent, path, value)
    if not err then return nil, code, detail end
  until err ~= errors.NO_NODE or server.host.now() >= deadline
  if err == 0 or err == errors.NODE_EXISTS then return err == 0 end
  if errors.of(err).ends then return nil, "closed", UNKNOWN end
  return nil, "zookeeper", errors.says(err, path)
end

return nodes
