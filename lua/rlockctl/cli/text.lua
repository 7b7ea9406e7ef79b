--- Formats the state of a lock (inspect.lua) as text and as JSON. Names and
--- owners are untrusted, so control characters are escaped. Numbers may be
--- larger than an integer.

local who = require "rlockctl.cli.who"

local text = {}

local function escape(char) return ("\\%d"):format(char:byte()) end

-- Control characters beyond ASCII; and, to be safe, all text that is not UTF-8.
local function escape_high(quoted)
  if not utf8.len(quoted) then return (quoted:gsub("[\128-\255]", escape)) end
  return (quoted:gsub("\194[\128-\159]", function(pair)
    return pair:gsub(".", escape)
  end))
end

--- Quotes a name.
function text.show(name)
  local quoted = ("%q"):format(name):gsub("\\\n", "\\n"):gsub("%c", "?")
  return escape_high(quoted)
end

--- As `show`, without the quotes.
function text.bare(name) return text.show(name):sub(2, -2) end

--- Can a terminal show this name as it is? Then it is UTF-8, without control
--- characters.
---@param name string
function text.is_plain(name)
  local others = name:gsub('[\\"]', "_")
  return text.bare(others) == others
end

--- Replaces the middle of a text that is too long by "...".
---@param cell string
---@param most integer characters
function text.shortened(cell, most)
  local length = utf8.len(cell)
  if not length or length <= most then return cell end
  local left = (most - 2) // 2
  return cell:sub(1, utf8.offset(cell, left + 1) - 1) .. "..."
    .. cell:sub(utf8.offset(cell, left + 3 - most))
end

local LONGEST = 300                     -- characters of a holder

--- A holder or a waiter.
---@param holder table
function text.who(holder)
  return text.shortened(text.bare(who.show(holder)), LONGEST)
end

--- The time left until a lock expires.
function text.left(state)
  return state.ttl and ("%.1fs"):format(state.ttl) or "-"
end

function text.waiters(state)
  return state.waiters and ("%d"):format(state.waiters) or "-"
end

local function number_of(state)
  if state.available then return ("%.0f available"):format(state.available) end
  return state.count and ("at %.0f"):format(state.count)
end

--- The holders on one line.
function text.holders(state)
  local parts = { number_of(state) }
  for i, holder in ipairs(state.holders) do
    if i > 3 then
      parts[#parts + 1] = ("%d more"):format(#state.holders - 3)
      break
    end
    parts[#parts + 1] = text.who(holder)
      .. (holder.mode and (" (%ss)"):format(holder.mode) or "")
      .. ((holder.count or 1) > 1 and (" x%.0f"):format(holder.count) or "")
  end
  return parts[1] and table.concat(parts, "; ") or "nobody"
end

local WIDEST = 80

--- Aligns the cells of lines, except very long cells.
---@param lines table lists of texts
---@return table # lines
function text.columns(lines)
  local widths, result = {}, {}
  for _, cells in ipairs(lines) do
    for i, cell in ipairs(cells) do
      local width = utf8.len(cell) or #cell
      widths[i] = math.max(widths[i] or 0, math.min(width, WIDEST))
    end
  end
  for k, cells in ipairs(lines) do
    local parts = {}
    for i, cell in ipairs(cells) do
      parts[i] = cell .. (" "):rep(i < #cells
        and widths[i] - (utf8.len(cell) or #cell) or 0)
    end
    result[k] = table.concat(parts, "  ")
  end
  return result
end

local function milliseconds(seconds)
  return seconds and math.floor(seconds * 1000 + 0.5)
end

--- The state for JSON: times in whole milliseconds.
---@param state table with its `name`; modified
---@return table # it
function text.record(state)
  for _, holder in ipairs(state.holders) do
    holder.ttl, holder.ttl_ms = nil, milliseconds(holder.ttl)
  end
  state.ttl, state.ttl_ms = nil, milliseconds(state.ttl)
  state.title, state.doubt = nil, nil
  return state
end

return text
