--- A session with ZooKeeper and its current connection. The session outlives
--- the connection: it is resumed with its id and password, perhaps on another
--- server, which cuts off the older connection. The session's ephemeral nodes
--- end with it.
---
--- Requests are answered in order, so any number of them may be in flight, and
--- a later one sees the effects of an earlier one. A request whose connection
--- is lost fails with "closed": it may have been applied. It is not retried
--- here.
---
--- A task keeps the session alive with a `sync` every tenth of its time-out,
--- and with writes while they are needed (see validity.lua). `epoch` counts the
--- sessions.

local backoff = require "rlock.util.backoff"
local codec = require "rlock.zookeeper.codec"
local errors = require "rlock.zookeeper.errors"
local events = require "rlock.util.events"
local singleflight = require "rlock.util.singleflight"
local url = require "rlock.zookeeper.url"
local validity = require "rlock.zookeeper.validity"

---@class rlock.zookeeper.connection
---@field host rlock.host
---@field options table
---@field hooks table
---@field where string
---@field hosts any
---@field next_host number
---@field session table `id`, `password`; `outlives`: see `outlive`
---@field epoch number
---@field seen any
---@field validity any
---@field singleflight rlock.util.singleflight
---@field pause rlock.backoff
---@field not_before number
---@field link any
---@field is_ready boolean
---@field is_closed boolean
---@field calls table
---@field xid number
---@field answered number
---@field watches table
---@field silent any
---@field timeout number
---@field change rlock.event?
local connection = {}
connection.__index = connection

local ceil, huge, max, min = math.ceil, math.huge, math.max, math.min

local FIRST_PAUSE, LAST_PAUSE = 0.05, 1   -- seconds between rounds
local BEAT = 1 / 10                       -- of the time-out, between syncs
local SILENT = 1 / 3                      -- of the time-out, without an answer
local STEADY = 1                          -- seconds: a good connection
local PAST = 3                            -- time-outs that end any session
local LAST_XID = 2147483647
local LOOKS = 2                           -- polls before it is silent
local DELETED = 2                         -- type of an event
local EXPIRED = "the session has expired"

-- A random order, so that clients spread over the servers.
local function shuffled(list, host)
  local copy = {}
  for i, item in ipairs(list) do
    local at = math.floor(host.random_number() * i) + 1
    copy[i] = copy[at]
    copy[at] = item
  end
  return copy
end

---@param host table
---@param options table the result of url.parse; timeout, connect_timeout,
---  watchdog: the time-out to ask for (seconds)
---@param hooks table functions, called outside of any task: on_ready(is_new)
---  connected; is_new: with a new session on_dropped(why) the connection was
---  lost on_ended(why) the session has ended, or may have on_tick(now) in a
---  task of its own: does what is due, and returns when to call it again
---  is_needed() optional: whether anything is held or waited for
function connection.new(host, options, hooks)
  return setmetatable({
    host = host, options = options, hooks = hooks,
    where = url.show(options),
    hosts = shuffled(options.hosts, host), next_host = 1,
    session = { id = codec.NO_ID, password = ("\0"):rep(16) },
    epoch = 0, seen = codec.NO_ID, validity = validity.new(),
    singleflight = singleflight.new(host),
    pause = backoff.new(FIRST_PAUSE, LAST_PAUSE, host.random_number),
    not_before = 0,          -- earliest time of the next round
    link = false,            -- the connection; it may still be shaking hands
    is_ready = false, is_closed = false,
    calls = {}, xid = 0, answered = 0,      -- of the connection
    watches = {},            -- path -> list of functions
  }, connection)
end

-- calls -----------------------------------------------------------------------

---@class rlock.zookeeper.connection.Call
---@field connection any
---@field sent number
---@field on_over any
---@field is_over boolean
---@field err any
---@field its any
---@field code any
---@field detail any
local Call = {}
Call.__index = Call

local function finish(call)
  call.is_over = true
  if call.event then call.event:set() end
  if call.on_over then call:on_over() end
end

--- Waits for the answer.
---@param deadline number by host.now()
---@return integer? # the error, 0 for none
---@return any # a reader of the rest
---@return string? detail # for "cancelled", the value to raise
function Call:wait(deadline)
  if not self.is_over then
    local host = self.connection.host
    self.event = host.event()
    local is_set, code, unwind = self.event:pause(deadline - host.now())
    self.event = nil
    if is_set == nil then return nil, code, unwind end
  end
  if not self.is_over then
    return nil, "timeout", self.connection.where .. ": no answer in time"
  end
  if self.err then return self.err, self.its end
  return nil, self.code, self.detail
end

