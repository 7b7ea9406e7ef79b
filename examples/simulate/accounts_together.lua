--- accounts.lua with a multi-lock. It acquires all its locks or none, so their
--- order does not matter.

local rlock = require "rlock"

local client <close> = assert(rlock.open())
local from, to = "alice", "bob"
if math.random() < 0.5 then from, to = to, from end
local both = rlock.multi_lock { client:lock(from), client:lock(to) }

assert(both:lock())
rlock.sleep(0.002)                      -- reads the balance, moves the money
assert(both:unlock())
