-- Taking turns on ZooKeeper, as taking_turns.lua does on Redis.
--
--    zkCli.sh create /number 0
--    RLOCK_URL=zk://127.0.0.1 rlockctl examples/zookeeper_turns.lua [ROUNDS]
--
-- Two tasks add to the node /number. They never overlap, so no update is lost.
-- Start it in several terminals: they take turns in order of arrival.

local rlock = require "rlock"

local rounds = tonumber(arg[1]) or 3
local client <close> = assert(rlock.open())
local lock = client:lock "locks/number"

local function take_turns(who)
  for _ = 1, rounds do
    assert(lock:lock())
    local number = assert(tonumber((assert(client:get "/number"))))
    rlock.sleep(0.1)
    assert(lock:set("/number", ("%d"):format(number + 1)))
    print(("%s writes %d"):format(who, number + 1))
    assert(lock:unlock())
  end
end

local first = rlock.spawn(take_turns, "first")
take_turns "second"
first:join()