--- Sends a request, without waiting for its answer.
---@param op integer one of codec.ops
---@param body? string
---@param on_over? function called with the call when it is answered or has
---  failed, outside of any task
---@return table # call, with the fields `sent` and `is_over`; once it is over,
---  also `err` and `its` (a reader), or `code` and `detail`
function connection:post(op, body, on_over)
  local now = self.host.now()
  local call = setmetatable({ connection = self, sent = now,
    on_over = on_over }, Call)
  local ok, code, detail = nil, "connect", "no connection to " .. self.where
  local xid = self.xid % LAST_XID + 1
  if self.link then
    ok, code, detail = self.link.frames:send(codec.request(xid, op, body))
  end
  if not ok then
    call.code, call.detail = code == "closed" and "connect" or code, detail
    finish(call)
    return call
  end
  self.xid, self.calls[xid] = xid, call
  self:wake(now + self.silent)
  return call
end

-- the end of a connection -----------------------------------------------------

-- Limits how often the client reconnects if servers accept connections, but
-- soon end them.
local function rest(self, link)
  local now = self.host.now()
  if now - link.since > STEADY then
    self.pause:reset()
    self.not_before = 0
  else
    self.not_before = now + self.pause:next()
  end
end

-- Ends a connection that was lost, or is left.
local function drop(self, link, why)
  link.why = link.why or why
  if link.frames then link.frames:close() end
  if link ~= self.link then
    link.event:set()                    -- it was shaking hands
    return
  end
  local calls, was_ready = self.calls, self.is_ready
  self.link, self.is_ready, self.calls, self.watches = false, false, {}, {}
  for _, call in pairs(calls) do
    call.code, call.detail = "closed", why
    finish(call)
  end
  link.event:set()
  if was_ready then rest(self, link) end
  if was_ready and self.change then
    events.report(self.host, self.options, "info", "disconnected",
      ("lost the connection to %s: %s"):format(self.where, why),
      { server = self.where, reason = why })
    self.hooks.on_dropped(why)
  end
  self:wake(0)
end

--- Leaves the connection; the next one resumes the session.
function connection:leave(why)
  if self.link then drop(self, self.link, why) end
end

-- The session has ended, so the next handshake begins a new one.
local function end_session(self, why)
  local had_any = self.session.id ~= codec.NO_ID
  self.session = { id = codec.NO_ID, password = ("\0"):rep(16) }
  self.validity.ends, self.seen = 0, codec.NO_ID
  if had_any and not self.is_closed then self.hooks.on_ended(why) end
end

-- arrivals --------------------------------------------------------------------

local function take_event(self, its)
  local kind, _, path = its:int(), its:int(), its:text() or ""
  local list = self.watches[path]
  if its.is_bad or not list then return end
  self.watches[path] = nil
  for _, fn in ipairs(list) do fn(kind == DELETED) end
end

local function take_answer(self, link, xid, zxid, err, its)
  local call = self.calls[xid]
  if not call or xid ~= self.answered % LAST_XID + 1 then
    return drop(self, link, "protocol error: an answer without a request")
  end
  self.calls[xid], self.answered = nil, xid
  if zxid > self.seen and zxid < "\128" then self.seen = zxid end
  call.err, call.its = err, its
  finish(call)
  if errors.of(err).ends and self.link == link then
    drop(self, link, "the server has ended it: " .. errors.of(err).name)
  end
end

local function take(self, link, bytes)
  if link ~= self.link then                 -- the answer to a handshake
    if not link.first and not link.why then
      link.first = bytes
      link.event:set()
    end
    return
  end
  local xid, zxid, err, its = codec.head(bytes)
  if its.is_bad then
    return drop(self, link, "protocol error: a short frame")
  end
  if xid == codec.xids.event then
    take_event(self, its)
  elseif xid == codec.xids.auth then
    link.auth = err
    link.event:set()
  elseif xid ~= codec.xids.ping then
    take_answer(self, link, xid, zxid, err, its)
  end
end

-- connecting ------------------------------------------------------------------

local function open_link(self, at, deadline)
  local link = { event = self.host.event() }
  local frames, code, detail = self.host.frames {
    host = at.host, port = at.port, tls = self.options.tls,
    timeout = ceil(max(0.001, deadline - self.host.now()) * 1000),
    frame = function(bytes) take(self, link, bytes) end,
    lost = function(why) drop(self, link, why) end,
  }
  if not frames then return nil, code, detail end
  link.frames, link.where = frames, ("%s:%d"):format(at.host, at.port)
  return link
end

--- Waits for an event of a link.
---@return true?, rlock.failure? code, string? detail
local function await(self, link, deadline, field)
  while not link[field] and not link.why do
    local is_set = link.event:pause(deadline - self.host.now())
    if not is_set then
      drop(self, link, link.where .. ": no answer in time")
    end
  end
  if link[field] then return true end
  return nil, "connect", link.why
end

