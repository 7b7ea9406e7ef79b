--- Samples the locks that `rlockctl top` watches. Each turn samples the locks
--- on the screen, and then others in rotation for a share of the turn's time,
--- so that ten thousand locks cost a server no more than a few hundred.
--- Searches for new names are rare, because they scan all keys.

local listing = require "rlockctl.cli.listing"
local text = require "rlockctl.cli.text"
local statistics = require "rlockctl.top.statistics"

local sampler = {}

local BATCH = 64             -- names per request
local SHARE = 0.2            -- of a turn, for locks that are not shown
local PAUSE = 2              -- least seconds between two scans
local SCANS = 0.05           -- the largest share of the time for scans
local KEEP = 10              -- seconds for which a free lock is shown

---@class rlockctl.top.sampler.Sampler
---@field client rlock.client
---@field options table
---@field names table
---@field entries table
---@field fresh table
---@field known table
---@field absent table
---@field index number
---@field scan_at number
---@field now function
local Sampler = {}
Sampler.__index = Sampler

---@param client table
---@param options table as for scan.names
---@return table # `entries`: name -> its locks, usually one: statistics with
---  `name` and `title`; `names`, a list; `is_cut`: there are more names
function sampler.new(client, options)
  return setmetatable({ client = client, options = options, names = {},
    entries = {}, fresh = {}, known = { proven = {} }, absent = {}, index = 0,
    scan_at = 0, now = client.session.host.now }, Sampler)
end

local function is_kept(self, name)
  for _, entry in ipairs(self.entries[name] or {}) do
    if sampler.is_shown(entry, self.now()) then return true end
  end
  return false
end

local function set_of(names)
  local set = {}
  for _, name in ipairs(names) do set[name] = true end
  return set
end

-- Removes locks that have been free for a while.
local function remove_free(self, found)
  local is_found = set_of(found)
  for name in pairs(self.entries) do
    if is_kept(self, name) and not is_found[name] then
      found[#found + 1] = name
    elseif not is_found[name] then
      self.entries[name] = nil
    end
  end
end

-- Records for each new name a time when it did not exist yet.
local function note_absence(self, found)
  local absent, before = {}, set_of(self.names)
  for _, name in ipairs(found) do
    absent[name] = self.absent[name]
    if not before[name] and not self.is_cut then absent[name] = self.begun end
  end
  self.absent = absent
end

-- The names that have not been sampled yet, in reverse order.
local function unseen(self, found)
  local fresh = {}
  for i = #found, 1, -1 do
    if not self.entries[found[i]] then fresh[#fresh + 1] = found[i] end
  end
  return fresh
end

--- Searches for names.
---@return true?, rlock.failure? code, string? detail
function Sampler:scan()
  local begun = self.now()
  local found, is_cut, known = listing.names(self.client, self.options)
  if not found then return nil, is_cut, known end
  local now = self.now()
  remove_free(self, found)
  note_absence(self, found)
  self.names, self.is_cut, self.begun, self.known =
    found, is_cut, begun, known
  self.fresh = unseen(self, found)
  self.scan_at = now + math.max(PAUSE, (now - begun) / SCANS)
  return true
end

local function new_entry(self, name, number)
  local entry = statistics.new(self.absent[name])
  entry.name, entry.title, entry.number = name, text.bare(name), number
  return entry
end

-- Adds samples of a name, one for each kind.
local function take(self, name, states, now)
  local entries = self.entries[name] or {}
  self.entries[name] = entries
  for i = 1, math.max(#entries, #states) do
    entries[i] = entries[i] or new_entry(self, name, i)
    statistics.add(entries[i], states[i], now)
  end
end

--- Samples locks.
---@param names table
---@return true?, rlock.failure? code, string? detail
function Sampler:sample(names)
  local rows, code, detail =
    listing.states(self.client, names, self.known)
  if not rows then return nil, code, detail end
  local states, now = {}, self.now()
  for _, row in ipairs(rows) do
    states[row.name] = states[row.name] or {}
    table.insert(states[row.name], row)
  end
  for _, name in ipairs(names) do take(self, name, states[name] or {}, now) end
  return true
end

-- The next name: a new one, or else the next in rotation.
local function next_name(self)
  local name = table.remove(self.fresh)
  if name then return name end
  self.index = self.index % #self.names + 1
  return self.names[self.index]
end

-- The next names that have not been sampled in this turn.
local function next_batch(self, is_done)
  local batch = {}
  for _ = 1, #self.fresh + #self.names do
    local name = next_name(self)
    if not is_done[name] then
      is_done[name] = true
      batch[#batch + 1] = name
    end
    if #batch == BATCH then break end
  end
  return batch
end

-- Samples other locks, at least one batch.
local function sample_others(self, is_done, seconds)
  local last = self.now() + seconds
  repeat
    local batch = next_batch(self, is_done)
    if not batch[1] then break end
    local ok, code, detail = self:sample(batch)
    if not ok then return nil, code, detail end
  until self.now() >= last
  return true
end

--- Samples the locks that are shown, and some of the others.
---@param shown table names
---@param seconds number of the turn; math.huge: samples all
---@return true?, rlock.failure? code, string? detail also with true: the locks
---  of a master of a cluster are missing
function Sampler:turn(shown, seconds)
  ---@type any, any, any
  local ok, code, detail = true, nil, nil
  if self.now() >= self.scan_at then ok, code, detail = self:scan() end
  if ok and shown[1] then ok, code, detail = self:sample(shown) end
  if ok then
    ok, code, detail = sample_others(self, set_of(shown), seconds * SHARE)
  end
  if not ok then return nil, code, detail end
  local failed = self.known.failed
  if not failed then return true end
  return true, failed.code, "incomplete list: " .. failed.detail
end

--- Is a lock held or waited for, or was it recently?
---@param entry table
---@param now number
---@return boolean
function sampler.is_shown(entry, now)
  return entry.state ~= nil or entry.used ~= nil and now - entry.used < KEEP
end

return sampler
