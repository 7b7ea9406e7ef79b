--- The model of Redis, compared with a real server; spec/soak/model_spec.lua
--- compares more. RLOCK_SEED chooses other random commands and scripts.

local redis = require "spec.tools.redis"

local rows = require "spec.rows.model"

for _, run in ipairs { { "Redis", 3000, 2 }, { "Redis #long", 10000, 1 } } do
  rows({
    name = run[1], commands = run[2], scripts = run[2], server = redis.start,
    seed = tonumber(os.getenv "RLOCK_SEED") or run[3],
  }, describe, it, setup, teardown)
end
