--- Checks the output of examples/barrier.lua: each phase begins when all have
--- ended the one before.

local PHASES = { "is there", "begins", "has ended", "goes on" }

---@param output string
---@param workers integer
return function(output, workers)
  local counts = {}
  for _, phase in ipairs(PHASES) do counts[phase] = 0 end
  for what in output:gmatch "worker %d+ ([^\n]+)" do
    counts[what] = counts[what] + 1
    if what == "begins" then assert(counts["is there"] == workers, output) end
    if what == "goes on" then assert(counts["has ended"] == workers, output) end
  end
  for _, phase in ipairs(PHASES) do assert(counts[phase] == workers, output) end
end
