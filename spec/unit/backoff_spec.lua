local backoff = require "rlock.util.backoff"

local function always(value)
  return function() return value end
end

describe("backoff", function()
  it("doubles its limit up to the cap", function()
    local pause, limits = backoff.new(0.1, 1, always(1)), {}
    for i = 1, 6 do limits[i] = pause:next() end
    assert.same({ 0.1, 0.2, 0.4, 0.8, 1, 1 }, limits)
  end)

  it("draws from zero to the limit", function()
    local draws = { 0, 0.5, 0.999 }
    local function random() return table.remove(draws, 1) end
    local pause = backoff.new(1, 8, random)
    assert.equal(0, pause:next())
    assert.equal(1, pause:next())
    assert.is_near(3.996, pause:next(), 1e-9)
  end)

  it("starts again after a reset", function()
    local pause = backoff.new(0.1, 1, always(1))
    for _ = 1, 5 do pause:next() end
    pause:reset()
    assert.equal(0.1, pause:next())
    assert.equal(0.2, pause:next())
  end)

  it("never overflows", function()
    local pause, last = backoff.new(1e-3, 30, always(1)), nil
    for _ = 1, 5000 do last = pause:next() end
    assert.equal(30, last)
  end)

  it("keeps two series apart", function()
    local one, two = backoff.new(1, 9, always(1)), backoff.new(1, 9, always(1))
    one:next()
    assert.equal(2, one:next())
    assert.equal(1, two:next())
  end)

  for _, case in ipairs {
    { "first_s", 0, 1, always(1) }, { "first_s", 0 / 0, 1, always(1) },
    { "first_s", "1", 1, always(1) }, { "cap_s", 2, 1, always(1) },
    { "cap_s", 2, nil, always(1) }, { "random", 1, 2 },
  } do
    it("names a bad " .. case[1] .. " and blames its caller", function()
      local ok, message = pcall(backoff.new, case[2], case[3], case[4])
      assert.is_false(ok)
      assert.matches("bad " .. case[1], message)
      assert.has_no.matches("backoff%.lua", message)
    end)
  end
end)
