--- A key that holds something else: the detail says which kind is expected.

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

describe("a key that holds something else", function()
  local server, client

  setup(function()
    server = fixtures.server()
    client = fixtures.open(server.url)
  end)
  teardown(fixtures.close)

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
