--- Prints the steps of a trace (check/trace.lua) as a table.

local trace_table = {}

local function pad(text, width)
  return text .. (" "):rep(width - #text)
end

-- The columns of a row, except the keys.
local function cells_of(row)
  return { row.number, row.text, row.answer, table.unpack(row.beliefs) }
end

local function head_of(names)
  return {
    number = "", text = "step", answer = "answer", beliefs = names,
    keys = { "keys" },
  }
end

local function widths_of(list)
  local widths = {}
  for _, row in ipairs(list) do
    for i, cell in ipairs(cells_of(row)) do
      widths[i] = math.max(widths[i] or 0, #cell)
    end
  end
  return widths
end

-- A row takes a line for each key.
local function print_row(row, widths)
  local cells = cells_of(row)
  for i, cell in ipairs(cells) do cells[i] = pad(cell, widths[i]) end
  local left = table.concat(cells, "  ")
  for i, key in ipairs(row.keys[1] and row.keys or { "-" }) do
    print((i == 1 and left or (" "):rep(#left)) .. "  " .. key)
  end
end

--- Prints a trace.
---@param list table rows
---@param names table of the clients
function trace_table.print(list, names)
  local all = { head_of(names) }
  for i, row in ipairs(list) do
    row.number = row.is_probe and "" or tostring(i)
    all[i + 1] = row
  end
  local widths = widths_of(all)
  for _, row in ipairs(all) do print_row(row, widths) end
end

return trace_table
