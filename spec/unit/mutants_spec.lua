local files = require "spec.tools.files"
local killers = require "spec.mutate.killers"
local mutants = require "spec.mutate.mutants"
local shell = require "spec.tools.shell"

-- "function: change" of each mutant, sorted.
local function names_of(text)
  local names = {}
  for i, mutant in ipairs(mutants.of(text)) do
    names[i] = mutant.place .. ": " .. mutant.key
  end
  table.sort(names)
  return names
end

describe("mutants", function()
  it("are named by function and change", function()
    assert.same({ "f: drop not", "f: if to false", "f: if to true" },
      names_of "local function f(a)\n  if not a then return end\nend")
  end)

  it("are numbered where a function has several such changes", function()
    assert.same({ "f: + to -, 1 of 2", "f: + to -, 2 of 2", "g: + to -" },
      names_of("local function f(a) return a + a + a end\n"
      .. "local function g(a) return a + a end"))
  end)

  it("keep their names when variables are renamed", function()
    local text = "local function f(a, b)\n  if a < b then a = g(b, a) end\nend"
    local renamed = text:gsub("%f[%w]a%f[%W]", "first")
    assert.same(names_of(text), names_of(renamed))
  end)
end)

-- The path of the spec that a killer names, or nil.
local function spec_of(words)
  local name = words:match "^(%S+_spec)"
  return name and ("spec/%s%s.lua"):format(name:find "/" and "" or "redis/",
    name)
end

describe("killers.lua", function()
  it("has each file of the client with functions", function()
    local missing = {}
    local paths = shell.run("cd lua/rlock && ls counters/*.lua lock/*.lua "
      .. "redis/*.lua")
    for name in paths:gmatch("%S+") do
      local path = "lua/rlock/" .. name
      if not killers[path] and files.read(path):find "function" then
        missing[#missing + 1] = path
      end
    end
    assert.same({}, missing)
  end)

  it("names specs that exist", function()
    local missing = {}
    for _, list in pairs(killers) do
      for _, words in ipairs(list) do
        local path = spec_of(words)
        if path and not files.read(path) then missing[#missing + 1] = path end
      end
    end
    assert.same({}, missing)
  end)
end)
