--- Finds keys of a server that look like locks, by SCAN. Never uses KEYS, and
--- is read-only.
---
--- Most keys of a server are not locks, so only keys that look like one are
--- inspected further. SCAN visits about PAGE keys at a time, and returns those
--- of one type. A hash or a string costs one more command, pipelined for each
--- page.
---   hash     its values are counts, or it has a "mode"; and it has the owner
---            of a client (<uuid>:<number>), or a single field of any name; or
---            the round of a barrier
---   string   the owner of a client, or a token in the format of redis-py,
---            redsync or node-redlock; with `all`, any whole number
---   list     the queue of a fair lock
---   zset     a fair read/write lock, its queue, or the leases of permits
--- Semaphores, latches and unused permits are whole numbers, like many other
--- keys. Two proofs exist: the channel of their waiters, and the keys of
--- requests, which last ten minutes. Without a proof they are found only with
--- `all`. Simple locks whose token has another format are not found.

local glob = require "rlockctl.cli.glob"

local scan = {}

local PAGE = 1000            -- keys that one SCAN visits
local FEW = 10               -- fields of a hash to read, about
local MOST = 1000            -- names, by default
local PROVING = 1            -- seconds to search for the proof of one name
local LONGEST = 64           -- bytes of a string to read

-- what looks like a lock ------------------------------------------------------

local HEX = "%x%x%x%x"
local OWNER = ("^%s%s%%-%s%%-%s%%-%s%%-%s%s%s:%%d+"):format(HEX, HEX, HEX, HEX,
  HEX, HEX, HEX, HEX)

-- Tokens of other clients: 16 or 20 random bytes, in hex or base64.
local TOKENS = { "^" .. HEX:rep(8) .. "$", "^" .. HEX:rep(10) .. "$",
  "^" .. ("[%w+/_-]"):rep(22) .. "=?=?$" }

--- Is it the owner of a client of rlock or Redisson?
function scan.is_owner(text) return text:find(OWNER) ~= nil end

local is_owner = scan.is_owner

-- Whether a page of HSCAN, field, value, ..., belongs to a lock.
local function is_lock(page)
  local has_owner, fields = false, #page // 2
  for i = 1, #page, 2 do
    local field, value = page[i], page[i + 1]
    if type(field) ~= "string" or type(value) ~= "string" then return false end
    if field == "mode" then
      has_owner = has_owner or value == "read" or value == "write"
    elseif field == "" then             -- the mark of a fair lock
      fields = fields - 1
    elseif not value:find("^%d+$") then
      return false
    end
    has_owner = has_owner or is_owner(field)
  end
  return has_owner or fields == 1
end

--- Is it such an owner, or a token of redis-py, redsync or node-redlock?
function scan.is_token(text)
  if is_owner(text) then return true end
  for _, pattern in ipairs(TOKENS) do
    if text:find(pattern) then return true end
  end
  return false
end

-- For each type: the command that reads a key, and a test whether its reply
-- looks like a lock.
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
    fits = function(reply, search)
      if type(reply) ~= "string" then return false end
      local is_number = #reply < 12 and reply:find("^%-?%d+$") ~= nil
      if is_number then search.numbers = search.numbers + 1 end
      return scan.is_token(reply) or search.all and is_number
    end,
  },
}

local SEMAPHORES = "redisson_sc"
local LATCHES = "redisson_countdownlatch__channel__"

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

-- The key of a request: rlock_request:{name}:<client>:<number>[:drained], or
-- rlock_request:{name}:permits.
local REQUESTS = "rlock_request"
local SLOT = ":" .. OWNER:sub(2)

local function without_slot(key, found)
  local at = key:find(SLOT .. "$") or key:find(SLOT .. ":drained$")
    or key:find(":permits$")
  return at and without_prefix(key:sub(1, at - 1), REQUESTS, found)
end

-- The names of locks, derived from keys of these types.
local names_of = {
  hash = function(key, found)
    return without_prefix(key, "rlock_barrier", found)
  end,
  list = function(key, found)
    return without_prefix(key, "redisson_lock_queue", found)
  end,
  zset = function(key, found)
    return without_prefix(key, "rlock_frw", found)
      or without_prefix(key, "rlock_frw_queue", found) or without_suffix(key)
  end,
}

-- scanning --------------------------------------------------------------------

--- Adds the names among keys of a type.
---@return true?, rlock.failure? code, string? detail
local function look_at(search, node, keys, type_)
  local look, commands = looks[type_], {}
  for i, key in ipairs(keys) do commands[i] = look.command(key) end
  if not keys[1] then return true end
  local replies, codes, details =
    node:pipeline(node.host.now() + search.seconds, commands)
  if not replies then return nil, codes, details end
  for i, key in ipairs(keys) do
    if replies[i] == nil and codes[i] ~= "redis" then
      return nil, codes[i], details[i]
    end
    if look.fits(replies[i], search) then search.add(key) end
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

-- Adds the counters of requests.
local function prove(search, _, keys)
  for _, key in ipairs(keys) do
    local name = without_slot(key, search.proven)
    if name then search.proven[name] = true end
    if name and search.matches(name) then search.add(name) end
  end
  return true
end

-- The list, if it is one of texts.
local function texts_in(list)
  if type(list) ~= "table" then return nil end
  for i = 1, #list do
    if type(list[i]) ~= "string" then return nil end
  end
  return list
end

