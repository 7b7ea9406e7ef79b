--- Two accounts, locked in the order of the payment: a payment back locks them
--  in the other order, and both processes wait for ever. accounts_together.lua
--  locks them as one.

local rlock = require "rlock"

local client <close> = assert(rlock.open())
local from, to = "alice", "bob"
if math.random() < 0.5 then from, to = to, from end
local one, other = client:lock(from), client:lock(to)

assert(one:lock())
rlock.sleep(0.001)                      -- reads the balance
assert(other:lock())
rlock.sleep(0.001)                      -- moves the money
assert(other:unlock())
assert(one:unlock())
