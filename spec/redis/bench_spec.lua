--- The programs of `make bench` run. Their figures are not checked.
--- #long

local program = require "spec.tools.program"
local redis = require "spec.tools.redis"

local runs = {
  { "cycles.lua", "2", "0.1", tasks = 2 },
  { "held.lua", "200", "0.1", locks = 200, lost = 0 },
  { "waiting.lua", "one", "50", tasks = 50 },
  { "waiting.lua", "each", "50", tasks = 50 },
  { "queue.lua", "fair", "50", waiters = 50, grants = 25 },
  { "queue.lua", "write", "50", waiters = 50, grants = 25 },
  { "growth.lua", "11000", cycles = 11000 },
  { "cycles.lua", "2", "0.1", "publish=both", tasks = 2 },
  { "several.lua", "1", "0.05", "1" },
  { "wakes.lua", "6" },
}

describe("the benchmark", function()
  local server

  setup(function() server = redis.start() end)

  teardown(function() server:stop() end)

  for _, run in ipairs(runs) do
    it(table.concat(run, " "), function()
      local output, status = program.run(server, "-q", "spec/bench/" .. run[1],
        table.unpack(run, 2))
      assert.equal(0, status, output)
      for field, value in pairs(run) do
        if type(field) == "string" then
          assert.equal(tostring(value), output:match('"' .. field
            .. '":(%d+)'), output)
        end
      end
    end)
  end
end)
