--- The simple lock, each hold with a fencing token, see token_key.lua.

local token_key = require "rlock.policy.token_key"

return token_key.fenced(require "rlock.policy.simple", "fenced_simple")
