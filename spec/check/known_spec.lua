--- The list of accepted survivors is up to date.

local files = require "spec.tools.files"
local mutants = require "spec.mutate.mutants"

describe("known.lua", function()
  it("names only mutants that exist #long", function()
    local missing = {}
    for path, list in pairs(require "spec.mutate.known") do
      local exists = {}
      for _, mutant in ipairs(mutants.of(files.read(path))) do
        exists[mutant.place .. ": " .. mutant.key] = true
      end
      for _, entry in ipairs(list) do
        local name = entry[1] .. ": " .. entry[2]
        if not exists[name] then
          missing[#missing + 1] = path .. ": " .. name
        end
      end
    end
    assert.same({}, missing)
  end)
end)
