--- Finds the locks in a tree of ZooKeeper: nodes with children that are named
--- as those of locks; and barriers, persistent nodes without children. Visits
--- the nodes level by level, never `/zookeeper`. Read-only.

local barrier = require "rlock.zookeeper.barrier"
local codec = require "rlock.zookeeper.codec"
local errors = require "rlock.zookeeper.errors"
local glob = require "rlockctl.cli.glob"
local place = require "rlock.zookeeper.place"
local requests = require "rlockctl.cli.stores.requests"

local tree = {}

local AT_ONCE = 256          -- requests in flight
local MOST = 1000            -- names, by default
local DEEPEST = 32           -- levels
local MOST_NODES = 100000    -- to visit
local MOST_CHILDREN = 50000  -- of a node; the list of more may be too long
local SECONDS = 10           -- by default
local LONGEST = 300          -- bytes of the data of a barrier

-- Is this what the server keeps for itself?
local function is_reserved(path)
  return path == "/zookeeper" or path:sub(1, 11) == "/zookeeper/"
end

-- Where to begin: the part of a pattern before its first wildcard, up to a
-- slash.
local function base_of(pattern)
  local base = (pattern or ""):match "^[^*?%[\\]*":match "^/?(.*)/" or ""
  return base ~= "" and not base:find "//" and "/" .. base or ""
end

-- Stops the search.
local function stop(search, why, ...)
  search.stopped = search.stopped or why:format(...)
end

local function matches(search, name)
  return search.matches(name) or search.matches("/" .. name)
end

local function add(search, name)
  if not matches(search, name) then return end
  search.is_full = #search.names >= search.limit
  if not search.is_full then table.insert(search.names, name) end
end

-- The children of mutexes, semaphores and latches.
local HAS = { leases = true, limit = true, latch = true }
local INSIDE = { leases = true, locks = true }

-- Takes the children of a node; appends those that are to be visited.
local function take(search, node, names, following)
  local is_lock, is_semaphore = false, false
  for _, name in ipairs(names) do
    is_lock = is_lock or place.parse(name) ~= nil
    is_semaphore = is_semaphore or HAS[name] or false
  end
  if node.path ~= "" and (is_semaphore or is_lock and not node.is_inside) then
    add(search, node.path:sub(2))
  end
  for _, name in ipairs(names) do
    local path = node.path .. "/" .. name
    if not place.parse(name) and not is_reserved(search.root .. path) then
      following[#following + 1] = { path = path,
        is_inside = is_semaphore and INSIDE[name] }
    end
  end
end

--- Reads some nodes.
---@return table? # as requests.read
---@return rlock.failure? code, string? detail
local function read(search, op, nodes)
  local reads = {}
  for i, node in ipairs(nodes) do
    local path = search.root .. node.path
    reads[i] = { op, path ~= "" and path or "/" }
  end
  return requests.read(search.server,
    search.server.host.now() + search.seconds, reads)
end

-- May it be a barrier? Only then are its data read.
local function may_be_barrier(search, node, stat)
  return stat.children == 0 and stat.size > 0 and stat.size <= LONGEST
    and stat.owner == codec.NO_ID and node.path ~= ""
    and matches(search, node.path:sub(2))
end

--- Adds the barriers among some nodes.
---@return true?, rlock.failure? code, string? detail
local function add_barriers(search, nodes)
  local answers, code, detail = read(search, "get", nodes)
  if not answers then return nil, code, detail end
  for i, node in ipairs(nodes) do
    if answers[i].value and barrier.is_plain(answers[i].value) then
      add(search, node.path:sub(2))
    end
  end
  return true
end

--- Lists the children of some nodes of a level.
---@return true?, rlock.failure? code, string? detail
local function visit(search, nodes, following)
  local stats, code, detail = read(search, "exists", nodes)
  if not stats then return nil, code, detail end
  local parents, leaves = {}, {}
  for i, node in ipairs(nodes) do
    local stat = stats[i].err == 0 and stats[i].value
    local count = stat and stat.children or 0
    if stat and may_be_barrier(search, node, stat) then
      leaves[#leaves + 1] = node
    end
    if count > MOST_CHILDREN then
      stop(search, "a node has %d children: %s", count, node.path)
    elseif count > 0 or node.path == search.base then
      parents[#parents + 1] = node
    end
  end
  local lists
  lists, code, detail = read(search, "children", parents)
  if not lists then return nil, code, detail end
  for i, node in ipairs(parents) do
    if lists[i].err == 0 then
      take(search, node, lists[i].value, following)
    elseif node.path == search.base and lists[i].err ~= errors.NO_NODE then
      return nil, "zookeeper", errors.says(lists[i].err, node.path)
    else
      search.unread = search.unread + 1
    end
  end
  return add_barriers(search, leaves)
end

-- Visits all nodes of a level; returns those of the next.
local function visit_level(search, level)
  local following = {}
  for first = 1, #level, AT_ONCE do
    local batch = table.move(level, first,
      math.min(first + AT_ONCE - 1, #level), 1, {})
    search.visited = search.visited + #batch
    local ok, code, detail = visit(search, batch, following)
    if not ok then return nil, code, detail end
    if search.is_full then return {} end
    if search.visited >= MOST_NODES then
      stop(search, "after %d nodes", search.visited)
      return {}
    elseif search.server.host.now() >= search.deadline then
      stop(search, "after %g s", search.longest)
      return {}
    end
  end
  return following
end

local function new_search(client, options)
  local server = client.session.server
  local longest = options.seconds or SECONDS
  return { server = server, root = server.options.chroot, names = {},
    limit = options.limit or MOST, seconds = client.session.timeout,
    longest = longest, deadline = server.host.now() + longest,
    base = base_of(options.pattern),
    visited = 0, unread = 0, matches = glob.matcher(options.pattern) }
end

-- Why the list may be incomplete, or nil.
local function gap(search)
  local why = search.stopped and "the search stopped early: " .. search.stopped
  if search.unread > 0 then
    why = ("%s%d node%s cannot be listed by this login"):format(
      why and why .. "; " or "", search.unread,
      search.unread == 1 and "" or "s")
  end
  return why
end

--- The names of locks, sorted.
---@param client table
---@param options? table pattern: of names, as for Redis' KEYS; limit: the
---  largest number of names, 1000 by default; seconds: when to stop the search,
---  10 by default
---@return table? # names
---@return any # whether there may be more
---@return table|string | nil # further results: `gap`, why the list may be
---  incomplete; detail
function tree.names(client, options)
  options = options or {}
  local search = new_search(client, options)
  if is_reserved(search.root .. search.base) then return {}, false, {} end
  local level, depth = { { path = search.base } }, 0
  while level[1] do
    if depth == DEEPEST then
      stop(search, "below %d levels", depth)
      break
    end
    local code, detail
    level, code, detail = visit_level(search, level)
    if not level then return nil, code, detail end
    depth = depth + 1
  end
  table.sort(search.names)
  local why = gap(search)
  return search.names, search.is_full or why ~= nil, { gap = why }
end

return tree
