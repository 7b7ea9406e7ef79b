--- A simulated ZooKeeper server, as its clients see it: sessions, ordered
--- requests, reads of its own nodes, and watches. ensemble.lua adds replication
--- and elections.

local codec = require "rlock.zookeeper.codec"
local tree = require "rlockctl.simulate.zookeeper.tree"

---@class rlockctl.simulate.zookeeper.server
---@field [any] any
local server = {}
server.__index = server

local int, ops, text = codec.int, codec.ops, codec.text
local EVENTS = { created = 1, deleted = 2, changed = 3, children = 4 }
local CONNECTED = 3                     -- the state in an event
local LEAST, MOST = 2, 20               -- ticks of a session's time-out

local WRITES = { [ops.create] = true, [ops.delete] = true, [ops.set] = true,
  [ops.multi] = true, [ops.create2] = true, [ops.create_container] = true,
  [ops.close] = true }

---@param ensemble table
---@param number integer
function server.new(ensemble, number)
  local self = setmetatable({
    ensemble = ensemble, number = number, name = "zk" .. number,
    universe = ensemble.universe, network = ensemble.network,
    ids = { last = 0 }, links = {}, inbox = {}, thaws = 0, granted = {},
    role = "looking", since = 0, term = 0, epoch = 0,
    log = {}, applied = 0,              -- transactions; how many are in `tree`
    queues = {},                        -- session -> its requests, in order
    touched = {},                       -- session -> time-out, since a ping
    data = {}, child = {},              -- path -> links that watch it
  }, server)
  self.tree = tree.new(function(what, path) self:notify(what, path) end)
  return self
end

local function zxid(number) return (">I8"):pack(number) end

-- watches ---------------------------------------------------------------------

local function add_watch(list, path, link)
  list[path] = list[path] or {}
  for _, other in ipairs(list[path]) do
    if other == link then return end
  end
  table.insert(list[path], link)
end

-- Sends an event to the watchers of a path, and removes the watches.
local function fire(self, list, path, what, told)
  local links = list[path] or {}
  list[path] = nil
  for _, link in ipairs(links) do
    if link.is_served and not told[link] then
      told[link] = true
      link:push(nil, nil, int(codec.xids.event) .. ("\255"):rep(8) .. int(0)
        .. int(EVENTS[what]) .. int(CONNECTED) .. text(path))
    end
  end
end

--- Notifies the watchers of a node that has changed.
function server:notify(what, path)
  local told = {}
  if what ~= "children" then fire(self, self.data, path, what, told) end
  if what == "children" or what == "deleted" then
    fire(self, self.child, path, what, told)
  end
end

-- requests --------------------------------------------------------------------

local function reply(self, item, err, body)
  if item.xid and item.link.is_served then
    item.link:push(nil, nil, int(item.xid) .. zxid(self.tree.zxid) .. int(err)
      .. body)
  end
end

-- The error with which the leader refuses a read, or nil. A follower refuses
-- none.
local function refusal(self, item)
  local its = self.role == "leader" and self.tracker[item.session]
  if its and its.is_closing then return tree.EXPIRED end
  if its and its.owner and its.owner ~= self then return tree.MOVED end
end

local function read(self, item)
  local refused = refusal(self, item)
  if refused then return refused, "" end
  if item.op == ops.ping or item.op == ops.sync then
    return 0, item.op == ops.sync and item.body or ""
  end
  local err, body, path = self.tree:read(item.op, item.body)
  if path then
    add_watch(item.op == ops.children and self.child or self.data, path,
      item.link)
  end
  return err, body
end

--- Answers the requests of a session, until one waits for the leader.
function server:answer(session)
  local queue = self.queues[session]
  while queue and queue[1] and (queue[1].err or not queue[1].is_sent) do
    local item = table.remove(queue, 1)
    if not item.err then item.err, item.reply = read(self, item) end
    self.ensemble.on_request(self, item)
    if item.link and item.err == tree.MOVED then
      item.link:close_server()
    elseif item.link then
      reply(self, item, item.err, item.reply)
    end
    if item.on_done then item.on_done(item.err) end
  end
  if queue and not queue[1] then self.queues[session] = nil end
end

local function add(self, item)
  local queue = self.queues[item.session] or {}
  self.queues[item.session] = queue
  queue[#queue + 1] = item
  item.is_sent = WRITES[item.op] or item.op == tree.OPEN
    or item.op == ops.sync and self.role == "follower"
  if item.is_sent then self:forward(item) end
  self:answer(item.session)
end

-- sessions --------------------------------------------------------------------

local function password_of(session) return session:reverse() .. session end

local function welcome(self, link, session, timeout)
  if not link.is_served then return end
  link.session = timeout > 0 and session or nil
  link:push(nil, nil, int(0) .. int(timeout)
    .. (timeout > 0 and session or codec.NO_ID)
    .. text(timeout > 0 and password_of(session) or ("\0"):rep(16)) .. "\0")
  if timeout == 0 then link:close_server() end
  self.ensemble.on_session(self, link, session, timeout)
end

local function close_links(self, session, but)
  for _, link in ipairs(table.move(self.links, 1, #self.links, 1, {})) do
    if link.session == session and link ~= but then link:close_server() end
  end
end

local function hello(self, link, bytes)
  local its = codec.reader(bytes)
  its:int()
  local seen, ms, session = its:id(), its:int(), its:id()
  local tick = self.ensemble.tick * 1000
  ms = math.floor(math.max(LEAST * tick, math.min(MOST * tick, ms)))
  if link.is_greeted or seen > zxid(self.tree.zxid) then
    return link:close_server()          -- it must not go back in time
  end
  link.is_greeted = true
  if session == codec.NO_ID then
    session = self.ensemble:new_session()
    return add(self, { op = tree.OPEN, session = session, timeout = ms,
      on_done = function() welcome(self, link, session, ms) end })
  end
  if its:text() ~= password_of(session) then
    return welcome(self, link, session, 0)
  end
  close_links(self, session)
  self:revalidate(session, ms, function(is_valid)
    welcome(self, link, session, is_valid and ms or 0)
  end)
end

--- Called when a frame arrives.
function server:execute(link, words)
  if self.role == "looking" then return link:close_server() end
  if not link.session then return hello(self, link, words[1]) end
  local its = codec.reader(words[1])
  self:touch(link.session)
  add(self, { link = link, session = link.session, xid = its:int(),
    op = its:int(), body = words[1]:sub(9) })
end

--- Removes a closed connection.
function server:unlink(link)
  for i, other in ipairs(self.links) do
    if other == link then return table.remove(self.links, i) end
  end
end

--- Applies the log, up to a length.
function server:apply(length)
  while self.applied < length do
    self.applied = self.applied + 1
    local txn = self.log[self.applied]
    local err, body = self.tree:apply(txn)
    local item = txn.from == self and txn.of == self.term and txn.item
      or txn.leader == self and txn.own
    if item then
      item.err, item.reply = err, body
      self:answer(txn.session)
    end
    self.ensemble.on_apply(self, txn, err, body)
    if txn.op == ops.close and err == 0 then close_links(self, txn.session) end
  end
end

--- Drops all clients.
function server:drop_clients()
  self.queues, self.touched, self.data, self.child = {}, {}, {}, {}
  for _, link in ipairs(table.move(self.links, 1, #self.links, 1, {})) do
    link:close_server()
  end
end

return server
