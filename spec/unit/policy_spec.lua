local policy = require "rlock.policy"

local function load_fault(which)
  local _, message = pcall(function()
    local result = policy.load(which)
    return result
  end)
  assert.is_string(message)
  return message
end

local function definition(change)
  local server = {
    acquire = function(keys) return { "held", keys[1] } end,
    release = function() return { "freed" } end,
  }
  local def = {
    name = "p", server = server, keys = function(name) return { name } end,
  }
  if change then change(def) end
  return def
end

describe("policy.load", function()
  it("compiles every operation of a definition", function()
    local def = definition(function(def)
      def.server.peek = function() return { "free" } end
    end)
    local loaded = policy.load(def)
    assert.equal("p", loaded.name)
    assert.equal(def.server, loaded.server)
    assert.same({ "x" }, loaded.keys("x"))
    assert.equal("p.acquire", loaded.ops.acquire.name)
    assert.equal("p.peek", loaded.ops.peek.name)
    assert.matches('return { "freed" }\n$', loaded.ops.release.text)
  end)

  it("asks what is no lock for the operations that it needs", function()
    local def = definition(function(def)
      def.server = { count_down = function() return { "free" } end }
      def.needs = { count_down = { free = "" } }
    end)
    assert.equal("p.count_down", policy.load(def).ops.count_down.name)
    def = definition(function(d)
      d.needs = { acquire = {}, count_down = {} }
    end)
    assert.matches("server.count_down is missing", load_fault(def))
    def = definition(function(d) d.needs = "acquire" end)
    assert.matches("needs must be a table", load_fault(def))
  end)

  it("asks what reasserts its leases for a renewal", function()
    local def = definition(function(d) d.reasserts = true end)
    assert.matches("server.renew is missing: reasserts needs it",
      load_fault(def))
    def = definition(function(d) d.reasserts = 1 end)
    assert.matches("reasserts must be a boolean", load_fault(def))
  end)

  it("keeps what it loaded", function()
    local def = definition()
    assert.equal(policy.load(def), policy.load(def))
    assert.equal(policy.load("reentrant"),
      policy.load(require "rlock.policy.reentrant"))
  end)

  it("finds our policies by their short name", function()
    assert.equal("reentrant", policy.load("reentrant").name)
    assert.equal("reentrant", policy.load("rlock.policy.reentrant").name)
  end)

  it("finds a user's policy on package.path", function()
    assert.equal("shop", policy.load("spec.unit.fixtures.shop").name)
  end)

  it("takes former names of fields", function()
    local other = definition()
    local loaded = policy.load(definition(function(def)
      def.twin, def.restates, def.server.renew =
        other, true, function() return { "held" } end
    end))
    assert.equal(other, loaded.peer)
    assert.is_true(loaded.reasserts)
  end)

  it("takes policies that a factory made", function()
    local function make(limit)
      return definition(function(def)
        def.server.peek = function() return { "free", limit } end
      end)
    end
    assert.matches("local limit = 2\n", policy.load(make(2)).ops.peek.text)
    assert.matches("local limit = 3\n", policy.load(make(3)).ops.peek.text)
  end)

  for _, case in ipairs {
    { "a name", function(def) def.name = nil end, "name is missing: a string" },
    { "a name that is one", function(def) def.name = 7 end,
      "name must be a string, is a number" },
    { "a name with letters", function(def) def.name = "" end,
      "name must not be empty" },
    { "keys", function(def) def.keys = nil end, "keys is missing: a function" },
    { "keys that are a function", function(def) def.keys = { "x" } end,
      "keys must be a function, is a table" },
    { "a channel that is a function", function(def) def.channel = "x" end,
      "channel must be a function, is a string" },
    { "an extra that is a function", function(def) def.extra = {} end,
      "extra must be a function, is a table" },
    { "a poll that is a number", function(def) def.poll = "1" end,
      "poll must be a number, is a string" },
    { "a field that there is", function(def) def.chanel = "x" end,
      "a policy has no field chanel, only allows, channel, [%l_, ]+" },
    { "server", function(def) def.server = nil end,
      "server is missing: a table" },
    { "functions", function(def) def.server = print end,
      "server must be a table, is a function" },
    { "acquire", function(def) def.server.acquire = nil end,
      "server.acquire is missing" },
    { "release", function(def) def.server.release = nil end,
      "server.release is missing" },
    { "functions in server", function(def) def.server.renew = "x" end,
      "server.renew must be a function written in Lua, is a string" },
    { "functions in Lua", function(def) def.server.renew = print end,
      "server.renew must be a function written in Lua, is a C function" },
    { "names in server", function(def) def.server[1] = print end,
      "server has a key that is not a string" },
  } do
    it("misses " .. case[1], function()
      local def = definition(case[2])
      local who = type(def.name) == "string" and 'policy "' .. def.name .. '"'
        or "the policy"
      assert.matches("^" .. who .. ": [^: ]*policy_spec.lua:%d+: " .. case[3]
        .. "$", load_fault(def))
    end)
  end

  for _, case in ipairs {
    { "keys", "list", { false, "x", {}, { 7 }, { "" },
      { "1", "2", "3", "4", "5", "6", "7", "8", "9" } } },
    { "channel", "string", { false, 7, "", {} } },
    { "extra", "list", { "x", 7, { {} }, { true }, { "x", print } } },
  } do
    it("looks at what " .. case[1] .. " returns", function()
      for _, value in ipairs(case[3]) do
        local loaded = policy.load(definition(function(def)
          def[case[1]] = function() return value end
        end))
        local ok, message = pcall(loaded[case[1]], "x")
        assert.is_false(ok)
        assert.matches('^policy "p": [^\n]*policy_spec.lua:%d+: ' .. case[1]
          .. " must return a " .. case[2] .. "[^\n]*$", message)
      end
    end)
  end

  it("says that there is no such policy", function()
    assert.matches('policy_spec.lua:%d+: policy "no_such.policy": there is no '
      .. "such module on package.path$", load_fault("no_such.policy"))
    assert.matches('policy "nonsense": there is no such module',
      load_fault("nonsense"))
  end)

  it("passes on what is wrong inside a module", function()
    package.preload["spec.broken"] = function() error("broken inside") end
    package.preload["spec.needy"] = function() require "spec.not_there" end
    package.preload["spec.number"] = function() return 7 end
    assert.matches('^policy "spec.broken": [^\n]*policy_spec.lua:%d+: broken '
      .. "inside$", load_fault("spec.broken"))
    assert.matches('^policy "spec.needy": [^\n]*policy_spec.lua:%d+: module '
      .. "'spec.not_there' not found$", load_fault("spec.needy"))
    assert.matches('policy "spec.number": the module must return a table',
      load_fault("spec.number"))
    for _, name in ipairs { "broken", "needy", "number" } do
      package.preload["spec." .. name] = nil
    end
  end)

  it("requires a table or a name", function()
    assert.matches("the policy: must be a table, or the name", load_fault(nil))
    assert.matches("the policy: must be a table, or the name", load_fault(7))
  end)

  it("raises what cannot be shipped, always the same fault first", function()
    local state = {}
    local def = definition(function(def)
      def.server.release = function() return state end
      def.server.break_ = function() return state end
    end)
    assert.matches('^policy "p": [^\n]*policy_spec.lua:%d+: break_: upvalue '
      .. '"state" is a table[^\n]*$', load_fault(def))
  end)
end)
