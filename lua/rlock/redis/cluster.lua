--- A Redis Cluster: finds the node for a slot, and follows slots that move. It
--- has the interface of a single node (node.lua).
---
--- CLUSTER SLOTS returns the slot map. After a failure or a redirection it is
--- loaded again: the nodes are queried in turn until one answers. All tasks
--- share one query. Seeds are the addresses of the URL.

local command_keys = require "rlock.redis.command_keys"
local errors = require "rlock.redis.errors"
local naming = require "rlock.naming"
local node = require "rlock.redis.node"
local singleflight = require "rlock.util.singleflight"
local slot = require "rlock.redis.slot"
local url = require "rlock.redis.url"

---@class rlock.redis.cluster
---@field on_moved fun(slots: table)
---@field host rlock.host
---@field options table
---@field where string
---@field singleflight rlock.util.singleflight
---@field nodes table
---@field masters table
---@field is_used table
---@field slots table
---@field patience number
---@field asked any
---@field fault any
---@field shas table
---@field seals table
local cluster = {}
cluster.__index = cluster

local PAUSE = 0.1        -- seconds between two queries, at least
local PATIENCE = 0.5     -- seconds for one node's answer, at first
local REDIRECTIONS = 5   -- of one command

-- The longest back-off of a node, in seconds. Short, because the slot map is
-- loaded again after each failed attempt.
local LAST_PAUSE = 0.3

local min = math.min

---@param host table
---@param options table as for node.new; and seeds = { { host =, port = } }, nat
---  = a table or function: "host:port" of a node -> how to reach it
function cluster.new(host, options)
  return setmetatable({
    host = host, options = options, where = url.hosts(options.seeds),
    singleflight = singleflight.new(host),
    nodes = {},              -- "host:port" -> node; also former ones
    masters = {},            -- nodes with slots, in the order to query them
    is_used = {},            -- node -> whether it has slots
    slots = {},              -- slot -> node
    patience = PATIENCE, asked = -PAUSE,
    fault = nil,             -- of the node that failed last, for messages
    shas = {}, seals = { mode = "none" },        -- as a node has them
  }, cluster)
end

--- Hooks: a node was added; slots have moved (slot -> the old node).
function cluster.on_node() end
function cluster.on_moved() end

-- nodes ----------------------------------------------------------------------

-- Parses "host:port"; nil if it is malformed.
local function split(address)
  if type(address) ~= "string" then return nil end
  return url.address(address:match("^(.*):(%d+)$"))
end

-- What `nat` returns for an address. If it raises, nil and why.
local function ask_nat(self, nat, address)
  if type(nat) == "table" then return nat[address] end
  local ok, its = pcall(nat, address)
  if ok then return its end
  local is_unwind = self.host.is_unwind
  if is_unwind and is_unwind(its) then error(its, 0) end
  return nil, ("the function nat raised an error for %s: %s"):format(address,
    naming.printable(tostring(its)))
end

-- The address by which this client reaches a node, after `nat`; or nil, why.
local function translate(self, address)
  local nat = self.options.nat
  if not nat then return address end
  local its, why = ask_nat(self, nat, address)
  if why then return nil, why end
  if its == nil then return address end
  if split(its) then return its end
  return nil, ("the %s nat returned no host:port for %s, but %s"):format(
    type(nat), address, naming.printable(tostring(its)))
end

local function node_at(self, address)
  local its = self.nodes[address]
  if not its then
    ---@type table, any
    local options, at = { last_pause = LAST_PAUSE }, split(address)
    for key, value in pairs(self.options) do options[key] = value end
    options.host, options.port = at.host, at.port
    its = node.new(self.host, options)
    self.nodes[address] = its
    self.on_node(its)
  end
  return its
end

-- slots ----------------------------------------------------------------------

local MALFORMED = "the reply to CLUSTER SLOTS is malformed"

-- The host in an entry of CLUSTER SLOTS; nil if it is unknown. An empty one is
-- that of the node which answered. "?" is a host name that was not set.
local function host_of(entry, source)
  local host, more = entry[1], entry[4]
  if not host or host == "" then return source.options.host end
  if host ~= "?" then return host end
  for i = 1, type(more) == "table" and #more - 1 or 0, 2 do
    if more[i] == "ip" then return more[i + 1] end
  end
