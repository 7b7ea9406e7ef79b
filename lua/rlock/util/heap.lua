--- A binary min-heap of tables, ordered by their field `deadline`. Each item
--  stores its index in `index`, so that any item can be removed.

local heap = {}
heap.__index = heap

function heap.new()
  return setmetatable({ n = 0 }, heap)
end

local function put(self, i, item)
  self[i] = item
  item.index = i
end

local function rise(self, i, item)
  while i > 1 do
    local parent = math.floor(i / 2)
    if self[parent].deadline <= item.deadline then break end
    put(self, i, self[parent])
    i = parent
  end
  put(self, i, item)
end

local function sink(self, i, item)
  while true do
    local child = 2 * i
    if child > self.n then break end
    if child < self.n and self[child + 1].deadline < self[child].deadline then
      child = child + 1
    end
    if item.deadline <= self[child].deadline then break end
    put(self, i, self[child])
    i = child
  end
  put(self, i, item)
end

--- Adds an item, which must not be in any heap.
function heap:push(item)
  self.n = self.n + 1
  rise(self, self.n, item)
end

--- The item with the earliest `deadline`, or nil.
function heap:peek() return self[1] end

--- Removes an item; does nothing if it is in no heap.
function heap:remove(item)
  local i = item.index
  if not i then return end
  local last = self[self.n]
  self[self.n] = nil
  self.n = self.n - 1
  item.index = nil
  if last == item then return end
  local parent = math.floor(i / 2)
  if i > 1 and self[parent].deadline > last.deadline then
    rise(self, i, last)
  else
    sink(self, i, last)
  end
end

return heap
