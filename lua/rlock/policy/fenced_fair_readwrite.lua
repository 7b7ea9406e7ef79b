--- The fair read/write lock, each write hold with a fencing token, see
--- token_key.lua.

local token_key = require "rlock.policy.token_key"

return token_key.pair((require "rlock.policy.fair_readwrite"))
