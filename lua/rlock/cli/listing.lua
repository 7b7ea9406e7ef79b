--- Finds the locks of a server: `names` finds keys that look like a lock, by
--  SCAN; `states` inspects them. Never uses KEYS, and changes nothing.
--
--  Most keys of a server are no locks, so a name must look like one before it
--  is inspected. SCAN returns about PAGE names of one type at once; a hash or a
--  string costs one more command, in a pipeline for each page.
--    hash     its values are counts, or it has a "mode"; and it has the owner
--             of a client (<uuid>:<number>), or a single field of any name and
--             an expiry
--    string   the owner of a client, or a token as redis-py, redsync and
--             node-redlock make it; with `all`, any whole number
--    list     the queue of a fair lock
--    zset     a fair read/write lock, its queue, or the leases of permits
--  So these are not found: a semaphore or latch, unless `all` is given; a
--  simple lock whose owner has a name of its own.

local glob = require "rlock.cli.glob"
local inspect = require "rlock.cli.inspect"
local who = require "rlock.cli.who"

local listing = {}

local PAGE = 1000            -- keys that one SCAN visits
local FEW = 10               -- fields of a hash that are looked at, about
local MOST = 1000            -- names that are inspected, by default
local AT_ONCE = 32           -- names that are inspected concurrently
local LONGEST = 64           -- bytes of a string that are looked at

-- what looks like a lock ------------------------------------------------------

local HEX = "%x%x%x%x"
local OWNER = ("^%s%s%%-%s%%-%s%%-%s%%-%s%s%s:%%d+"):format(HEX, HEX, HEX, HEX,
  HEX, HEX, HEX, HEX)

-- Tokens of other clients: 16 or 20 random bytes, in hex or base64.
local TOKENS = { "^" .. HEX:rep(8) .. "$", "^" .. HEX:rep(10) .. "$",
  "^" .. ("[%w+/_-]"):rep(22) .. "=?=?$" }

local function is_owner(text) return text:find(OWNER) ~= nil end

-- Is a page of HSCAN, field, value, ..., of a lock?
local function is_lock(page)
  local has_owner = false
  for i = 1, #page, 2 do
    local field, value = page[i], page[i + 1]
    if field == "mode" then
      has_owner = has_owner or value == "read" or value == "write"
    elseif not value:find("^%d+$") then
      return false
    end
    has_owner = has_owner or is_owner(field)
  end
  return has_owner or #page == 2
end

local function is_token(text)
  if is_owner(text) then return true end
  for _, pattern in ipairs(TOKENS) do
    if text:find(pattern) then return true end
  end
  return false
end

-- What `names` knows of a type: the command that looks at a key, and whether
-- its reply is that of a lock.
local looks = {
  hash = {
    command = function(key) return { "HSCAN", key, "0", "COUNT", FEW } end,
    fits = function(reply)
      return type(reply) == "table" and type(reply[2]) == "table"
        and is_lock(reply[2])
    end,
  },
  string = {
    command = function(key) return { "GETRANGE", key, 0, LONGEST } end,
    fits = function(reply, all)
      if type(reply) ~= "string" then return false end
      return is_token(reply) or all and reply:find("^%-?%d+$") and #reply < 12
    end,
  },
}

-- The name of a lock that has this key as prefix:{name}. The name may have
-- braces itself: it is the rest of the key then.
local function without_prefix(key, prefix, found)
  local rest = key:match("^" .. prefix .. ":(.*)$")
  local inside = rest and rest:match("^{([^{]+)}$")
  return inside and not found[rest] and inside or rest
end

local function without_suffix(key)
  local rest = key:match("^(.+):timeout$")
  if not rest then return nil end
  return rest:match("^{([^{]+)}$") or rest:find("{", 1, true) and rest
end

-- The names that keys of these types tell.
local names_of = {
  list = function(key, found)
    return without_prefix(key, "redisson_lock_queue", found)
  end,
  zset = function(key, found)
    return without_prefix(key, "rlock_frw", found)
      or without_prefix(key, "rlock_frw_queue", found) or without_suffix(key)
  end,
}

-- scanning --------------------------------------------------------------------

-- Adds the names among keys of a type.
-- @return true, or nil, code, detail
local function look_at(search, node, keys, type_)
  local look, commands = looks[type_], {}
  for i, key in ipairs(keys) do commands[i] = look.command(key) end
  if not keys[1] then return true end
  local replies, code, detail =
    node:pipeline(node.host.now() + search.seconds, commands)
  if not replies then return nil, code, detail end
  for i, key in ipairs(keys) do
    if look.fits(replies[i], search.all) then search.add(key) end
  end
  return true
end

local function derive(search, _, keys, type_)
  for _, key in ipairs(keys) do
    local name = names_of[type_](key, search.found)
    if name and search.matches(name) then search.add(name) end
  end
  return true
end

