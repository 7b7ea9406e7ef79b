--- ZooKeeper's errors: by number, with what each means for a request. The
--- fields of a row:
---   name   in ZooKeeper's documentation
---   says   a sentence for messages
---   ends   the connection is unusable, or the error transient: the client
---          reconnects, perhaps to another server. The request may have been
---          applied

local errors = {}

local rows = {
  [-1] = { name = "SYSTEMERROR", ends = true },
  [-2] = { name = "RUNTIMEINCONSISTENCY" },
  [-4] = { name = "CONNECTIONLOSS", ends = true },
  [-5] = { name = "MARSHALLINGERROR",
    says = "the server could not read the request" },
  [-6] = { name = "UNIMPLEMENTED",
    says = "the server is too old: rlock needs ZooKeeper 3.5 or later" },
  [-7] = { name = "OPERATIONTIMEOUT", ends = true },
  [-8] = { name = "BADARGUMENTS", says = "the path is not valid" },
  [-101] = { name = "NONODE", says = "there is no such node" },
  [-102] = { name = "NOAUTH",
    says = "this login has no permission for the node" },
  [-103] = { name = "BADVERSION", says = "the node has another version" },
  [-108] = { name = "NOCHILDRENFOREPHEMERALS",
    says = "a node above it is ephemeral, so it can have no children" },
  [-110] = { name = "NODEEXISTS", says = "the node exists already" },
  [-111] = { name = "NOTEMPTY", says = "the node has children" },
  [-112] = { name = "SESSIONEXPIRED", ends = true },
  [-114] = { name = "INVALIDACL",
    says = "the server refuses this access control list" },
  [-115] = { name = "AUTHFAILED", says = "the server refused the login" },
  [-118] = { name = "SESSIONMOVED", ends = true },
  [-119] = { name = "NOTREADONLY", ends = true },
  [-122] = { name = "EPHEMERALONLOCALSESSION" },
  [-125] = { name = "QUOTAEXCEEDED", says = "a quota of the server is full" },
  [-127] = { name = "THROTTLEDOP", ends = true },
}

errors.NO_NODE, errors.NODE_EXISTS, errors.BAD_VERSION = -101, -110, -103
errors.NOT_EMPTY, errors.NO_AUTH = -111, -102

--- The row of an error.
---@param number integer
---@return table
function errors.of(number)
  return rows[number] or { name = ("error %d"):format(number) }
end

--- A sentence about an error.
---@param number integer
---@param path string of the node
---@return string
function errors.says(number, path)
  local row = errors.of(number)
  return ("%s for %s%s"):format(row.name, path,
    row.says and ": " .. row.says or "")
end

return errors
