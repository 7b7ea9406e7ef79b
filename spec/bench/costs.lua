--- What each policy's operations cost the server: inner commands, and
--- microseconds, per request. Prints a table for people.
--
--    rlockctl costs.lua [ROUNDS]              the server is RLOCK_URL
--
--  The server must be private: its statistics and its data are reset.

local rlock = require "rlock"

local ROUNDS = tonumber(arg[1] or 3000)
local client = assert(rlock.open())

-- What Redisson 4.7 takes for the same, where that was counted; "+1" is a
-- command of its own, n the other readers.
local redisson = {
  lock = { "3", "3", "4", "5+1", "6+1" },
  mutex = { "3", "3", nil, nil, "6+1" },
  fair_lock = { "8", "6-8", nil, nil, "10+1" },
  write_lock = { "4-5" },
  read_lock = { "6-7", nil, nil, nil, "11+2n" },
}
local OPERATION = {
  take = 1, ["take, free"] = 1, ["take, held by another"] = 2,
  ["enter again"] = 3,
  ["give one back"] = 4, ["give back"] = 5,
}

-- Requests, inner commands and microseconds since the last reset.
local function read_stats()
  local text = assert(client:call("INFO", "commandstats"))
  local requests, usec, inner = 0, 0, 0
  for name, calls, time in text:gmatch(
      "cmdstat_([^:]+):calls=(%d+),usec=(%d+)") do
    if name == "evalsha" then
      requests, usec = tonumber(calls), tonumber(time)
    elseif name ~= "info" and name ~= "config|resetstat" then
      inner = inner + tonumber(calls)
    end
  end
  return requests, inner, usec
end

local function measure(kind, operation, fn)
  fn(0)                                  -- the script is loaded by now
  assert(client:call("CONFIG", "RESETSTAT"))
  for i = 1, ROUNDS do fn(i) end
  local requests, inner, usec = read_stats()
  local theirs = redisson[kind] or {}
  print(("%-16s %-32s %6.1f %8.2f  %s"):format(kind, operation,
    inner / requests, usec / requests,
    theirs[OPERATION[operation:match("^(.-) beside") or operation]] or ""))
end

local function ok(result, code, detail)
  if result == nil then error(("%s: %s"):format(code, detail), 2) end
  return result
end

-- The five operations of a lock; make(name, options) gives a handle.
local function lock(kind, make, is_entered_once)
  local function mine(i) return make("costs:" .. i, { owner = "me" }) end
  local function other(i) return make("costs:" .. i, { owner = "you" }) end
  measure(kind, "take, free", function(i) ok(mine(i):try_lock()) end)
  measure(kind, "take, held by another", function(i)
    assert(select(2, other(i):try_lock()) == "busy")
  end)
  if not is_entered_once then
    measure(kind, "enter again", function(i) ok(mine(i):try_lock()) end)
    measure(kind, "give one back", function(i) ok(mine(i):unlock()) end)
  end
  measure(kind, "give back", function(i) ok(mine(i):unlock()) end)
  assert(client:call("FLUSHDB"))
end

local function method(name)
  return function(...) return client[name](client, ...) end
end

local function read_of(name)
  return function(...) return client[name](client, ...):read_lock() end
end

local function write_of(name)
  return function(...) return client[name](client, ...):write_lock() end
end

-- Readers share: what one of many costs.
local function readers(kind, make, count)
  for i = 1, count do
    ok(make("costs:shared", { owner = "reader " .. i }):try_lock {
      lease = 600 })
  end
  local function one(i)
    return make("costs:shared", { owner = "one more " .. i })
  end
  local many = (" beside %d readers"):format(count)
  measure(kind, "take" .. many, function(i) ok(one(i):try_lock()) end)
  measure(kind, "give back" .. many, function(i) ok(one(i):unlock()) end)
  assert(client:call("FLUSHDB"))
end

print(("%-16s %-32s %6s %8s  %s"):format("", "per request", "calls", "us",
  "Redisson's calls"))
lock("lock", method "lock")
lock("mutex", method "mutex", true)
lock("simple_lock", method "simple_lock", true)
lock("spin_lock", method "spin_lock")
lock("fenced_lock", method "fenced_lock")
lock("fair_lock", method "fair_lock")
lock("write_lock", write_of "read_write_lock")
lock("fair write_lock", write_of "fair_read_write_lock")
for _, count in ipairs { 10, 100, 1000, 10000 } do
  readers("read_lock", read_of "read_write_lock", count)
end
for _, count in ipairs { 10, 100, 1000, 10000 } do
  readers("fair read_lock", read_of "fair_read_write_lock", count)
end
client:close()
