--- The README: its programs run and print what it says, on a private server and
--- on `local:`.
---
--- In a program, lines that end in "--> text" state its output, in order. A
--- program that begins with "-- file.lua" is available to the others as that
--- file. In a console block, the lines after "$ command" are its output; "..."
--- stands for any number of lines. Spaces and decimal numbers are ignored.

local ctl = require "spec.cli.ctl"
local files = require "spec.tools.files"
local readmes = require "spec.tools.readmes"
local redis = require "spec.tools.redis"
local shell = require "spec.tools.shell"

local root = shell.run("pwd")

-- The fenced blocks of a language, with what they are called in the specs.
local function blocks(language)
  local found, fence = {}, "\n```" .. language .. "\n(.-)\n```"
  for _, path in ipairs(readmes) do
    for text in ("\n" .. assert(files.read(path))):gmatch(fence) do
      found[#found + 1] = {
        text = text, file = text:match("^%-%- ([%w/]+%.lua)"),
        title = ("%d, of %s: %s"):format(#found + 1, path,
          text:match("^[^\n]*")),
      }
    end
  end
  return found
end

-- Normalises text for comparison.
local function plain(text)
  return (text:gsub("%d+%.[%d.]+", "N"):gsub("pid %d+", "pid N")
    :gsub("up %d+ s", "up N s"):gsub("unix://%S+", "URL"):gsub("%s+", " ")
    :gsub("^ ", ""):gsub(" $", ""))
end

local function expected(text)
  local lines = {}
  for line in text:gmatch("%-%->([^\n]*)") do
    lines[#lines + 1] = plain(line)
  end
  return lines
end

local function printed(text)
  local lines = {}
  for line in text:gmatch("[^\n]+") do lines[#lines + 1] = plain(line) end
  return lines
end

local programs, consoles = blocks "lua", blocks "console"

local function write_files()
  for _, program in ipairs(programs) do
    if program.file then ctl.file(program.file, program.text) end
  end
  local link = ctl.folder() .. "/bin/rlockctl"
  if not io.open(link) then
    assert(os.execute(("mkdir '%s/bin' && ln -s '%s' '%s'"):format(
      ctl.folder(), ctl.binary, link)))
  end
end

setup(write_files)

teardown(function()
  ctl.run { "local", "stop" }
  ctl.clean()
end)

describe("a README's program", function()
  local server

  before_each(function() server = redis.start() end)
  after_each(function() server:stop() end)

  -- With lua/ and the core on the paths, as after `make install`.
  local function under_lua(program)
    if ctl.is_sanitized() then return nil end
    return ctl.run { program = "lua5.4", program.file, url = server.url,
      cwd = ctl.folder(), env = ctl.lua_paths() }
  end

  local function run(program)
    if program.text:find("rlock.run(", 1, true) then
      return under_lua(program)
    elseif program.file then
      return ctl.run { program.file, url = server.url, cwd = ctl.folder() }
    end
    return ctl.run { "-", stdin = program.text, url = server.url,
      cwd = ctl.folder() }
  end

  for _, program in ipairs(programs) do
    it(program.title, function()
      local result = run(program)
      if not result then return pending("a sanitizer is built in") end
      assert.equal(0, result.status, result.err)
      assert.same(expected(program.text), printed(result.out))
    end)
  end
end)

describe("a README's console", function()
  local function check(command, output)
    local result = ctl.run { program = "sh", "-c", command,
      cwd = ctl.folder(), env = {
        PATH = ctl.folder() .. "/bin:" .. os.getenv("PATH"),
      } }
    assert.same({ 0, "" }, { result.status, result.err })
    local got, want = plain(result.out), plain(output)
    if want:find("...", 1, true) then
      want = want:match("^(.-) %.%.%.$")
      got = got:sub(1, #want)
    end
    assert.equal(want, got)
  end

  for _, console in ipairs(consoles) do
    it(console.title, function()
      for command, output in (console.text .. "\n"):gmatch(
          "%$ ([^\n]*)\n([^$]*)") do
        check(command, output)
      end
    end)
  end
end)

describe("the READMEs", function()
  it("name only calls that there are", function()
    local words = { "-e", [[
      local rlock = require "rlock"
      local client = assert(rlock.open())
      local lock = client:lock("x")
      local known = { rlock = rlock, client = client, lock = lock,
        event = rlock.event(), task = rlock.spawn(print) }
      for _, path in ipairs(arg) do
        for line in io.lines(path) do
          for object, name in line:gmatch("`(%l+)[.:]([%l_]+)%f[%(%[{]") do
            local methods = known[object]
            if methods and type(methods[name]) ~= "function" then
              print(object .. "." .. name)
            end
          end
        end
      end]] }
    for _, path in ipairs(readmes) do
      words[#words + 1] = root .. "/" .. path
    end
    local result = ctl.run(words)
    assert.same({ 0, "\n", "" }, { result.status, result.out, result.err })
  end)

  it("have blocks of code of known languages only", function()
    local known = { console = true, lua = true, nginx = true, json = true,
      text = true }
    for _, path in ipairs(readmes) do
      local text = "\n" .. files.read(path)
      for language in text:gmatch("\n```(%w+)\n") do
        assert.is_true(known[language], path .. " has " .. language)
      end
    end
  end)
end)
