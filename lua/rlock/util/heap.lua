--- A binary min-heap of tables, ordered by their field `deadline`. Each item
--- stores its index in `index`, so that any item can be removed.

---@class rlock.heap
---@field n integer
---@field [integer] table
local heap = {}
heap.__index = heap

local floor = math.floor

---@return rlock.heap
function heap.new()
  return setmetatable({ n = 0 }, heap)
end

local function rise(self, i, item)
  local deadline = item.deadline
  while i > 1 do
    local up = floor(i / 2)
    local parent = self[up]
    if parent.deadline <= deadline then break end
    self[i], parent.index = parent, i
    i = up
  end
  self[i], item.index = item, i
end

local function sink(self, i, item)
  local n, deadline, down = self.n, item.deadline, 2 * i
  while down <= n do
    local child, other = self[down], self[down + 1]
    if down < n and other.deadline < child.deadline then
      down, child = down + 1, other
    end
    if deadline <= child.deadline then break end
    self[i], child.index = child, i
    i, down = down, 2 * down
  end
  self[i], item.index = item, i
end

--- Adds an item, which must not be in any heap.
function heap:push(item)
  local n = self.n + 1
  self.n = n
  rise(self, n, item)
end

--- The item with the earliest `deadline`, or nil.
function heap:peek() return self[1] end

--- Removes an item; does nothing if it is in no heap.
function heap:remove(item)
  local i = item.index
  if not i then return end
  local n = self.n
  local last = self[n]
  self[n], self.n, item.index = nil, n - 1, nil
  if last == item then return end
  if i > 1 and self[floor(i / 2)].deadline > last.deadline then
    rise(self, i, last)
  else
    sink(self, i, last)
  end
end

return heap
