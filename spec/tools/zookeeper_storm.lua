--- Processes that contend for a lock on ZooKeeper while servers, networks and
--- clocks fail. Overlapping holds are found from what the processes report.
---
---   local storm = storms.start(three)     -- an ensemble of zookeeper.lua
---   storm:keep(2)             -- the process of the second server has the lock
---   storm:go_on { 1, 3 }      -- these get it after that
---   storm:let_go(2)
---   storm:signal(2, 19)
---   storm:set_clock(2, 3600)
---   assert.same({}, storm:overlaps())
---   storm:show()              -- the state of everything, as text
---   storm:stop()
---
--- Process i uses only the server i, so that it stays where trouble is; the
--- last one uses all servers. The second one runs in nginx, if that is there.

local clock = require "spec.tools.clock"
local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local host = require "rlock.host.uv"
local hosts = require "spec.tools.storm_hosts"
local overlaps = require "spec.tools.overlaps"
local program = require "spec.tools.program"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"

local storms = { TIMEOUT = 2 }          -- of sessions, in seconds

local Storm = {}
Storm.__index = Storm

local SOON, PATIENCE = 20 * slow, 60 * slow
local STOP, CONT = 19, 18

local function start(self, i, url)
  local name = i == 2 and hosts.nginx and "nginx" or "rlockctl"
  local one = { host = name, clock = ("%s/clock%d"):format(self.folder, i),
    ["+"] = 0, ["="] = 0,               -- how many of these it has printed
    rest = "", log = "", heard = host.now() }
  local words = clock.words(one.clock)
  for _, word in ipairs(hosts[name]) do words[#words + 1] = word end
  for _, word in ipairs { "spec/tools/contend.lua", self.folder, i,
      storms.TIMEOUT, url } do
    words[#words + 1] = tostring(word)
  end
  one.program = program.exec({ folder = self.folder, url = url },
    table.unpack(words))
  one.file = assert(io.open(one.program.path))
  self[i] = one
end

--- Starts the processes.
---@param three table an ensemble of zookeeper.lua
function storms.start(three)
  local self = setmetatable({ three = three, folder = three[1].folder,
    holds = {}, told = {} }, Storm)
  for i, server in ipairs(three) do start(self, i, server.url) end
  start(self, #three + 1, three.url)
  return self
end

local function take(self, one, line)
  if line == "+" or line == "=" then
    one[line] = one[line] + 1
    return
  end
  local from, to, wall = line:match "^([%d.]+) ([%d.]+) (%d+)$"
  if not from then
    one.log = one.log .. line .. "\n"
    return
  end
  one.wall = tonumber(wall)
  table.insert(self.holds, { name = "storm", mode = "writes", kind = "lock",
    host = one.host, from = tonumber(from), to = tonumber(to) })
end

-- Reads what the processes have printed since.
local function read(self)
  for _, one in ipairs(self) do
    for part in function() return one.file:read "L" end do
      one.rest, one.heard = one.rest .. part, host.now()
      if part:sub(-1) == "\n" then
        take(self, one, one.rest:sub(1, -2))
        one.rest = ""
      end
    end
  end
end

-- Commands for a server's state, sessions, watches and connections.
local WORDS = { "srvr", "dump", "wchp", "cons" }
local LAST = 1000                       -- bytes of a process's log

--- The last output of the processes and the state of the servers, to explain a
--- run that stalls.
---@return string
function Storm:show()
  local list = {}
  read(self)
  for i, one in ipairs(self) do
    list[i] = ("process %d, in %s, has printed %d +, %d =, and nothing for "
      .. "%.1f s:\n%s"):format(i, one.host, one["+"], one["="],
      host.now() - one.heard, one.log:sub(-LAST))
  end
  for i, server in ipairs(self.three) do
    for _, word in ipairs(WORDS) do
      list[#list + 1] = ("server %d: %s\n%s"):format(i, word,
        server:says(word))
    end
  end
  return table.concat(list, "\n")
end

-- Does the leader commit nothing, though it has requests?
local function is_stalled(leader)
  local before = leader:says "srvr"
  host.sleep(1)
  local zxid, now = before:match "Zxid: %S+", leader:says "srvr"
  return zxid and zxid == now:match "Zxid: %S+"
    and not now:find("Outstanding: 0\n", 1, true)
end

-- ZooKeeper 3.8 may stall after a partition: the leader has all followers and
-- commits nothing. Deposes such a leader.
local function depose_stalled(self)
  local three = self.three
  local leader = three:leader()
  if not leader or not is_stalled(leader) then return end
  print "ZooKeeper has stalled: another server is to lead"
  leader:signal(STOP)
  pcall(eventually, function()
    return three:leader() and three:leader() ~= leader
  end, SOON)
  leader:signal(CONT)
end

-- Waits until a process has printed more of these marks.
local function await(self, i, mark, before)
  local one = self[i]
  local function is_there()
    read(self)
    return one[mark] > before
  end
  if pcall(eventually, is_there, SOON) then return end
  depose_stalled(self)
  local ok, why = pcall(eventually, is_there, PATIENCE,
    ("process %d has printed %s again"):format(i, mark))
  if not ok then error(("%s\n%s"):format(why, self:show()), 0) end
end

--- Waits until each of some processes has got the lock again.
---@param list? integer[] default: all
function Storm:go_on(list)
  local before = {}
  read(self)
  for i, one in ipairs(self) do before[i] = one["+"] end
  for at = 1, list and #list or #self do
    local i = list and list[at] or at
    await(self, i, "+", before[i])
  end
end

local function keep_file(self, i)
  return ("%s/keep%d"):format(self.folder, i)
end

--- Lets a process keep the lock; returns when it has it.
function Storm:keep(i)
  read(self)
  local before = self[i]["="]
  files.write(keep_file(self, i), "")
  await(self, i, "=", before)
end

function Storm:let_go(i) os.remove(keep_file(self, i)) end

--- Sends a signal to a process; nginx is the child of its script.
function Storm:signal(i, number)
  local pid = self[i].program.pid
  shell.run(("kill -%d %d $(cat /proc/%d/task/%d/children)"):format(number,
    pid, pid, pid))
end

--- Sets the wall clock of a process, by seconds ahead of this machine's.
function Storm:set_clock(i, seconds) clock.set(self[i].clock, seconds) end

--- How many holds there were.
function Storm:count()
  read(self)
  return #self.holds
end

--- The holds that overlap, as texts. Each call returns only new ones.
function Storm:overlaps()
  read(self)
  local fresh = {}
  for _, text in ipairs(overlaps(self.holds)) do
    if not self.told[text] then fresh[#fresh + 1] = text end
    self.told[text] = true
  end
  return fresh
end

--- Ends the processes.
function Storm:stop()
  files.write(self.folder .. "/stop", "")
  for i, one in ipairs(self) do
    local ok = one.program.process:wait(PATIENCE / 3)
    if not ok then self:signal(i, 9) end
    one.file:close()
  end
end

return storms
