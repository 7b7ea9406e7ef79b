--- The locations of openresty.lua: with rlock, and with plain cosocket code
--- like lua-resty-redis that sends the same scripts.

local median = require("spec.bench.statistics").median
local policy = require "rlock.policy"
local rlock = require "resty.rlock"
local url = require "rlock.redis.url"

local bench = {}

local HANDOVERS = 1000
local PAUSE = 0.005      -- seconds until the other worker is waiting
local TEN_MINUTES = 600000

local URL = os.getenv("RLOCK_URL")
local ops = policy.load("reentrant").ops
local locks = assert(rlock.open(URL))
local shared = ngx.shared.bench

-- plain cosocket code -------------------------------------------------------

local address = "unix:" .. url.parse(URL).path
local id = ngx.md5(URL .. ngx.worker.pid())
local last_number = 0
local acquire, release   -- the sha of each script

local function receive(socket)
  local line = assert(socket:receive())
  local kind, rest = line:sub(1, 1), line:sub(2)
  if kind == "+" then
    return rest
  elseif kind == ":" then
    return tonumber(rest)
  elseif kind == "$" then
    local text = assert(socket:receive(tonumber(rest)))
    assert(socket:receive(2))
    return text
  end
  assert(kind == "*", line)
  local values = {}
  for i = 1, tonumber(rest) do values[i] = receive(socket) end
  return values
end

local function call(socket, ...)
  local words = { ... }
  local request = { "*" .. #words .. "\r\n" }
  for _, word in ipairs(words) do
    local n = #request
    request[n + 1], request[n + 2], request[n + 3] = "$", #word, "\r\n"
    request[n + 4], request[n + 5] = word, "\r\n"
  end
  assert(socket:send(request))
  return receive(socket)
end

local function connect()
  local socket = ngx.socket.tcp()
  socket:settimeouts(3000, 3000, 3000)
  assert(socket:connect(address))
  return socket
end

-- locations -----------------------------------------------------------------

-- The name of an uncontended lock, one for each connection.
local function name() return "bench:" .. ngx.var.connection end

--- Locks and unlocks without rlock.
function bench.bare()
  local lock = name()
  local channel = "redisson_lock__channel:{" .. lock .. "}"
  local socket = connect()
  last_number = last_number + 1
  local owner = id .. ":" .. last_number
  local reply = call(socket, "EVALSHA", acquire, "2", lock, channel, owner,
    "30000", "1")
  assert(reply[1] == "held")
  reply = call(socket, "EVALSHA", release, "2", lock, channel, owner, "1", "0",
    "publish")
  assert(reply[1] == "freed")
  socket:setkeepalive(TEN_MINUTES, 30)
  ngx.say("ok")
end

--- Locks and unlocks with rlock.
function bench.rlock()
  local lock = locks:lock(name())
  assert(lock:lock())
  assert(lock:unlock())
  ngx.say("ok")
end

--- Loads the scripts.
function bench.ready()
  local socket = connect()
  acquire = call(socket, "SCRIPT", "LOAD", ops.acquire.text)
  release = call(socket, "SCRIPT", "LOAD", ops.release.text)
  socket:setkeepalive(TEN_MINUTES, 30)
  bench.bare()
  bench.rlock()
end

-- from worker to worker -----------------------------------------------------

-- Seconds of a round trip to Redis.
local function trip()
  local begun = rlock.now()
  local socket = connect()
  call(socket, "PING")
  socket:setkeepalive(TEN_MINUTES, 30)
  return rlock.now() - begun
end

-- Takes turns with the other worker, which waits for the lock meanwhile.
local function take_turns()
  local lock = locks:lock("bench:handover")
  local trips, from_call, from_return, grants = {}, {}, {}, 0
  while grants < HANDOVERS do
    assert(lock:lock())
    shared:set("granted", rlock.now())
    grants = shared:incr("grants", 1, 0)
    ngx.sleep(PAUSE)
    trips[#trips + 1] = trip()
    local called = rlock.now()
    assert(lock:unlock())
    local returned = rlock.now()
    if grants < HANDOVERS then
      repeat ngx.sleep(0.001) until shared:get("grants") > grants
      local granted = shared:get("granted")
      table.insert(from_call, granted - called)
      table.insert(from_return, granted - returned)
    end
  end
  shared:rpush("results", ("%.1f %.1f %.1f"):format(median(trips) * 1e6,
    median(from_call) * 1e6, median(from_return) * 1e6))
end

if ngx.worker.count() == 2 then ngx.timer.at(0, take_turns) end

--- Reports what one of the workers has measured, in microseconds: a round trip,
--- and the time until the other worker had the lock, from the call of unlock
--- and from its return.
function bench.handover()
  local result
  repeat
    ngx.sleep(0.01)
    result = shared:rpop("results")
  until result
  ngx.say(result)
end

return bench
