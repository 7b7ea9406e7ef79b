--- Locks on ZooKeeper, for the commands: see stores.lua. The names of the nodes
--- below a path tell the kind of the lock:
---   lock-              a lock, a fair or a fenced lock, an election: they look
---                      the same
---   latch-             an election, as of Curator's LeaderLatch
---   __READ__ __WRIT__  a read/write lock
---   member-            a double barrier
---   leases, locks      a mutex, or a semaphore, which also has a `limit`; if
---                      rlock's permits have leases, they are permits
---   latch              a latch
--- A path without these is a barrier if its data are those of one.
--- A semaphore of Curator's without a `limit` looks like a mutex while it has
--- one lease.

local barrier = require "rlock.zookeeper.barrier"
local codec = require "rlock.zookeeper.codec"
local errors = require "rlock.zookeeper.errors"
local graph = require "rlockctl.cli.wait_graph"
local identity = require "rlock.util.identity"
local kinds = require "rlockctl.cli.all_kinds"
local latch = require "rlock.zookeeper.latch"
local listing = require "rlockctl.cli.listing"
local place = require "rlock.zookeeper.place"
local queues = require "rlock.zookeeper.queues"
local requests = require "rlockctl.cli.stores.requests"
local tree = require "rlockctl.cli.stores.tree"

local store = { names = tree.names }

local MANY = 100                        -- holders or waiters to describe
local MOST = 100000                     -- names, in the search for waits
local OFTEN = 0.5                       -- seconds between two looks, at most
local LONGEST = 1024                    -- bytes of data to show
local KINDS = { ["lock-"] = "reentrant", ["latch-"] = "election" }
local MODES = { ["__READ__"] = "read", ["__WRIT__"] = "write" }

-- state -> all nodes that hold the lock, or that wait for it, also those that
-- are not described
local holding = setmetatable({}, { __mode = "k" })
local waiting = setmetatable({}, { __mode = "k" })

local titles = { election = "election" }
for _, kind in ipairs(kinds) do titles[kind.name] = kind.title end

-- looking ---------------------------------------------------------------------

local function deadline_of(client)
  return client.session.host.now() + client.session.timeout
end

local function read(client, list)
  return requests.read(client.session.server, deadline_of(client), list)
end

-- The path of a name, or nil, "usage", detail.
local function path_of(client, name)
  local session = client.session
  local ok, bound = pcall(session.server.bind, session.server,
    session.options.backend.load "reentrant", name)
  if not ok then return nil, "usage", tostring(bound) end
  return bound.path
end

local FOLDERS = { locks = true, leases = true }

-- The number of names that are neither nodes of a lock nor their folders.
local function count_others(names)
  local n = 0
  for _, name in ipairs(names or {}) do
    if not place.parse(name) and not FOLDERS[name] then n = n + 1 end
  end
  return n
end

-- What is below a path: `data` of the node itself; the nodes of its `queue`;
-- `locks` and `leases`, of a mutex or semaphore; its `limit`; its
-- `latch`; how many `others` there are.
local function look(client, path)
  local answers, code, detail = read(client, { { "get", path },
    { "children", path }, { "children", path .. "/locks" },
    { "children", path .. "/leases" }, { "get", path .. "/limit" },
    { "get", path .. "/latch" } })
  if not answers then return nil, code, detail end
  for i = 1, 2 do
    local err = answers[i].err
    if err ~= 0 and err ~= errors.NO_NODE then
      return nil, "zookeeper", errors.says(err, path)
    end
  end
  local function sorted(i, folder)
    return queues.sorted(answers[i].value or {}, path .. folder)
  end
  local limit = answers[5].value
  return { data = answers[1].value, others = count_others(answers[2].value)
      + count_others(answers[3].value) + count_others(answers[4].value),
    queue = sorted(2, ""), locks = sorted(3, "/locks"),
    leases = sorted(4, "/leases"),
    limit = limit and #limit == 4 and codec.reader(limit):int() or nil,
    latch = latch.parse(answers[6].value or "") }
end

-- describing ------------------------------------------------------------------

-- A holder or a waiter.
local function describe(node)
  local owner, name, address = queues.maker((node.data or ""):sub(1, LONGEST))
  return { owner = owner or node.name, node = node.name, address = address,
    who = identity.decode(name or ""), mode = MODES[node.mark] }
end

