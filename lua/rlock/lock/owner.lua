--- Owners: the holders and waiters of locks in this client. An owner is a task
--- of the host, or a table with an explicit name (the option `owner`). Its
--- fields:
---   is_named  whether it has an explicit name
---   name      that name
---   grants    the set of its grants, on a host that may end its task
---   lost      the set of its lost grants that it has not unlocked
--- The key of a family of kinds gives the task's name in Redis for these kinds,
--- `<uuid of the client>:<number>`: different kinds on one key do not know each
--- other's holds.

---@class rlock.owner
---@field [table] string family -> its name in Redis
---@field is_named? true
---@field name? string
---@field grants? table<rlock.grant, true>
---@field lost? table<rlock.grant, true>

local owner = {}

--- The owner with an explicit name: one for each name and client.
---@param session rlock.session
---@param name string
function owner.named(session, name)
  local self = session.owners[name]
  if not self then
    self = { name = name, is_named = true }
    session.owners[name] = self
  end
  return self
end

--- Its name in Redis; gives a task the next number of the client.
---@param self table
---@param session rlock.session
---@param family table of the lock's kind, see session:family
---@return string
function owner.name_for(self, session, family)
  local name = self.name or self[family]
  if not name then
    session.last_number = session.last_number + 1
    name = ("%s:%d"):format(session.id, session.last_number)
    self[family] = name
  end
  return name
end

--- Makes a task get a new number: a request under the old one was retried, or
--- is being rolled back, or its lock is abandoned. An explicit name stays.
---@param self table
---@param family table
function owner.renumber(self, family) self[family] = nil end

return owner