-- What to try if a server without a session has ended the connection: one that
-- expects TLS does.
local function hint(self, detail)
  if self.options.tls or self.epoch > 0
      or not (detail:find("reset by peer", 1, true)
        or detail:find("closed the connection", 1, true)) then
    return ""
  end
  return "; zk:// was tried: if this port expects TLS, use zks://"
end

-- Sends the hello, and waits for the session that the server gives.
local function greet(self, link, deadline)
  local sent = self.host.now()
  if self.timeout and sent > self.validity.heard + PAST * self.timeout then
    end_session(self, "the session has expired, because no server was in reach")
  end
  local asked = self.session
  link.frames:send(codec.hello {
    id = self.session.id, password = self.session.password, seen = self.seen,
    timeout = ceil(self.options.watchdog * 1000),
  })
  local ok, code, detail = await(self, link, deadline, "first")
  if code == "connect" then detail = detail .. hint(self, detail) end
  if not ok then return nil, code, detail end
  if self.session ~= asked then         -- `rest` has ended it
    detail = link.where .. ": the session was ended meanwhile"
    drop(self, link, detail)
    return nil, "connect", detail
  end
  ---@type any
  local session = codec.welcome(link.first)
  local has_none = session and session.timeout == 0
  local has_expired = has_none and self.session.id ~= codec.NO_ID
  local fault = not session and "this is not a ZooKeeper server"
    or session.is_read_only
      and "the server is read-only, because it has no quorum"
    or has_expired and EXPIRED
    or has_none and "the server gives no session"
  if not fault then return session, sent end
  detail = ("%s: %s"):format(link.where, fault)
  drop(self, link, detail)
  if has_expired then end_session(self, EXPIRED) end
  return nil, has_expired and "expired" or "connect", detail
end

-- Logs in.
local function log_in(self, link, deadline)
  local options = self.options
  if not options.username then return true end
  link.frames:send(codec.request(codec.xids.auth, codec.ops.auth,
    codec.auth("digest", options.username .. ":" .. (options.password or ""))))
  local ok, code, detail = await(self, link, deadline, "auth")
  if ok and link.auth ~= 0 then
    detail = ("%s: the login of %s was refused"):format(link.where,
      options.username)
    return nil, "refused", detail
  end
  return ok, code, detail
end

-- The chroot must exist: making it could hide a typo.
local function check_chroot(self, deadline)
  local chroot = self.options.chroot
  if chroot == "" or self.has_chroot then return true end
  local err, _, detail = self:post(codec.ops.exists,
    codec.read(chroot)):wait(deadline)
  if err == 0 then
    self.has_chroot = true
    return true
  elseif err == errors.NO_NODE then
    detail = ("%s: there is no node %s; make it, or leave it out of the URL")
      :format(self.where, chroot)
    return nil, "refused", detail
  end
  return nil, "connect", err and errors.says(err, chroot) or detail
end

---@type function
local keep

--- Connects to one server.
---@return true?, rlock.failure? code, string? detail
local function try(self, at)
  local deadline = self.host.now() + self.options.connect_timeout
  local link, code, detail = open_link(self, at, deadline)
  if not link then return nil, code, detail end
  local session, sent
  session, sent, detail = greet(self, link, deadline)
  if not session then return nil, sent, detail end
  local is_new = session.id ~= self.session.id
  if is_new then self.epoch = self.epoch + 1 end
  self.session, self.timeout = session, session.timeout / 1000
  self.silent = min(self.options.timeout, self.timeout * SILENT)
  self.link, self.calls, self.xid, self.answered = link, {}, 0, 0
  self.validity:begin(sent, self.timeout, is_new)
  local ok
  ok, code, detail = log_in(self, link, deadline)
  if ok then ok, code, detail = check_chroot(self, deadline) end
  if not ok or link.why or self.is_closed then
    self:leave(detail or "the client was closed")
    return nil, code or "connect", detail or link.why
  end
  self.is_ready = true
  ---@cast sent -nil
  self.next_beat = is_new and sent + self.timeout * BEAT or 0
  link.since = self.host.now()
  self.address = link.frames:address() or at.host
  if not self.change then
    self.change = self.host.event()
    self.host.service(keep, self, self.change)
  end
  self.hooks.on_ready(is_new)
  return true
end

-- Tries each server once, in turn.
local function round(self)
  local left = self.not_before - self.host.now()
  if left > 0 then self.host.event():pause(left) end
  local ok, code, detail
  for _ = 1, #self.hosts do
    local at = self.hosts[self.next_host]
    repeat
      if self.is_closed then return nil, "closed", "the client was closed" end
      ok, code, detail = try(self, at)
    until code ~= "expired"
    if ok then return true end
    self.next_host = self.next_host % #self.hosts + 1
  end
  self.not_before = self.host.now() + self.pause:next()
  return nil, code, detail
end

