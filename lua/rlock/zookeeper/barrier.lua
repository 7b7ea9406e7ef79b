--- Barriers, compatible with Curator's DistributedBarrier and
--- DistributedDoubleBarrier. The operations and replies are those of
--- policy/barrier.lua. Below, "ours" are clients of rlock, and "Curator's" are
--- clients of Curator.
---
--- A plain barrier is the path itself, a persistent node. It stays set until it
--- is removed, even if the client that set it dies, because Curator's node does
--- not say which client set it.
---
--- A double barrier has child nodes: an ephemeral node for each member, and the
--- persistent node `ready` while a round is open. Curator cannot tell a member
--- that leaves from one that dies, and may count a member that has just left.
--- So the data of the path is a *log*. Its first line has the number of the
--- round, the number of the last round that lost a member, and n. The numbers
--- of a new log begin with the id of the transaction that created the path, so
--- that none is reused after the path was deleted. The line with `=` has the
--- number of the last round that ended normally before this one. Every other
--- line is one of our members: `+` and its node if it is in, `-` if it has left
--- or withdrawn. Each change is a compare-and-set on the version that was read.
--- To open a round, one transaction checks that all nodes exist, writes the log
--- and creates `ready`.
---   - If a node of ours is not in the log, its member is entering.
---   - If a member that is in has no node, it has died. The next log counts its
---     round as lost.
--- A member that has left can read later how its round ended. So the path is
--- persistent: the server may delete an empty container at any time.
--- Curator's members count too, but a death looks as if the member had left.
--- The first member in Curator's order leaves last, because Curator relies on
--- that.

local codec = require "rlock.zookeeper.codec"
local errors = require "rlock.zookeeper.errors"
local nodes = require "rlock.zookeeper.nodes"
local place = require "rlock.zookeeper.place"
local target = require "rlock.zookeeper.target"

---@class rlock.zookeeper.barrier: rlock.zookeeper.target
local barrier = setmetatable({}, { __index = target })
barrier.__index = barrier

local ops = codec.ops

local MARK = "member-"
local READY = "ready"
local OURS = "rlock"              -- the end of the data of nodes that we create
local MANY = 100                  -- members in a log before it is pruned
local PLAIN = "0"                 -- the n of a plain barrier
local UNKNOWN = -1                -- milliseconds until a round may change
local RENEWAL = 300               -- milliseconds, for a second of the lease
local ENTERING = 1                -- the number of a round that is not open
local LOST = { "lost" }
local TRY = { wait_ms = 0 }

--- A target for one member, see the back end contract.
---@param slot string
function barrier:with(slot)
  return setmetatable({ slot = slot, base = self, seen = {} },
    { __index = self })
end

--- Is it the data of a plain barrier? Curator writes the client's address, as
--- does rlock, which adds its name.
---@param data string
function barrier.is_plain(data)
  return data:find("^%S* " .. OURS .. "$") ~= nil
    or data:find "^%d+%.%d+%.%d+%.%d+$" ~= nil
    or data:find("^" .. ("%x+:"):rep(7) .. "%x+$") ~= nil
end

-- the log ---------------------------------------------------------------------

local LOG = "^(%d+) (%d+) (%d+)\n"

--- Is it the data of a double barrier that has had members?
---@param data string
function barrier.is_log(data) return data:find(LOG) ~= nil end

---@param first? any the numbers of an empty log; default: 0
local function parse(data, first)
  local round, lost, n = data:match(LOG)
  local log = { round = tonumber(round or first or 0),
    lost = tonumber(lost or first or 0), n = tonumber(n or 0), marks = {},
    good = tonumber(data:match "\n=(%d+)") }
  for mark, name in data:gmatch "\n([+-])([^\n]+)" do log.marks[name] = mark end
  return log
end

