--- A network between this process and a private Redis, each in a network
--- namespace of its own, which loses all packets of one way or of both on
--- demand. The kernel goes on sending what was lost, also for connections that
--- are closed.
--
--    local server = redis.start { alone = true, port = 6379 }
--    local network = link.to(server)
--    rlock.open(network.url)
--    network:lose("there")   network:lose("back")   network:heal()
--    network:is_settled()
--
--  The namespace of this process is made by spec/support/alone, before it
--  starts; the server's goes with the server. A way loses all packets while it
--  has a wrong hardware address for the other end.

local shell = require "spec.support.shell"

local link = {}

local Link = {}
Link.__index = Link

local HERE, THERE = "192.0.2.1", "192.0.2.2"          -- of RFC 5737
local MAC_HERE, MAC_THERE = "02:00:00:00:00:01", "02:00:00:00:00:02"
local NOBODY = "02:00:00:00:00:99"

-- States of /proc/net/tcp.
local FIN_WAIT1, CLOSE_WAIT = "04", "08"

--- Is this process in a namespace of its own?
function link.is_possible() return os.getenv("RLOCK_ALONE") == "yes" end

local function run(command)
  local output, ok = shell.run(command)
  assert(ok, output)
end

--- Joins the namespaces. There is one such link in a process.
-- @tparam table server of redis.start, with `alone` and a `port`
function link.to(server)
  local self = setmetatable({
    server = server, there = "nsenter -n -t " .. server.pid .. " ",
    url = ("redis://%s:%d"):format(THERE, server.port),
  }, Link)
  shell.run("ip link delete rlock0")          -- of a server that has gone
  run(([[
    ip link add rlock0 address %s type veth peer name rlock0 address %s netns %d
    ip address add %s/30 dev rlock0 && ip link set rlock0 up
    %sip address add %s/30 dev rlock0 && %sip link set rlock0 up]]):format(
    MAC_HERE, MAC_THERE, server.pid, HERE, self.there, THERE, self.there))
  self:heal()
  return self
end

local function neighbour(prefix, address, mac)
  run(("%sip neigh replace %s lladdr %s dev rlock0 nud permanent"):format(
    prefix, address, mac))
end

--- Loses what goes that way: "there", to the server, or "back".
function Link:lose(way)
  if way == "there" then neighbour("", THERE, NOBODY) end
  if way == "back" then neighbour(self.there, HERE, NOBODY) end
end

function Link:heal()
  neighbour("", THERE, MAC_THERE)
  neighbour(self.there, HERE, MAC_HERE)
end

local function has_connection(pid, state)
  for line in io.lines("/proc/" .. pid .. "/net/tcp") do
    if line:match("^%s*%d+: %S+ %S+ (%x%x)") == state then return true end
  end
  return false
end

--- Has the server read all that was sent to it over connections that are
--- closed here?
function Link:is_settled()
  return not has_connection("self", FIN_WAIT1)
    and not has_connection(self.server.pid, CLOSE_WAIT)
end

return link
