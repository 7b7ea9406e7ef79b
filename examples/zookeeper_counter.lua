-- A counter under a lock on ZooKeeper that a late holder cannot corrupt.
--
--    zkCli.sh create /number 0
--    RLOCK_URL=zk://127.0.0.1 rlockctl examples/zookeeper_counter.lua [SECONDS]
--
-- Suspend it with `kill -STOP` after its first line, run it again, and then
-- resume the first with `kill -CONT`: its lock is lost, so it changes nothing.

local rlock = require "rlock"

io.stdout:setvbuf "line"

local client <close> = assert(rlock.open { watchdog = 4 })
local hold <close> = assert(client:lock("locks/number"):hold())
local number = assert(tonumber((assert(client:get "/number"))))
print("read " .. number)
rlock.sleep(tonumber(arg[1]) or 3)              -- the work

-- One transaction checks that the hold's node exists, and sets the value.
local ok, code, detail = hold:set("/number", ("%d"):format(number + 1))
print(ok and "wrote " .. number + 1 or code .. ": " .. tostring(detail))
