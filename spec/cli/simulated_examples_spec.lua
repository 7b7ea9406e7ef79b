--- The programs of examples/simulate: the bug of each is found. And nothing
--- is found in the examples that claim to be safe.

local ctl = require "spec.cli.ctl"

local PLACE = "examples/simulate/"
local MORE = tonumber(os.getenv "RLOCK_MORE" or 5)
local FIND = 1000                       -- runs until a bug is found
local LIMIT = 900                       -- seconds of a command

-- Program -> the message about its bug.
local BUGS = {
  counter = "counter.lua:%d+: %d updates succeeded, the number is %d, at ",
  counter_need = "need.lua:%d+: %d updates succeeded, the number is %d, at ",
  accounts = 'process %d.%d waits for reentrant lock "%l+"; process %d.%d '
    .. 'waits for reentrant lock "%l+", at ',
  forgotten = "process %d.%d has ended without releasing export, at ",
  cron = "cron.lua:%d+: the job has run twice today, at ",
  leader = "leader.lua:%d+: %x+ publishes, and %x+ leads, at ",
  cache = "cache.lua:%d+: the cache was filled twice, at ",
}

-- Example -> its options.
local SAFE = {
  barrier = {}, compute = {}, hello = {}, keep_alive = {}, leader = {},
  letting_go = {}, per_tenant = {}, priority = {}, short_lease = {},
  taking_turns = {}, two_orders = {},
  zookeeper_counter = { "--zookeeper", "--data", "/number=0" },
  zookeeper_turns = { "--zookeeper", "--data", "/number=0" },
}

teardown(ctl.clean)

describe("a simulation of examples/simulate/", function()
  for name, text in pairs(BUGS) do
    it(name .. " finds its bug", function()
      local path = PLACE .. name .. ".lua"
      local found = ctl.run { "simulate", "--seed", "1", "--runs",
        tostring(FIND), path, "--processes=2", limit = LIMIT }
      assert.same({ 1, "" }, { found.status, found.err })
      assert.matches(text, found.out)
      assert.matches("\nrlockctl simulate %-%-seed %d+ %-%-processes 2 "
        .. path:gsub("%p", "%%%0") .. "\n", found.out)
    end)
  end
end)

describe("a simulation of the example", function()
  for name, options in pairs(SAFE) do
    it(name .. " finds nothing", function()
      local words = { "simulate", "--seed", "1", "--for", MORE < 20 and "1s"
        or "5s", "examples/" .. name .. ".lua", limit = LIMIT }
      table.move(options, 1, #options, #words + 1, words)
      local found = ctl.run(words)
      assert.same({ 0, "" }, { found.status, found.err }, found.out)
      assert.matches(": no bug found\n$", found.out)
    end)
  end
end)
