--- Leader election: of all candidates for one name, exactly one leads. The
--- leader holds a lock that is granted in order of arrival (on Redis the fair
--- lock). The election owns it, not a task, so any task may resign.
---
--- The lock's owner name contains the identity of the process (identity.lua),
--- so any process can see who leads. Each campaign uses a new owner name, so
--- pending requests of the previous campaign, such as its release, neither
--- delay the new one nor end its hold.
---
--- If renewals fail, a leader steps down `margin` seconds before its hold may
--- expire, and keeps the hold until then. So its callbacks have time to stop
--- the work before another candidate leads.

local PASSED = require "rlock.util.deadline".passed
local check = require "rlock.util.options"
local colon = require "rlock.util.colon"
local identity = require "rlock.util.identity"
local naming = require "rlock.naming"
local owner = require "rlock.lock.owner"

---@class rlock.election
---@field lock rlock.lock makes its holder the leader, see `rlockctl run`
---@field client rlock.client internal
---@field session rlock.session internal
---@field name string
---@field options? table internal
---@field term table | false internal
---@field is_campaigning boolean internal
---@field callbacks function[] internal
local election = {}
election.__index = election

local MARGIN, MOST = 0.1, 1             -- a part of the validity; seconds
local FAMILY = {}                       -- of the owners' names, see owner.lua

local min, max = math.min, math.max

local check_options = check.table({ layout = check.that('"latch" or "selector"',
  function(layout) return layout == "latch" or layout == "selector" end) },
  'a table such as { layout = "latch" }', "client:election")

local check_function = check.type "function"

-- A new owner name: unique, and identifies the process.
local function owner_name(session)
  local id = owner.name_for({}, session, FAMILY)
  local who = identity.decode(session.options.connection_name or "")
  if not who then return id end
  who.id = id
  return identity.encode(who)
end

-- A lock whose holder leads, with a new owner name.
local function candidate(client, name, options)
  local layout = check_options(options, 3).layout
  local kinds = client.session.options.backend.elections
  if layout and not kinds then
    error(("bad option layout of client:election: %q is for nodes of Curator "
      .. "on ZooKeeper, and this is Redis: leave it out"):format(layout), 3)
  end
  return client:policy(kinds and kinds[layout or "own"] or "fair", name,
    { owner = owner_name(client.session) })
end

--- The nodes of Curator's LeaderLatch or LeaderSelector; on ZooKeeper only.
---@alias rlock.election_options {
---   layout?: "latch" | "selector", [string]: nil }

--- Creates an election.
---@param client rlock.client
---@param name string
---@param options? rlock.election_options
---@return rlock.election
function election.new(client, name, options)
  return setmetatable({
    lock = candidate(client, name, options),
    client = client, name = name, options = options, session = client.session,
    term = false,         -- the last: hold, margin, is_over, over (an event)
    is_campaigning = false, callbacks = {},
  }, election)
end

local function tell(self, leads, why)
  for _, fn in ipairs(self.callbacks) do
    self.session.host.spawn(fn, leads, why)
  end
end

-- Ends a term, before its hold is released.
local function finish(self, term, why)
  term.is_over = true
  self.session.closing[term.over] = nil
  term.over:set()
  tell(self, false, why)
end

local function step_down(self, term, why)
  if term.is_over then return end
  local hold = term.hold
  finish(self, term, why or self.session.is_closed and "the client was closed"
    or hold.hold.grant.lost_because or "not renewed in time")
  if self.session.is_closed then return end     -- `close` releases the hold
  self.session:background(function()
    self.session.host.sleep(hold:valid_for())
    hold:unlock()
  end)
end

-- Seconds until a term ends, unless its hold is renewed.
local function left_of(term)
  local valid = term.hold:valid_for()
  term.margin = max(term.margin, min(MARGIN * valid, MOST))
  return valid - term.margin
end

-- A background task: ends a term before its hold expires, and when the client
-- is closed.
local function watch(self, term)
  while not term.is_over do
    local left = left_of(term)
    if left <= 0 or self.session.is_closed then
      return step_down(self, term)
    end
    local _, code = term.over:pause(left)
    if code then return end             -- the program ends
  end
end

