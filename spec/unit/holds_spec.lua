local holds = require "spec.tools.holds"

describe("the judge of holds", function()
  local paths

  before_each(function() paths = {} end)

  after_each(function()
    for _, path in ipairs(paths) do os.remove(path) end
  end)

  -- Judges the records of several processes.
  local function judge(...)
    for i, text in ipairs { ... } do
      paths[i] = os.tmpname()
      local file = assert(io.open(paths[i], "w"))
      file:write(text)
      file:close()
    end
    return holds.judge(paths)
  end

  it("finds nothing wrong with one hold after the other", function()
    assert.same({
      grants = { nginx = 1, rlockctl = 2 }, overlaps = {}, lost = 0,
      unfinished = 0,
    }, judge([[
acquire rlockctl/1 1 0
release rlockctl/1 2 1
acquire rlockctl/2 5 0
release rlockctl/2 6 3
]], [[
acquire nginx/1 3 0
release nginx/1 4 2
]]))
  end)

  it("finds overlaps, by the older hold's maker", function()
    local seen = judge([[
acquire rlockctl/1 1 0
release rlockctl/1 4 1
acquire rlockctl/2 7 0
release rlockctl/2 8 1
]], [[
acquire nginx/1 2 0
release nginx/1 3 1
]], [[
acquire redisson/1 5 0
release redisson/1 9 2
acquire redisson/2 6 0
release redisson/2 10 2
]])
    assert.same({
      ["rlock rlock"] = 1, ["redisson redisson"] = 1, ["redisson rlock"] = 2,
    }, seen.overlaps)
    assert.equal(0, seen.lost)
  end)

  it("finds an update that was lost although none overlapped", function()
    assert.equal(1, judge([[
acquire rlockctl/1 1 0
release rlockctl/1 2 1
acquire rlockctl/2 3 0
release rlockctl/2 4 1
]]).lost)
  end)

  it("finds a hold that has no end, which overlaps all later ones", function()
    local seen = judge([[
acquire rlockctl/1 1 0
acquire rlockctl/2 2 0
release rlockctl/2 3 1
]])
    assert.equal(1, seen.unfinished)
    assert.equal(1, seen.overlaps["rlock rlock"])
  end)
end)
