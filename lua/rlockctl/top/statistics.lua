--- Statistics of one lock, from successive samples: how long it has been held,
--- its grants, its longest wait, and quantiles of holds and waits. Redis stores
--- none of these. Samples miss what happens between them, so all but the
--- quantiles are lower bounds.

local statistics = {}

local MEMORY = 5             -- seconds over which the rate is averaged
local STEP = math.log(1.1)   -- of a histogram's bounds: 5% to either side
local LEAST = 0.001          -- seconds
local COUNTERS = 2 ^ 40      -- tokens below count grants, as Redisson's do

---@param at? number a time when the lock did not exist yet
---@return table # `state`: the last sample, nil if the lock was free; `grants`;
---  `rate`, per second; `longest`, seconds, nil without a wait
function statistics.new(at)
  return { grants = 0, rate = 0, holders = {}, waiters = {}, begun = at,
    sampled = at, holds = {}, waits = {} }
end

-- histograms: the number of a bucket -> how many durations are in it ----------

local function bucket_of(seconds)
  return math.ceil(math.log(math.max(seconds, LEAST)) / STEP - 1e-9)
end

local function count(histogram, seconds)
  local i = bucket_of(seconds)
  histogram[i] = (histogram[i] or 0) + 1
end

local function key_of(one)
  return (one.mode or "") .. " " .. (one.node or one.owner)
end

-- The least number of grants between two tokens.
local function grants_between(before, token)
  if not before or not token or before == token then return 0 end
  return token < COUNTERS and token > before and token - before or 1
end

-- These holds or waits have ended since the last sample.
local function end_all(histogram, ended, now)
  for _, one in pairs(ended) do count(histogram, now - one.since) end
end

-- Returns the number of grants since the last sample.
local function take_holders(self, state, now)
  ---@type any, any
  local before, granted = self.holders, 0
  local first = state.holders[1]
  local by_token = first and first.node and 0   -- a node is one grant
    or grants_between(self.token, state.token)
  if by_token > 0 then
    end_all(self.holds, before, now)
    before = {}
  end
  self.holders, self.token = {}, state.token or self.token
  for _, holder in ipairs(state.holders) do
    local key, holds = key_of(holder), holder.count or 1
    local old = before[key]
      or { since = now, count = 0, is_seen = self.is_seen }
    granted = granted + math.max(0, holds - old.count)
    self.holders[key] = { since = old.since, count = holds,
      is_seen = old.is_seen }
    before[key] = nil
  end
  end_all(self.holds, before, now)
  return math.max(granted, by_token)
end

local function take_wait(self, seconds)
  self.longest = math.max(self.longest or 0, seconds)
end

local function take_queue(self, queue, now)
  local before = self.waiters
  self.waiters = {}
  for _, waiter in ipairs(queue) do
    local key = key_of(waiter)
    self.waiters[key] = before[key] or { since = now }
    before[key] = nil
    waiter.waited = now - self.waiters[key].since
    take_wait(self, waiter.waited)
  end
  end_all(self.waits, before, now)
end

-- Without a queue, only the number of waiters is known.
local function take_crowd(self, waiters, granted, now)
  if self.crowd and (waiters == 0 or granted > 0) then
    count(self.waits, now - self.crowd)
    self.crowd = nil
  end
  if waiters > 0 then self.crowd = self.crowd or now end
  if self.crowd then take_wait(self, now - self.crowd) end
end

local function take_grants(self, granted, now)
  self.grants = self.grants + granted
  local past = now - self.sampled
  if past <= 0 then return end
  local weight = math.max(1 - math.exp(-past / MEMORY),
    past / (now - self.begun))
  self.rate = self.rate + weight * (granted / past - self.rate)
end

local FREE = { holders = {} }

--- Adds a sample.
---@param self table
---@param state? table from listing.states; nil: the lock is free
---@param now number
function statistics.add(self, state, now)
  local seen = state or FREE
  local granted = take_holders(self, seen, now)
  take_queue(self, seen.queue or {}, now)
  take_crowd(self, not seen.queue and seen.waiters or 0, granted, now)
  if self.sampled then
    take_grants(self, granted, now)
  else
    self.begun = now
  end
  self.state, self.sampled, self.is_seen = state, now, true
  if state then self.used = now end
end

--- How long the lock has been held.
---@param self table
---@return number? # seconds, of the oldest hold; the lock is not held
---@return boolean? # whether its start was sampled; else it is a lower bound
function statistics.held(self)
  local first
  for _, holder in pairs(self.holders) do
    if not first or holder.since < first.since then first = holder end
  end
  if first then return self.sampled - first.since, first.is_seen == true end
end

-- A histogram with the durations so far of what has not ended.
local function with(histogram, unended, crowd, now)
  local all = {}
  for i, n in pairs(histogram) do all[i] = n end
  for _, one in pairs(unended) do count(all, now - one.since) end
  if crowd then count(all, now - crowd) end
  return all
end

--- A quantile of the holds, or of the waits, that were seen, also of those that
--- have not ended.
---@param self table
---@param which string "holds" or "waits"
---@param q number from 0 to 1
---@return any # seconds, to 5%; nil: there was none
function statistics.quantile(self, which, q)
  local numbers, total, now = {}, 0, self.sampled
  ---@type any
  local all = which == "holds" and with(self.holds, self.holders, nil, now)
    or which == "waits" and with(self.waits, self.waiters, self.crowd, now)
  for i, n in pairs(all) do
    numbers[#numbers + 1], total = i, total + n
  end
  table.sort(numbers)
  ---@type number
  local left = math.max(math.ceil(q * total), 1)
  for _, i in ipairs(numbers) do
    left = left - all[i]
    if left <= 0 then return math.exp((i - 0.5) * STEP) end
  end
end

return statistics
