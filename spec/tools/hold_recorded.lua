--- Increments a counter under a lock and records the hold for holds.lua. Runs
--- in rlockctl and in nginx; spec/interop/redisson/Recorder.java does the same
--- with Redisson's lock.
---
---   local file = assert(io.open(path, "a"))
---   hold_recorded(lock, store, file, "nginx", 10)   -- false: not within 10 s
---
--- The store is a server that does not fail over. Its keys: "counter"; "clock",
--- which orders the records of all processes (their own monotonic clocks are
--- not the same one); "grants:KIND".

local serial = 0

local function call(store, ...)
  local reply, code, detail = store:call(...)
  if code then error(("%s: %s"):format(code, detail), 0) end
  return reply
end

local function record(store, file, what, owner, number)
  file:write(("%s %s %d %d\n"):format(what, owner, call(store, "INCR", "clock"),
    number))
  file:flush()
end

return function(lock, store, file, kind, wait)
  if not lock:lock { wait = wait } then return false end
  serial = serial + 1
  local owner = kind .. "/" .. serial
  record(store, file, "acquire", owner, 0)
  local number = (tonumber(call(store, "GET", "counter")) or 0) + 1
  call(store, "SET", "counter", ("%d"):format(number))
  call(store, "INCR", "grants:" .. kind)
  record(store, file, "release", owner, number)
  lock:unlock()
  return true
end
