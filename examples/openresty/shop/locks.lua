--- The worker's client, shared by all of its requests and timers.

local rlock = require "resty.rlock"

return assert(rlock.open(os.getenv("RLOCK_URL") or "redis://127.0.0.1"))
