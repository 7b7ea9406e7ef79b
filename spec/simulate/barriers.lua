--- Double barriers: tasks enter and leave together. The oracle counts the
--- members by true time, from outside of the clients. A member is present from
--- the call of `enter` until that fails or `leave` is called; as long as a
--- lease if it may be in after all, because the outcome is unknown, or its
--- process has died. A round must not open for a member that has never seen n
--- present, and must not end while a member is inside.

local barriers = {}

local GRACE = 2.5         -- leases until a member that is in doubt has died
local WAIT = 3            -- seconds, at most

local Member = {}
Member.__index = Member

-- Is it present? One that is dead is, for a while.
local function is_present(member, now)
  if member.host.is_dead and not member.until_ then
    member.until_ = now + member.grace
  end
  return now <= (member.until_ or now)
end

-- The members that are present; tells those that enter how many there are.
local function count(thing, now)
  local list = {}
  for _, member in ipairs(thing.members or {}) do
    if is_present(member, now) then list[#list + 1] = member end
  end
  thing.members = list
  for _, member in ipairs(list) do
    member.most = math.max(member.most, #list)
  end
end

-- A member is not present any more, or perhaps not.
function Member:ends(is_certain)
  if self.has_ended then return end
  self.has_ended = true
  self.until_ = self.host.universe.now + (is_certain and -1 or self.grace)
end

-- A cancelled task.
function Member:__close()
  self:ends(false)
  self.is_out = true
end

-- Has the server lost data since this member began?
local function is_forgiven(member)
  local thing, world = member.thing, member.world
  return thing.generation ~= member.generation
    or (thing.lost_at or -1) >= member.began
    or world.cluster and world.cluster:is_split(thing)
end

local function check_open(member)
  if member.most < member.n and not is_forgiven(member) then
    member.world.oracle:fault("opened early", "%s: %s enters with %d of %d",
      member.name, member.label, member.most, member.n)
  end
end

-- Those that are inside when a member is told that all have left.
local function check_end(member, round)
  for _, other in ipairs(round) do
    if not other.is_out and not other.host.is_dead and not is_forgiven(member)
    then
      member.world.oracle:fault("ended early", "%s: %s has left, and %s is "
        .. "inside", member.name, member.label, other.label)
    end
  end
end

local function inside(member, barrier)
  local rounds, id = member.thing.rounds, member.name .. barrier.round
  rounds[id] = rounds[id] or {}
  table.insert(rounds[id], member)
  member.world.oracle:note "barriers entered"
  member.host.sleep(member.random() * 0.02)
  member.is_out = true
  member:ends(true)
  local ok, code = barrier:leave { wait = member.random() * WAIT }
  if ok then
    member.world.oracle:note "barriers left"
    check_end(member, rounds[id])
  elseif code == "lost" then
    member.world.oracle:note "barriers lost"
  end
end

--- A task enters and leaves a double barrier.
---@param task table
---@param thing table
function barriers.use(task, thing)
  local now = task.host.universe.now
  thing.rounds = thing.rounds or {}
  local name = ("%s:%d"):format(thing.name, thing.generation)
  local n = thing.most + 1
  local barrier =
    task.open[thing.servers[1].name]:double_barrier(name, n)
  local member <close> = setmetatable({ host = task.host, label = task.label,
    world = task.world, thing = thing, name = name, n = n, began = now,
    generation = thing.generation, most = 0, random = task.random,
    grace = GRACE * task.world.lease }, Member)
  thing.members = thing.members or {}
  table.insert(thing.members, member)
  count(thing, now)
  local ok, code = barrier:enter { wait = task.random() * WAIT }
  count(thing, task.host.universe.now)
  if ok then
    check_open(member)
    inside(member, barrier)
  else
    member.is_out = true
    member:ends(code == "lost" or code == "refused")
  end
end

return barriers
