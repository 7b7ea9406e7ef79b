local options = require "rlock.util.options"

local check_options = options.table({
  wait = options.duration(0, math.huge), lease = options.lease,
  name = options.type "string",
  other = function(value) return value end,
  size = options.that("above 0", function(size) return size > 0 end),
}, "a table such as { wait = 5 }", "acquire")

describe("options.table", function()
  it("returns what it is given, or an empty table", function()
    for _, given in ipairs {
      {}, { wait = 0 }, { wait = math.huge, lease = 1, name = "" },
      { size = 1, other = false },
    } do
      assert.equal(given, check_options(given))
    end
    assert.same({}, check_options(nil))
  end)

  it("clamps durations, in a copy", function()
    local given = { lease = 1e300, name = "x" }
    assert.same({ lease = 1099511627.776, name = "x" }, check_options(given))
    assert.equal(1e300, given.lease)
  end)

  it("says what is wrong", function()
    for message, given in pairs {
      ["bad options of acquire: must be a table such as { wait = 5 }"] = 5,
      ["bad option leese of acquire: must be one of lease, name, other, "
        .. "size, wait"] = { leese = 3 },
      ["bad option 1 of acquire: must be one of"] = { "wait" },
      ["bad wait: -1: must not be negative"] = { wait = -1 },
      ['bad wait: "3": must be a number'] = { wait = "3" },
      ["bad wait: false: must be a number"] = { wait = false },
      ["bad lease: 0.001: must be at least 0.002 s"] = { lease = 0.001 },
      ["bad lease: inf: must be finite"] = { lease = math.huge },
      ["bad name: must be a string, is a table"] = { name = {} },
      ["bad size: must be above 0"] = { size = 0 },
    } do
      local ok, said = pcall(check_options, given)
      assert.is_false(ok)
      assert.is_truthy(said:find(message, 1, true), said)
    end
  end)
end)

describe("options.name", function()
  it("accepts strings that are not empty, of up to 1 MB", function()
    options.name "x"
    options.name(("x"):rep(1048576))
    for message, name in pairs {
      ["is empty$"] = "", ["is number$"] = 5, ["is boolean$"] = false,
      ["longer than 1048576 bytes$"] = ("x"):rep(1048577),
    } do
      local ok, said = pcall(options.name, name)
      assert.is_false(ok)
      assert.matches("bad name: .*" .. message, said)
    end
  end)
end)

describe("options.count", function()
  it("returns the digits of a Java int", function()
    assert.equal("0", options.count(0, "n", 0))
    assert.equal("3", options.count(3.0, "n", 0))
    assert.equal("2147483647", options.count(2147483647, "n", 1))
    assert.equal("-1", options.count(-1, "n", -2147483647))
  end)

  it("refuses everything else", function()
    for _, n in ipairs { -1, 0.5, "2", 2147483648, 0 / 0, math.huge, {} } do
      local ok, said = pcall(options.count, n, "n", 0)
      assert.is_false(ok)
      assert.matches("bad n: .*: must be a whole number from 0 to 2147483647",
        said)
    end
  end)
end)

describe("an error", function()
  local here = debug.getinfo(1, "l").currentline

  local function raise(check, ...)
    check(...)
    return true
  end
  local function call(...)
    return (raise(...))
  end

  it("is at the call of the function that checks, or at its level", function()
    for _, case in ipairs {
      { options.name, "" }, { options.count, 0, "n", 1 }, { check_options, 5 },
      { check_options, { leese = 1 } }, { check_options, { wait = -1 } },
      { check_options, { name = 1 } }, { options.of_wait, 1 },
      { options.of_lock, { lease = 0 } },
    } do
      local _, said = pcall(call, case[1], case[2], case[3], case[4])
      assert.matches("options_spec.lua:" .. here + 7 .. ": bad ", said)
    end
    for level, line in pairs { here + 3, here + 7 } do
      for _, given in ipairs { 5, { leese = 1 }, { wait = -1 } } do
        local _, said = pcall(call, check_options, given, level)
        assert.matches("options_spec.lua:" .. line .. ": bad ", said)
      end
    end
  end)
end)
