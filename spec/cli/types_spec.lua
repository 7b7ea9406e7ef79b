--- The types in the comments: what an editor, or emmylua_check, finds wrong in
--- programs. wrong_programs.lua has them.

local binary = require "spec.tools.rlockctl"
local files = require "spec.tools.files"
local shell = require "spec.tools.shell"
local sorted = require "rlock.util.sorted"
local wrong = require "spec.types.wrong_programs"

local CONFIG = '{ "runtime": { "version": "Lua5.4" }, '
  .. '"workspace": { "library": ["%s/lua"] } }'

local folder, found, missing

-- The findings by file: the line and the code of each, in a set.
local function findings(text)
  local by_file, code = {}, nil
  for line in text:gsub("\27%[[%d;]*m", ""):gmatch("[^\n]+") do
    code = line:match("^%l+: .*%[([%l-]+)%]%s*$") or code
    local file, number = line:match("%-%-> (%d+)%.lua:(%d+):")
    if file then
      by_file[tonumber(file)] = by_file[tonumber(file)] or {}
      by_file[tonumber(file)][number .. " " .. code] = true
    end
  end
  return by_file
end

local function line_of_fault(text)
  local before = text:match("^(.-)%-%- WRONG")
  return 1 + select(2, before:gsub("\n", ""))
end

describe("the reference", function()
  local text

  setup(function()
    local path = shell.run "mktemp"
    local output, ok = shell.run(shell.words { binary,
      "src/pages/reference.lua", path })
    assert.is_true(ok, output)
    text = files.read(path)
    os.remove(path)
  end)

  it("has every kind, and the methods of a lock", function()
    for _, kind in ipairs(require "rlock.lock.kinds") do
      assert.matches("\n#### client:" .. kind.factory .. "%(", text)
    end
    for _, name in ipairs { "lock", "try_lock", "unlock", "with", "hold",
        "need", "valid_for", "call", "transaction", "on_lost" } do
      assert.matches("\n#### lock:" .. name .. "%(", text)
    end
    assert.matches('\n%- `wait%?` `rlock.wait`: at most', text)
    assert.matches('\n%- `"not_held"`: ', text)
  end)

  it("has every argument of a function, and its results", function()
    local missing_ones, n = {}, 0
    for head, arguments, body in
        (text .. "\n#"):gmatch("#### ([^\n(]*)(%b())(\n.-\n)%f[#]") do
      n = n + 1
      for name in arguments:gmatch("[%w_.]+") do
        if not body:find("\n- `" .. name .. "[?`]") then
          missing_ones[#missing_ones + 1] = head .. " " .. name
        end
      end
    end
    assert.same({}, missing_ones)
    assert.is_true(n > 80, n .. " functions")
  end)
end)

describe("types", function()
  setup(function()
    local _, is_there = shell.run("spec/tools/types found")
    missing = not is_there
    if missing then return end
    folder = shell.run "mktemp -d"
    local here = shell.run "pwd"
    files.write(folder .. "/.emmyrc.json", CONFIG:format(here))
    for i, program in ipairs(wrong.programs) do
      files.write(("%s/%d.lua"):format(folder, i), wrong.head .. program[3])
    end
    found = findings((shell.run("spec/tools/types " .. shell.quote(folder))))
  end)

  teardown(function()
    if folder then shell.run("rm -rf " .. shell.quote(folder)) end
  end)

  for i, program in ipairs(wrong.programs) do
    it("report " .. program[1], function()
      if missing then pending("no emmylua_check: spec/tools/deps types") end
      local line = line_of_fault(wrong.head .. program[3])
      local its = found[i] or {}
      assert.is_true(its[line .. " " .. program[2]],
        table.concat(sorted(its), "\n"))
    end)
  end
end)
