--- How many commands the operations of policies call: not more among many
--- owners or waiters.

local transcript = require "spec.tools.transcript"

-- A policy, the first acquire, the acquire of each of many owners, and
-- operations with their cost.
local rows = {
  { "fair", "acquire A 9000 1 -1 publish", "acquire W%d 9000 1 -1 publish", [[
    acquire W1 9000 1 -1 publish
    acquire W10 9000 1 -1 publish
    acquire new 9000 1 0 publish
    acquire new 9000 1 -1 publish
    leave new publish
    release A 1 0 publish
    acquire W1 9000 1 -1 publish ]], "8 8 2 12 9 7 15" },
  { "readwrite", "read.acquire A 9000 1", "read.acquire R%d 9000 1", [[
    read.acquire new 9000 1
    read.renew new 9000 1
    read.acquire new 9000 2
    read.release new 9000 1 publish
    read.release new 1 0 publish
    write.acquire W 9000 1 ]], "9 8 10 8 10 2" },
  { "readwrite, alone", nil, nil, [[
    write.acquire A 9000 1
    write.release A 1 0 publish
    read.acquire A 9000 1
    read.release A 1 0 publish ]], "4 3 9 4" },
  { "fair_readwrite, of readers", "read.acquire A 9000 1 1 publish",
    "read.acquire R%d 9000 1 1 publish", [[
    read.acquire new 9000 1 1 publish
    read.renew new 9000 1
    read.release new 1 0 publish ]], "8 2 7" },
  { "fair_readwrite, of waiters", "write.acquire A 9000 1 1 publish",
    "write.acquire W%d 9000 1 1 publish", [[
    read.acquire R 9000 1 1 publish
    read.acquire R 9000 1 1 publish
    write.acquire W 9000 1 1 publish
    write.acquire W 9000 1 1 publish
    write.leave W publish
    write.acquire T 9000 1 0 publish ]], "9 5 12 6 5 3" },
  { "fair_readwrite, alone", nil, nil, [[
    write.acquire A 9000 1 1 publish
    write.release A 1 0 publish
    read.acquire A 9000 1 1 publish
    read.release A 1 0 publish ]], "5 6 6 6" },
  { "permits", "set 1001 publish", "acquire P%d 9000 1 publish", [[
    acquire one 9000 1 publish
    renew one 90000 1
    release one 1 0 publish ]], "5 4 6" },
  { "semaphore, set", "set 1 600000 1000 publish", nil, [[
    acquire 2 600000 1 publish
    acquire 3 600000 1000 publish
    acquire 2 600000 1 publish
    release 4 600000 1 publish ]], "3 1 1 5" },
}

-- What the operations cost among n.
local function costs(row, n)
  local lines = { row[2] and "0 " .. row[2] }
  for i = 1, row[3] and n or 0 do
    lines[#lines + 1] = "0 " .. row[3]:format(i)
  end
  for operation in row[4]:gmatch "[^\n]+" do
    lines[#lines + 1] = "0 cost " .. operation
  end
  local list = {}
  for cost in transcript.run(row[1]:match "^[%w_]+", table.concat(lines, "\n"))
      :gmatch "cost [^\n]* %-> (%d+)" do
    list[#list + 1] = cost
  end
  return table.concat(list, " ")
end

describe("the cost of the operations", function()
  for _, row in ipairs(rows) do
    it("of " .. row[1], function()
      assert.equal(row[5], costs(row, 10))
      assert.equal(row[5], costs(row, 500))
    end)
  end
end)
