--- Finds a master through Redis Sentinel, and follows its failovers: see
--- "Failover" in README.md. The Sentinels are queried in turn; the first that
--- answers moves to the front, and the others that it names are added. There is
--- one current address at a time: `moved` is called when it changes.
---
--- An answer of an earlier epoch comes from a Sentinel that has missed a
--- failover. If most give such answers, they were set up again, and the latest
--- one is accepted. All are polled, because a message may be missed, or the
--- Sentinel that sends it be cut off from the others.

local backoff = require "rlock.util.backoff"
local duration = require "rlock.util.duration"
local handshake = require "rlock.redis.handshake"
local naming = require "rlock.naming"
local singleflight = require "rlock.util.singleflight"
local url = require "rlock.redis.url"

---@class rlock.redis.sentinel
---@field host rlock.host
---@field master any
---@field moved function
---@field list table
---@field options table
---@field singleflight rlock.util.singleflight
---@field pause rlock.backoff
---@field epoch any
---@field address any
---@field is_suspect boolean
---@field number number
local sentinel = {}
sentinel.__index = sentinel

local CHANNEL = "+switch-master"
local POLL = 2           -- seconds between two polls
local STINT = 60         -- seconds of one task, see `run`
local MOST = 32          -- Sentinels to remember

--- Back-off limits between attempts to subscribe, in seconds.
local FIRST_PAUSE, LAST_PAUSE = 0.1, 2

---@diagnostic disable-next-line: access-invisible
local unpack = table.unpack or unpack

---@param host table
---@param options table those of node.new: sentinels (list of host and port),
---  master, connect_timeout, name, tls, pool, and sentinel (their own username,
---  password, tls)
---@param moved function called with a text when the address changes
function sentinel.new(host, options, moved)
  local own = options.sentinel or {}
  local self = setmetatable({
    host = host, master = options.master, moved = moved, list = {},
    options = {
      username = own.username, password = own.password, name = options.name,
      tls = options.tls, pool = options.pool,
      ms = duration.ms(options.connect_timeout / 3),
    },
    singleflight = singleflight.new(host),
    pause = backoff.new(FIRST_PAUSE, LAST_PAUSE, host.random_number),
    epoch = nil,         -- of the current address, if known
    address = nil,         -- the current address: host and port
    is_suspect = nil,   -- no connection could be made to it
    number = 0,          -- of polls in rotation
  }, sentinel)
  if own.tls == true then own = { tls = options.tls or {} } end
  if own.tls ~= nil then self.options.tls = own.tls or nil end
  for i, at in ipairs(options.sentinels) do
    self.list[i] = { host = at.host, port = at.port, is_given = true }
  end
  return self
end

--- The Sentinels and the master, for messages.
---@param options table those of `new`
function sentinel.show(options)
  return ("%s (Sentinel %s)"):format(options.master,
    url.hosts(options.sentinels))
end

-- one Sentinel ----------------------------------------------------------------

-- Opens a connection. In nginx its pool keeps no sockets.
local function open(self, at, message, lost)
  local options = self.options
  return self.host.connect {
    host = at.host, port = at.port, tls = options.tls, timeout = options.ms,
    silent = message and 0 or options.ms, handshake = handshake(options),
    message = message, lost = lost or function() end,
    pool = options.pool and {
      name = options.pool.name .. ":sentinel",
      idle = options.pool.idle, size = 0,
    },
  }
end

-- A flat list of names and values, as a table.
local function fields(list)
  local named = {}
  for i = 1, type(list) == "table" and #list - 1 or 0, 2 do
    named[list[i]] = list[i + 1]
  end
  return named
end

-- The number in a text of digits.
local function number_in(text)
  return type(text) == "string" and text:find("^%d+$") and #text < 16
    and tonumber(text) or nil
end

