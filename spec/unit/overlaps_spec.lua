--- Overlapping holds of a storm.

local overlaps = require "spec.tools.overlaps"

local function hold(from, to, mode, name)
  return { host = "h", kind = "k", name = name or "a", mode = mode or "writes",
    from = from, to = to }
end

describe("overlaps", function()
  it("are none of one hold after the other, or of readers", function()
    assert.same({}, overlaps { hold(2, 3), hold(1, 2), hold(1, 3, nil, "b") })
    assert.same({}, overlaps { hold(1, 4, "reads"), hold(2, 3, "reads") })
  end)

  it("are found behind a hold that ends early", function()
    assert.same({ "a: h k from 1.000000 to 9.000000; h k from 4.000000 to "
      .. "5.000000" }, overlaps { hold(2, 3, "reads"), hold(4, 5),
      hold(1, 9, "reads") })
    assert.equal(2, #overlaps { hold(1, 9), hold(2, 3), hold(4, 5) })
  end)
end)