--- Visits all keys of a type that match, a page at a time.
---@return true?, rlock.failure? code, string? detail
local function visit_all(search, node, type_, match, visit)
  local cursor = "0"
  repeat
    local words =
      { "SCAN", cursor, "MATCH", match, "COUNT", PAGE, "TYPE", type_ }
    local page, code, detail =
      node:call(node.host.now() + search.seconds, words, #words)
    if page == nil then return nil, code, detail end
    local keys = texts_in(type(page) == "table" and page[2])
    if not keys or type(page[1]) ~= "string" then
      return nil, "redis", "the reply to SCAN is malformed"
    end
    cursor = page[1]
    local ok
    ok, code, detail = visit(search, node, keys, type_)
    if not ok then return nil, code, detail end
  until cursor == "0" or search.is_full or node.host.now() >= search.deadline
  return true
end

-- The names of counters with waiters: their channels have subscribers. If the
-- server refuses PUBSUB, there are none.
local function listen(search, node)
  local commands = {}
  for _, kind in ipairs { "CHANNELS", "SHARDCHANNELS" } do
    for _, match in ipairs { SEMAPHORES .. ":*", LATCHES .. "{*}" } do
      commands[#commands + 1] = { "PUBSUB", kind, match }
    end
  end
  local replies =
    node:pipeline(node.host.now() + search.seconds, commands) or {}
  for i = 1, #commands do
    for _, channel in ipairs(texts_in(replies[i]) or {}) do
      local name = without_prefix(channel, SEMAPHORES, search.found)
        or channel:match("^" .. LATCHES .. "{(.*)}$")
      if name and search.matches(name) then search.add(name) end
    end
  end
end

local function scan_node(search, node)
  listen(search, node)
  for _, pass in ipairs { { "hash", search.pattern, look_at },
      { "hash", "rlock_barrier:*", derive },
      { "string", REQUESTS .. ":*", prove },
      { "string", search.pattern, look_at },
      { "list", "redisson_lock_queue:*", derive }, { "zset", "*", derive } } do
    local ok, code, detail =
      visit_all(search, node, pass[1], pass[2], pass[3])
    if not ok then return nil, code, detail end
  end
  return true
end

--- The servers of a client: one, or the masters of a cluster.
---@param client table
---@return table? # a list of nodes
---@return rlock.failure? code, string? detail
function scan.nodes(client)
  local node = client.session.server.node
  if not node.masters then return { node } end
  local ok, code, detail =
    node:connect(node.host.now() + client.session.timeout)
  if not ok then return nil, code, detail end
  return node.masters
end

--- Calls visit(node) for each node. Fails only if all of them do: the others'
--- locks are worth showing during an outage.
---@param nodes table
---@param visit function returns true, or nil, code, detail
---@return table? # the failed nodes: node -> true, and `code` and `detail` of
---  the last failure
---@return rlock.failure? code, string? detail
function scan.each(nodes, visit)
  local failed, count = {}, 0
  for _, node in ipairs(nodes) do
    local ok, code, detail = visit(node)
    if not ok then
      failed[node], failed.code, failed.detail = true, code, detail
      count = count + 1
    end
  end
  if count == #nodes then return nil, failed.code, failed.detail end
  return failed
end

local function new_search(client, options)
  local search = { found = {}, names = {}, proven = {}, numbers = 0,
    all = options.all, pattern = options.pattern or "*",
    seconds = client.session.timeout,
    deadline = client.session.host.now() + (options.seconds or math.huge),
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

--- The names of keys that look like locks, sorted.
---@param client table
---@param options? table pattern: of names, as for KEYS; limit: the largest
---  number of names, 1000 by default; all: include any whole number; seconds:
---  when to stop the search
---@return table? # names
---@return any # whether there are more
---@return table|string | nil # further results: `proven`, the names of counters
---  as keys; `numbers`, the number of keys that are whole numbers; `failed`,
---  the masters that failed while others did not: node -> true, and `code` and
---  `detail` of the last failure; detail
function scan.names(client, options)
  local search = new_search(client, options or {})
  local nodes, code, detail = scan.nodes(client)
  if not nodes then return nil, code, detail end
  local left
  left, code, detail = scan.each(nodes, function(node)
    return scan_node(search, node)
  end)
  if not left then return nil, code, detail end
  search.failed = left.code and left
  table.sort(search.names)
  return search.names, search.is_full == true, search
end

--- Visits all strings of a node whose keys match, a page at a time.
---@param client table
---@param node table
---@param match string as for KEYS
---@param visit function called with a list of keys; returns true, or nil, code,
---  detail
---@return boolean? # true
---@return rlock.failure? code, string? detail
function scan.visit(client, node, match, visit)
  return visit_all(new_search(client, {}), node, "string", match,
    function(_, _, keys) return visit(keys) end)
end

-- A pattern that matches only this text.
local function exactly(text) return (text:gsub("[%[%]*?\\]", "\\%0")) end

--- Is the whole number at a key a semaphore or latch of rlock? Searches for its
--- recent requests; gives up after a second.
---@param client table
---@param name string
---@param keys table of a semaphore of that name
---@return boolean
function scan.proves(client, name, keys)
  local search = new_search(client, {})
  local node = client.session.server:node_of(keys)
  search.deadline = node.host.now() + PROVING
  visit_all(search, node, "string", exactly(keys[3]) .. ":*",
    function(_, ...)
      prove(search, ...)
      search.is_full = search.proven[name]
      return true
    end)
  return search.proven[name] == true
end

return scan
