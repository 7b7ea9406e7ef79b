--- A network between this process and a private Redis, each in its own network
--- namespace, which drops all packets of one direction or of both on demand.
--- The kernel keeps retransmitting, even for closed connections.
---
---   local server = redis.start { alone = true, port = 6379 }
---   local network = link.to(server)
---   rlock.open(network.url)
---   network:lose("there")   network:lose("back")   network:heal()
---   network:is_settled()
---
--- spec/tools/alone makes the namespace of this process before it starts; the
--- server's ends with the server. A direction drops its packets while its
--- neighbour table has a wrong hardware address for the other end.

local shell = require "spec.tools.shell"

local link = {}

local Link = {}
Link.__index = Link

local MAC_HERE, MAC_THERE = "02:00:00:00:00:01", "02:00:00:00:00:02"
local NOBODY = "02:00:00:00:00:99"

-- TCP states in /proc/net/tcp.
local FIN_WAIT1, CLOSE_WAIT = "04", "08"

--- Does this process have its own network namespace?
function link.is_possible() return os.getenv("RLOCK_ALONE") == "yes" end

local function run(command)
  local output, ok = shell.run(command)
  assert(ok, output)
end

local CREATE = [[
  ip link add $D address $MAC_HERE type veth \
    peer name $D address $MAC_THERE netns $PID
  ip address add $HERE/30 dev $D && ip link set $D up
  $IN ip address add $THERE/30 dev $D && $IN ip link set $D up]]

--- Connects the two namespaces.
---@param server table of redis.start, with `alone` and a `port`
---@param number? integer of the link in this process, 0 to 62; default: 0
function link.to(server, number)
  number = number or 0
  local self = setmetatable({
    server = server, device = "rlock" .. number,
    inside = "nsenter -n -t " .. server.pid,
    here = ("192.0.2.%d"):format(4 * number + 1),     -- for tests (RFC 5737)
    there = ("192.0.2.%d"):format(4 * number + 2),
  }, Link)
  self.url = ("redis://%s:%d"):format(self.there, server.port)
  shell.run("ip link delete " .. self.device)  -- left by an ended server
  run((CREATE:gsub("%$([%u_]+)", {
    D = self.device, PID = server.pid, IN = self.inside,
    HERE = self.here, MAC_HERE = MAC_HERE,
    THERE = self.there, MAC_THERE = MAC_THERE,
  })))
  self:heal()
  return self
end

-- Sets the hardware address of the other end.
local function neighbour(self, prefix, address, mac)
  run(("%s ip neigh replace %s lladdr %s dev %s nud permanent"):format(prefix,
    address, mac, self.device))
end

--- Drops the packets of one direction: "there", to the server, or "back".
function Link:lose(way)
  if way == "there" then
    neighbour(self, "", self.there, NOBODY)
  else
    neighbour(self, self.inside, self.here, NOBODY)
  end
end

function Link:heal()
  neighbour(self, "", self.there, MAC_THERE)
  neighbour(self, self.inside, self.here, MAC_HERE)
end

local function has_connection(pid, state)
  for line in io.lines("/proc/" .. pid .. "/net/tcp") do
    if line:match("^%s*%d+: %S+ %S+ (%x%x)") == state then return true end
  end
  return false
end

--- Has the server read everything that connections closed on this side sent?
function Link:is_settled()
  return not has_connection("self", FIN_WAIT1)
    and not has_connection(self.server.pid, CLOSE_WAIT)
end

return link