-- Visits all keys of a type. `match` is for SCAN, if the keys are names.
-- @return true, or nil, code, detail
local function scan(search, node, type_, match)
  local cursor, visit = "0", looks[type_] and look_at or derive
  repeat
    local words =
      { "SCAN", cursor, "MATCH", match, "COUNT", PAGE, "TYPE", type_ }
    local page, code, detail =
      node:call(node.host.now() + search.seconds, words, #words)
    if not page then return nil, code, detail end
    cursor = page[1]
    local ok
    ok, code, detail = visit(search, node, page[2], type_)
    if not ok then return nil, code, detail end
  until cursor == "0" or search.is_full
  return true
end

local function scan_node(search, node)
  for _, pass in ipairs { { "hash", search.pattern },
      { "string", search.pattern }, { "list", "redisson_lock_queue:*" },
      { "zset", "*" } } do
    local ok, code, detail = scan(search, node, pass[1], pass[2])
    if not ok then return nil, code, detail end
  end
  return true
end

--- The servers of a client: one, or the masters of a cluster.
-- @tparam table client
-- @treturn[1] table a list of nodes
-- @treturn[2] nil, code, detail
function listing.nodes(client)
  local node = client.session.node
  if not node.masters then return { node } end
  local ok, code, detail =
    node:connect(node.host.now() + client.session.timeout)
  if not ok then return nil, code, detail end
  return node.masters
end

local function new_search(client, options)
  local search = { found = {}, names = {}, all = options.all,
    pattern = options.pattern or "*", seconds = client.session.timeout,
    matches = glob.matcher(options.pattern) }
  function search.add(name)
    if search.found[name] then return end
    search.is_full = #search.names >= (options.limit or MOST)
    if search.is_full then return end
    search.found[name] = true
    table.insert(search.names, name)
  end
  return search
end

--- The names of what look like locks, sorted.
-- @tparam table client
-- @tparam[opt] table options pattern: of names, as for KEYS; limit: at most so
--   many, 1000 by default; all: any whole number is one
-- @treturn[1] table names
-- @treturn[1] boolean whether there are more
-- @treturn[2] nil, code, detail
function listing.names(client, options)
  local search = new_search(client, options or {})
  local nodes, code, detail = listing.nodes(client)
  if not nodes then return nil, code, detail end
  for _, node in ipairs(nodes) do
    local ok
    ok, code, detail = scan_node(search, node)
    if not ok then return nil, code, detail end
  end
  table.sort(search.names)
  return search.names, search.is_full == true
end

-- inspecting ------------------------------------------------------------------

-- Is there something to list? The counter of a fenced lock, for example, stays
-- when it is free. A hash of counts without an expiry is no lock, unless it has
-- the owner of a client.
local function exists(state)
  local first = state.holders[1]
  if not state.kind then return false end
  if state.kind == "reentrant" and not state.ttl and first
      and not is_owner(first.owner) then
    return false
  end
  return state.state ~= "free" or state.queue ~= nil or state.count ~= nil
    or state.available ~= nil
end

-- Where the lock is.
local function place(client, name, state)
  state.name = name
  state.node, state.master, state.slot = client.session.node:master(name)
end

-- A name that is none in a cluster, or a key of another kind, has no row.
local function inspect_one(client, name, rows)
  local states, code, detail = inspect.at(client, name)
  if code == "refused" then return end
  if not states then rows.code, rows.detail = code, detail end
  for _, state in ipairs(states or {}) do
    if exists(state) then
      place(client, name, state)
      rows[#rows + 1] = state
    end
  end
end

-- Adds who the holders and waiters are. CLIENT LIST is read only if somebody's
-- owner may have a name.
local function add_names(client, nodes, rows)
  local is_needed = false
  for _, row in ipairs(rows) do
    is_needed = is_needed or row.holders[1] ~= nil or row.queue ~= nil
  end
  if not is_needed then return end
  local known = who.read(nodes, client.session.timeout)
  for _, row in ipairs(rows) do who.name(known, row) end
end

--- Adds to the states of one name where the lock is and who holds it.
-- @tparam table client
-- @tparam string name
-- @tparam table states  as of inspect.at
function listing.complete(client, name, states)
  for _, state in ipairs(states) do place(client, name, state) end
  add_names(client, listing.nodes(client) or {}, states)
end

-- Runs `work` on each item, a few at once.
local function each(items, work)
  local spawn, tasks, next_item = require("rlock").spawn, {}, 0
  for i = 1, math.min(AT_ONCE, #items) do
    tasks[i] = spawn(function()
      while next_item < #items do
        next_item = next_item + 1
        work(items[next_item])
      end
    end)
  end
  for _, task in ipairs(tasks) do task:join() end
end

--- The states of locks.
-- @tparam table client
-- @tparam table names
-- @treturn[1] table rows, sorted by name: states as of inspect.at, each with
--   its `name`, and `node`, `master` and `slot` as in `rlockctl status`;
--   holders and waiters have `who`, where that is known. What is gone by now
--   has no row
-- @treturn[2] nil, code, detail
function listing.states(client, names)
  local rows, nodes, code, detail = {}, listing.nodes(client)
  if not nodes then return nil, code, detail end
  each(names, function(name) inspect_one(client, name, rows) end)
  if rows.code then return nil, rows.code, rows.detail end
  add_names(client, nodes, rows)
  table.sort(rows, function(a, b)
    return a.name < b.name or a.name == b.name and a.kind < b.kind
  end)
  return rows
end

--- The locks of a client's servers.
-- @tparam table client
-- @tparam[opt] table options as for `names`
-- @treturn[1] table rows, as of `states`
-- @treturn[1] boolean whether there are more
-- @treturn[2] nil, code, detail
function listing.of(client, options)
  local names, more, detail = listing.names(client, options)
  if not names then return nil, more, detail end
  local rows, code, why = listing.states(client, names)
  if not rows then return nil, code, why end
  return rows, more
end

return listing
