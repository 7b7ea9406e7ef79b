--- The holders of the locks that `rlockctl run` did not get, for its message.

local listing = require "rlockctl.cli.listing"
local stores = require "rlockctl.cli.stores"
local text = require "rlockctl.cli.text"

local holders = {}

local NO_PROOF = { proven = {} }
local GROWN = 0.05           -- seconds; less is a rounding error

-- The policies by which to inspect the i-th lock. A pair is inspected as a
-- whole; the name may have another kind of lock.
local function ways(hold, i)
  local name, chosen = hold.names[i], hold.chosen
  local store = stores.of(hold.client)
  local function any() return store.at(hold.client, name, NO_PROOF) end
  local function own() return { hold.locks[i]:peek() } end
  local function pair()
    return store.by(hold.client, name,
      chosen.fair and "fair_readwrite" or "readwrite")
  end
  if chosen.policy then return { own } end
  return { (chosen.shared or chosen.exclusive) and pair or any, any, own }
end

-- The state of the i-th lock; nil if unknown.
local function state_of(hold, i)
  for _, way in ipairs(ways(hold, i)) do
    for _, state in ipairs(way() or {}) do
      if state.holders[1] then return state end
    end
  end
end

-- The end of the hold and the id of the holder, if there is only one; else nil.
local function end_of(hold, state)
  local one = state.holders[1]
  local left = not state.holders[2] and (state.ttl or one.ttl)
  if left then return hold.client.session.host.now() + left, one.owner end
end

--- Samples the locks, so that `tell` can detect which holds are renewed.
---@param hold table of run_locks.lua
---@return table # for its field `seen`
function holders.look(hold)
  local seen = {}
  for i in ipairs(hold.locks) do
    local state, ends, owner = state_of(hold, i), nil, nil
    if state then ends, owner = end_of(hold, state) end
    seen[i] = { ends = ends, owner = owner }
  end
  return seen
end

-- Has the lease grown since the last sample?
local function has_grown(hold, i, ends, owner)
  local before = hold.seen and hold.seen[i]
  return before and before.ends and before.owner == owner
    and ends > before.ends + GROWN
end

local function all_renew(state)
  for _, holder in ipairs(state.holders) do
    if not (holder.who and holder.who.renews) then return false end
  end
  return true
end

-- The remaining time of the hold, if known.
local function term_of(hold, i, state)
  local ends, owner = end_of(hold, state)
  if all_renew(state) or ends and has_grown(hold, i, ends, owner) then
    return ", renewed until released"
  end
  return ends and (" for %.1f s more, unless it is renewed"):format(
    math.max(0, ends - hold.client.session.host.now())) or ""
end

-- The beginning of a sentence that ends with "held by".
local function subject_of(hold, i, state)
  local name, free = text.show(hold.names[i]), state.available or 0
  if not state.in_use then
    return (state.kind and ("%s lock %s"):format(state.kind, name)
      or hold.locks[i]:show()) .. " is"
  elseif free < 1 then
    return ("permits %s are"):format(name)
  end
  return ("%s has %.0f of %.0f permits left; the others are"):format(name, free,
    free + state.in_use)
end

--- The current holders.
---@param hold table
---@return string? # a message; nil if they are unknown
function holders.tell(hold)
  local found = {}
  for i in ipairs(hold.locks) do
    local state = state_of(hold, i)
    if state then
      listing.complete(hold.client, hold.names[i], { state })
      local subject, term = subject_of(hold, i, state), term_of(hold, i, state)
      state.count, state.available = nil, nil
      found[#found + 1] = ("%s held by %s%s"):format(subject,
        text.holders(state), term)
    end
  end
  return found[1] and table.concat(found, "; ")
end

return holders
