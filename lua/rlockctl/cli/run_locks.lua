--- The locks of `rlockctl run`, from its options and names. A nested run does
--- not acquire the locks that the outer `rlockctl run` already holds.

local percent = require "rlock.util.percent"
local sorted = require "rlock.util.sorted"

local run_locks = {}

-- kinds -------------------------------------------------------------------

local function pair_of(client, chosen, name)
  local method = chosen.fair and "fair_read_write_lock" or "read_write_lock"
  local pair = client[method](client, name, { fenced = chosen.fenced })
  return pair:read_lock(), pair:write_lock()
end

-- A lock of a user's kind, or a side of it. Raises an error if its options are
-- bad: `extra` would do so later.
local function own_lock(client, chosen, name, definition)
  local options = chosen.option or {}
  options.fenced = chosen.fenced or options.fenced
  local is_fit, lock = pcall(client.policy, client, definition, name, options)
  if not is_fit then error(lock, 0) end
  local policy = lock.record.policy
  if not policy.ops.renew then
    error(("policy %s has no renew, so it cannot be held"):format(policy.name),
      0)
  elseif policy.extra then
    policy.extra { options = options, wait_ms = 0,
      publish = client.session.options.publish }
  end
  return lock
end

-- The sides of a pair of a user's kinds.
local function own_pair(client, chosen, name)
  local pair = require(chosen.policy)
  if type(pair) ~= "table" or not (pair.read and pair.write) then
    error(("%s is no pair: it needs read and write"):format(chosen.policy), 0)
  end
  return own_lock(client, chosen, name, pair.read),
    own_lock(client, chosen, name, pair.write)
end

-- The lock of a name, and the kinds of lock by which the outer run may hold it;
-- or nil, code, detail.
local function lock_of(client, chosen, name)
  if chosen.limit then
    local has, why = pcall(client.session.options.backend.load, "permits", 0)
    if not has then return nil, "usage", why end
    local lock = require("rlockctl.cli.permit_group").new(client, name,
      chosen.permits, chosen.limit)
    return lock, { lock }
  elseif chosen.shared or chosen.exclusive then
    local read, write =
      (chosen.policy and own_pair or pair_of)(client, chosen, name)
    if chosen.shared then return read, { read, write } end
    return write, { write }
  elseif chosen.leader then
    local is_fit, election = pcall(client.election, client, name,
      chosen.option)
    if not is_fit then return nil, "usage", tostring(election) end
    return election.lock, { election.lock }
  elseif chosen.policy then
    local lock = own_lock(client, chosen, name, chosen.policy)
    return lock, { lock }
  end
  local method = chosen.fair and "fair_lock" or "lock"
  local lock = client[method](client, name, { fenced = chosen.fenced })
  return lock, { lock }
end

-- the environment -----------------------------------------------------------

-- Entries of a colon list.
local function encode(text)
  return percent.encode(text, "[%%:%c]")
end

local function entries(name)
  local list = {}
  for entry in (os.getenv(name) or ""):gmatch("[^:]+") do
    list[#list + 1] = percent.decode(entry)
  end
  return list
end

-- The locks that outer runs hold: name -> server -> owners.
local function held_already()
  local by, held = entries "RLOCK_HELD_BY", {}
  for i, name in ipairs(entries "RLOCK_HELD") do
    local owners, where = (by[i] or ""):match("^(.-)@(.*)$")
    held[name] = held[name] or {}
    if where then held[name][where] = owners end
  end
  return held
end

-- nested runs ---------------------------------------------------------------

local function has(state, owners)
  for _, holder in ipairs(state.holders) do
    local owner = "," .. holder.owner .. ","
    if ("," .. owners .. ","):find(owner, 1, true) then return true end
  end
  return false
end

-- Checks that the outer run still holds a lock.
local function verify(name, owners, locks)
  for _, lock in ipairs(locks) do
    local state, code, detail = lock:peek()
    if not state then return nil, code, detail end
    if has(state, owners) then return true end
  end
  return nil, "lost", ("the outer run does not hold %q with these options")
    :format(name)
end

-- public --------------------------------------------------------------------

---@class rlockctl.cli.run_locks.Hold
---@field client rlock.client
---@field chosen any
---@field held any
---@field names table
---@field lock rlock.lock
---@field locks any
local Hold = {}
Hold.__index = Hold

local function server_of(client) return client.session.server.where end

-- The owners in an outer run that holds it on the same server, or nil.
local function owners_of(held, name, client)
  return held[name] and held[name][server_of(client)]
end

--- Creates the locks, and verifies on the server those already held.
---@param client table
---@param names table
---@param chosen table shared, exclusive, fair, fenced, permits and limit,
---  policy or leader, and option
---@return any # the hold, whose `lock` is nil if there is nothing to acquire
---@return rlock.failure? code, string? detail
function run_locks.new(client, names, chosen)
  local held, locks = held_already(), {}
  local self = setmetatable({ client = client, chosen = chosen, held = held,
    names = {} }, Hold)
  for _, name in ipairs(names) do
    local is_fit, lock, ways, problem = pcall(lock_of, client, chosen, name)
    if not is_fit then return nil, "usage", tostring(lock) end
    if not lock then return nil, ways, problem end
    local owners = owners_of(held, name, client)
    if owners then
      local ok, code, detail = verify(name, owners, ways)
      if not ok then return nil, code, detail end
    else
      table.insert(locks, lock)
      table.insert(self.names, name)
    end
  end
  self.locks = locks
  self.lock = locks[2] and require("rlock").multi_lock(locks) or locks[1]
  return self
end

local function owner_of(lock)
  if lock.owner and lock.ids then return lock:owner() end
  local granted = lock:mine()
  return granted and granted.owner_name
end

-- The owner, which several locks share.
local function owner_of_all(self)
  if not self.locks[2] then return owner_of(self.locks[1]) end
  local inner = self.lock:mine().inner_holds[1]
  return inner.grant.owner_name
end

local function add(self, owner)
  for _, name in ipairs(self.names) do
    self.held[name] = self.held[name] or {}
    self.held[name][server_of(self.client)] = owner
  end
end

local function colon_lists(self)
  local names, by = {}, {}
  for _, name in ipairs(sorted(self.held)) do
    for where, owners in pairs(self.held[name]) do
      names[#names + 1] = encode(name)
      by[#by + 1] = encode(owners .. "@" .. where)
    end
  end
  return table.concat(names, ":"), table.concat(by, ":")
end

--- The environment of a command that runs under the hold.
---@param name string as the user gave it
---@param ttl number seconds
---@return table # a list of "K=V"
---@return string? # the owner
---@return number? # the token
function Hold:environment(name, ttl)
  if not self.lock then return {} end
  local owner = owner_of_all(self)
  local token = self.locks[1].token and not self.locks[2]
    and self.lock:token() or nil
  add(self, owner)
  local held, by = colon_lists(self)
  return {
    "RLOCK_NAME=" .. name, "RLOCK_OWNER=" .. owner,
    token and "RLOCK_TOKEN=" .. token or "RLOCK_TOKEN",
    ("RLOCK_TTL_MS=%d"):format(ttl * 1000), "RLOCK_HELD=" .. held,
    "RLOCK_HELD_BY=" .. by,
  }, owner, token
end

--- As holders.look.
function Hold:look()
  self.seen = require("rlockctl.cli.run_holders").look(self)
end

--- As holders.tell.
function Hold:holders()
  return require("rlockctl.cli.run_holders").tell(self)
end

return run_locks
