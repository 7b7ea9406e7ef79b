--- The read/write lock on a real Redis. spec/check/readwrite_spec.lua has the
--- operations at exact times.

local fixtures = require "spec.tools.fixtures"
local readwrite = require "rlock.policy.readwrite"
local redis = require "spec.tools.redis"
local states = require "spec.tools.states"

local server = redis.shared()
local client, name

describe("a read/write lock", function()
  before_each(function()
    client, name = fixtures.open(server.url), fixtures.name "readwrite"
  end)
  after_each(fixtures.close)

  it("lists only the first of very many readers", function()
    local reading = states.of(client, readwrite.read)
    for i = 1, 1000 do
      reading.ask(name, "acquire", "reader " .. i, "60000", "1")
    end
    local reply = reading.ask(name, "peek", "reader 7")
    assert.same({ "held", 1 }, { reply[1], reply[3] })
    assert.is_true(#reply[4] >= 20 and #reply[4] <= 200)
    client:call("DEL", name)
  end)

  it("uses the hash tag of its name, if there is one", function()
    for _, odd in ipairs { "{test}:abc:key", "plain", "a{b", "x{}y" } do
      local its = client:read_write_lock(odd):read_lock()
      assert.is_true(its:lock { lease = 10 })
      local prefix = odd:find("{", 1, true) and odd or "{" .. odd .. "}"
      local owner = client:call("ZRANGE", "rlock_rw_holds:" .. prefix, 0, 0)[1]
      assert.equal("1", client:call("GET",
        prefix .. ":" .. owner .. ":rwlock_timeout:1"))
      assert.is_true(its:unlock())
      assert.equal(0, client:call("EXISTS", odd))
    end
  end)
end)

require "spec.rows.readwrite" ("readwrite", describe, it, before_each,
  after_each)
for _, kind in ipairs { "read", "write" } do
  require "spec.rows.rlock" (kind, describe, it, before_each,
    after_each)
end
