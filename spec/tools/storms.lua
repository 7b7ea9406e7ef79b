--- Storms: owners in two hosts contend for locks of all kinds while requests
--- and replies are lost or late. Overlapping holds are found from what the
--- owners report, not by rlock.
---
---   local storms = require "spec.tools.storms"
---   local overlaps, grants = storms { seed = 1, seconds = 30, least = 500,
---     seal = "kill" }

local files = require "spec.tools.files"
local host = require "rlock.host.uv"
local hosts = require "spec.tools.storm_hosts"
local link = require "spec.tools.link"
local overlaps = require "spec.tools.overlaps"
local proxies = require "spec.tools.proxy"
local servers = require "spec.tools.servers"
local task = require "spec.tools.task"

local NODES = 3                        -- of a red lock
local PERCENT, DELAY = 1, 10           -- of requests and of replies; seconds
local LONGEST = 4                      -- outage, in seconds
local PATIENCE = 120

local function start(name, folder, storm, urls)
  local words = { table.unpack(hosts[name]) }
  for _, word in ipairs { "spec/tools/storm.lua", storm.seed, storm.seconds,
      storm.least, storm.seal, table.unpack(urls) } do
    words[#words + 1] = tostring(word)
  end
  local path = ("%s/%s"):format(folder, name)
  local process = assert(host.process {
    file = table.remove(words, 1), args = words, stdout = path,
    stderr = path .. ".log",
  })
  return { process = process, path = path, host = name }
end

-- Waits for a program and reads its holds.
local function read_holds(program, holds, storm)
  local status = program.process:wait(3 * storm.seconds + PATIENCE)
  local log = assert(files.read(program.path .. ".log"))
  assert(status == 0, program.host .. ": " .. log:sub(-2000))
  for line in io.lines(program.path) do
    local kind, name, mode, from, to =
      line:match("^(%S+) (%S+) (%S+) (%S+) (%S+)$")
    assert(kind, line)
    holds[#holds + 1] = {
      host = program.host, kind = kind, name = name, mode = mode,
      from = tonumber(from), to = tonumber(to),
    }
  end
end

local function count(holds)
  local grants = {}
  for _, hold in ipairs(holds) do
    local key = hold.host .. " " .. hold.kind
    grants[key] = (grants[key] or 0) + 1
  end
  return grants
end

-- Proxies that delay requests and replies by up to DELAY seconds.
local function open_proxies(storm)
  local nodes, nets, urls = servers.start(NODES), {}, {}
  for i, node in ipairs(nodes) do
    nets[i] = proxies.start(node)
    nets[i]:delay(PERCENT, DELAY, storm.seed + i)
    urls[i] = nets[i].url
  end
  local function stop()
    for _, net in ipairs(nets) do net:stop() end
    nodes:stop()
  end
  return urls, nodes[1].folder, stop
end

-- Drops all packets of one link after the other, in one direction or both.
local function disturb(links, is_over)
  local ways = { "there", "back" }
  while not is_over() do
    local chosen, first = links[math.random(#links)], math.random(2)
    for i = first, math.random(first, 2) do chosen:lose(ways[i]) end
    host.sleep(LONGEST * math.random() ^ 2)
    chosen:heal()
    host.sleep(LONGEST * math.random())
  end
end

-- Links between network namespaces that lose packets for a while.
local function open_links(storm)
  local nodes = servers.start(NODES, { alone = true, port = 6379 })
  local links, urls, is_over = {}, {}, false
  for i, node in ipairs(nodes) do
    links[i] = link.to(node, i)
    urls[i] = links[i].url
  end
  math.randomseed(storm.seed)
  local trouble = task.start(disturb, links, function() return is_over end)
  local function stop()
    is_over = true
    trouble:join()
    nodes:stop()
  end
  return urls, nodes[1].folder, stop
end

local function run(storm, urls, folder)
  local programs, holds = {}, {}
  for name in pairs(hosts) do
    programs[#programs + 1] = start(name, folder, storm, urls)
  end
  for _, program in ipairs(programs) do read_holds(program, holds, storm) end
  return overlaps(holds), count(holds)
end

--- Runs a storm.
---@param storm table seed; seconds; least: the grants of each kind to reach
---  before it ends; seal, as for rlock.open; is_real: real TCP between network
---  namespaces, if link.is_possible()
---@return table # the overlaps, as texts
---@return table # "rlockctl mutex" -> number of grants
return function(storm)
  local open = storm.is_real and open_links or open_proxies
  local urls, folder, stop = open(storm)
  local ok, found, grants = pcall(run, storm, urls, folder)
  stop()
  if not ok then error(found, 0) end
  return found, grants
end
