--- Opens and starts what a test needs. `close` closes everything, the latest
--- first: clients before the proxies and the servers that they use.
---
---   local fixtures = require "spec.tools.fixtures"
---   local server = fixtures.server()
---   local proxy = fixtures.proxy(server)
---   local client = fixtures.open({ url = proxy.url }, { watchdog = 1 })
---   local lock = client:lock(fixtures.name "lock")    -- a name of its own
---   after_each(fixtures.close)

local control = require "spec.tools.control"
local eventually = require "spec.tools.eventually"
local host = require "rlock.host.uv"
local proxies = require "spec.tools.proxy"
local redis = require "spec.tools.redis"
local rlock = require "rlock"

local fixtures = {}

local TIMEOUT = 3000                     -- ms

local opened, names = {}, 0

local function keep(thing)
  opened[#opened + 1] = thing
  return thing
end

--- Closes everything.
function fixtures.close()
  while opened[1] do
    local thing = table.remove(opened);
    (thing.close or thing.stop)(thing)
  end
end

--- A name that begins with `prefix` and is new.
function fixtures.name(prefix)
  names = names + 1
  return prefix .. ":" .. names
end

--- Starts a server: redis.start.
function fixtures.server(options)
  local server = redis.start(options)
  keep { close = function()
    control.close(server)
    server:stop()
  end }
  return server
end

--- Starts a cluster: cluster.start of spec.tools.cluster.
function fixtures.cluster(options)
  return keep(require("spec.tools.cluster").start(options))
end

--- Starts a proxy in front of a server.
function fixtures.proxy(server) return keep(proxies.start(server)) end

--- Opens a client with `options`, or with `defaults` where those lack one.
--- Either may be a URL.
function fixtures.open(defaults, options)
  local its = {}
  for _, each in ipairs { defaults, options } do
    if type(each) == "string" then each = { url = each } end
    for key, value in pairs(each) do its[key] = value end
  end
  return keep(assert(rlock.open(its)))
end

--- Subscribes to a list of channels.
---@param server table
---@param channels table
---@param note? function (channel, payload) -> the item for the list
---@return table # the payloads so far; the list grows
---@return table # the connection
function fixtures.listen(server, channels, note)
  local heard, live = {}, 0
  local connection = keep(assert(host.connect {
    path = server.socket, timeout = TIMEOUT, silent = 0,
    message = function(kind, channel, payload)
      if kind ~= "message" then
        live = live + 1
      else
        heard[#heard + 1] = note and note(channel, payload) or payload
      end
    end,
  }))
  for _, channel in ipairs(channels) do
    connection:listen("subscribe", channel)
  end
  eventually(function() return live == #channels end)
  return heard, connection
end

--- The messages on a channel while fn() runs.
function fixtures.messages(server, channel, fn)
  local heard, connection = fixtures.listen(server, { channel })
  fn()
  control.ask(server, "PUBLISH", channel, "end")
  eventually(function() return heard[#heard] == "end" end)
  table.remove(heard)
  connection:close()
  return heard
end

return fixtures
