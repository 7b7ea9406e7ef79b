--- Permits with leases, as programs see them. A permit is known by its id; any
--  task anywhere may give it back or renew it. One that was taken without a
--  lease is kept alive by this client's watchdog; what nobody keeps alive, or
--  gives back, comes back when its lease ends.

local colon = require "rlock.colon"
local deadline = require "rlock.deadline"
local line = require "rlock.line"
local policy = require "rlock.policy"
local remote = require "rlock.remote"
local requests = require "rlock.requests"

local permits = {}
permits.__index = permits

--- @tparam table client the face, kept alive by its permits
-- @tparam string name
function permits.new(client, name)
  local site = client.session:site(client, policy.load("permits"), name)
  -- Those taken here: only the watchdog keeps them, as long as they are valid.
  site.taken = site.taken or setmetatable({}, { __mode = "v" })
  return setmetatable({ session = client.session, site = site }, permits)
end

-- ids -----------------------------------------------------------------------

local function hex(bytes)
  return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

local function bytes_of(id, level)
  if type(id) ~= "string" or #id ~= 32 or id:find("%X") then
    error("bad id: must be the 32 hex digits that acquire gave", level + 1)
  end
  return (id:gsub("..", function(pair)
    return string.char(tonumber(pair, 16))
  end))
end

-- permits that were taken here ------------------------------------------------

local function forget(self, id)
  local permit = self.site.taken[id]
  if not permit then return end
  self.session.watchdog:remove(permit)
  if permit.party then permit.party.grants[permit] = nil end
  self.site.taken[id] = nil
end

-- Gives back in the background what may have been taken.
local function give_back(self, id, seconds)
  local session, site = self.session, self.site
  session:background(function()
    local now = session.host.now()
    remote.run(session.node, site.policy.ops.release, now + seconds, now,
      site.keys, id, "1", "0", session.publish)
  end)
end

-- As the watchdog wants them: see grant.lua for those of locks. `state` is
-- "free" for one with a lease of its own, the end of which is no loss.
local Permit = {}
Permit.__index = Permit

function Permit:show()
  return ("permit %s of %q"):format(hex(self.owner), self.lock.site.name)
end

function Permit:renewal() return self.lock.session.lease_ms, "1" end

--- Whoever took it may be gone; it goes with a task that can end before its
--  work has.
function Permit:is_abandoned()
  return self.lock.session.host.is_over(self.party)
end

--- Gives it back: the task has ended.
function Permit:give_up()
  forget(self.lock, self.owner)
  give_back(self.lock, self.owner, self.lock.session.lease)
end

--- Forgets it: its task has ended, and now its lease, too.
function Permit:drop() forget(self.lock, self.owner) end

function Permit:end_it()
  self.lock.session.watchdog:remove(self)
  self.state, self.on_lost = "lost", nil
end

local function keep(self, id, lease, sent, ends)
  local host = self.session.host
  local permit = setmetatable({
    lock = self, owner = id, valid_until = ends, watched = not lease,
    state = lease and "free" or "held", on_lost = {},
    party = host.ends_tasks and host.current(),
  }, Permit)
  if permit.party then permit.party.grants[permit] = true end
  self.site.taken[id] = permit
  if lease then
    self.session.watchdog:rest(permit)
  else
    self.session.watchdog:watch(permit, sent)
  end
end

-- taking one ------------------------------------------------------------------

-- Of one call that takes a permit.
local Question = {}
Question.__index = Question

function Question:ask(until_, now)
  local handle, id = self.handle, self.id
  local session, site = handle.session, handle.site
  local seconds = self.lease or session.lease
  local reply, sent, detail, may_be_applied = requests.ask(site, "acquire",
    session.node, until_, now, site.keys, id, deadline.ms(seconds), "1",
    session.publish)
  if reply then may_be_applied = detail end
  if may_be_applied then self.is_doubtful = true end
  if not reply then return nil, sent, detail end
  if reply[1] == "busy" then return "busy", reply[2] end
  local ends = session.valid_until(sent, seconds)
  if session.host.now() >= ends then         -- an answer that came too late
    requests.run(handle, "release", id, "1", "0", session.publish)
    return "busy", 0
  end
  keep(handle, id, self.lease, sent, ends)
  return "held", reply[2] > 0 and reply[2] or nil
end

local function take(self, wait, lease)
  local session, site = self.session, self.site
  local id = session.host.random(16)
  local question = setmetatable({
    handle = self, id = id, lease = lease, wants = 1,
    channel = site.policy.channel(site.keys),
    late = ("%q has no permit left"):format(site.name),
  }, Question)
  local verdict, code, detail = line.wait(session, question, wait)
  if verdict and not session.host.has_gone(session.host.current()) then
    return hex(id)
  elseif verdict then                   -- nobody else will give it back
    forget(self, id)
    give_back(self, id, session.lease)
    return nil, "closed", "the task has ended"
  end
  if question.is_doubtful then
    give_back(self, id, lease or session.lease)
  end
  if code == "cancelled" then error(detail, 0) end
  return nil, code, detail
