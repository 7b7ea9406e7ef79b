--- A count-down latch: the node `latch` below its path. Curator has none. The
--- first line of its data is the count, and how often it was set. Each other
--- line is the slot of a recent request, and the last number of that slot. A
--- change sets the node only in the version that was read. So a retry after a
--- lost reply finds its request in the data, and does not count twice. A retry
--- does not count either if the latch was set again. See
--- counters/deduplication.lua, and the driver, counters/latch.lua. At 0 the
--- node stays until it is deleted. If it was perhaps made, and has been deleted
--- since, a set is not retried: its outcome is unknown.

local codec = require "rlock.zookeeper.codec"
local errors = require "rlock.zookeeper.errors"
local nodes = require "rlock.zookeeper.nodes"
local target = require "rlock.zookeeper.target"

---@class rlock.zookeeper.latch: rlock.zookeeper.target
local latch = setmetatable({}, { __index = target })
latch.__index = latch

local MOST = 100                  -- requests that are remembered
local DIGITS = 10                 -- of a count
local MOST_SET = 1000000000
local ABSENT, NEVER = "absent", "never"

--- A target for one request, see the back end contract.
---@param slot string
function latch:with(slot)
  return setmetatable({ slot = slot }, { __index = self })
end

local function path_of(self) return self.path .. "/latch" end

--- Reads the data of the node.
---@param data string
---@return any # its `count`, how often it was `set`, and a list of
---  { slot, number }; nil: it is not of a latch
function latch.parse(data)
  ---@type any, any, any
  local count, set, at = data:match "^(%d+) (%d+)\n()"
  if not count or #count > DIGITS or #set > DIGITS then return nil end
  local list = { count = tonumber(count), set = tonumber(set) }
  for slot, number in data:sub(at):gmatch "(%S+) (%d+)\n" do
    list[#list + 1] = { slot, number }
  end
  return list
end

--- Reads the node.
---@return any # count, version, how often it was `set`, the transaction that
---  `made` it; and a list of { slot, number }; false: there is none
---@return rlock.failure? code, string? detail
local function read(self, deadline, is_watched)
  local path = path_of(self)
  local data, version, made = nodes.current(self.server, deadline, function()
    return nodes.get_own(self, deadline, path, is_watched)
  end)
  if not data then return data, version, made end
  local list = latch.parse(data)
  if not list then return nil, "refused", path .. " is not a latch" end
  list.version, list.made = version, made
  return list
end

-- The data with another count, and this request as the last.
local function encode(self, list, count, set, number)
  local lines = { ("%s %s\n"):format(self.slot, number) }
  for i = #list, 1, -1 do
    if list[i][1] ~= self.slot and #lines < MOST then
      table.insert(lines, 1, ("%s %s\n"):format(list[i][1], list[i][2]))
    end
  end
  return ("%d %d\n"):format(count, set) .. table.concat(lines)
end

-- Has this request, or a later one of its slot, been applied?
local function is_done(self, list, number)
  for _, request in ipairs(list or {}) do
    if request[1] == self.slot then
      return tonumber(request[2]) >= tonumber(number)
    end
  end
end

local function state(list)
  local count = list and list.count or 0
  return { count > 0 and "held" or "free", count }
end

--- The last transaction that made or deleted a node below the path. ABSENT:
--- there is no path; NEVER: no node was ever below it.
---@return any # it
---@return any code, string? detail
local function last_change(self, deadline)
  local err, its, detail = nodes.ask(self.server, deadline, codec.ops.exists,
    self.path, codec.read(self.path))
  if not err then return nil, its, detail end
  if err ~= 0 then return ABSENT end
  local stat = its:stat()
  return stat.changed == stat.created and NEVER or stat.changed
end

--- Makes the node, unless an earlier request of `self` may have done so.
---@return any ... # as nodes.make
local function make(self, deadline, path, data)
  local last, code, detail = last_change(self, deadline)
  if not last then return nil, code, detail end
  if self.before and last ~= self.before then
    return nil, "timeout", path .. ": no reply, and it may have been set and "
      .. "deleted since"
  end
  local ok
  ok, code, detail = nodes.make(self.server, deadline, self.path, path, data)
  if code == "closed" then
    self.before = self.before or last == ABSENT and NEVER or last
  end
  return ok, code, detail
end

--- Changes the node. Retries if it has changed since, or if a reply is lost.
---@param change function of what `read` returns: the new count, and how often
---  it was set; nil: no change
---@return table | boolean | nil # what `read` returned last
---@return any # the new count
---@return string? detail
local function update(self, deadline, number, change)
  local path = path_of(self)
  while true do
    local list, code, detail = read(self, deadline)
    if list == nil then return nil, code, detail end
    if is_done(self, list, number) then return list end
    local count, set = change(list)
    if not count then return list end
    local data = encode(self, list or {}, count, set, number)
    local ok, err
    if list then
      ok, code, detail, err = nodes.set(self.server, deadline, path, data,
        list.version)
      if code == "closed" then self.before = "set" end
    else
      ok, code, detail = make(self, deadline, path, data)
    end
    if ok then return list, count end
    local is_again = ok == false or code == "closed" or code == "connect"
      or err == errors.BAD_VERSION or err == errors.NO_NODE
    if not is_again then return nil, code, detail end
  end
end

local run = {}
latch.operations = run

function run.set(self, deadline, _, number, _, n)
  local ok, code, detail = self:check_kind(deadline)
  if not ok then return nil, code, detail, true end
  local list, count, why = update(self, deadline, number, function(now)
    if not now then return tonumber(n), 1 end
    if now.count == 0 then return tonumber(n), now.set % MOST_SET + 1 end
  end)
  if list == nil then return nil, count, why, true end
  if count or is_done(self, list, number) then return { "held" } end
  return { "refused", ("%d"):format(list.count) }
end

function run.count_down(self, deadline, _, number)
  local list, count, detail = update(self, deadline, number, function(now)
    if not now or now.count == 0 then return nil end
    self.first = self.first or now
    if now.made ~= self.first.made or now.set ~= self.first.set then
      return nil                          -- it was for an earlier latch
    end
    return now.count - 1, now.set
  end)
  if list == nil then return nil, count, detail, true end
  return state(count and { count = count } or list)
end

-- Watches the node if there are waiters.
function run.count(self, deadline)
  local is_watched = self.server.channels.list[self:channel()] ~= nil
  local ok, code, detail = self.server.connection:reach(deadline)
  if not ok then return nil, code, detail end
  if is_watched then self:watch(path_of(self)) end
  local list
  list, code, detail = read(self, deadline, is_watched)
  if list == nil then return nil, code, detail end
  return state(list)
end

function run.delete(self, deadline)
  local was_there, code, detail =
    nodes.delete(self.server, deadline, path_of(self))
  if was_there == nil then return nil, code, detail, true end
  return { was_there and "freed" or "free" }
end

return latch