-- What a Sentinel knows of the master, from its replies.
local function answer_of(replies)
  local address = replies[2]
  address = type(address) == "table" and url.address(address[1], address[2])
  if not address then return nil end
  local about, others = fields(replies[1]), {}
  for _, list in ipairs(type(replies[3]) == "table" and replies[3] or {}) do
    local other = fields(list)
    others[#others + 1] = url.address(other.ip, other.port)
  end
  return {
    address = address, others = others,
    epoch = number_in(about["config-epoch"]),
    total = (number_in(about["num-other-sentinels"]) or #others) + 1,
  }
end

-- Explains why a Sentinel did not answer.
local function explained(detail)
  detail = tostring(detail)
  local word = detail:match("^%u+")
  if word == "NOAUTH" then
    return "it requires a password: sentinel = { password = ... }, in rlockctl "
      .. "RLOCK_SENTINEL_PASSWORD: " .. detail
  elseif word == "WRONGPASS" or detail:find("^ERR.*AUTH") then
    return "it refuses the user or password of the option sentinel: " .. detail
  elseif detail:find("^ERR unknown command") then
    return "it is not a Sentinel"
  end
  return detail
end

-- The names of the masters that a Sentinel watches.
local function names_of(self, connection)
  local list = connection:send(self.options.ms, { "SENTINEL", "MASTERS" }, 2)
  local names = {}
  for _, master in ipairs(type(list) == "table" and list or {}) do
    local name = fields(master).name
    if type(name) == "string" then
      names[#names + 1] = naming.printable(name)
    end
  end
  table.sort(names)
  return names[1] and table.concat(names, ", ") or "none"
end

--- Queries a Sentinel. A failover may come between two of the commands. So the
--- epoch is asked for before the address: a new address with an old epoch is
--- corrected by the next answer, but an old address with the new epoch is not.
---@return any ... # as `ask`
local function converse(self, connection)
  local replies, codes, details = connection:pipeline(self.options.ms, {
    { "SENTINEL", "MASTER", self.master },
    { "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.master },
    { "SENTINEL", "SENTINELS", self.master },
  })
  local answer = answer_of(replies)
  if answer then return answer end
  if codes[2] then return nil, explained(details[2]) end
  return nil, ("it knows no master %s, only: %s"):format(
    naming.show(self.master), names_of(self, connection)), true
end

--- Queries one Sentinel.
---@return table? # answer: address, epoch, total (of Sentinels), others, who
---@return string? code # why not
---@return boolean? # whether it answered that it does not know the master
local function ask(self, at)
  local connection, _, detail = open(self, at)
  if not connection then return nil, explained(detail) end
  local answer, why, is_unknown = converse(self, connection)
  local identity = connection.identity or connection
  if answer then answer.who = identity.run_id or url.host_port(at) end
  connection:close()
  return answer, why, is_unknown
end

-- answers ---------------------------------------------------------------------

-- Updates the list of Sentinels: first the one that answered, then those of
-- the URL and those that it names.
local function learn(self, at, others)
  local list, known, named = { at }, { [url.host_port(at)] = true }, {}
  for _, other in ipairs(others) do named[url.host_port(other)] = true end
  for _, group in ipairs { self.list, others } do
    for _, other in ipairs(group) do
      local name = url.host_port(other)
      if not known[name] and (other.is_given or named[name])
          and #list < MOST then
        known[name] = true
        list[#list + 1] = other
      end
    end
  end
  self.list = list
end

-- Makes the address in an answer the current one.
local function believe(self, answer)
  local old, new = self.address, answer.address
  self.epoch, self.is_suspect = answer.epoch or self.epoch, nil
  local from, to = old and url.host_port(old), url.host_port(new)
  if from == to then return end
  self.address = new
  if old then
    self.moved(("%s moved from %s to %s"):format(self.master, from, to))
  end
end

-- Accepts an answer that is not older. If an epoch is unknown, every other
-- address is newer. Two Sentinels may write one address in two ways, so a
-- different address of the same epoch counts only if the current one does not
-- work.
local function accept(self, answer)
  local own, its, is_newer = self.epoch, answer.epoch, not self.address
  if own and its and not is_newer then
    if its < own then return false end
    is_newer = its > own
  elseif not is_newer then
    is_newer = url.host_port(self.address) ~= url.host_port(answer.address)
  end
  if is_newer or self.is_suspect then believe(self, answer) end
  return true
end

-- Do most Sentinels give older answers?
local function is_majority(answers)
  local seen, n = {}, 0
  for _, answer in ipairs(answers) do
    if not seen[answer.who] then n = n + 1 end
    seen[answer.who] = true
  end
  return answers[1] and n * 2 > answers[1].total
end

--- Decides after all answers, if any, were older.
---@return any ... # as query_all
local function decide(self, answers, faults, is_unknown)
  table.sort(answers, function(a, b) return a.epoch > b.epoch end)
  if is_majority(answers) then
    believe(self, answers[1])
    return self.address
  elseif answers[1] then
    table.insert(faults, "only Sentinels that have missed a failover answer")
  end
  local what = is_unknown and "no Sentinel knows it" or "no Sentinel answers"
  return nil, "connect", ("%s: %s; %s"):format(self.master, what,
    table.concat(faults, "; "))
end

--- Queries the Sentinels in turn until an answer is accepted.
---@return any # the current address
---@return rlock.failure? code # "connect"
---@return string? detail
local function query_all(self)
  ---@type any, any, any
  local answers, faults, is_unknown = {}, {}, false
  for _, at in ipairs { unpack(self.list) } do      -- which `listen` rotates
    local answer, why, unknown = ask(self, at)
    if self.is_closed then return nil, "closed", "the client was closed" end
    if answer then
      learn(self, at, answer.others)
      if accept(self, answer) then return self.address end
      answers[#answers + 1] = answer
    else
      is_unknown = is_unknown or unknown
      faults[#faults + 1] = url.says(url.host_port(at), why)
    end
  end
  return decide(self, answers, faults, is_unknown)
end

--- Queries the Sentinels for the master's address.
---@param deadline number by host.now()
---@return table? # host and port
---@return rlock.failure? code, string? detail
function sentinel:locate(deadline)
  return self.singleflight:join("locate", deadline, query_all, self)
end

--- Reports that no connection to an address could be made.
---@param address table from `locate`
function sentinel:suspect(address)
  if address == self.address then self.is_suspect = true end
end

-- following -------------------------------------------------------------------

local function is_over(self, ends)
  return self.is_closed or self.is_resting or self.host.now() >= ends
end

local function unsubscribe(self)
  local connection = self.listener
  self.listener = nil
  if connection then connection:close() end
end

-- Subscribes at the first Sentinel of the list, which is moved to the end if
-- that fails.
local function listen(self)
  local at, connection, is_lost = self.list[1], nil, false
  connection = open(self, at, function(kind)
    if kind == "message" then self.is_notified = true end
    self.change:set()
  end, function()
    is_lost = true
    if self.listener == connection then self.listener = nil end
    self.change:set()
  end)
  if connection and not is_lost and not self.is_closed then
    self.listener, self.listened = connection, at
    self.pause:reset()
    connection:listen("subscribe", CHANNEL)
    return
  end
  if connection then connection:close() end
  table.insert(self.list, table.remove(self.list, 1))
end

-- Polls the next Sentinel; after a message, the one that has sent it.
local function poll(self)
  self.number = self.number + 1
  local at = self.list[self.number % #self.list + 1]
  if self.is_notified then
    at, self.is_notified = self.listened, nil
  end
  local answer = ask(self, at)
  if answer and not self.is_closed then accept(self, answer) end
end

-- The task that follows the master. It is replaced after a while: nginx frees
-- the memory of a timer's threads when all of them have ended.
local function run(self)
  local ends = self.host.now() + STINT
  while not is_over(self, ends) do
    if not self.listener then listen(self) end
    if not is_over(self, ends) then poll(self) end
    if not self.is_notified and not is_over(self, ends) then
      self.change:wait(self.listener and POLL or self.pause:next())
    end
  end
  unsubscribe(self)
  self.is_following = false
  if not is_over(self, math.huge) then self:follow() end
end

--- Follows the master from now on.
function sentinel:follow()
  self.is_resting = nil
  if self.is_following or self.is_closed then return end
  self.change = self.host.event()
  self.is_following = true
  self.host.service(run, self)
end

--- Stops following, until the next `follow`.
function sentinel:rest()
  self.is_resting = true
  if self.change then self.change:set() end
end

--- Closes everything.
function sentinel:close()
  self.is_closed = true
  if self.change then self.change:set() end
  unsubscribe(self)
end

return sentinel
