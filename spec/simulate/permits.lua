--- Counts the permits of semaphores by the requests that servers execute: each
--- request once, however often it arrives. Reports a semaphore that counts
--- otherwise.

local permits = {}

local function number_in(entries, key)
  local entry = entries[key]
  return entry and tonumber(entry.value) or 0
end

-- Begins with what the server has. It may be another server than before, or
-- have other data.
local function begin(server, key)
  local entries = server.redis.entries
  local count = { server = server, entries = entries,
    left = number_in(entries, key), last = {}, drained = {} }
  for name in pairs(entries) do
    if name:find("rlock_request", 1, true) == 1 then
      count.last[name] = number_in(entries, name)
      count.drained[name] = count.last[name]
    end
  end
  return count
end

-- What each operation adds, if it is executed for the first time; nil: it was
-- refused. `last` is the number of the slot's last request.
local effects = {}

function effects.acquire(_, args, reply)
  return reply[1] == "held" and -tonumber(args[3]) or nil
end

function effects.release(_, args) return tonumber(args[3]) end

function effects.undo(count, args, _, last, keys)
  if last ~= tonumber(args[5]) then return 0 end
  return count.drained[keys[4]] or tonumber(args[3])
end

function effects.set(count, args, reply)
  return reply[1] == "held" and tonumber(args[3]) - count.left or nil
end

function effects.drain(count, _, _, _, keys)
  count.drained[keys[4]] = count.left
  return -count.left
end

-- Counts a request.
local function add(count, operation, keys, args, reply)
  local slot, number = keys[3], tonumber(args[1])
  local last = count.last[slot] or 0
  local effect = number > last
    and effects[operation](count, args, reply, last, keys)
  if effect then
    count.left, count.last[slot] = count.left + effect, number
  end
end

--- A server has executed an operation of a semaphore.
---@param self table world
---@param server table
---@param operation string
---@param keys table
---@param args table
---@param reply table
function permits.executed(self, server, operation, keys, args, reply)
  if not effects[operation] or reply.err then return end
  local key = keys[1]
  local count = self.counted[key]
  if not count or count.server ~= server
      or count.entries ~= server.redis.entries then
    self.counted[key] = begin(server, key)
    return
  end
  add(count, operation, keys, args, reply)
  local left = number_in(count.entries, key)
  if left == count.left then return end
  self.oracle:fault("miscounted", "%s has %d permits after %s, not %d", key,
    left, operation, count.left)
  count.left = left
end

return permits
