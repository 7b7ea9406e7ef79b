local branches = require "spec.simulate.branches"

-- The branch of each line.
local function of(...) return branches.of(table.concat({ ... }, "\n")) end

describe("branches", function()
  it("are those of the keywords, and what follows their blocks", function()
    assert.same({ "f: start", "f: start", "f: if 1", "f: test of elseif 1",
      "f: elseif 1", "f: else 1", "f: else 1", "f: after if 1",
      "f: after if 1", "file: start" }, of("local function f(a)",
      "if a == 1 then", "g()", "elseif a == 2 then", "g()", "else", "g()",
      "end", "return 3", "end"))
  end)

  it("are numbered in each function", function()
    local lines = of("function m:f()", "for _ in g() do", "h()", "end",
      "while g() do h() end", "h()", "end", "local function k()",
      "for _ in g() do", "h()", "end", "end")
    assert.equal("m:f: for 1", lines[3])
    assert.equal("m:f: after while 1", lines[6])
    assert.equal("k: for 1", lines[10])
  end)

  it("tell lines of an anonymous function from those around it", function()
    assert.same({ "f: start", "f: start", "f: function 1", "f: start",
      "file: start" }, of("local function f()", "g(function()", "h()", "end)",
      "end"))
  end)

  it("begin with an operator that begins a line", function()
    local lines = of("local function f(a, b)", "return a", "or b", "end")
    assert.equal("f: or 1", lines[3])
  end)
end)

describe("unreached.lua", function()
  it("names only branches and rows that exist", function()
    assert.same({}, require("spec.simulate.coverage").stale())
  end)
end)