--- Connects, if there is no connection.
---@param deadline number by host.now()
---@return true?, rlock.failure? code
---@return string? detail # for "cancelled", the value to raise
function connection:connect(deadline)
  if self.is_ready then return true end
  if self.is_closed then return nil, "closed", "the client was closed" end
  local ok, code, detail = self.singleflight:join("connect", deadline, round,
    self)
  if not ok and code == "timeout" then
    return nil, "connect", ("no connection to %s in time"):format(self.where)
  end
  return ok, code, detail
end

--- As `connect`, but retries while that may succeed.
---@param deadline number by host.now()
---@return any ... # as `connect`
function connection:reach(deadline)
  if self.is_ready then return true end
  local ok, code, detail, last
  repeat
    ok, code, detail = self:connect(deadline)
    if ok or code ~= "connect" then return ok, code, detail end
    last = last and self.host.now() >= deadline and last or detail
  until self.host.now() >= deadline
  return nil, code, last
end

-- keeping the session ---------------------------------------------------------

-- The oldest request without an answer.
local function oldest(self)
  return self.calls[self.answered % LAST_XID + 1]
end

-- Has the server been silent for too long? If the process was suspended,
-- answers may wait in the socket, so the loop polls it first.
local function is_silent(self)
  for look = 0, LOOKS do
    if look > 0 then self.host.event():pause(0.001) end
    local call = oldest(self)
    if not call or self.host.now() < call.sent + self.silent then
      return false
    end
  end
  return true
end

--- Sends a sync, after a write if one is due: a check that there is a root. The
--- reply proves that the session is alive, see validity.lua.
---@param is_idle? boolean do not write
---@return table # call
function connection:sync(is_idle)
  local now, chroot = self.host.now(), self.options.chroot
  local root = chroot ~= "" and chroot or "/"
  self.next_beat = now + self.timeout * BEAT
  if not is_idle and self.validity:needs_write(now) then
    self:post(codec.ops.multi,
      codec.multi { { codec.ops.check, codec.versioned(root) } },
      function(call)
        if call.err == 0 then self.validity:wrote(call.sent) end
      end)
  end
  return self:post(codec.ops.sync, codec.text(root), function(call)
    if call.err == 0 then self.validity:synced(call.sent, self.host.now()) end
  end)
end

--- Does what is due for a connection.
---@return number # when to call this again
local function beat(self, now)
  if is_silent(self) then
    self:leave(("silent for %.2g s while requests waited"):format(self.silent))
    return now
  end
  if self.is_ready and now >= self.next_beat then
    local is_needed = self.hooks.is_needed
    self:sync(not (is_needed and is_needed()))
  end
  local call = oldest(self)
  return min(self.next_beat, call and call.sent + self.silent or huge)
end

-- The task that keeps the session alive, until `change` is replaced.
function keep(self, change)
  while change == self.change do
    local now = self.host.now()
    local next_time = now
    if self.is_ready then
      next_time = beat(self, now)
    else
      self:connect(now + min(1, max(self.validity.ends - now, 0.05)))
    end
    next_time = min(next_time, self.hooks.on_tick(self.host.now()))
    local left = next_time - self.host.now()
    self.wakes_at = next_time
    change:wait(max(left, 0.001))
    self.wakes_at = 0
  end
end

--- Ensures that `on_tick` is called by this time.
function connection:wake(at)
  if self.change and at < (self.wakes_at or 0) then
    self.wakes_at = at
    self.change:set()
  end
end

--- Calls fn(is_deleted) once, when the server reports a change of a node. Call
--- this with the request that sets the watch. A lost connection drops both.
---@param path string
---@param fn function called outside of any task
function connection:watch(path, fn)
  local list = self.watches[path]
  if list then
    list[#list + 1] = fn
  else
    self.watches[path] = { fn }
  end
end

--- Removes a function that was passed to `watch`.
function connection:unwatch(path, fn)
  local list = self.watches[path]
  for i = list and #list or 0, 1, -1 do
    if list[i] == fn then table.remove(list, i) end
  end
  if list and not list[1] then self.watches[path] = nil end
end

-- Ends the session on the server, its connection and its keep-alive task.
local function finish_session(self, deadline, why)
  local change = self.change
  self.change = nil
  if change then change:set() end
  if self.is_ready and not self.session.outlives then
    self:post(codec.ops.close):wait(deadline)
  end
  self:leave(why)
end

--- Lets only its timeout end the current session, and so free its nodes.
function connection:outlive() self.session.outlives = true end

--- Ends the session until the next call of `connect`. This frees its nodes.
---@param deadline number by host.now()
function connection:rest(deadline)
  local why = "the client rests"
  finish_session(self, deadline, why)
  end_session(self, why)
end

--- Ends the session, which frees its nodes at once, and the connection.
---@param deadline number by host.now()
function connection:close(deadline)
  if self.is_closed then return end
  self.is_closed = true
  finish_session(self, deadline, "the client was closed")
end

return connection
