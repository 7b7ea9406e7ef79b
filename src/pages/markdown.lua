--- Reads sections of a README as the blocks of a man page. Knows the Markdown
--- of our READMEs: headings, paragraphs, tables, bullets, fenced code, `code`,
--- **bold**, [links](url).

local markdown = {}

local function plain(text)
  return (text:gsub("%[([^%]]*)%]%([^)]*%)", "%1"):gsub("%*%*", ""))
end

-- The cells of a row of a table, whose code may contain \|.
local function cells_of(line)
  local cells = {}
  line = line:gsub("\\|", "\1")
  for cell in line:gmatch("| *([^|]-) *%f[|]") do
    cells[#cells + 1] = plain((cell:gsub("\1", "|")))
  end
  return cells
end

local readers = {}

-- Each reader takes the block at lines[i], and returns the index after it.

function readers.code(lines, i, blocks)
  local code = {}
  while lines[i + 1] ~= "```" do
    i = i + 1
    code[#code + 1] = lines[i]
  end
  blocks[#blocks + 1] = { kind = "code", text = table.concat(code, "\n") }
  return i + 2
end

function readers.table(lines, i, blocks)
  local list = { kind = "list" }
  i = i + 2                                     -- the titles, and the rule
  while lines[i] and lines[i]:find("^|") do
    local cells = cells_of(lines[i])
    list[#list + 1] = { term = cells[1], text = table.concat(cells, ": ", 2) }
    i = i + 1
  end
  blocks[#blocks + 1] = list
  return i
end

function readers.text(lines, i, blocks)
  local words = {}
  while lines[i] and lines[i] ~= "" do
    if words[1] and lines[i]:find("^%- ") then break end
    words[#words + 1] = lines[i]:gsub("^%s+", "")
    i = i + 1
  end
  blocks[#blocks + 1] = { kind = "text",
    text = plain(table.concat(words, " ")) }
  return i
end

local function read_block(lines, i, blocks)
  local line = lines[i]
  if line == "" then return i + 1 end
  local heading = line:match("^#+ (.*)$")
  if heading then
    blocks[#blocks + 1] = { kind = "heading", text = plain(heading) }
    return i + 1
  end
  local kind = line:find("^```") and "code" or line:find("^|") and "table"
  return readers[kind or "text"](lines, i, blocks)
end

--- Reads the sections with these titles, down to the next of their level.
---@param text string
---@param titles table
---@return table # blocks, as scdoc.blocks takes them
function markdown.sections(text, titles)
  local blocks = {}
  for _, title in ipairs(titles) do
    local section = assert(("\n" .. text .. "\n## "):match(
      "\n(## " .. title .. "\n.-)\n## "), "there is no section " .. title)
    local lines, i = {}, 1
    for line in (section .. "\n"):gmatch("(.-)\n") do
      lines[#lines + 1] = line
    end
    while lines[i] do i = read_block(lines, i, blocks) end
  end
  return blocks
end

return markdown
