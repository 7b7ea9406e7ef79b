--- Where client:compute keeps a value on ZooKeeper. With KEY = name/compute:
---   KEY         the lock, of the kind `compute`
---   KEY/value   persistent: "<fresh> <gone> <until> <failure>\n<value>". The
---               value is fresh until the first time, and kept until the second
---               one; a failure, see recipes/compute.lua, until the third one
--- Times are seconds by the wall clock of the client that computed. Others
--- compare them with their own clocks, because ZooKeeper does not tell its
--- time.

local compute = require "rlock.recipes.compute"
local nodes = require "rlock.zookeeper.nodes"

local store = { most = 524288 }

local ceil = math.ceil

function store.key(name) return name .. "/compute" end

-- The callback for a change of the node.
local function watch(server, path, waiter)
  local link = server.connection
  local function on_change()
    waiter.watched = nil
    if waiter.channel then server.channels:message(waiter.channel.name) end
  end
  waiter.watched = link.link
  waiter.unwatch = function() link:unwatch(path, on_change) end
  link:watch(path, on_change)
end

-- Reads the node. The leader of a flight creates it first, so that it can be
-- watched.
local function get(self, deadline, path, is_watched)
  local server = self.session.server
  while true do
    local data, code, detail = nodes.get(server, deadline, path, is_watched)
    if data ~= false or not self.flight then
      if data == nil then return nil, code, detail end
      return data or ""
    end
    local ok
    ok, code, detail = nodes.make(server, deadline,
      path:match "^(.*)/", path, "")
    if ok == nil and code ~= "closed" and code ~= "connect" then
      return nil, code, detail
    end
  end
end

local function parse(data)
  local fresh, gone, till, failure, at =
    data:match "^(%d+) (%d+) (%d+) ([^\n]*)\n()"
  return tonumber(fresh) or 0, tonumber(gone) or 0, tonumber(till) or 0,
    failure, data:sub(at or 1)
end

--- Reads the state, see recipes/compute.lua. For a waiter whose watch has not
--- fired, sends nothing: the state is unchanged.
function store.read(self, deadline, waiter)
  local server, now = self.session.server, self.session.host.time()
  local path, fault = server:path_of(self.key .. "/value")
  if not path then return nil, "usage", "bad name " .. fault end
  if waiter then
    local ok, code, detail = server.connection:reach(deadline)
    if not ok then return nil, code, detail end
    if waiter.watched == server.connection.link then return false end
    if waiter.unwatch then waiter.unwatch() end
    watch(server, path, waiter)
  end
  local data, code, detail = get(self, deadline, path, waiter ~= nil)
  if not data then return nil, code, detail end
  local fresh, gone, till, failure, value = parse(data)
  return now <= gone and value, now <= fresh, now <= till and failure or nil
end

local function set(self, hold, ...)
  return hold:set(self.key .. "/value", ("%d %d %d %s\n%s"):format(...))
end

--- Stores a value while the hold lasts.
function store.write(self, hold, value)
  local fresh = self.session.host.time() + ceil(self.ttl)
  return set(self, hold, fresh, fresh + ceil(self.stale), 0, "", value)
end

--- Stores a failure while the hold lasts. A stale value remains.
function store.fail(self, hold, failure)
  local session = self.session
  local data = get(self, session.host.now() + session.timeout,
    (session.server:path_of(self.key .. "/value")))
  if not data then return end
  local fresh, gone, _, _, value = parse(data)
  return set(self, hold, fresh, gone, session.host.time() + compute.KEPT,
    failure, value)
end

return { new = function(client, name, options, fn)
  return compute.call(store, client, name, options, fn)
end }
