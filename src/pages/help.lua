--- Reads the help texts of rlockctl, the source of its man pages and shell
--- completions. A help text has blocks with blank lines between them:
---   rlockctl NAME ...      the first block: the synopsis
---   Some text.             a paragraph
---     --seed N     random  a list: two blanks, a term, two blanks or more, and
---                          its text, also on lines below that one. Lines
---                          indented deeper than the text are a list in it.
---                          Three blanks in the text: one more term follows
---   Options:               a heading; "Exit status:" also before a text

local cli = require "rlockctl.cli"
local general = require "rlockctl.cli.help"

local help = {}

-- Splits text into a list of blocks, each a list of lines.
local function blocks_of(text)
  local blocks = {}
  for block in (text .. "\n"):gmatch("(.-)\n\n+") do
    local lines = {}
    for line in (block .. "\n"):gmatch("([^\n]*)\n") do
      if line ~= "" then lines[#lines + 1] = line end
    end
    if lines[1] then blocks[#blocks + 1] = lines end
  end
  return blocks
end

local function append(old, new)
  return old == "" and new or old .. " " .. new
end

-- Adds the entries on a line; returns the column of the first one's text.
local function add_entries(list, line, depth)
  local term, gap, rest = line:match("^(.-)(   *)(.*)$")
  local text, more = (rest or ""):match("^(.-)   +(.*)$")
  list[#list + 1] = { term = term or line, text = text or rest or "" }
  if more then add_entries(list, more, depth) end
  return term and depth + #term + #gap
end

-- Reads list entries that are indented by `indent`, from lines[i] on.
local function read_list(lines, i, indent)
  local list, column = { kind = "list" }, nil
  while lines[i] do
    local depth = #lines[i]:match("^ *")
    local entry, text = list[#list], lines[i]:sub(depth + 1)
    if depth < indent then break end
    if depth == indent then
      column = add_entries(list, text, depth) or column
      i = i + 1
    elseif depth <= (column or depth) then
      column, entry.text = depth, append(entry.text, text)
      i = i + 1
    else
      entry.list, i = read_list(lines, i, depth)
    end
  end
  return list, i
end

-- A block is a heading, a text or a list, or these in this order.
local function read_block(lines, page)
  local heading, text, i = lines[1]:match("^(%u[%l ]+):$"), {}, 1
  if heading then i = 2 end
  if lines[1]:find("^Exit status: ") then
    heading = "Exit status"
    lines[1] = lines[1]:match(": (.*)"):gsub("^%l", string.upper)
  end
  if heading then page[#page + 1] = { kind = "heading", text = heading } end
  while lines[i] and not lines[i]:find("^  ") do
    text[#text + 1] = lines[i]
    i = i + 1
  end
  if text[1] then
    page[#page + 1] = { kind = "text", text = table.concat(text, " ") }
  end
  if lines[i] then page[#page + 1] = read_list(lines, i, 2) end
end

---@return any # a list of { kind = "text" | "heading", text } and lists; its
---  `synopsis` is the lines of the first block
local function read(text)
  local page, blocks = {}, blocks_of(text)
  page.synopsis = blocks[1]
  for i = 2, #blocks do read_block(blocks[i], page) end
  return page
end

--- The page of `rlockctl help`: as from `read`, but `synopsis` is the list of
--- commands; and `about`, its first line.
function help.general()
  local page = read(general.general)
  page.about = page.synopsis[1]
  page.synopsis = table.remove(page, 1)
  return page
end

--- The blocks of `rlockctl help prompt`, as returned by `read`.
function help.prompt()
  return read(require("rlockctl.cli.prompt").usage)
end

--- The commands, in the order of `rlockctl help`: a list of pages, each with
--- its `name`, `about` (what it does), and `options`, as in its module.
function help.commands()
  local list, seen = {}, {}
  for _, entry in ipairs(help.general().synopsis) do
    local name = entry.term:match("^rlockctl (%l+)")
    if name and not seen[name] then
      local module = require("rlockctl.cli." .. cli.commands[name])
      local page = read(module.usage)
      page.name, page.about, seen[name] = name, entry.text, true
      page.options = module.options or {}
      list[#list + 1] = page
    end
  end
  return list
end

return help