local function encode(log)
  local lines = {}
  for name, mark in pairs(log.marks) do lines[#lines + 1] = mark .. name end
  if log.good then lines[#lines + 1] = ("=%d"):format(log.good) end
  table.sort(lines)
  return ("%d %d %d\n%s"):format(log.round, log.lost, log.n,
    table.concat(lines, "\n"))
end

-- Wakes the waiters at the next change of the path.
local function watch(self) (self.base or self):watch(self.path) end

--- Reads the log, then the nodes.
---@return table? # the log, with its `version`, nil if there is no path; `has`,
---  the set of the members' nodes; `first`, the first of them in order;
---  `is_ready`
---@return any code, string? detail
local function look(self, deadline)
  local server, path = self.server, self.path
  local ok, code, detail = server.connection:reach(deadline)
  if not ok then return nil, code, detail end
  watch(self)
  local data, version, created = nodes.get(server, deadline, path, true)
  if data == nil then return nil, version, created end
  local view = parse(data or "", data and codec.number(created))
  view.version, view.has = data and version, {}
  local names, fault, why = nodes.children(server, deadline, path, true)
  if not names then return nil, fault, why end
  for _, name in ipairs(names) do
    if name == READY then
      view.is_ready = true
    else
      view.has[name] = true
      if not view.first or name < view.first then view.first = name end
    end
  end
  return view
end

-- Is the log unchanged since it was read? Then the log does not explain what
-- has changed in the nodes since.
local function is_current(self, view, deadline)
  local data, version, detail = nodes.get(self.server, deadline, self.path)
  if data == nil then return nil, version, detail end
  return data and version == view.version
end

-- May a set be retried? Yes if the log has changed, or the reply was lost.
local function is_again(code, err)
  return code == "closed" or code == "connect" or err == errors.BAD_VERSION
    or err == errors.NO_NODE
end

--- Changes the log.
---@param change function of what `look` returns; false: no change
---@return table? # the log
---@return any code, string? detail
local function update(self, deadline, change)
  while true do
    local view, code, detail = look(self, deadline)
    if not view then return nil, code, detail end
    if change(view) == false or not view.version then return view end
    local ok, err
    ok, code, detail, err = nodes.set(self.server, deadline, self.path,
      encode(view), view.version)
    if ok then return view end
    if not is_again(code, err) then return nil, code, detail end
  end
end

--- Sends a transaction, which may fail.
---@return true?, rlock.failure? code, string? detail
local function transact(self, deadline, parts)
  local err, code, detail =
    self.server.connection:post(ops.multi, codec.multi(parts)):wait(deadline)
  if err or code == "closed" or code == "connect" then return true end
  return nil, code, detail
end

--- Deletes `ready` if no member has a node.
---@return true?, any code, string? detail
local function clear(self, deadline)
  while true do
    local view, code, detail = look(self, deadline)
    if not view then return nil, code, detail end
    if not view.is_ready or view.first then return true end
    local ok
    ok, code, detail = transact(self, deadline, {
      { ops.check, codec.versioned(self.path, view.version) },
      { ops.delete, codec.versioned(self.path .. "/" .. READY) } })
    if not ok then return nil, code, detail end
  end
end

local function is_ours(name) return place.parse(name) == MARK end

-- entering --------------------------------------------------------------------

-- Is a round open whose members have not all left?
local function is_open(view)
  if view.is_ready then return view.first ~= nil end
  for name, mark in pairs(view.marks) do
    if mark == "+" and view.has[name] then return true end
  end
  return false
end

--- Creates the node of a member.
---@return table | boolean | nil # its entry, see target.lua; or false if a
---  round is open
---@return any code, string? detail
local function make(self, deadline, now, id, ms)
  ---@type any, any, any
  local view, code, detail = look(self, deadline)
  if not view then return nil, code, detail end
  if is_open(view) then return false end
  ---@type any
  local ok = true
  if view.is_ready then ok, code, detail = clear(self, deadline) end
  if not ok then return nil, code, detail end
  local reply
  reply, code, detail = target.operations.acquire(self.base, deadline, now, id,
    ms, "1", TRY)
  if not reply then return nil, code, detail end
  if reply[1] == "refused" then return nil, "refused", reply[2] end
  return self.base:held_by(id) or false
end

--- Has Curator opened the round since our node was created? Then our member is
--- in. Our clients log all members that are in when they open a round.
---@return boolean? # nil, code, detail
---@return any ...
local function opened(self, deadline)
  local data, code, made = nodes.get(self.server, deadline,
    self.path .. "/" .. READY)
  if data == nil then return nil, code, made end
  return data and data ~= OURS and made > self.created
end

-- Logs that a member is in a round that Curator opened.
local function note(self, deadline)
  local name = self.node
  return update(self, deadline, function(view)
    if view.marks[name] then return false end
    if view.lost >= view.round then
      view.round, view.marks = view.lost + 1, {}
    end
    view.n, view.marks[name] = 0, "+"
  end)
end

-- Records how the last round ended, in `lost` or `good`. A member that is still
-- in has died.
local function finish(view)
  for _, mark in pairs(view.marks) do
    if mark == "+" then view.lost = view.round end
  end
  if view.lost < view.round then view.good = view.round end
end

--- Opens a round with the first n members that are entering.
---@return true?, rlock.failure? code, string? detail
local function open(self, view, names, n, deadline)
  local path = self.path
  finish(view)
  local log = { round = view.round + 1, lost = view.lost, good = view.good,
    n = n, marks = {} }
  ---@type any[]
  local parts = { false }
  -- Curator's members are first, because they enter even if they are surplus.
  table.sort(names, function(a, b)
    local _, x = place.parse(a)
    local _, y = place.parse(b)
    return (x or -1) < (y or -1)
  end)
  for i, name in ipairs(names) do
    local ours = is_ours(name)
    if ours and i <= n then log.marks[name] = "+" end
    if not ours or i <= n then
      parts[#parts + 1] = { ops.check, codec.versioned(path .. "/" .. name) }
    end
  end
  parts[1] = { ops.set, codec.set(path, encode(log), view.version) }
  parts[#parts + 1] = { ops.create2, codec.create(path .. "/" .. READY, OURS,
    codec.flags.persistent, self.server.access) }
  return transact(self, deadline, parts)
end

-- The members that are entering, and whether one has died since the last call.
local function entering(self, view)
  local names, is_gone = {}, false
  for name in pairs(self.seen) do
    if view.marks[name] then
      self.seen[name] = nil
    elseif not view.has[name] then
      is_gone = true
    end
  end
  for name in pairs(view.has) do
    if not view.marks[name] then
      names[#names + 1] = name
      if is_ours(name) then self.seen[name] = true end
    end
  end
  return names, is_gone
end

--- Logs that a member has left.
---@return true?, any code, string? detail
local function depart(self, deadline)
  local own = self.node
  local view, code, detail = update(self, deadline, function(view)
    if view.marks[own] ~= "+" then return false end
    view.marks[own] = "-"
  end)
  if not view then return nil, code, detail end
  self.has_left = true
  return true
end

-- The reply to a member that is in. It leaves if the others use another n.
local function admit(self, entry, view, n, deadline)
  self.round = view.round
  if view.n == 0 or view.n == n then return { "held", view.round } end
  local ok, code, detail = depart(self, deadline)
  if not ok then return nil, code, detail, true end
  self.server:leave_later(entry)
  return { "refused", ("%d"):format(view.n) }
end

--- Is the member in? Logs it if Curator opened the round.
---@return table | boolean | nil # the log, if it is in; false: it is not
---@return any code, string? detail
local function is_in(self, view, deadline)
  local own = self.node
  if view.marks[own] then return view.marks[own] == "+" and view end
  if not view.is_ready then return false end
  local is_opened, code, detail = opened(self, deadline)
  if not is_opened then return is_opened, code, detail end
  return note(self, deadline)
end

-- Prunes the log lines of members that are gone; rarely, because other members
-- may not have read them yet.
local function prune(view)
  local count = 0
  for _ in pairs(view.marks) do count = count + 1 end
  if count < MANY then return end
  for name in pairs(view.marks) do
    if view.marks[name] == "-" and not view.has[name] then
      view.marks[name] = nil
    end
  end
end

--- Logs that a member has withdrawn, unless it is in.
---@param is_late? boolean even if a round is open
---@return table? # the log
---@return any code, string? detail
local function give_up(self, own, deadline, is_late)
  return update(self, deadline, function(view)
    if view.marks[own] or not view.has[own]
        or view.is_ready and not is_late then
      return false
    end
    prune(view)
    view.marks[own] = "-"
  end)
end

--- Checks whether the round is open, and opens it if possible.
---@return any ... # as run.enter
local function enter(self, entry, n, deadline)
  while true do
    local view, code, detail = look(self, deadline)
    if not view then return nil, code, detail, true end
    if not view.has[self.node] then return LOST end
    local its, ok
    its, code, detail = is_in(self, view, deadline)
    if its == nil then return nil, code, detail, true end
    if its then return admit(self, entry, its, n, deadline) end
    local names, is_gone = entering(self, view)
    if view.is_ready then               -- it arrived while the round was open
      ok, code, detail = give_up(self, self.node, deadline, true)
      if ok and ok.marks[self.node] ~= "+" then
        self.server:leave_later(entry)
        self.node = nil
        return { "busy", UNKNOWN, 0 }
      end
    elseif is_gone then
      ok, code, detail = is_current(self, view, deadline)
      if ok then return LOST end
    elseif #names >= n then
      ok, code, detail = open(self, view, names, n, deadline)
    else
      return { "busy", UNKNOWN, ENTERING }
    end
    if ok == nil then return nil, code, detail, true end
  end
end

-- a plain barrier -------------------------------------------------------------

-- Creates the path. Its parents are container nodes.
local function set(self, deadline)
  local path = self.path
  local parent = path:match "^(.+)/[^/]*$" or "/"
  while true do
    local made, code, detail = nodes.make(self.server, deadline, parent, path,
      (self.server.connection.address or "") .. " " .. OURS)
    if made ~= nil then return { "held", 0 } end
    if code ~= "closed" and code ~= "connect"
        or self.server.host.now() >= deadline then
      return nil, code, detail, true
    end
  end
end

-- operations ------------------------------------------------------------------

local run = setmetatable({}, { __index = target.operations })
barrier.operations = run

function run.enter(self, deadline, now, _, _, n, more)
  if n == PLAIN then return set(self, deadline) end
  local ms, id = more[1], more[2]
  local entry = self.base:held_by(id)
  if not entry and self.node then return LOST end
  if not entry then
    local code, detail
    entry, code, detail = make(self, deadline, now, id, ms)
    if entry == nil then return nil, code, detail, true end
    if not entry then return { "busy", UNKNOWN, 0 } end
    ---@cast entry any
    self.node, self.created = entry.place.node, entry.place.created
  end
  local reply, code, detail, is_unsure =
    enter(self, entry, tonumber(n), deadline)
  return reply, code, detail, is_unsure, now
end

-- Withdraws the member, unless the round has opened with it.
function run.withdraw(self, deadline, now, _, _, ms, more)
  local base, id = self.base, more[1]
  local entry = base:held_by(id)
  if not entry then
    entry = base.entries[id]
    if entry then self.server:leave_later(entry) end
    return { "freed" }
  end
  ---@type any, any, any
  local view, code, detail = give_up(self, self.node, deadline)
  if view then view, code, detail = is_in(self, view, deadline) end
  if view == nil then return nil, code, detail, true end
  if view then
    self.round = view.round
    base:renew(id, now, tonumber(ms))           -- it is valid for that long
    return { "held", view.round }, nil, nil, nil, now
  end
  self.server:leave_later(entry)
  return { "freed" }
end

--- Has the round ended? See policy/barrier.lua.
---@return string? # "free", "lost", or nil: not yet
---@return string? # the name of a member that seems to have died
local function outcome(self, view)
  if view.good == self.round then return "free" end
  if view.lost >= self.round then return "lost" end
  if view.round > self.round then return "free" end
  if view.round < self.round then return "lost" end
  local is_inside, dead = false, nil
  for name, mark in pairs(view.marks) do
    is_inside = is_inside or mark == "+"
    if mark == "+" and not view.has[name] then dead = name end
  end
  for name in pairs(view.has) do
    is_inside = is_inside or not is_ours(name)
  end
  return not is_inside and "free" or nil, dead
end

-- Do members of Curator's rely on our node, because it is first?
local function is_needed(view, own)
  if view.first ~= own then return false end
  for name in pairs(view.has) do
    if not is_ours(name) then return true end
  end
  return false
end

-- Logs that the round has lost a member.
local function lose(self, deadline)
  return update(self, deadline, function(view)
    if view.lost >= self.round or view.round ~= self.round then
      return false
    end
    view.lost = view.round
  end)
end

-- Deletes the node of a member that has left; the last member deletes `ready`.
local function drop(self, entry, deadline)
  if entry and entry.is_held then self.base:drop(entry, deadline) end
  return clear(self, deadline)
end

--- Checks whether the round has ended; logs if it has lost a member.
---@return string|boolean|nil # "free", "lost", or false: not yet
---@return any # the log
---@return string? detail
local function verdict_of(self, deadline)
  while true do
    local view, code, detail = look(self, deadline)
    if not view then return nil, code, detail end
    local verdict, dead = outcome(self, view)
    if not dead then return verdict or false, view end
    local ok
    ok, code, detail = is_current(self, view, deadline)
    if ok then ok, code, detail = lose(self, deadline) end
    if ok == nil then return nil, code, detail end
  end
end

function run.leave(self, deadline, now, _, _, _, more)
  local entry = self.base:held_by(more[1])
  ---@type any, any, any, any, any
  local ok, verdict, view, code, detail = true, nil, nil, nil, nil
  if not self.has_left then
    if not entry then return LOST end
    ok, code, detail = depart(self, deadline)
  end
  if ok then verdict, view, detail = verdict_of(self, deadline) end
  if verdict == nil then return nil, view or code, detail, true end
  local is_kept = not verdict and entry and is_needed(view, self.node)
  if is_kept then
    self.base:renew(entry.owner, now, self.server.options.watchdog * 1000)
  elseif verdict or entry then
    ok, code, detail = drop(self, entry, deadline)
    if not ok then return nil, code, detail, true end
  end
  if verdict then return { verdict } end
  return { "busy", is_kept and RENEWAL * self.server.options.watchdog
    or UNKNOWN, self.round }
end

-- Ends a membership when its client is closed or its task has ended.
function run.release(self, deadline, now, id, ...)
  local entry = self:held_by(id)
  if entry then give_up(self, entry.place.node, deadline) end
  return target.operations.release(self, deadline, now, id, ...)
end

function run.look(self, deadline, _, wanted)
  local path = self.path
  local ok, code, detail = self.server.connection:reach(deadline)
  if not ok then return nil, code, detail end
  watch(self)
  ---@type any, any, any
  local err, its, why = nodes.current(self.server, deadline, function()
    return nodes.ask(self.server, deadline, ops.exists, path,
      codec.read(path, true))
  end)
  if not err then return nil, its, why end
  local made = err == 0 and (codec.number(its:stat().created) or 0)
  if not made or wanted ~= "0" and made ~= tonumber(wanted) then
    return { "free" }
  end
  return { "busy", UNKNOWN, made }
end

function run.remove(self, deadline)
  local was_set, code, detail = nodes.delete(self.server, deadline, self.path)
  if was_set == nil then return nil, code, detail, true end
  return { was_set and "freed" or "free" }
end

return barrier
