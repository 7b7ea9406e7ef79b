--- Man pages in the format of scdoc(5).

local scdoc = {}

local function escape(text) return (text:gsub("[\\*_`]", "\\%0")) end

local function bold(text) return "*" .. escape(text) .. "*" end

-- Options become bold.
local function prose(text)
  return (escape(text):gsub("%f[%w-]%-%-?%a[%w-]*", "*%0*"))
end

--- Text; `code` and options become bold.
function scdoc.inline(text)
  local out, position = {}, 1
  for before, code, after in text:gmatch("([^`]*)`([^`]*)`()") do
    out[#out + 1] = prose(before) .. bold(code)
    position = after
  end
  return table.concat(out) .. prose(text:sub(position))
end

--- A term of a help text: options and the command are bold, and words in
--- capitals, for which the user puts others, are underlined. A term with `code`
--- has only that markup.
function scdoc.term(text)
  if text:find("`", 1, true) then return scdoc.inline(text) end
  local command = text:match("^rlockctl %l+%f[%s%z]") or text:match("^rlockctl")
  local rest = escape(text:sub(#(command or "") + 1))
  rest = rest:gsub("%f[%w-]%-%-?[%w-]*", "*%0*")
    :gsub("%f[%w+-]%u[%u%d]*%f[^%w]", "_%0_")
  return (command and bold(command) or "") .. rest
end

local function add_list(out, list, tabs)
  for _, entry in ipairs(list) do
    out[#out + 1] = tabs .. scdoc.term(entry.term)
    if entry.text ~= "" then
      out[#out + 1] = ("%s\t%s\n"):format(tabs, scdoc.inline(entry.text))
    else
      out[#out + 1] = ""
    end
    if entry.list then add_list(out, entry.list, tabs .. "\t") end
  end
end

--- The blocks of a page, of the kinds heading, text, list and code.
function scdoc.blocks(blocks)
  local out = {}
  for _, block in ipairs(blocks) do
    if block.kind == "heading" then
      out[#out + 1] = "# " .. block.text:upper() .. "\n"
    elseif block.kind == "text" then
      out[#out + 1] = scdoc.inline(block.text) .. "\n"
    elseif block.kind == "list" then
      add_list(out, block, "")
    else
      out[#out + 1] = "```\n" .. block.text:gsub("\\", "\\\\") .. "\n```\n"
    end
  end
  return table.concat(out, "\n")
end

--- A page.
---@param name string with its section: rlockctl(1)
---@param about string one line
---@param synopsis table lines
---@param blocks table
function scdoc.page(name, about, synopsis, blocks)
  local lines = {}
  for i, line in ipairs(synopsis) do lines[i] = scdoc.term(line) end
  return ('%s "" "rlock %s"\n\n# NAME\n\n%s - %s\n\n# SYNOPSIS\n\n%s\n\n'
    .. "# DESCRIPTION\n\n%s"):format(name, require("rlock")._VERSION,
    name:match("^[^(]*"), scdoc.inline(about), table.concat(lines, "++\n"),
    scdoc.blocks(blocks))
end

return scdoc
