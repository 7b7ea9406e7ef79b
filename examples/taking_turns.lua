-- Third experiment: no lease, and every hold is released.
--
--    rlockctl examples/taking_turns.lua [ROUNDS]       (default 3)
--
-- Two tasks add to a number that only the lock protects: each reads it, waits,
-- and writes it back. They never overlap, so no update is lost. Start it in
-- several terminals: the processes take turns as well.

local rlock = require "rlock"

local rounds = tonumber(arg[1]) or 3
local began = rlock.now()

local function say(who, text, ...)
  print(("%5.2f s  %-6s %s"):format(rlock.now() - began, who,
    text:format(...)))
end

local client <close> = assert(rlock.open())
local lock = client:lock("taking-turns")
local KEY = "taking-turns:number"

local function add_one(who)
  local number = assert(tonumber(client:call("GET", KEY) or 0))
  say(who, "reads %d", number)
  rlock.sleep(0.1)
  assert(client:call("SET", KEY, number + 1))
  say(who, "writes %d", number + 1)
end

local function take_turns(who)
  for _ = 1, rounds do
    assert(lock:lock())
    add_one(who)
    assert(lock:unlock())
    -- This lock has no queue: without a pause the same task would win again.
    rlock.sleep(0.05)
  end
end

local first = rlock.spawn(take_turns, "first")
local second = rlock.spawn(take_turns, "second")
first:join()
second:join()
say("main", "added %d; the number is %s", 2 * rounds, client:call("GET", KEY))
