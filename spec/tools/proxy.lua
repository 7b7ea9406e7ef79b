--- Faults between a client and a private Redis, on demand: the Lua interface to
--- proxy.c, which documents the orders.
---
---   local proxy = require("spec.tools.proxy").start(server)
---   rlock.open(proxy.url)
---   proxy:drop_replies(1, "name-of-the-lock")
---   proxy:count("name-of-the-lock")
---   proxy:stop()
---
--- An order takes effect before the call returns. Text is matched against
--- requests on the wire: an EVALSHA contains the script's sha, the key and the
--- owner.

local redis_cli = require "spec.tools.redis_cli"
local shell = require "spec.tools.shell"

local proxy = {}

local Proxy = {}
Proxy.__index = Proxy

--- Starts a proxy in front of `server`, an object of redis.lua. It has .url and
--- .socket, and ends with this process.
function proxy.start(server)
  local folder, pid = shell.daemon(nil, "ready", ([[
    %s "$d/redis.sock" %s "$d/control.sock"]]):format(
    shell.tool "proxy", shell.quote(server.socket)))
  assert(folder, pid)
  local self = setmetatable({
    folder = folder, pid = pid, server = server,
    socket = folder .. "/redis.sock",
  }, Proxy)
  self.url = server.url:sub(1, -#server.socket - 1) .. self.socket
  return self
end

--- Sends an order in proxy.c's words; returns its reply or raises its error.
function Proxy:order(...)
  local answer = redis_cli.run({ path = self.folder .. "/control.sock" },
    { { ... } })
  if answer ~= "OK" and not tonumber(answer) then error(answer, 2) end
  return tonumber(answer) or true
end

function Proxy:drop_replies(n, text)
  return self:order("DROP", "REPLIES", n, text or "")
end

function Proxy:drop_requests(n, text)
  return self:order("DROP", "REQUESTS", n, text or "")
end

function Proxy:drop_messages(n, text)
  return self:order("DROP", "MESSAGES", n, text or "")
end

function Proxy:mute(n, text)
  return self:order("MUTE", n, text or "")
end

function Proxy:cut(n, text)
  return self:order("CUT", n, text or "")
end

function Proxy:pretend(n, text)
  return self:order("PRETEND", n, text or "")
end

function Proxy:hold(seconds, text)
  return self:order("HOLD", ("%.0f"):format(seconds * 1000), text or "")
end

--- Holds back the next n such requests, and all after them on their
--- connections, until :deliver().
function Proxy:late(n, text)
  return self:order("LATE", n, text or "")
end

function Proxy:deliver()
  return self:order("DELIVER")
end

--- The number of connections that have requests held back, or requests that the
--- server has not finished after their client disconnected.
function Proxy:kept()
  return self:order("KEPT")
end

--- Delays a percentage of the requests and replies by up to `seconds`.
function Proxy:delay(percent, seconds, seed)
  return self:order("DELAY", percent, ("%.0f"):format(seconds * 1000), seed)
end

function Proxy:freeze()
  return self:order("FREEZE")
end

function Proxy:thaw()
  return self:order("THAW")
end

--- Closes all connections.
function Proxy:kill()
  return self:order("KILL")
end

function Proxy:count(text)
  return self:order("COUNT", text or "")
end

function Proxy:connections()
  return self:order("CONNECTIONS")
end

function Proxy:reset()
  return self:order("RESET")
end

function Proxy:stop()
  if not self.pid then return end
  os.remove(self.folder .. "/pid")
  shell.finish(self.pid)
  shell.run("rm -rf " .. shell.quote(self.folder))
  self.pid = nil
end

return proxy