end

local known = { wait = 0, lease = deadline.least_lease }

--- Takes a permit, and waits for one if it must: for ever, if none are ever
--  set.
-- @tparam[opt] table options
--   wait: seconds to wait at most, default for ever.
--   lease: seconds to have it at most; without it the watchdog keeps it.
-- @treturn[1] string its id
-- @treturn[2] nil
-- @treturn[2] string code: "busy", "timeout", "connect", "closed", "redis"
-- @treturn[2] string detail
function permits:acquire(options)
  options = line.options(options, known, 2)
  return self.session.host.whole(take, self, options.wait or math.huge,
    options.lease)
end

--- As acquire, but waits only if told so: otherwise nil, "busy".
function permits:try_acquire(options)
  options = line.options(options, known, 2)
  return self.session.host.whole(take, self, options.wait or 0, options.lease)
end

-- having and giving it back ---------------------------------------------------

local function given_back(reply, may_be_repeated)
  if reply[1] == "freed" or may_be_repeated == true then return true end
  return nil, "lost", "its lease had ended, or nobody has it"
end

--- Gives a permit back; it may have been taken anywhere.
-- @tparam string id
-- @treturn[1] boolean true
-- @treturn[2] nil, "lost", detail: its lease had ended, it was given back
--   before, or there never was such a permit
-- @treturn[3] nil, code, detail: it comes back with its lease at the latest
function permits:release(id)
  local bytes = bytes_of(id, 2)
  forget(self, bytes)
  local reply, code, detail = requests.run(self, "release", bytes, "1", "0",
    self.session.publish)
  if not reply and not self.session.is_closed then
    give_back(self, bytes, self.session.lease)
  end
  return requests.tell(given_back, reply, code, detail)
end

local function renewed(reply)
  if reply[1] == "held" then return true end
  return nil, "lost", "its lease has ended, or it was given back"
end

--- Keeps a permit for so long from now on, if it has not got longer anyway.
-- @tparam string id  it may have been taken anywhere
-- @tparam number lease seconds
-- @treturn[1] boolean true
-- @treturn[2] nil, "lost", detail; nil, code, detail
function permits:renew(id, lease)
  local bytes, session = bytes_of(id, 2), self.session
  lease = deadline.check(lease, "lease", deadline.least_lease, nil, 2)
  local ends = session.valid_until(session.host.now(), lease)
  local reply, code, detail =
    requests.run(self, "renew", bytes, deadline.ms(lease), "1")
  local permit = self.site.taken[bytes]
  if permit and reply and reply[1] == "held" then
    permit.valid_until = math.max(permit.valid_until, ends)
    if not permit.watched then session.watchdog:rest(permit) end
  elseif permit and reply then
    session.watchdog:lose(permit, "its lease has ended")
  end
  return requests.tell(renewed, reply, code, detail)
end

--- Tells of the loss of a permit that was taken through this client: not
--  renewed in time, or taken away.
-- @tparam string id
-- @tparam function fn called once, as a task, with the id and the reason
-- @return true, or nil, "not_held", detail
function permits:on_lost(id, fn)
  if type(fn) ~= "function" then
    error("bad argument fn of permits:on_lost: must be a function", 2)
  end
  local permit = self.site.taken[bytes_of(id, 2)]
  if not permit or permit.state == "lost" then
    return nil, "not_held", "no permit of this client"
  end
  if not permit.watched then permit.state = "held" end
  table.insert(permit.on_lost, { fn = fn, lock = id })
  return true
end

-- how many --------------------------------------------------------------------

local function yes() return true end

--- Makes it n permits in all, those in use included. More of these than n are
--  not taken away, but no other is given until enough of them are back.
-- @tparam integer n
-- @treturn[1] boolean true
-- @treturn[2] nil, code, detail
function permits:set(n)
  n = line.count(n, "n", 0, 2)
  return requests.tell(yes,
    requests.run(self, "set", n, self.session.publish))
end

local function second(reply) return reply[2] end
local function third(reply) return reply[3] end

--- How many permits are there to be had, now.
-- @treturn[1] integer
-- @treturn[2] nil, code, detail
function permits:available()
  return requests.tell(second, requests.run(self, "count"))
end

--- How many permits are in use, now.
-- @treturn[1] integer
-- @treturn[2] nil, code, detail
function permits:acquired()
  return requests.tell(third, requests.run(self, "count"))
end

return colon.methods(permits, "permits",
  "acquire try_acquire release renew on_lost set available acquired")
