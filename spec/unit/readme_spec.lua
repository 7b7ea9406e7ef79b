--- The READMEs as texts: what they link to is there, and lines are short.

local files = require "spec.tools.files"
local readmes = require "spec.tools.readmes"

-- Without blocks of code, in which nothing is a link or a heading.
local function prose(text)
  return (("\n" .. text):gsub("\n```.-\n```", "\n"))
end

-- The anchors that GitHub makes of the headings.
local function anchors(text)
  local found = {}
  for heading in prose(text):gmatch("\n#+ ([^\n]+)") do
    found[heading:lower():gsub("[^%w%s_-]", ""):gsub("%s", "-")] = true
  end
  return found
end

-- "lua/resty/README.md" and "../../x" -> "x"
local function joined(path, link)
  local result = (path:match("^.*/") or "") .. link
  repeat
    local count
    result, count = result:gsub("[^/.]+/%.%./", "", 1)
  until count == 0
  return result
end

-- What is wrong with a link of the file at `path`; nil if nothing is.
local function fault(path, link)
  local target, anchor = link:match("^([^#]*)#?(.*)$")
  local to = target == "" and path or joined(path, target)
  local text = files.read(to)
  if not text then return link .. ": no " .. to end
  if anchor ~= "" and not anchors(text)[anchor] then
    return link .. ": no heading of that name"
  end
end

for _, path in ipairs(readmes) do
  describe(path, function()
    local text = assert(files.read(path))

    it("has links that lead somewhere", function()
      local count = 0
      for link in prose(text):gmatch("%]%(([^)]*)%)") do
        if not link:find("^%a+:") then
          assert.is_nil(fault(path, link))
          count = count + 1
        end
      end
      assert.is_true(count > 0)
    end)

    it("has no long lines but in tables and output", function()
      for line in text:gmatch("[^\n]+") do
        local _, more = line:gsub("[\128-\191]", "")
        assert.is_true(#line - more <= 80 or line:find("^[|l]") ~= nil, line)
      end
    end)
  end)
end

describe("A link", function()
  it("that leads nowhere is noticed", function()
    assert.is_nil(fault("src/README.md", "../README.md#locks"))
    assert.truthy(fault("src/README.md", "../README.md#lockes"))
    assert.truthy(fault("src/README.md", "README.md.txt"))
    assert.truthy(fault("README.md", "#no-such-heading"))
  end)
end)
