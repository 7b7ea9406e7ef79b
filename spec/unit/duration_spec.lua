local duration = require "rlock.util.duration"

local function fault(...)
  local ok, message = pcall(duration.check, ...)
  assert.is_false(ok)
  return message
end

describe("duration.check", function()
  it("returns a duration", function()
    assert.equal(1.5, duration.check(1.5, "lease"))
    assert.equal(0, duration.check(0, "wait"))
  end)

  it("clamps to the maximum", function()
    assert.equal(10, duration.check(11, "lease", 0, 10))
    assert.equal(duration.max, duration.check(1e300, "lease"))
  end)

  it("allows math.huge where permitted", function()
    assert.equal(math.huge, duration.check(math.huge, "wait", 0, math.huge))
  end)

  it("names the wrong argument", function()
    assert.matches('bad lease: "3 x": must be a number', fault("3 x", "lease"))
    assert.matches("bad wait: nil: must be a number", fault(nil, "wait"))
    assert.matches("bad wait: .*nan.*: must be a number", fault(0 / 0, "wait"))
    assert.matches("bad wait: %-1: must not be negative", fault(-1, "wait"))
    assert.matches("bad lease: 0.1: must be at least 0.5 s",
      fault(0.1, "lease", 0.5))
    assert.matches("bad lease: inf: must be finite", fault(math.huge, "lease"))
    assert.matches("bad lease: %-inf: must not", fault(-math.huge, "lease"))
  end)

  it("does not take a string of digits for a number", function()
    assert.matches('bad lease: "3"', fault("3", "lease"))
  end)

  it("raises the error at the given level", function()
    local here = debug.getinfo(1, "l").currentline
    local function lock(level)
      local lease = duration.check(-1, "lease", 0, 1, level)
      return lease
    end
    local function helper(level)
      local lease = lock(level)
      return lease
    end
    local function program(level)
      local lease = helper(level)
      return lease
    end
    for level, line in pairs { here + 2, here + 6, here + 10 } do
      local _, message = pcall(program, level)
      assert.matches("duration_spec.lua:" .. line .. ": bad lease", message)
    end
    local _, message = pcall(program)
    assert.matches("duration_spec.lua:" .. here + 6 .. ": bad lease", message)
  end)
end)

describe("duration.ms", function()
  it("gives whole milliseconds", function()
    assert.equal(30000, duration.ms(30))
    assert.equal("30000", string.format("%d", duration.ms(30)))
  end)

  it("rounds up", function()
    assert.equal(2, duration.ms(0.0015))
    assert.equal(1, duration.ms(1e-9))
    assert.equal(0, duration.ms(0))
  end)

  it("is not misled by binary fractions", function()
    for ms = 1, 20000 do
      if duration.ms(ms / 1000) ~= ms then
        assert.equal(ms, duration.ms(ms / 1000))
      end
    end
  end)

  it("stops at the maximum of the core", function()
    assert.equal(1099511627776, duration.ms(math.huge))
    assert.equal(1099511627776, duration.ms(1e30))
    assert.equal(1099511627776, duration.ms(duration.max))
  end)
end)
