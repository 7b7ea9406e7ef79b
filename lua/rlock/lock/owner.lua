--- Owners: who holds locks, as this client sees it. An owner is a task, or has
--  an explicit name (the option `owner`). Its fields:
--    task      the task; nil if it has an explicit name
--    is_named  whether it has an explicit name
--    name      that name
--    grants    the set of its grants that a host keeps which may end its task
--    lost      the set of its lost grants that it has not unlocked
--  The key of a family of kinds gives the task's name in Redis for these kinds,
--  `<uuid of the client>:<number>`: different kinds on one key do not know each
--  other's holds. A task refers to its owner, so this is freed with it.

local owner = {}
owner.__index = owner

--- The owner that a task is.
-- @tparam table task
function owner.of_task(task)
  local self = task.owner
  if not self then
    self = setmetatable({ task = task, grants = task.grants }, owner)
    task.owner = self
  end
  return self
end

--- The owner with an explicit name: one for each name and client.
-- @tparam table session
-- @tparam string name
function owner.named(session, name)
  local self = session.owners[name]
  if not self then
    self = setmetatable({ name = name, is_named = true }, owner)
    session.owners[name] = self
  end
  return self
end

--- Its name in Redis; gives a task the next number of the client.
-- @tparam table session
-- @tparam table family of the lock's kind, see session:family
-- @treturn string
function owner:name_for(session, family)
  local name = self.name or self[family]
  if not name then
    session.last_number = session.last_number + 1
    name = ("%s:%d"):format(session.id, session.last_number)
    self[family] = name
  end
  return name
end

--- Makes a task get a new number: a request under the old one is being rolled
--  back, or its lock is abandoned. An explicit name stays.
-- @tparam table family
function owner:renumber(family) self[family] = nil end

return owner
