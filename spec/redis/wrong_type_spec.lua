--- Locks of every kind take any name, and refuse a key that holds something
--- else: the detail says which kind is expected.

local fixtures = require "spec.tools.fixtures"
local kinds = require "rlock.lock.kinds"

local unpack = table.unpack or unpack

-- What a key may hold instead, by the type that a kind expects.
local fills = {
  hash = { { "SET", "a text" }, { "ZADD", "1", "a" } },
  zset = { { "SET", "a text" }, { "HSET", "a", "b" } },
  string = { { "HSET", "a", "b" }, { "RPUSH", "a" } },
  number = { { "SET", "a text" }, { "SET", "1.5" }, { "HSET", "a", "b" } },
}
local expected = { fair_readwrite = "zset", latch = "number",
  permits = "number", semaphore = "number", simple = "string" }

local calls = {
  latch = { { "set", 1 }, { "count" }, { "count_down" },
    { "wait", { wait = 0 } } },
  permits = { { "set", 1 }, { "try_acquire" }, { "available" } },
  semaphore = { { "set", 1 }, { "try_acquire" }, { "release" },
    { "available" } },
}

local ODD = { "with spaces", "nul\0inside", "{tag}:x", "a{b", "x{}y", "}{",
  "new\nline", "\255\254", "%s", ("x"):rep(100000) }

local server, client

setup(function()
  server = fixtures.server()
  client = fixtures.open(server.url)
end)
teardown(fixtures.close)

describe("any name is taken by", function()
  local use = {}

  function use.lock(factory, odd)
    local owner = odd:sub(1, 1000)
    local its, other = client[factory](client, odd, { owner = owner }),
      client[factory](client, odd)
    if its.write_lock then its, other = its:write_lock(), other:write_lock() end
    assert.is_true((its:lock()))
    assert.equal("busy", select(2, other:try_lock()))
    assert.is_true(its:unlock())
  end

  function use.latch(_, odd)
    local latch = client:latch(odd)
    assert.is_true(latch:set(1))
    assert.is_true((latch:count_down()))
    assert.is_true(latch:wait())
  end

  function use.permits(factory, odd)
    local its = client[factory](client, odd)
    assert.is_true(its:set(1))
    local id = assert(its:acquire())
    assert.equal("busy", select(2, its:try_acquire()))
    assert.is_true(its:release(id ~= true and id or nil))
  end

  use.semaphore = use.permits

  for _, kind in ipairs(kinds) do
    it(kind.name, function()
      for _, odd in ipairs(ODD) do
        (use[kind.name] or use.lock)(kind.factory, odd)
      end
      client:call "FLUSHALL"
    end)
  end
end)

describe("a key that holds something else", function()

  local function refuses(kind, object, call)
    local ok, code, detail = object[call[1]](object, call[2])
    assert.same({ nil, "redis" }, { ok, code }, call[1])
    assert.matches((" for \"[^\"]+\": %s[.%%a]* is expected, but "):format(
      kind.name), detail)
    assert.matches("a key of this name holds something else", detail, 1, true)
  end

  for _, kind in ipairs(kinds) do
    it("is told by " .. kind.name, function()
      for _, fill in ipairs(fills[expected[kind.name] or "hash"]) do
        local object = client[kind.factory](client, fixtures.name(kind.name))
        local sides = kind.pair
          and { object:read_lock(), object:write_lock() } or { object }
        client:call(fill[1], sides[1].record.target[1], unpack(fill, 2))
        for _, side in ipairs(sides) do
          for _, call in ipairs(calls[kind.name] or { { "try_lock" } }) do
            refuses(kind, side, call)
          end
        end
      end
    end)
  end
end)
