--- The list of behaviours (behaviours.lua) matches the tests: what it says
--- of a kind is what the specs run for that kind.

local behaviours = require "spec.rows.behaviours"
local rlockctl = require "spec.tools.rlockctl"
local shell = require "spec.tools.shell"

-- The tests that busted would run in the specs of this name: lines of
-- "FILE:LINE: TITLE".
local function titles(name)
  local files = {}
  for _, folder in ipairs { "redis", "check" } do
    local path = ("spec/%s/%s_spec.lua"):format(folder, name)
    if io.open(path) then files[#files + 1] = path end
  end
  local text, ok = shell.run(("LUA_PATH=%s %s %s --list %s"):format(
    shell.quote("./?.lua;;"), shell.quote(rlockctl),
    shell.quote(arg[0]), shell.words(files)))
  assert(ok, text)
  return text
end

-- kind -> name -> true, of all tests. Titles of row tests contain the kind;
-- other tests have the kind of their file.
local function tests_of(specs)
  local tests = {}
  for _, spec in ipairs(specs) do
    for title in titles(spec):gmatch("%.lua:%d+: ([^\n]+)") do
      local kind = title:match("rows of ([%w_]+):") or spec
      tests[kind] = tests[kind] or {}
      for word in title:gmatch("[%w_()]+") do tests[kind][word] = true end
    end
  end
  return tests
end

-- { ["a b"] = "why" } -> { a = "why", b = "why" }
local function each_kind(reasons)
  local by_kind = {}
  for kinds, reason in pairs(reasons or {}) do
    for kind in kinds:gmatch("%S+") do by_kind[kind] = reason end
  end
  return by_kind
end

-- Visits each entry of the list: fn(kind, name, verdict), where the verdict is
-- "passes", "no" or "differs".
local function go_over(list, fn)
  for _, class in ipairs(list) do
    for _, row in ipairs(class) do
      local no, differs = each_kind(row.no), each_kind(row.differs)
      for kind in (row.kinds or class.kinds):gmatch("%S+") do
        fn(kind, row[1], no[kind] and "no" or differs[kind] and "differs"
          or "passes")
      end
    end
  end
end

describe("the list of behaviours", function()
  it("matches the tests", function()
    local tests, listed, faults = tests_of(behaviours.specs), {}, {}
    go_over(behaviours, function(kind, name, verdict)
      local runs = tests[kind] and tests[kind][name] or false
      listed[kind] = listed[kind] or {}
      listed[kind][name] = true
      if runs ~= (verdict ~= "no") then
        faults[#faults + 1] = ("%s %s is listed as %q, and there is %s test")
          :format(kind, name, verdict, runs and "a" or "no")
      end
    end)
    for kind, names in pairs(tests) do
      for name in pairs(names) do
        if name:find "^test[A-Z(]" and not (listed[kind] or {})[name] then
          faults[#faults + 1] = ("%s %s is not listed"):format(kind, name)
        end
      end
    end
    table.sort(faults)
    assert.equal("", table.concat(faults, "\n"))
  end)

  it("names only kinds that it covers, with reasons", function()
    for _, class in ipairs(behaviours) do
      local is_kind = each_kind { [class.kinds] = true }
      for _, row in ipairs(class) do
        for _, reasons in ipairs { row.no or {}, row.differs or {} } do
          for kind, reason in pairs(each_kind(reasons)) do
            assert.is_true(is_kind[kind], class.class .. " " .. kind)
            assert.is_true(#reason > 10, row[1])
          end
        end
      end
    end
  end)
end)
