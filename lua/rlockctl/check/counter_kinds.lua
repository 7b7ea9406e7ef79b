--- The semantics of semaphore, permits and latch, for counters.lua: the
--- requests that lua/rlock/counters/ sends, and the effect of each. A kind has
---   start(model)                   the first request
---   offers(model, state, client)   lists of { op, n }
---   arguments(model, client, request) keys and words
---   apply[op](state, client, request, result) changes `state.free` and others
---     as the request must, the first time that it takes effect; returns
---     whether it has, and a fault
---   undo                           the operation that rolls back an acquire
---   tick                           ms of a tick, by default

local kinds = {}

local MEMORY = "600000"                 -- as in counters/deduplication.lua
local TICK = 300000                     -- ms, in which requests are retried

local function text(n) return ("%d"):format(n) end

-- requests with a slot and a number -------------------------------------------

local function slotted(model, client, request)
  local keys = model.keys
  local slot = ("%s:%s:1"):format(keys[3], client.name)
  ---@type any
  local words = { text(request.number), MEMORY, text(request.n), "publish" }
  if request.undone then words[5] = text(request.undone) end
  return { keys[1], keys[2], slot,
    request.op == "drain" and slot .. ":drained" or nil }, words
end

local function start(model) return { op = "set", n = model.total } end

-- semaphore -------------------------------------------------------------------

local semaphore = {
  start = start, arguments = slotted, undo = "undo", tick = TICK,
}
kinds.semaphore = semaphore

function semaphore.offers(model, _, client)
  local list = { { "drain", 0 } }
  for n = 1, model.total do list[#list + 1] = { "acquire", n } end
  if client.taken > 0 then list[#list + 1] = { "release", 1 } end
  return list
end

local function take(state, client, n)
  state.free, client.taken = state.free - n, client.taken + n
end

semaphore.apply = {
  set = function(state, _, request)
    state.free = request.n
    return true
  end,
  acquire = function(state, client, request, result)
    local fits = state.free >= request.n
    if fits ~= (result.verdict == "held") then
      return false, ("%d are free, but the reply is %s"):format(state.free,
        result.verdict)
    end
    if fits then take(state, client, request.n) end
    return fits
  end,
  release = function(state, client, request)
    take(state, client, -request.n)
    return true
  end,
  undo = function(state, client, request)
    if request.took then take(state, client, -request.n) end
    return true
  end,
  drain = function(state, client, _, result)
    if result.reply[2] ~= state.free then
      return false, ("%d are free, but it drains %d"):format(state.free,
        result.reply[2])
    end
    take(state, client, state.free)
    return true
  end,
}

-- latch -----------------------------------------------------------------------

local latch = { start = start, tick = TICK }
kinds.latch = latch

function latch.arguments(model, client, request)
  if request.op == "delete" then return model.keys, { "publish" } end
  return slotted(model, client, request)
end

function latch.offers(model)
  return { { "count_down", 1 }, { "set", model.total }, { "delete", 0 } }
end

latch.apply = {
  set = function(state, _, request, result)
    local is_set = result.verdict == "held"
    if is_set and state.free > 0 then return false, "it was set before" end
    if not is_set and state.free == 0 then
      return false, "it is refused, but the latch is open"
    end
    if is_set then state.free = request.n end
    return is_set
  end,
  count_down = function(state)
    local counts = state.free > 0
    if counts then state.free = state.free - 1 end
    return counts
  end,
  delete = function(state)              -- a retry deletes what was set since
    state.free = 0
    return false
  end,
}

-- permits ---------------------------------------------------------------------

local permits = { undo = "release", has_leases = true }
kinds.permits = permits

function permits.start(model) return { op = "set", n = model.total } end

-- The id of the permit that a client has or acquires.
local function id_of(client) return client.name .. client.taken end

function permits.arguments(model, client, request)
  local id, op = id_of(client), request.op
  if op == "set" then return model.keys, { text(request.n), "publish" } end
  if op == "release" then return model.keys, { id, "1", "0", "publish" } end
  return model.keys, { id, text(model.lease), "1", op == "acquire" and "publish"
    or nil }
end

function permits.offers(model, _, client)
  if not client.ends then
    return { { "acquire", 1 }, { "set", model.total + 1 } }
  end
  return { { "renew", 1 }, { "release", 1 } }
end

-- The number of permits whose lease has not ended.
local function live(state)
  local n = 0
  for _, ends in pairs(state.leases) do
    if ends > state.server.now then n = n + 1 end
  end
  return n
end

local function is_live(state, id)
  return (state.leases[id] or 0) > state.server.now
end

-- Replaces the leases, which states share.
local function set_lease(state, id, ends)
  local leases = {}
  for other, its_end in pairs(state.leases) do leases[other] = its_end end
  leases[id] = ends
  state.leases = leases
  state.free = state.total - live(state)
end

-- Extends a lease; never shortens it.
local function extend(state, id, lease)
  set_lease(state, id, math.max(state.leases[id] or 0,
    state.server.now + lease))
end

local function expect(verdict, is_right, what)
  if not is_right then
    return false, ("%s, but the reply is %s"):format(what, verdict)
  end
  return false                          -- a repeat may have an effect
end

permits.apply = {
  set = function(state, _, request)
    state.total, state.free = request.n, request.n - live(state)
    return false
  end,
  acquire = function(state, client, _, result, lease)
    local id = id_of(client)
    local fits = state.free > 0 or is_live(state, id)
    if fits and result.verdict == "held" then
      extend(state, id, lease)
    end
    return expect(result.verdict, fits == (result.verdict == "held"),
      ("%d are free"):format(state.free))
  end,
  renew = function(state, client, _, result, lease)
    local id = id_of(client)
    local was_live = is_live(state, id)
    if was_live then extend(state, id, lease) end
    return expect(result.verdict, was_live == (result.verdict == "held"),
      was_live and "its lease has not ended" or "its lease has ended")
  end,
  release = function(state, client, _, result)
    local id = id_of(client)
    local was_live = is_live(state, id)
    set_lease(state, id, nil)
    return expect(result.verdict, was_live == (result.verdict == "freed"),
      was_live and "its lease has not ended" or "its lease has ended")
  end,
}

return kinds
