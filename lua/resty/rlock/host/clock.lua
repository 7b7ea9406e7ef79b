--- Monotonic time and randomness for the OpenResty host.

local ffi = require "ffi"

local clock = {}

ffi.cdef [[
int rlock_clock_gettime(int clock, long *time) __asm__("clock_gettime");
]]

-- Prefers clocks that also count the time that the machine is suspended.
local IDS = { Linux = { 7, 1 }, OSX = { 6 }, BSD = { 4 } }

local time = ffi.new("long[2]")        -- a struct timespec
local gettime = ffi.C.rlock_clock_gettime
local id

for _, candidate in ipairs(IDS[ffi.os] or { 1 }) do
  if not id and gettime(candidate, time) == 0 then id = candidate end
end

--- Seconds on a monotonic clock. (nginx's clock can be set, and stands still
--- while Lua runs.)
function clock.now()
  gettime(id, time)
  return tonumber(time[0]) --[[@as number]]
    + tonumber(time[1]) --[[@as number]] / 1e9
end

--- n bytes from the system's generator.
function clock.random(n)
  local file = assert(io.open("/dev/urandom", "rb"))
  local bytes = assert(file:read(n))
  file:close()
  return bytes
end

local seed

--- For jitter only; [0,1). (math.random has the same seed in all workers.)
function clock.random_number()
  if not seed then
    local a, b, c = clock.random(3):byte(1, 3)
    seed = a * 65536 + b * 256 + c + 1
  end
  seed = seed * 16807 % 2147483647
  return seed / 2147483647
end

return clock
