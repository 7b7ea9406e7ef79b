--- Specs of time-outs and lost locks that take no real time: each runs in its
--- own simulation, on a virtual clock.
---
---   rlockctl $(command -v busted) examples/simulate/virtual_clock_spec.lua

local assert = require "luassert"
local rlock = require "rlock"
local simulate = require "rlock.simulate"

-- The code under test: publishes a report while it holds the lock.
local function publish(client, write)
  local lock = client:lock "report"
  local hold, code = lock:hold { wait = 5 }
  if not hold then return nil, code end
  write(hold)
  return hold:unlock()
end

-- Another client that holds the lock for this many seconds.
local function hold_for(seconds)
  local client = assert(rlock.open { name = "another" })
  local hold = assert(client:lock("report"):hold())
  rlock.spawn(function()
    rlock.sleep(seconds)
    assert(hold:unlock())
  end)
end

describe("publish", function()
  it("waits for another client", function()
    simulate.run(function()
      hold_for(4)
      local began, wrote_at = rlock.now(), nil
      assert(publish(assert(rlock.open()), function()
        wrote_at = rlock.now() - began
      end))
      assert.near(4, wrote_at, 0.1)
    end)
  end)

  it("gives up after five seconds", function()
    simulate.run(function()
      hold_for(60)
      local began = rlock.now()
      local ok, code = publish(assert(rlock.open()), function()
        error "it must not write"
      end)
      assert.is_nil(ok)
      assert.equal("timeout", code)
      assert.near(5, rlock.now() - began, 0.1)
    end)
  end)

  it("reports a lock that is lost in a long computation", function()
    simulate.run(function()
      local reason
      local ok, code = publish(assert(rlock.open()), function(hold)
        hold:on_lost(function(_, why) reason = why end)
        local ends = rlock.now() + 40             -- the lease is 30 s
        while rlock.now() < ends do end           -- blocks the renewal
        rlock.sleep(0)
      end)
      assert.is_nil(ok)
      assert.equal("lost", code)
      assert.equal("not renewed in time", reason)
    end)
  end)

  it("keeps the lock during a short outage of the server", function()
    simulate.run(function(its)
      assert(publish(assert(rlock.open()), function(hold)
        its.stop(15)
        rlock.sleep(20)
        assert.is_true(hold:need(5))
      end))
    end)
  end)

  it("loses the lock if the outage is longer than the lease", function()
    simulate.run(function(its)
      local ok, code = publish(assert(rlock.open()), function(hold)
        its.stop(35)
        rlock.sleep(40)
        assert.equal("lost", hold:state())
      end)
      assert.is_nil(ok)
      assert.equal("lost", code)
    end)
  end)
end)
