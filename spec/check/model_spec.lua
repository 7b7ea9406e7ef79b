--- The model of Redis, compared with a real server; spec/soak/model_spec.lua
--- compares more. RLOCK_SEED chooses other random commands and scripts.

local redis = require "spec.tools.redis"

require "spec.rows.model" ({
  name = "Redis", commands = 10000, scripts = 10000, server = redis.start,
  seed = tonumber(os.getenv "RLOCK_SEED") or 1,
}, describe, it, setup, teardown)
