--- Another client of a ZooKeeper server, for the specs: it reads and changes
--- nodes, without the locks of rlock. Runs in a task.
---
---   local peer = require("spec.tools.zookeeper_peer").open(server)
---   peer:names "/a"          -- the children, in order of their numbers
---   peer:get "/a/b"          -- its data, or nil
---   peer:make("/a", "x")     -- a persistent node
---   peer:delete "/a/b"       -- whether it was there; nil and the error
---   peer:is_open "/a"        -- may anyone delete its children?
---   peer:close()

local codec = require "rlock.zookeeper.codec"
local connection = require "rlock.zookeeper.connection"
local host = require "rlock.host.uv"
local url = require "rlock.zookeeper.url"

local peer = {}
peer.__index = peer

local SECONDS = 10

local function nothing() return math.huge end

local function new(server)
  local options = url.parse(server.url)
  options.timeout, options.connect_timeout = SECONDS, SECONDS
  options.watchdog = SECONDS
  return connection.new(host, options, { on_ready = nothing,
    on_dropped = nothing, on_ended = nothing, on_tick = nothing })
end

---@param server table of zookeeper.lua
function peer.open(server)
  local self = setmetatable({ link = new(server) }, peer)
  assert(self.link:reach(host.now() + SECONDS))
  return self
end

-- Sends a request; returns the error and the reader of the answer.
local function ask(self, op, body)
  local deadline = host.now() + SECONDS
  assert(self.link:reach(deadline))
  return assert(self.link:post(codec.ops[op], body):wait(deadline))
end

--- The names of the children in order of their numbers; nil: no such node.
function peer:names(path)
  local err, its = ask(self, "children", codec.read(path))
  if err ~= 0 then return nil end
  local names = its:texts()
  table.sort(names, function(a, b) return a:sub(-10) < b:sub(-10) end)
  return names
end

--- The data of a node, and its stat; nil: no such node.
function peer:get(path)
  local err, its = ask(self, "get", codec.read(path))
  if err == 0 then return its:text() or "", its:stat() end
end

--- Makes a node. Flags and access as in codec.lua; default: persistent, and
--- open to everyone.
---@return any # its path, or nil and the error
function peer:make(path, data, flags, access)
  local err, its = ask(self, "create2", codec.create(path, data or "",
    flags or 0, access))
  if err ~= 0 then return nil, err end
  return its:text()
end

function peer:delete(path)
  local err = ask(self, "delete", codec.versioned(path))
  return err == 0 or nil, err
end

--- May anyone delete the children of a node?
function peer:is_open(path)
  local err, its = ask(self, "get_acl", codec.text(path))
  assert(err == 0, err)
  return its:is_open()
end

--- Ends a session, as its time-out would: by resuming and closing it. Its
--- client may resume it, too, before it is closed.
---@param session table id, password
function peer.end_session(server, session)
  local ends = host.now() + SECONDS
  local err
  repeat
    local link = new(server)
    link.session = { id = session.id, password = session.password }
    assert(link:reach(ends))
    err = link:post(codec.ops.close):wait(ends)
    link:close(ends)
  until err == 0
end

function peer:close() self.link:close(host.now() + SECONDS) end

return peer
