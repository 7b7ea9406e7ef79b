--- The library `table` of Lua 5.1. It ignores metamethods.

local values = require "rlockctl.model.lua51.values"

local tables = {}

local float, int = values.float, values.int
local rawget, rawset, rawlen = rawget, rawset, rawlen

function tables.insert(list, ...)
  local n, given = rawlen(values.table(list, 1, "insert")), select("#", ...)
  if given == 1 then
    rawset(list, n + 1, (...))
    return
  elseif given ~= 2 then
    error("wrong number of arguments to 'insert'", 2)
  end
  local at, value = ...
  at = int(at, 2, "insert")
  for i = n + 1, at + 1, -1 do rawset(list, i, rawget(list, i - 1)) end
  rawset(list, at, value)
end

function tables.remove(list, at)
  local n = rawlen(values.table(list, 1, "remove"))
  at = int(at, 2, "remove", n)
  if at < 1 or at > n then return end
  local value = rawget(list, at)
  for i = at, n - 1 do rawset(list, i, rawget(list, i + 1)) end
  rawset(list, n, nil)
  return value
end

function tables.concat(list, separator, from, to)
  values.table(list, 1, "concat")
  separator = separator == nil and "" or values.text(separator, 2, "concat")
  local texts = {}
  for i = int(from, 3, "concat", 1), int(to, 4, "concat", rawlen(list)) do
    local value = rawget(list, i)
    if type(value) ~= "string" and type(value) ~= "number" then
      error(("invalid value (%s) at index %d in table for 'concat'")
        :format(type(value), i), 2)
    end
    texts[#texts + 1] = values.text_of(value)
  end
  return table.concat(texts, separator)
end

function tables.getn(list)
  return rawlen(values.table(list, 1, "getn")) + 0.0
end

function tables.setn() error("'setn' is obsolete", 2) end

function tables.maxn(list)
  local most = 0.0
  for key in next, values.table(list, 1, "maxn") do
    if type(key) == "number" and key > most then most = float(key) end
  end
  return most
end

function tables.foreachi(list, fn)
  for i = 1, rawlen(values.table(list, 1, "foreachi")) do
    local result = fn(i + 0.0, rawget(list, i))
    if result ~= nil then return result end
  end
end

-- sorting ---------------------------------------------------------------------

-- The algorithm of 5.1, because it determines the order of equal elements.

local function less(a, b) return a < b end

local function swap(list, i, j)
  local a, b = rawget(list, i), rawget(list, j)
  rawset(list, i, b)
  rawset(list, j, a)
end

-- Sorts the first, the middle and the last element.
local function sort_three(list, low, high, before)
  if before(rawget(list, high), rawget(list, low)) then
    swap(list, low, high)
  end
  if high - low == 1 then return end
  local middle = (low + high) // 2
  if before(rawget(list, middle), rawget(list, low)) then
    swap(list, middle, low)
  elseif before(rawget(list, high), rawget(list, middle)) then
    swap(list, middle, high)
  end
  return middle
end

local function check_order(is_beyond)
  if is_beyond then error("invalid order function for sorting", 0) end
end

--- Moves the elements before the pivot, which is next to last, to its left.
---@return any # the pivot's index
local function partition(list, low, high, before)
  local pivot, i, j = rawget(list, high - 1), low, high - 1
  while true do
    i = i + 1
    while before(rawget(list, i), pivot) do
      check_order(i > high)
      i = i + 1
    end
    j = j - 1
    while before(pivot, rawget(list, j)) do
      check_order(j < low)
      j = j - 1
    end
    if j < i then break end
    swap(list, i, j)
  end
  swap(list, high - 1, i)
  return i
end

local function sort(list, low, high, before)
  while low < high do
    local middle = sort_three(list, low, high, before)
    if high - low <= 2 then return end
    swap(list, middle, high - 1)
    local i = partition(list, low, high, before)
    if i - low < high - i then
      sort(list, low, i - 1, before)
      low = i + 1
    else
      sort(list, i + 1, high, before)
      high = i - 1
    end
  end
end

function tables.sort(list, before)
  local n = rawlen(values.table(list, 1, "sort"))
  if before ~= nil and type(before) ~= "function" then
    error(("bad argument #2 to 'sort' (function expected, got %s)"):format(
      type(before)), 2)
  end
  sort(list, 1, n, before or less)
end

return tables
