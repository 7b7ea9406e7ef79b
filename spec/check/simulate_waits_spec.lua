--- Which waits of a simulated program never end. The run is a stub: a search
--- would need many seeds until a look hits each of these states.

local holders = require "rlockctl.simulate.holders"
local waits = require "rlockctl.simulate.waits"

-- A run with one process, whose task waits for a lock that nobody holds.
local function stage()
  local host = { label = "1.1" }
  local lock = { show = function() return 'mutex lock "a"' end,
    record = { name = "a", policy = { name = "mutex" } },
    session = { host = host, options = {} } }
  local process = { host = host, clients = {} }
  host.process = process
  local run = { universe = { now = 100 }, processes = { process },
    patience = 10, coming = 0, granted_at = {}, waits = {} }
  local task = { host = host, serial = 1 }
  -- The other one sleeps.
  host.tasks = { [task] = true, [{ host = host, serial = 2 }] = true }
  run.waits[task] = { task = task, locks = { lock }, what = lock, host = host,
    since = 0 }
  return run, lock
end

describe("a wait for a lock that nobody holds", function()
  it("is one without an end once it was seen for long enough", function()
    local run = stage()
    assert.is_nil(waits.endless(run, 100))
    run.universe.now = 109
    assert.is_nil(waits.endless(run, 109))
    run.universe.now = 110
    local what, text = waits.endless(run, 110)
    assert.equal("wait", what)
    assert.equal('process 1.1 waits for mutex lock "a", which nobody holds',
      text)
  end)

  it("goes on if the lock is granted between two looks", function()
    local run, lock = stage()
    waits.endless(run, 100)
    run.granted_at[holders.key_of(lock)] = 105.5
    run.universe.now = 115
    assert.is_nil(waits.endless(run, 115))
    run.universe.now = 116
    assert.equal("wait", (waits.endless(run, 116)))
  end)
end)