end

-- The address in such an entry; nil if it is unknown; nil, why if the entry is
-- malformed.
local function announced(entry, source)
  local host, port = host_of(entry, source), entry[2]
  if not host or port == 0 then return nil end
  local address = url.address(host, port)
  if not address then return nil, MALFORMED end
  return ("%s:%d"):format(address.host, address.port)
end

-- The node of such an entry; nil if it is unknown; nil, why if the entry is
-- malformed or `nat` fails.
local function node_of(self, entry, source)
  local name, why = announced(entry, source)
  if not name then return nil, why end
  local address
  address, why = translate(self, name)
  if not address then return nil, why end
  local its = node_at(self, address)
  its.announced = name
  return its
end

-- The addresses that the replicas in a range announce, as a set.
local function replicas_in(range, source)
  local set = {}
  for i = 4, #range do
    local entry = range[i]
    local name = type(entry) == "table" and announced(entry, source)
    if name then set[name] = true end
  end
  return set
end

-- Reads one range of the reply.
local function read_range(self, range, map, source)
  if type(range) ~= "table" then return nil, MALFORMED end
  local first, last, entry = range[1], range[2], range[3]
  if type(first) ~= "number" or type(last) ~= "number"
      or type(entry) ~= "table" or first < 0 or last >= slot.count then
    return nil, MALFORMED
  end
  local its, why = node_of(self, entry, source)
  if why then return nil, why end
  local slots, copies = map.slots, map.copies
  for number = first, last do slots[number] = its end
  if its then copies[its] = copies[its] or replicas_in(range, source) end
  return true
end

--- Reads the reply.
---@return table? # `slots`: slot -> node; `copies`: node -> the set of the
---  addresses that its replicas announce
---@return string? # why there is none
local function read(self, reply, source)
  local map = { slots = {}, copies = {} }
  if type(reply) ~= "table" then return nil, MALFORMED end
  if not reply[1] then return nil, "it knows no slots" end
  for _, range in ipairs(reply) do
    local ok, why = read_range(self, range, map, source)
    if not ok then return nil, why end
  end
  return map
end

-- A promoted replica needs as many confirmations as the primary before it. A
-- primary that only gains slots keeps its own count.
local function inherit(old, slots)
  for number, its in pairs(old) do
    local successor = slots[number]
    if successor and its.copies and its.copies[successor.announced]
        and (successor.replicas or 0) < (its.replicas or 0) then
      successor.replicas = its.replicas
    end
  end
end

