--- The comparison of spec/check/model_spec.lua, of a million commands and
--- 100 000 scripts with each server program of this machine. RLOCK_COMMANDS and
--- RLOCK_SCRIPTS change that, RLOCK_SEED repeats a run. With Redis 8 and Valkey
--- 8, from a machine that has neither:
---
---   spec/tools/bare trixie "spec/tools/deps build test newer &&
---     make test PARTS=spec/soak/model_spec.lua"

local compare = require "spec.rows.model"
local redis = require "spec.tools.redis"
local seed = require "spec.tools.seed"

local COMMANDS = math.tointeger(os.getenv "RLOCK_COMMANDS" or 1000000)
local SCRIPTS = math.tointeger(os.getenv "RLOCK_SCRIPTS" or 100000)

for _, program in ipairs(redis.programs()) do
  compare({
    name = program, commands = COMMANDS, scripts = SCRIPTS, seed = seed,
    server = function() return redis.start { program = program } end,
  }, describe, it, setup, teardown)
end
