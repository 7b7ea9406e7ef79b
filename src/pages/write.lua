--- Writes the sources of the man pages, for scdoc, and the completions:
---   rlockctl --lua-path src/pages src/pages/write.lua FOLDER
--- The pages of rlockctl have the texts of `rlockctl help`, rlock(3lua) those
--- of the README.

local completion = require "completion"
local help = require "help"
local markdown = require "markdown"
local scdoc = require "scdoc"

local function read(path)
  local file <close> = assert(io.open(path))
  return file:read("a")
end

local function write(name, text)
  local file <close> = assert(io.open(arg[1] .. "/" .. name, "w"))
  assert(file:write(text))
end

local function see_also(names)
  local text = "*" .. table.concat(names, "*, *") .. "*"
  return "\n# SEE ALSO\n\n" .. text:gsub("%*([%w-]+)(%(%w+%))%*", "*%1*%2")
    .. "\n"
end

local function write_general(commands)
  local page, names, lines = help.general(), {}, {}
  for i, command in ipairs(commands) do
    names[i] = "rlockctl-" .. command.name .. "(1)"
  end
  names[#names + 1] = "rlock(3lua)"
  for i, entry in ipairs(page.synopsis) do lines[i] = entry.term end
  table.insert(page, 1, { kind = "text", text = page.about })
  table.insert(page, 2, { kind = "heading", text = "Commands" })
  table.insert(page, 3, page.synopsis)
  page[#page + 1] = { kind = "heading", text = "Prompt" }
  table.move(help.prompt(), 1, #help.prompt(), #page + 1, page)
  write("rlockctl.1.scd", scdoc.page("rlockctl(1)",
    "run programs that hold distributed locks in Redis or ZooKeeper", lines,
    page) .. see_also(names))
end

local function write_command(page)
  local name = "rlockctl-" .. page.name .. "(1)"
  write("rlockctl-" .. page.name .. ".1.scd", scdoc.page(name, page.about,
    page.synopsis, page[1] and page or { { kind = "text", text = page.about } })
    .. see_also { "rlockctl(1)" })
end

local function write_module()
  local readme = read "README.md"
  local about = readme:match("\n\n(.-)\n\n")
  local blocks = markdown.sections(readme, { "Locks",
    "What you can rely on" })
  table.insert(blocks, 1, { kind = "text", text = about })
  write("rlock.3lua.scd", scdoc.page("rlock(3lua)",
    "distributed locks in Redis or ZooKeeper, for programs in Lua",
    { 'local rlock = require "rlock"' }, blocks) .. see_also { "rlockctl(1)" })
end

local commands = help.commands()
write_general(commands)
for _, page in ipairs(commands) do write_command(page) end
write_module()
for name, text in pairs(completion.files(read, commands, help.general())) do
  write(name, text)
end
