--- The man pages: they say what `rlockctl help` says, and are well formed.

local ctl = require "spec.cli.ctl"
local files = require "spec.tools.files"
local shell = require "spec.tools.shell"
local sorted = require "rlock.util.sorted"

local OPTION = "%f[%w-]%-%-?%a[%w-]*"

local folder = ctl.folder() .. "/pages"
local general = require("rlockctl.cli.help").general
local missing

-- The modules of the commands, by name.
local function modules()
  local found = {}
  for name, module in pairs(require("rlockctl.cli").commands) do
    found[name] = require("rlockctl.cli." .. module)
  end
  return found
end

-- All that matches in a text, as a sorted list without repetitions.
local function all(text, pattern)
  local seen, list = {}, {}
  for word in text:gmatch(pattern) do
    if not seen[word] then list[#list + 1] = word end
    seen[word] = true
  end
  table.sort(list)
  return list
end

-- A page as text, on long lines.
local function shown(page)
  local text, ok = shell.run("mandoc -Tutf8 -O width=1000 "
    .. shell.quote(folder .. "/" .. page))
  assert(ok, text)
  return (text:gsub("[\1-\127\194-\244][\128-\191]*\b", ""))
end

local function page_it(what, fn)
  it(what, function()
    if missing then return pending(missing .. " is not installed") end
    fn()
  end)
end

setup(function()
  for _, name in ipairs { "scdoc", "man", "mandoc" } do
    if not select(2, shell.run("command -v " .. name)) then missing = name end
  end
  shell.run("mkdir " .. folder)
  ctl.output { "--lua-path", "src/pages", "src/pages/write.lua", folder }
  if missing then return end
  local output, ok = shell.run("cd " .. folder
    .. " && for f in *.scd; do scdoc <$f >${f%.scd} || exit; done")
  assert(ok, output)
end)

teardown(ctl.clean)

describe("rlockctl help", function()
  it("names every command", function()
    assert.same(sorted(modules()), all(general, "\n  rlockctl (%l+)%f[%s]"))
  end)

  it("names every option of a command, and no other", function()
    for name, module in pairs(modules()) do
      local declared = module.options or {}
      for option in pairs(declared) do
        assert.is_true(module.usage:find(option, 1, true) ~= nil,
          name .. " does not explain " .. option)
      end
      local own = module.usage:gsub("`rlockctl[^`]*`", "")
      for _, option in ipairs(all(own, OPTION)) do
        assert.is_truthy(declared[option]
          or general:find("\n  " .. option, 1, true),
          name .. " has no option " .. option)
      end
    end
  end)

  it("names the options that are common to all, and no other", function()
    local source = assert(files.read("lua/rlockctl/cli.lua"))
    local terms = all(general:match("\nOptions:.*"), "\n  (%-[^\n]-)  ")
    assert.same(all(source, '%["(%-[^"]+)"%] ='),
      all(table.concat(terms, "\n"), OPTION))
  end)

  it("has every status that a command explains in its table", function()
    local table_ = general:match("\nExit status.*$")
    for name, module in pairs(modules()) do
      local statuses = module.usage:match("\nExit status: .*$") or ""
      for _, status in ipairs(all(statuses, "%f[%d]%d+%f[%D]")) do
        assert.is_truthy(table_:find("\n  [^\n]*%f[%d]" .. status .. "%f[%D]"),
          ("%s: %s is not in the table"):format(name, status))
      end
    end
  end)
end)

describe("the man pages", function()
  page_it("are those of rlockctl and of each command", function()
    local wanted = { "rlock.3lua", "rlockctl.1" }
    for name in pairs(modules()) do
      wanted[#wanted + 1] = "rlockctl-" .. name .. ".1"
    end
    table.sort(wanted)
    assert.equal(table.concat(wanted, "\n"),
      shell.run("cd " .. folder .. " && LC_ALL=C ls *.1 *.3lua"))
  end)

  page_it("are without a fault for man and mandoc", function()
    for _, page in ipairs(all(shell.run("ls " .. folder),
        "[^\n]+%.[13]%l*%f[\n%z]")) do
      local path = folder .. "/" .. page
      assert.equal("", shell.run("LC_ALL=C.UTF-8 MANWIDTH=80 man --warnings -l "
        .. path .. " 2>&1 >/dev/null"), page)
      -- scdoc has an empty paragraph after each heading
      assert.equal("", shell.run("mandoc -Tlint -Wwarning " .. path
        .. " | grep -v 'skipping paragraph macro'"), page)
    end
  end)

  page_it("name every command and option that the help names", function()
    for name, module in pairs(modules()) do
      local page = shown("rlockctl-" .. name .. ".1")
      assert.same(all(module.usage, OPTION), all(page, OPTION), name)
    end
    local page = shown("rlockctl.1")
    assert.same(all(general, OPTION), all(page, OPTION))
    assert.same(sorted(modules()),
      all(page:match("\nCOMMANDS\n(.*)\nOPTIONS"), "\n +rlockctl (%l+)%f[%s]"))
  end)

  -- The paragraphs of a help text; lists are left out.
  local function paragraphs(usage)
    local list = {}
    usage = usage:gsub("^.-\n\n", "\n"):gsub("\n  [^\n]*", "") .. "\n"
    for text in usage:gmatch("(.-)\n\n+") do
      text = text:gsub("^\n", ""):gsub("^Exit status: .", "")
      text = text:gsub("`", ""):gsub("%s+", " ")
      list[#list + 1] = text
    end
    return list
  end

  page_it("have the paragraphs of the help", function()
    for name, module in pairs(modules()) do
      local page = shown("rlockctl-" .. name .. ".1"):gsub("%s+", " ")
      for _, text in ipairs(paragraphs(module.usage)) do
        assert.is_truthy(page:find(text, 1, true), name .. ": " .. text)
      end
    end
  end)

  page_it("have the exit statuses of all commands in one table", function()
    local page = shown("rlockctl.1"):match("\nEXIT STATUS\n(.*)\nSEE ALSO")
    local help = general:match("\nExit status(.*)$")
    assert.same(all(help, "\n  (%d[^\n]-)  "), all(page, "\n *(%d[%d, +N]*)\n"))
  end)

  page_it("of the module name the calls of the README", function()
    local page = shown("rlock.3lua")
    local readme = files.read("README.md")
    for call in readme:gmatch("\n| `(%l+[.:][%l_]+)") do
      assert.is_truthy(page:find(call, 1, true), call)
    end
    assert.matches("no other owner holds that lock", page)
  end)
end)