-- Adopts a new slot map, as `read` returns it.
local function adopt(self, map)
  local slots, masters, is_used, old = map.slots, {}, {}, nil
  for number = 0, slot.count - 1 do
    local its, before = slots[number], self.slots[number]
    if its and not is_used[its] then
      is_used[its], masters[#masters + 1] = true, its
    end
    if before and before ~= its then
      old = old or {}
      old[number] = before
    end
  end
  self.slots, self.masters, self.is_used = slots, masters, is_used
  for _, its in pairs(self.nodes) do
    if its.connection and not self.is_used[its] then
      its:leave(its.connection, "it has no slots of the cluster any more")
      its.not_before = 0        -- it answers, and an older map may name it
    end
  end
  if old then inherit(old, slots) end   -- reads the former `copies`
  for its, set in next, map.copies do its.copies = set end
  if old then self.on_moved(old) end
end

-- queries --------------------------------------------------------------------

-- The nodes to query, in order: the target of a redirection, because others may
-- have an older slot map; those with slots; the seeds.
local function candidates(self)
  local list, seen = {}, {}
  local function add(its)
    if not seen[its] then list[#list + 1] = its end
    seen[its] = true
  end
  if self.named then add(self.named) end
  for _, its in ipairs(self.masters) do add(its) end
  for _, seed in ipairs(self.options.seeds) do
    add(node_at(self, ("%s:%d"):format(seed.host, seed.port)))
  end
  return list
end

--- Queries one node.
---@return any # the map, as `read` returns it
---@return rlock.failure? code, string? detail
local function ask(self, source)
  local reply, code, detail = source:call(
    self.host.now() + min(self.patience, self.options.timeout),
    { "CLUSTER", "SLOTS" }, 2)
  if reply == nil then return nil, code, detail end
  local map, why = read(self, reply, source)
  if not map then return nil, "connect", why end
  return map
end

local advice = {
  { "cluster support disabled", "it is no cluster: use redis://" },
  { "^NOPERM", "permit +cluster|slots; or, behind a proxy, use redis://" },
  { "^ERR unknown command", "a proxy or a managed service hides CLUSTER: use "
    .. "redis://" },
}

-- A node's failure, with what the user can do.
local function explained(source, detail)
  local text = url.says(source.where, tostring(detail))
  for _, case in ipairs(advice) do
    if tostring(detail):find(case[1]) then
      return ("%s (%s)"):format(text, case[2])
    end
  end
  return text
end

--- Queries the nodes until one answers. If none does and one refuses the login,
--- returns its refusal, because a retry will not help.
---@return true?, string? code, string? detail
local function query(self)
  local early = self.asked + PAUSE - self.host.now()
  if early > 0 then self.host.sleep(early) end
  local faults, fault, refused = {}, "connect", nil
  for _, source in ipairs(candidates(self)) do
    if self.is_closed then return nil, "closed", "the client was closed" end
    local map, code, detail = ask(self, source)
    if map then
      self.patience, self.asked, self.named = PATIENCE, self.host.now(), nil
      self.fault = nil
      adopt(self, map)
      return true
    end
    ---@type any
    local class = code == "redis" and errors.classify(detail)
    local is_refusal = class and not class.retry
    fault = is_refusal and "redis" or "connect"
    if is_refusal and class.code == "connect" and not refused then
      refused = detail
    end
    faults[#faults + 1] = explained(source, detail)
    self.fault = faults[#faults]
  end
  self.asked = self.host.now()
  self.patience = min(self.patience * 2, self.options.connect_timeout)
  if refused then return nil, "redis", refused end
  return nil, fault, "no node of the cluster returned a slot map: "
    .. table.concat(faults, "; ")
end

--- Loads the slot map.
---@param deadline number by host.now()
---@return true?, rlock.failure? code, string? detail
function cluster:connect(deadline)
  if self.is_closed then return nil, "closed", "the client was closed" end
  local ok, code, detail =
    self.singleflight:join("query", deadline, query, self)
  if code == "timeout" then
    code, detail = "connect", ("%s: no node answers in time%s"):format(
      self.where, self.fault and "; the last fault is " .. self.fault or "")
  end
  return ok, code, detail
end

--- Loads the slot map again, in the background, after a failure or a
--- redirection: slots may have moved.
---@param failed? table the node that failed: it is queried last
function cluster:suspect(failed)
  if self.is_closed then return end
  for i, its in ipairs(self.masters) do
    if its == failed then
      table.insert(self.masters, table.remove(self.masters, i))
    end
  end
  self.singleflight:start("query", query, self)
end

-- the interface of a node ----------------------------------------------------

local function slot_of(keys)
  local number = keys.slot
  if not number then
    number = slot.of(keys[1])
    keys.slot = number
  end
  return number
end

--- The node that has these keys, if that is known.
---@param keys table of one slot; its number is stored in keys.slot
---@return table?
function cluster:of(keys) return self.slots[slot_of(keys)] end

--- As `of`, but loads the slot map if the node is not known.
---@param keys table
---@param deadline number by host.now()
---@return any # node
---@return rlock.failure? code, string? detail
function cluster:find(keys, deadline)
  if not self:of(keys) then
    local ok, code, detail = self:connect(deadline)
    if not ok then return nil, code, detail end
  end
  local its = self:of(keys)
  if its then return its end
  return nil, "redis", ("CLUSTERDOWN no node of %s has slot %d"):format(
    self.where, slot_of(keys))
end

--- A node for requests that every node can serve.
function cluster:any() return self.masters[1] or candidates(self)[1] end

--- As node:each.
function cluster:each(fn)
  for _, its in pairs(self.nodes) do fn(its) end
  self.on_node = fn
end

--- Does this node have slots?
function cluster:uses(its) return self.is_used[its] == true end

--- The number of nodes that have slots.
function cluster:size() return math.max(#self.masters, 1) end

--- Handles a redirection. Loads the slot map again, in the background.
---@param detail string "MOVED slot host:port" or "ASK slot host:port"
---@return table? # the node; nil if it is unknown
---@return boolean # for ASK: for a single retry only
function cluster:redirect(detail, source)
  ---@type any, any, any
  local word, number, at = detail:match("^(%u+) (%d+) (%S+)")
  local host, port = tostring(at):match("^(.*):(%d+)$")
  number = tonumber(number)
  local its = number and number < slot.count
    and node_of(self, { host, port }, source)
  if not its then
    self:suspect()
    return nil, false
  end
  if word == "ASK" then return its, true end
  local old = self.slots[number]
  self.slots[number], self.is_used[its], self.named = its, true, its
  if old and old ~= its then
    inherit({ [number] = old }, self.slots)
    self.on_moved { [number] = old }
  end
  self:suspect()
  return its, false
end

-- Two keys in different slots, or nil. Other keys are derived from the name,
-- like the one with the suffix "more". The name counts as a key, so that all
-- kinds accept the same names.
local function split_keys(name, keys)
  local names = { naming.suffix(name, "more") }
  for i = 1, #keys do names[i + 1] = keys[i] end
  names[#names + 1] = name
  for i = 1, #names do
    if slot.of(names[i]) ~= slot_of(keys) then return keys[1], names[i] end
  end
end

--- A similar name whose keys are in one slot, or nil.
---@param keys_of? function name -> keys; default: as built-in kinds
local function similar(name, keys_of)
  local plain = name:gsub("[{}]", "")
  if plain == "" then plain = "lock" end
  for _, other in ipairs { plain, "{" .. plain .. "}" } do
    if not keys_of or not split_keys(other, keys_of(other)) then
      return other
    end
  end
end

--- Raises an error if the keys of a lock are in different slots.
---@param name string of the lock
---@param keys table
---@param keys_of? function name -> keys, to suggest another name
function cluster.check_keys(_, name, keys, keys_of)
  local one, other = split_keys(name, keys)
  if not one then return end
  local better = similar(name, keys_of)
  error(("bad lock name %s: its keys %s and %s are in different slots of the "
    .. "cluster; %s"):format(naming.show(name), naming.show(one),
    naming.show(other), better and "use a name such as " .. naming.show(better)
    or "let the policy's keys have the same hash tag, as by rlock.naming"), 0)
end

-- commands of users ----------------------------------------------------------

local function send(self, keys, deadline, words, n)
  local its, code, detail = self:any(), nil, nil
  if keys[1] then its, code, detail = self:find(keys, deadline) end
  if not its then return nil, code, detail end
  local reply, sent
  reply, code, detail, sent = its:call(deadline, words, n)
  for _ = 1, REDIRECTIONS do
    if code ~= "redis" or not errors.classify(detail).redirects then break end
    local is_once
    its, is_once = self:redirect(detail, its)
    its = its or keys[1] and self:connect(deadline) and self:of(keys)
    if not its then break end
    reply, code, detail, sent =
      (is_once and its.ask or its.call)(its, deadline, words, n)
  end
  return reply, code, detail, sent
end

--- Sends one command to the node that has its keys. As node:call.
function cluster:call(deadline, words, n)
  if not self.masters[1] then
    local ok, code, detail = self:connect(deadline)
    if not ok then return nil, code, detail end
  end
  local keys, code, detail = command_keys.of(self, deadline, words, n)
  if not keys then return nil, code, detail end
  return send(self, keys, deadline, words, n)
end

--- As node:interrupt, which a cluster cannot do.
function cluster.interrupt()
  return nil, "usage", "in a cluster, send this to the node concerned: open a "
    .. "client of it, with redis://"
end

--- Opens a connection to some node, as node:open.
function cluster:open(...) return self:any():open(...) end

--- The node that has a key, for messages.
---@param key? string
---@return string? # its address
---@return nil
---@return integer? # the slot
function cluster:master(key)
  if not key then return nil end
  local its = self:of { key }
  return its and its.where, nil, slot.of(key)
end

--- As node:rest.
function cluster.rest() end

--- Closes all connections for good.
function cluster:close()
  self.is_closed = true
  for _, its in pairs(self.nodes) do its:close() end
end

return cluster
