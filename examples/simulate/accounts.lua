--- A deadlock: a payment locks the payer's account, then the payee's. A payment
--- in the opposite direction locks them in the opposite order, and both wait
--- forever. accounts_together.lua locks both accounts together.

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
