--- The programs of examples/simulate: the fault of each is found, and nothing
--- in the version without it. Then the examples that claim to be safe.

local ctl = require "spec.cli.ctl"

local PLACE = "examples/simulate/"
local MORE = tonumber(os.getenv "RLOCK_MORE" or 5)
local RUNS = MORE < 20 and 500 or 20000   -- of a program that is right
local FIND = 1000                       -- of one with a fault, at most
local LIMIT = 900                       -- seconds of a command

-- Program -> what is said of its fault.
local FAULTS = {
  counter = "counter.lua:%d+: %d updates succeeded, the number is %d, at ",
  counter_need = "need.lua:%d+: %d updates succeeded, the number is %d, at ",
  accounts = 'process %d.%d waits for reentrant lock "%l+"; process %d.%d '
    .. 'waits for reentrant lock "%l+", at ',
  forgotten = "process %d.%d has ended without unlocking export, at ",
  cron = "cron.lua:%d+: the job has run twice today, at ",
  leader = "leader.lua:%d+: %x+ publishes, and %x+ leads, at ",
  cache = "cache.lua:%d+: the cache was filled twice, at ",
}

local RIGHT = { "counter_guarded", "accounts_together", "forgotten_with",
  "cron_once", "leader_asks", "cache_compute" }

-- The examples that run without an end, or of which one process is enough, are
-- not here.
local SAFE = { "barrier", "compute", "leader", "letting_go", "per_tenant",
  "short_lease", "taking_turns", "keep_alive" }

local function simulate(runs, path, ...)
  return ctl.run { "simulate", "--seed", "1", "--runs", tostring(runs), path,
    limit = LIMIT, ... }
end

teardown(ctl.clean)

describe("a simulation of examples/simulate/", function()
  for name, text in pairs(FAULTS) do
    it(name .. " finds its fault", function()
      local path = PLACE .. name .. ".lua"
      local found = simulate(FIND, path, "--processes=2")
      assert.same({ 1, "" }, { found.status, found.err })
      assert.matches(text, found.out)
      assert.matches("\nrlockctl simulate %-%-seed %d+ %-%-processes 2 "
        .. path:gsub("%p", "%%%0") .. "\n", found.out)
    end)
  end

  for _, name in ipairs(RIGHT) do
    it(name .. " finds nothing", function()
      local found = simulate(RUNS, PLACE .. name .. ".lua", "--processes=2")
      assert.same({ 0, "" }, { found.status, found.err }, found.out)
      assert.matches("^" .. RUNS + 1 .. " runs.*: no fault found\n$",
        found.out)
    end)
  end
end)

describe("a simulation of the example", function()
  for _, name in ipairs(SAFE) do
    it(name .. " finds nothing", function()
      local found = ctl.run { "simulate", "--seed", "1", "--for",
        MORE < 20 and "1s" or "5s", "examples/" .. name .. ".lua",
        limit = LIMIT }
      assert.same({ 0, "" }, { found.status, found.err }, found.out)
      assert.matches(": no fault found\n$", found.out)
    end)
  end
end)
