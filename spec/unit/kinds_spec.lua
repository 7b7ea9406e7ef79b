--- The list of built-in kinds has each policy that can be locked.

local kinds = require "rlock.lock.kinds"

-- Those of what is built on locks, which have no factory of their own.
local INNER = { barrier = true, compute = true }

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
  it("are the policies, also those with tokens", function()
    local names = {}
    for _, kind in ipairs(kinds) do
      names[kind.name] = true
      names[kind.fenced or kind.driver and kind.name
        or "fenced_" .. kind.name] = true
    end
    local sorted = {}
    for name in pairs(names) do sorted[#sorted + 1] = name end
    table.sort(sorted)
    assert.is_true(#sorted > 16)
    assert.same(policies(), sorted)
  end)

  it("are pairs if their policy has two sides", function()
    for _, kind in ipairs(kinds) do
      local policy = require("rlock.policy." .. kind.name)
      assert.equal(policy.read ~= nil, kind.pair == true, kind.name)
      assert.equal(policy.needs ~= nil, kind.driver ~= nil, kind.name)
    end
  end)
end)
