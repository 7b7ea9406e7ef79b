--- The worker's client, which all of its requests and timers share.

local rlock = require "resty.rlock"

return assert(rlock.open(os.getenv("RLOCK_URL") or "redis://127.0.0.1"))
