--- A leak is unused data on the server: a key that outlives the leases, or part
--- of a key that names a client which has left.

local delays = require "rlockctl.check.delays"

local leaks = {}

-- Defaults, in ms, by which a key may outlive the leases: for the lock's own
-- key, and for another one, such as a queue.
local OWN, OTHER = 0, 600000

-- The policy's key to which a key belongs: the key itself, or its prefix.
local function base_of(lock, key)
  local base
  for _, own in ipairs(lock.keys) do
    if (key == own or key:sub(1, #own + 1) == own .. ":")
        and (not base or #own > #base) then
      base = own
    end
  end
  return base or key
end

-- ms that a key may outlive the leases.
local function limit_of(lock, key)
  local base = base_of(lock, key)
  if lock.limits then return (lock.limits[base] or 0) * 1000 end
  return base == lock.keys[1] and OWN or OTHER
end

-- Adds the one-letter names of clients in a text to a set.
local function add_names(names, text)
  for name in tostring(text):gmatch("%f[%w_](%u)%f[^%w_]") do
    names[name] = true
  end
end

-- The clients that a key names, in its own name or its value.
local function names_in(lock, server, key)
  local names, value = {}, server:entry(key).value
  add_names(names, key:sub(#base_of(lock, key) + 1))
  if type(value) ~= "table" then
    add_names(names, value)
    return names
  end
  for field, item in pairs(value) do
    add_names(names, field)
    if type(item) == "string" then add_names(names, item) end
  end
  return names
end

-- The keys that may leak, each with its names, expiry and limit.
local function parts_of(lock, snapshot)
  local list = snapshot.parts
  if list then return list end
  list = {}
  for _, key in ipairs(snapshot:keys()) do
    if not lock.keeps[key] then
      list[#list + 1] = {
        key = key, names = names_in(lock, snapshot.server, key),
        expires = snapshot.server:entry(key).expires,
        limit = limit_of(lock, key),
      }
    end
  end
  snapshot.parts = list
  return list
end

-- Has a client left, so that no key may name it?
local function has_left(client)
  if client.is_dead or client.pending or client.waits then return false end
  for _, hold in ipairs(client.holds) do
    if hold.parts or hold.is_unsure then return false end
  end
  return true
end

local function check_part(lock, part, gone, all_gone, last)
  for _, name in ipairs(gone) do
    if part.names[name] then
      return ("leaked: the key %s still names %s, which has left"):format(
        part.key, name)
    end
  end
  if all_gone and not (lock.limits and part.limit > 0) then
    return ("leaked: the key %s remains after all clients have left"):format(
      part.key)
  elseif part.expires and part.expires > last + part.limit then
    return ("leaked: the key %s outlives the last lease by %gs; `lasts` of the "
      .. "policy permits %gs"):format(part.key, (part.expires - last) / 1000,
      part.limit / 1000)
  end
end

--- Checks a state.
---@return string? # a fault
function leaks.check(lock, state)
  if not delays.is_sure(lock, state) then return end
  local gone, server = {}, state.server
  for _, client in ipairs(state.clients) do
    if has_left(client) then gone[#gone + 1] = client.name end
  end
  local last = math.max(server.now, state.last_due)
  for _, part in ipairs(parts_of(lock, server)) do
    local fault = check_part(lock, part, gone, #gone == #state.clients, last)
    if fault then return fault end
  end
end

return leaks