--- Reads the data of the first nodes of two lists.
---@return true?, rlock.failure? code, string? detail
local function read_data(client, holders, waiters)
  local list, reads = {}, {}
  for _, some in ipairs { holders, waiters } do
    table.move(some, 1, math.min(MANY, #some), #list + 1, list)
  end
  for i, node in ipairs(list) do reads[i] = { "get", node.path } end
  local answers, code, detail = read(client, reads)
  if not answers then return nil, code, detail end
  for i, node in ipairs(list) do
    node.data, node.stat = answers[i].value, answers[i].stat
  end
  return true
end

local function described(list)
  local result = {}
  for i = 1, math.min(MANY, #list) do result[i] = describe(list[i]) end
  return result[1] and result
end

-- Do all these nodes end with their session?
local function are_ephemeral(list)
  for _, node in ipairs(list) do
    if node.stat and node.stat.owner == codec.NO_ID then return false end
  end
  return true
end

--- The state of a kind with these holders and waiters.
---@return any # a state
---@return rlock.failure? code, string? detail
local function state_of(client, kind, holders, waiters)
  local ok, code, detail = read_data(client, holders, waiters)
  if not ok then return nil, code, detail end
  local first = holders[1]
  local state = { kind = kind, title = titles[kind],
    state = first and "held" or "free", holders = described(holders) or {},
    queue = described(waiters), waiters = #waiters,
    token = first and first.stat and codec.number(first.stat.created) or nil,
    ends_with = first and are_ephemeral(holders) and "session" or nil }
  holding[state], waiting[state] = holders, waiters
  return state
end

-- The nodes of a sorted list that are not in another one.
local function without(list, others)
  local is_other, rest = {}, {}
  for _, node in ipairs(others) do is_other[node] = true end
  for _, node in ipairs(list) do
    if not is_other[node] then rest[#rest + 1] = node end
  end
  return rest
end

-- A lock whose nodes are children of the path itself.
local function lock_of(client, list)
  if list[1].mark == "member-" then
    return state_of(client, "barrier", list, {})
  end
  local holders = queues.holders(list)
  return state_of(client, KINDS[list[1].mark] or "readwrite", holders,
    without(list, holders))
end

-- Names the holders of permits. All permits of a client's semaphores have the
-- same owner, so their nodes identify them.
local function name_permits(state)
  for _, holder in ipairs(state.holders) do
    if #holder.owner == 32 and not holder.owner:find "%X" then
      state.kind, state.title = "permits", titles.permits
    else
      holder.owner = holder.node
    end
  end
end

-- A mutex or a semaphore. The last lease waits if there is one too many.
local function lease_of(client, seen)
  local leases, waiters, limit = seen.leases, seen.locks, seen.limit
  local is_mutex = not limit
    and (#leases < 2 or #leases == 2 and waiters[1] ~= nil)
  local most = is_mutex and 1 or limit or #leases
  local holders = table.move(leases, 1, math.min(#leases, most), 1, {})
  local state, code, detail = state_of(client,
    is_mutex and "mutex" or "semaphore", holders, waiters)
  if not state then return nil, code, detail end
  if not is_mutex then
    state.token, state.in_use = nil, #holders
    name_permits(state)
  end
  if limit then
    state.available = math.max(limit - #leases, 0)
    state.state = limit > #leases and "free" or "held"
  end
  return state
end

local function latch_of(count)
  return { kind = "latch", title = titles.latch, holders = {}, count = count,
    state = count > 0 and "held" or "free" }
end

local function barrier_without_members(state)
  return { kind = "barrier", title = titles.barrier, holders = {},
    state = state }
end

-- The state of a path without nodes of a lock. A double barrier may still have
-- `ready`.
local function other_of(seen)
  local data = seen.data or ""
  if data == "" and seen.others == 0 then
    return { state = "free", holders = {} }
  elseif barrier.is_log(data) then
    return barrier_without_members "free"
  elseif seen.others == 0 and barrier.is_plain(data) then
    return barrier_without_members "held"
  end
  return { kind = "unknown", state = "unknown", type = "node", holders = {},
    may_be = {}, title = seen.others > 0
      and "a node whose children are no locks'"
      or "a node with data, which is no lock" }
end

-- Some paths have queues of two kinds.
local function queues_of(seen)
  local pairs_, plain = {}, {}
  for _, node in ipairs(seen.queue) do
    local list = MODES[node.mark] and pairs_ or plain
    if node.mark ~= "lease-" then list[#list + 1] = node end
  end
  return pairs_, plain
end

--- See stores.lua.
function store.at(client, name)
  local path, code, detail = path_of(client, name)
  if not path then return nil, code, detail end
  local seen
  seen, code, detail = look(client, path)
  if not seen then return nil, code, detail end
  local states = {}
  for _, list in ipairs { queues_of(seen) } do
    if list[1] then
      states[#states + 1], code, detail = lock_of(client, list)
      if code then return nil, code, detail end
    end
  end
  if seen.leases[1] or seen.limit or seen.locks[1] and not states[1] then
    states[#states + 1], code, detail = lease_of(client, seen)
    if code then return nil, code, detail end
  end
  if seen.latch then states[#states + 1] = latch_of(seen.latch.count) end
  states[1] = states[1] or other_of(seen)
  return states
end

--- The nodes tell the kind.
function store.by()
  return nil, "usage", "--policy is for Redis: on ZooKeeper, the names of the "
    .. "nodes tell the kind"
end

--- The states of `at` have all; others have the identities of their holders.
function store.complete(_, states)
  for _, state in ipairs(states) do
    for i, text in ipairs(state.identities or {}) do
      if state.holders[i] then state.holders[i].who = identity.decode(text) end
    end
  end
  return true
end

-- announced waits -------------------------------------------------------------

-- The wait that a node announces, or nil.
local function wait_of(node)
  local _, name, _, words = queues.maker(node.data or "")
  local wait = words and graph.parse(words)
  if not wait then return nil end
  local since = (node.stat.modified or 0) / 1000
  wait.waited = wait.waited + math.max(os.time() - since, 0)
  wait.who = identity.decode(name)
  return wait
end

--- See stores.lua.
function store.waits(client)
  local rows, code, detail = listing.of(client, { limit = MOST })
  if not rows then return nil, code, detail end
  local waits = {}
  for _, state in ipairs(rows) do
    for _, node in ipairs(waiting[state] or {}) do
      waits[#waits + 1] = wait_of(node)
    end
  end
  return waits
end

--- See stores.lua.
function store.audit(audit)
  return require("rlockctl.doctor.zookeeper").audit(audit)
end

-- breaking --------------------------------------------------------------------

--- Deletes nodes. Their names are unique, so no later hold is broken.
---@return any # whether one was there
---@return rlock.failure? code, string? detail
local function delete(client, list)
  local deletes, was_there = {}, false
  for i, node in ipairs(list) do
    deletes[i] = { "delete", node.path, codec.versioned(node.path) }
  end
  local calls, code, detail = requests.send(client.session.server,
    deadline_of(client), deletes)
  if not calls then return nil, code, detail end
  for i, call in ipairs(calls) do
    if call.err ~= 0 and call.err ~= errors.NO_NODE then
      return nil, "zookeeper", errors.says(call.err, list[i].path)
    end
    was_there = was_there or call.err == 0
  end
  return was_there
end

-- A lock of this kind.
local function lock_named(client, state, name)
  for _, kind in ipairs(kinds) do
    if kind.name == state.kind then
      local lock = client[kind.factory](client, name)
      return kind.pair and lock:read_lock() or lock
    end
  end
end

--- See stores.lua.
function store.locks(client, state, name)
  if not holding[state] or state.in_use then return nil end
  return { {
    request_release = function(_, reason)
      return lock_named(client, state, name):request_release(reason)
    end,
    break_lock = function(_, token)
      if token and tonumber(token) ~= state.token then
        return nil, "refused", "the hold with that token is over"
      end
      return delete(client, holding[state])
    end,
  } }
end

--- See stores.lua. A holder is named by its owner or its node.
function store.free(client, state, _, _, owner)
  local list, is_named = {}, { [owner] = true }
  for _, holder in ipairs(state.holders) do
    if holder.owner == owner then is_named[holder.node] = true end
  end
  for _, node in ipairs(holding[state] or {}) do
    if is_named[node.name] then list[#list + 1] = node end
  end
  local was_there, code, detail = delete(client, list)
  if was_there == nil then return nil, code, detail end
  if was_there then return true end
  return nil, "refused", "there is no such holder"
end

-- waiting ---------------------------------------------------------------------

---@class rlockctl.cli.stores.zookeeper.Waiter
---@field client rlock.client
---@field name string
---@field deadline number
---@field changed any
---@field is_watching any
local Waiter = {}
Waiter.__index = Waiter

--- See stores.lua. It is woken by changes of the queue.
function store.waiter(client, name, _, deadline)
  return setmetatable({ client = client, name = name, deadline = deadline,
    changed = client.session.host.event() }, Waiter)
end

-- Watches what a state depends on.
local function watch(self, state)
  local link = self.client.session.server.connection
  local path = path_of(self.client, self.name)
  if state.kind == "latch" then path = path .. "/latch" end
  if state.kind == "mutex" or state.in_use then path = path .. "/leases" end
  self.is_watching = true
  link:watch(path, function()
    self.is_watching = false
    self.changed:set()
  end)
  link:post(codec.ops[state.kind == "latch" and "get" or "children"],
    codec.read(path, true))
end

--- Waits for a change. The first time, begins to watch.
function Waiter:pause(state)
  if not self.is_watching then
    watch(self, state)
    return true
  end
  local left = math.min(OFTEN, self.deadline - self.client.session.host.now())
  local is_set, code, unwind = self.changed:pause(math.max(left, 0))
  if code == "cancelled" then return nil, code, unwind end
  return true, is_set
end

--- There is nothing to leave.
function Waiter.leave() end

return store
