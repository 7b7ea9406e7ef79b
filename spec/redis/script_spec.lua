--- The scripts that rlock.script emits, on a real server.

local emit = require "rlock.script.emit"
local policy = require "rlock.policy"
local redis = require "spec.tools.redis"
local sandbox = require "rlock.script.sandbox"
local script = require "rlock.script"

local FIXTURE = "spec.unit.fixtures.shop"

local server

-- The names of rlock's policies.
local function policies()
  local names = { FIXTURE }
  local pipe = assert(io.popen("ls lua/rlock/policy/*.lua"))
  for file in pipe:lines() do
    names[#names + 1] = "rlock.policy." .. file:match("([^/]*)%.lua$")
  end
  pipe:close()
  return names
end

local function run(op, keys, ...)
  local words = { "EVALSHA", server:cli("SCRIPT", "LOAD", op.text), #keys }
  for _, key in ipairs(keys) do words[#words + 1] = key end
  for _, arg in ipairs { ... } do words[#words + 1] = arg end
  return server:cli((table.unpack or unpack)(words))
end

local function shop(op)
  return policy.load(FIXTURE).ops[op]
end

local function line_of(path, words)
  local number, found = 0, nil
  for line in io.lines(path) do
    number = number + 1
    if line:find(words, 1, true) then found = number end
  end
  return ("%s:%d"):format(path, assert(found, words))
end

describe("an emitted script", function()
  setup(function() server = redis.start() end)
  teardown(function() server:stop() end)
  before_each(function() server:cli("FLUSHALL") end)

  it("is Lua that the server can compile, for every policy", function()
    local count = 0
    local function load_all(def)
      local loaded = policy.load(def)
      for name in pairs(loaded.server) do
        local op = loaded.ops[name]
        local sha = server:cli("SCRIPT", "LOAD", op.text)
        assert.matches("^%x+$", sha, op.name)
        assert.equal(40, #sha)
        count = count + 1
      end
    end
    for _, name in ipairs(policies()) do
      local module = require(name)
      -- A file may have both sides of a lock, or only shared functions.
      for _, def in pairs(module.server and { module } or module) do
        if type(def) == "table" then load_all(def) end
      end
    end
    assert.is_true(count > 5)
  end)

  it("runs, with its helpers, constants and modules", function()
    assert.equal("held\n1099511627776\n6\np:{x}",
      run(shop "acquire", { "x" }, "me", "30000", "1"))
    assert.equal("held\n1099511627776\n6\np:{x}",
      run(shop "acquire", { "x" }, "me", "30000", "2"))
    assert.equal("2", server:cli("HGET", "x", "me"))
    assert.matches("^busy\n%d+$",
      run(shop "acquire", { "x" }, "other", "30000", "1"))
    assert.equal("lost", run(shop "release", { "x" }, "other"))
    assert.matches("^freed\n    a long\n      string\n",
      run(shop "release", { "x" }, "me"))
    assert.equal("0", run(shop "peek", { "x" }))
  end)

  it("has the constants that the policy has", function()
    local reply = run(shop "constants", {})
    assert.matches("^0.5 %-1.0000000000000001e%-09\ntrue\n", reply)
    assert.matches("\ntrue$", reply)
  end)

  it("reads back every byte and every kind of number", function()
    local bytes = {}
    for i = 0, 255 do bytes[i + 1] = string.char(i) end
    local values = {
      0, -1, 0.1, 1 / 3, -2.5e-7, 2 ^ 31, 2 ^ 53, -2 ^ 53, 1e15, 123456789012,
      1e100, 1.7976931348623157e308, 5e-324, true, false, "", "\n\r\0001\\\"",
      table.concat(bytes),
    }
    for _, value in ipairs(values) do
      local literal = assert(emit.literal(value))
      local text, sent = "return tostring(%s) == ARGV[1]", tostring(value)
      if type(value) == "number" then
        text, sent = "return %s == tonumber(ARGV[1])", ("%.17g"):format(value)
      end
      text = text:gsub("%%s", function() return literal end)
      assert.equal("1", server:cli("EVAL", text, 0, sent), text)
    end
  end)

  it("meets the assumptions of rlock.script", function()
    local text = { "local missing = ''" }
    local function need(name)
      text[#text + 1] = ("if not pcall(function() assert(%s ~= nil) end) then"
        .. " missing = missing .. ' %s' end"):format(name, name)
    end
    for name in pairs(sandbox.globals) do need(name) end
    for library, fields in pairs(sandbox.fields) do
      for field in pairs(fields) do need(library .. "." .. field) end
    end
    text[#text + 1] = "return missing"
    assert.equal("", server:cli("EVAL", table.concat(text, "\n"), 0))
  end)
end)

describe("an error of a real script", function()
  local SHOP, WORDS = "spec/unit/fixtures/shop.lua",
    "spec/unit/fixtures/words.lua"

  setup(function() server = redis.start() end)
  teardown(function() server:stop() end)

  local function failed(how)
    local op = shop "fail"
    server:cli("SET", "string", "1")
    return (script.translate(op, run(op, { "string" }, how))
      :gsub("[^ (]*(spec/unit)", "%1"))
  end

  for _, case in ipairs {
    { "Lua's own", "index", SHOP, "-- raises",
      "^ERR %s: attempt to index field 'missing' %%(a nil value%%)$" },
    { "of error()", "raise", SHOP, "error(\"the word\")",
      "^ERR %s: the word$" },
    { "of a command", "type", SHOP, "redis.call(\"hget\", keys[1], \"field\")",
      "^WRONGTYPE Operation against a key holding .* value %%(%s%%)$" },
    { "of a command that does not exist", "command", SHOP, "no-such-command",
      "^ERR .*Unknown .*command.* %%(%s%%)$" },
    { "inside a module's function", "helper", WORDS, "error(\"raised",
      "^ERR %s: raised deep$" },
    { "of a policy's own word", "table", SHOP, "RLOCK_OWN",
      "^RLOCK_OWN word %%(%s%%)$" },
  } do
    it("names file and line: one " .. case[1], function()
      local where = line_of(case[3], case[4]):gsub("%p", "%%%0")
      assert.matches(case[5]:format(where), (failed(case[2])))
    end)
  end

  it("is left alone when it is a reply that the policy made", function()
    assert.equal("RLOCK_PLAIN word", failed("nothing"))
  end)
end)
