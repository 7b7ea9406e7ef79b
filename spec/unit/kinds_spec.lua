--- The list of built-in kinds has each policy that can be locked.

local kinds = require "rlock.lock.kinds"

-- Those of what is built on locks, which have no factory of their own.
local INNER = { compute = true }

-- The names of the policies in a folder.
local function policies()
  local names = {}
  local pipe = assert(io.popen "ls lua/rlock/policy/*.lua")
  for path in pipe:lines() do
    local name = path:match "(%w[%w_]*)%.lua$"
    local policy = require("rlock.policy." .. name)
    if (policy.server or policy.read) and not INNER[name] then
      names[#names + 1] = name
    end
  end
  pipe:close()
  return names
end

describe("the kinds", function()
  it("are the policies, sorted by name", function()
    local names = {}
    for i, kind in ipairs(kinds) do names[i] = kind.name end
    assert.is_true(#names > 10)
    assert.same(policies(), names)
  end)

  it("are pairs if their policy has two sides", function()
    for _, kind in ipairs(kinds) do
      local policy = require("rlock.policy." .. kind.name)
      assert.equal(policy.read ~= nil, kind.pair == true, kind.name)
      assert.equal(policy.needs ~= nil, kind.driver ~= nil, kind.name)
    end
  end)
end)
