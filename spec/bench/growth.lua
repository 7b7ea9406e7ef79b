--- A million cycles of lock and unlock in one process, each on a lock of its
--- own name, one in ten contended: does memory grow? Prints JSON.
---
---   rlockctl growth.lua [CYCLES]              the server is RLOCK_URL

local resident = require "spec.bench.resident"
local rlock = require "rlock"

local CYCLES = tonumber(arg[1] or 1000000)
local FIRST = 10000
local TASKS = 64

local client = assert(rlock.open())
local done = 0

local function run(upto)
  local running = {}
  for i = 1, TASKS do
    running[i] = rlock.spawn(function()
      while done < upto do
        done = done + 1
        local shared = done % 10 == 0
        local name = shared and "growth:" .. i // 4 or "growth::" .. done
        local lock = client:lock(name)
        assert(lock:lock())
        assert(lock:unlock())
      end
    end)
  end
  for _, task in ipairs(running) do task:join() end
end

run(FIRST)
local first = resident()
run(CYCLES)
print(('{"cycles":%d,"first":%d,"first_kb":%d,"last_kb":%d}'):format(done,
  FIRST, first // 1024, resident() // 1024))