local function stopped(self) self.is_campaigning = false end

local function take(self, wait)
  self.lock = candidate(self.client, self.name, self.options)
  return self.lock:hold { wait = wait }
end

local function campaign(self, wait)
  if self:is_leader() then return true, self.term.hold:token() end
  if wait < 0 then return nil, "timeout", PASSED end
  if self.is_campaigning then
    return nil, "refused", "another task campaigns in this election object; "
      .. "make one for each candidate"
  end
  self.is_campaigning = true
  local host = self.session.host
  local hold, code, detail = host.guard(stopped, self, take, self, wait)
  self.is_campaigning = false
  if not hold then return nil, code, detail end
  local term = { hold = hold, margin = 0, is_over = false, over = host.event() }
  self.term, self.session.closing[term.over] = term, true
  hold:on_lost(function(_, reason) step_down(self, term, reason) end)
  tell(self, true)
  host.service(watch, self, term)
  return true, hold:token()
end

--- Waits until this candidate leads, in order of arrival. Returns at once if it
--- leads already.
--- Without a `wait` it waits forever, even while the server is unreachable,
--- unless an error is permanent.
---@param options? rlock.wait_options
---@return true?
---@return integer | rlock.code | nil # the fencing token, on ZooKeeper. Or
---  "timeout"; "refused": another task campaigns in this object, or as for
---  `lock`; "connect", "closed", "zookeeper", "redis"
---@return string? detail
function election:campaign(options)
  local wait = check.of_wait(options).wait or math.huge
  return self.session.host.whole_wait(campaign, self, wait)
end

--- Does this candidate certainly lead? Sends no request. A leader steps down
--- when a tenth of the lock's usual validity is left, or a second if that is
--- less. Then this is false until the candidate wins another campaign.
---@return boolean
function election:is_leader()
  local term = self.term
  if not term or term.is_over then return false end
  if left_of(term) > 0 then return true end
  step_down(self, term)
  return false
end

--- Seconds for which no other candidate can lead, even after this one stepped
--- down; 0 if it does not hold the lock.
---@return number
function election:valid_for()
  return self.term and self.term.hold:valid_for() or 0
end

--- Resigns, so that the next candidate leads. Any task may call this.
---@return true?
---@return rlock.code? code "not_held": it does not lead; or as for `unlock`
---@return string? detail
function election:resign()
  local term = self.term
  if not self:is_leader() then
    return nil, "not_held", "this candidate does not lead"
  end
  finish(self, term, "resigned")
  return term.hold:unlock()
end

--- Registers a callback for each change: when this candidate becomes the
--- leader, and when it has resigned, stepped down or lost the lock.
---@param fn fun(leads: boolean, reason?: string) called as a task
function election:on_change(fn)
  check_function(fn, "fn of election:on_change", 2)
  table.insert(self.callbacks, fn)
end

-- An owner as text, such as: web3: invoice.lua (pid 412). Untrusted.
local function show(text, known)
  local who = identity.decode(text) or identity.decode(known or "")
  return naming.printable(who and identity.show(who) or text)
end

--- Who leads? Asks the server, so any process can ask.
---@return string | false | nil # such as "web3: invoice.lua (pid 412)"; false:
---  nobody. For a leader without an identity: its owner name, or the id of a
---  Curator participant
---@return rlock.lock_state | rlock.code | nil # as lock:peek returns it; or
---  the code
---@return string? detail
function election:leader()
  local state, code, detail = self.lock:peek()
  if not state then return nil, code, detail end
  local first = state.holders[1]
  return first and show(first.owner, state.identities and state.identities[1])
    or false, state
end

--- Who waits to lead? Asks the server.
---@return string[]? # at most 100 texts as `leader` returns them, the next
---  leader first
---@return rlock.code? code, string? detail
function election:candidates()
  local state, code, detail = self.lock:peek()
  if not state then return nil, code, detail end
  local list = {}
  for i, waiter in ipairs(state.queue or {}) do list[i] = show(waiter) end
  return list
end

--- The election's name, for messages.
function election:__tostring()
  return "election " .. naming.show(self.name)
end

return colon.methods(election, "election",
  "campaign is_leader valid_for resign on_change leader candidates")
