--- One process of a storm (storms.lua): many owners take, re-enter and release
--- locks of all kinds over connections that lose requests.
---
---   rlockctl spec/tools/storm.lua SEED SECONDS LEAST SEAL URL...
---
--- Also runs in in-nginx. Continues until each kind was granted LEAST times, or
--- for PATIENCE times SECONDS. Prints a line for each hold: the kind, the lock,
--- "reads" or "writes", and the times from and until which its owner could rely
--- on it, by a clock that all processes share. It checks nothing itself.

local is_nginx = package.loaded["resty.rlock"] ~= nil
if is_nginx then require "spec.tools.inside" end

local kinds = require "spec.tools.kinds"
local rlock = require "rlock"
local task = require "spec.tools.task"

local seed, seconds, least, seal =
  tonumber(arg[1]), tonumber(arg[2]), tonumber(arg[3]), arg[4]
local urls = { (table.unpack or unpack)(arg, 5) }

local OWNERS, CLIENTS, NAMES = 50, 25, 6
local OWNER = is_nginx and "nginx %d" or "rlockctl %d"
local PATIENCE = 3                     -- multiple of SECONDS
local OPTIONS = { watchdog = 1, timeout = 0.2, connect_timeout = 0.2,
  seal = seal }
local KINDS = kinds.names()

local worlds, grants = {}, {}
for _, kind in ipairs(KINDS) do grants[kind] = 0 end

local function chance(percent) return math.random(100) <= percent end

local function between(low, high)
  return low + math.random() * (high - low)
end

local function options()
  return { wait = between(0.1, 1), lease = chance(50) and between(1, 3) or nil }
end

local Hold = {}
Hold.__index = Hold

local function hold_of(kind, name, lock)
  return setmetatable({ kind = kind, name = name, lock = lock }, Hold)
end

-- If the lock is certainly held now, it was held at the time read before.
function Hold:look()
  local now = rlock.now()
  if self.lock:valid_for() > 0 then
    self.from, self.to = self.from or now, now
  end
end

function Hold:work()
  for _ = 1, math.random(0, 3) do
    self:look()
    rlock.sleep(chance(3) and between(0.1, 0.5) or between(0, 0.01))
  end
  self:look()
end

-- Gives lost requests time to arrive.
function Hold:linger()
  for _ = 1, 10 do
    self:look()
    rlock.sleep(between(0.02, 0.1))
  end
end

-- Releases and reports the hold, which counts until the unlock starts. Returns
-- whether the unlock was retried.
function Hold:leave()
  self:look()
  local asked = rlock.now()
  self.lock:unlock()
  local is_repeated = rlock.now() > asked + OPTIONS.timeout
  if not self.from then return is_repeated end
  grants[self.kind] = grants[self.kind] + 1
  print(("%s %s %s %.6f %.6f"):format(self.kind, self.name,
    self.kind:find "read" and "reads" or "writes", self.from, self.to))
  return is_repeated
end

-- Re-enters the lock with other options.
local function enter_again(hold)
  if hold.lock:lock(options()) then
    hold:work()
    hold.lock:unlock()
  end
  hold:work()
end

-- Downgrades to a reader, which has locked and unlocked before.
local function downgrade(hold, clients, owner)
  local read = kinds.of[hold.kind].reader
  local lock = kinds.of[read].lock(clients, hold.name, owner)
  if not lock:lock(options()) then return hold:leave() end
  lock:unlock()
  local reading = hold_of(read, hold.name, lock)
  if not lock:lock(options()) then return hold:leave() end
  hold:leave()
  reading:work()
  return reading:leave()
end

-- Takes and releases a lock; returns whether the release may be delivered late.
local function take_one(clients, kind, name, owner, lingers)
  local lock = kinds.of[kind].lock(clients, name, owner)
  if not lock:lock(options()) then return false end
  local hold = hold_of(kind, name, lock)
  hold:work()
  if lingers then hold:linger() end
  if chance(30) and not kinds.of[kind].is_entered_once then
    enter_again(hold)
  end
  if kinds.of[kind].reader and chance(30) then
    return downgrade(hold, clients, owner)
  end
  return hold:leave()
end

-- The kind with the fewest grants.
local function rarest()
  local found = KINDS[1]
  for _, kind in ipairs(KINDS) do
    if grants[kind] < grants[found] then found = kind end
  end
  return found
end

-- An owner mostly uses one lock, where its late requests can do harm.
local function be_busy(i, begun)
  local clients = worlds[i % CLIENTS + 1].clients
  while rlock.now() < begun + seconds or grants[rarest()] < least
      and rlock.now() < begun + PATIENCE * seconds do
    local kind = chance(75) and KINDS[i % #KINDS + 1] or rarest()
    local name = ("%s:%d"):format(kinds.of[kind].pair or kind, i % NAMES)
    local owner = chance(90) and { owner = OWNER:format(i) } or nil
    local lingers = false
    repeat lingers = take_one(clients, kind, name, owner, lingers)
    until not lingers
  end
end

math.randomseed(seed)
for i = 1, CLIENTS do
  local ok, world
  repeat ok, world = pcall(kinds.open, "red", urls, OPTIONS) until ok
  worlds[i] = world
end
local begun = rlock.now()
task.many(OWNERS, function(i) be_busy(i, begun) end, PATIENCE * seconds + 60)
