--- Commands that holds guard, without a server: which holds and commands go
--- together, what is sent, and how a reply is understood.

local blind = require "spec.tools.blind_policy"
local effects = require "rlock.redis.effects"
local policies = require "rlock.policy"

local REENTRANT = policies.load "reentrant"

local node, reply, sent

-- A hold of a lock with one key.
local function hold_of(name, fields)
  local target = { name, server = node, node = node, slot = nil }
  local hold = { target = target, policy = REENTRANT, name = name,
    owner_name = "o:" .. name }
  for field, value in pairs(fields or {}) do
    if hold[field] then hold[field] = value else target[field] = value end
  end
  return hold
end

local function run(holds, ...)
  return effects.run(holds, { ... }, 5)
end

local function refused(pattern, ...)
  local replies, code, detail = run(...)
  assert.same({ nil, "usage" }, { replies, code })
  assert.matches(pattern, detail, 1, true)
  assert.is_nil(sent)
end

before_each(function()
  reply, sent = { "done", {} }, nil
  node = {
    host = { now = function() return 1 end, random_number = function()
      return 0
    end }, options = { timeout = 3 }, timeout_ms = 3000,
    shas = setmetatable({}, { __index = function() return "sha" end }),
    seals = { mode = "kill" }, where = "there",
    handle = function() end, suspect = function() end,
    key_places = { SET = { 1, 1, 1 }, DEL = { 1, -1, 1 }, PING = { 0, 0, 0 } },
    connection = {},
  }
  function node.connection.eval(_, _, _, keys, a, b, c, d, extra)
    assert.same({}, { b, c, d })
    sent = table.concat(keys, " ") .. " | " .. a .. " | "
      .. table.concat(extra, " ")
    if type(reply) == "table" and reply.code then
      return nil, reply.code, reply.detail
    end
    return reply
  end
end)

describe("holds guard commands", function()
  it("with the keys of all, the owners and the words", function()
    assert.same({}, run({ hold_of "a" }, { "SET", "x", 1 }))
    assert.equal("a x | o:a | 1 1 3 SET x 1", sent)
    run({ hold_of "a", hold_of "b" }, { "PING" }, { "DEL", "x", "y" })
    assert.equal("a b x y | o:a | 2 1 o:b 1 PING 3 DEL x y", sent)
  end)

  it("only of one client, kind, slot, and number of replicas", function()
    refused("several clients", { hold_of "a", hold_of("b", { server = {} }) })
    refused("several kinds", { hold_of "a",
      hold_of("b", { policy = policies.load "mutex" }) })
    refused("different numbers of replicas", { hold_of "a",
      hold_of("b", { replicas = { count = 1 } }) })
    refused("different numbers of replicas", {
      hold_of("a", { replicas = { count = 2 } }),
      hold_of("b", { replicas = { count = 1 } }) })
    refused("use names such as {b}:1 and {b}:2", {
      hold_of("a", { slot = 1 }), hold_of("b", { slot = 2 }) })
    refused("has no server.peek", {
      hold_of("a", { policy = policies.load(blind) }) })
    assert(run({ hold_of("a", { slot = 1 }), hold_of("b", { slot = 1 }) }))
  end)

  it("whose keys are in their slot", function()
    local slot = require "rlock.redis.slot"
    local number = slot.of "a"
    refused('"x" is not in the slot of the lock; with a lock named {a}, use '
      .. "keys such as {a}:value", { hold_of("a", { slot = number }) },
      { "DEL", "x", "{a}x" })
    assert(run({ hold_of("a", { slot = number }) }, { "DEL", "{a}x" }))
  end)

  it("up to 99 keys and 5000 words", function()
    local keys, words = { "DEL" }, { "PING" }
    for i = 1, 98 do keys[i + 1] = "k" .. i end
    for i = 2, 5000 do words[i] = "x" end
    assert(run({ hold_of "a" }, keys))
    assert(run({ hold_of "a" }, words))
    sent = nil
    keys[100], words[5001] = "k99", "x"
    refused("100 keys, including those of the locks; at most 99",
      { hold_of "a" }, keys)
    refused("PING has 5001 words; at most 5000", { hold_of "a" }, words)
  end)
end)

describe("the reply to guarded commands", function()
  local function result(...)
    return { run({ hold_of "a" }, ...) }
  end

  it("has theirs, or says that the hold is lost", function()
    reply = { "done", { "OK", false } }
    assert.same({ { "OK", false } }, result({ "PING" }, { "PING" }))
    reply = { "lost" }
    assert.same({ nil, "lost", "the server no longer has the hold; nothing "
      .. "has changed" }, result { "PING" })
  end)

  it("names the command that has failed", function()
    reply = { "failed", 1, "ERR \27no" }
    assert.same({ nil, "redis", "PING: ERR ?no" }, result { "PING" })
    reply = { "failed", 1, "ERR no" }
    for name, shown in pairs { [""] = '""', ["\27[2J"] = '"?[2J"',
        ["JSON.GET"] = "JSON.GET" } do
      node.key_places[name:upper()] = { 0, 0, 0 }
      assert.same({ nil, "redis", shown .. ": ERR no" }, result { name })
    end
    reply = { "failed", 2, "ERR no" }
    assert.same({ nil, "redis", "DEL: ERR no (command 2 of 2; those before it "
      .. "were executed)" }, result({ "PING" }, { "DEL", "x" }))
  end)

  it("may be malformed", function()
    for _, bad in ipairs { "done", { "done" }, { "done", "x" }, { "failed" },
        { "failed", "1", "x" }, { "failed", 2, "x" }, { "?" }, { 5 } } do
      reply = bad
      local got, code, detail = run({ hold_of "a" }, { "PING" })
      assert.same({ nil, "redis" }, { got, code })
      assert.matches('^policy "reentrant": .+: call: a malformed reply$',
        detail)
    end
  end)

  it("may be lost: then the outcome is unknown", function()
    for _, code in ipairs { "timeout", "closed" } do
      reply = { code = code, detail = "gone" }
      local got, its, detail = run({ hold_of "a" }, { "PING" })
      assert.same({ nil, "timeout" }, { got, its })
      assert.matches("^gone.*; its outcome is unknown, and it is not retried$",
        detail)
    end
    reply = { code = "redis", detail = "ERR it failed" }
    local _, code, detail = run({ hold_of "a" }, { "PING" })
    assert.equal("redis", code)
    assert.matches("^ERR it failed", detail)
  end)

  it("is not awaited if the keys are not known", function()
    node.key_places = nil
    for answer, expected in pairs { ["timeout late"] = "connect",
        ["closed gone"] = "connect", ["cancelled x"] = "cancelled" } do
      function node.any()
        return { call = function() return nil, answer:match "^(%S+) (.*)$" end }
      end
      assert.equal(expected, (select(2, run({ hold_of "a" }, { "PING" }))))
      assert.is_nil(sent)
    end
    function node.any()
      return { call = function() return nil, "closed", "x" end }
    end
    node.is_closed = true
    assert.equal("closed", (select(2, run({ hold_of "a" }, { "PING" }))))
  end)
end)
