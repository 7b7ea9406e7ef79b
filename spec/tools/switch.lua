--- A network of this process and private servers, each in its own network
--- namespace. It drops all packets from one to another on demand. The kernel
--- keeps retransmitting.
---
---   local network = switch.to(servers)    -- each with its `pid`
---   network:lose { { 1, 2 }, { 2, 1 } }   -- between the first two servers
---   network:lose { { 0, 3 } }             -- from this process to the third
---   network:heal()
---
--- A namespace ends with its server. spec/tools/alone makes that of this
--- process. As in link.lua, an end sends packets to a wrong hardware address
--- while they are to be lost.

local link = require "spec.tools.link"
local shell = require "spec.tools.shell"

local switch = {}

local Switch = {}
Switch.__index = Switch

local NOBODY = "02:00:00:00:01:99"

local function mac(i) return ("02:00:00:00:01:%02x"):format(i + 1) end

local function run(command)
  local output, ok = shell.run("set -e\n" .. command)
  assert(ok, output)
end

--- Is there a network namespace of this process, and are there bridges?
function switch.is_possible()
  return link.is_possible() and select(2,
    shell.run "ip link add rlock type bridge && ip link delete rlock")
end

--- The address of a server by its number, or of this process: 0.
function switch.address(i) return ("198.51.100.%d"):format(i + 1) end

local CREATE = [[
ip link add rlock address %s type bridge
ip address add %s/24 dev rlock
ip link set rlock up]]

local CONNECT = [[
ip link add rlock$I type veth peer name rlock address $MAC netns $PID
ip link set rlock$I master rlock up
$IN ip address add $ADDRESS/24 dev rlock
$IN ip link set lo up
$IN ip link set rlock up]]

-- The command that lets packets reach an end, or not.
local function route(self, from, to, address)
  return ("%s ip neigh replace %s lladdr %s dev rlock nud permanent"):format(
    self.inside[from], switch.address(to), address)
end

--- Connects this process and servers.
---@param servers table a list, each with the `pid` of a process that has its
---  own network namespace
function switch.to(servers)
  local self = setmetatable({ inside = { [0] = "" }, lost = {} }, Switch)
  run(CREATE:format(mac(0), switch.address(0)))
  local words = {}
  for i, server in ipairs(servers) do
    self.inside[i] = "nsenter -n -t " .. server.pid
    words[i] = CONNECT:gsub("%$(%u+)", { I = i, MAC = mac(i),
      PID = server.pid, IN = self.inside[i], ADDRESS = switch.address(i) })
  end
  run(table.concat(words, "\n"))
  for from = 0, #servers do
    for to = 0, #servers do
      if from ~= to then self.lost[#self.lost + 1] = { from, to } end
    end
  end
  self:heal()
  return self
end

--- The ways between a server and all others.
---@param one integer
---@param which string "to" the others, "from" them, or "both"
---@return table[] # ways
function Switch:around(one, which)
  local ways = {}
  local function add(from, to) ways[#ways + 1] = { from, to } end
  for other in ipairs(self.inside) do
    if other ~= one and which ~= "from" then add(one, other) end
    if other ~= one and which ~= "to" then add(other, one) end
  end
  return ways
end

--- Drops the packets of these ways, besides those that are dropped already.
---@param ways table[] each { from, to }
function Switch:lose(ways)
  local words = {}
  for i, way in ipairs(ways) do
    words[i] = route(self, way[1], way[2], NOBODY)
    self.lost[#self.lost + 1] = way
  end
  run(table.concat(words, "\n"))
end

--- Lets all packets through.
function Switch:heal()
  local words = {}
  for i, way in ipairs(self.lost) do
    words[i] = route(self, way[1], way[2], mac(way[2]))
  end
  run(table.concat(words, "\n"))
  self.lost = {}
end

return switch
