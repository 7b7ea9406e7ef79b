--- Fencing tokens at exact times, on the model of Redis: for how long the
--- server keeps the token of a hold that has a key of its own.

local simple = require "rlock.policy.simple"
local stage = require "spec.simulate.stage"
local transcript = require "spec.tools.transcript"

local on_stage = stage.tests(it)

describe("a token with a key of its own", function()
  local case = transcript.tests(it, "fenced_readwrite")

  case("lasts as long as its hold", [[
    0 write.acquire A 1000 1 -> held 1.7e+15
    0 keys -> lock {A:write=1 mode=write}, token p0, token:readwrite.write p0 A,
      .. until 1000 lock token:readwrite.write
    100 write.acquire A 5000 2 -> held 1.7e+15
    100 keys -> lock {A:write=2}, until 5100 lock token:readwrite.write
    200 write.release A 3000 1 publish -> kept
    200 keys -> lock {A:write=1}, until 3200 lock token:readwrite.write
    300 write.renew A 900 1 -> held
    300 keys -> same
    400 write.renew A 9000 1 -> held
    400 keys -> until 9400 lock token:readwrite.write
    600 write.acquire A 2000 2 -> held 1.7e+15
    600 keys -> lock {A:write=2}
    700 write.release A 1 0 publish -> freed, sent rwlock=1
    700 keys -> -lock, -token:readwrite.write
  ]])

  on_stage("ends with its hold, if the reply of a user's policy is a table",
    function(self, client)
      local own = { name = "own", keys = simple.keys, exclusive = true,
        server = {} }
      for name, fn in pairs(simple.server) do own.server[name] = fn end
      function own.server.release(keys)
        redis.call("del", keys[1]) -- luacheck: ignore
        return { "freed" }
      end
      local lock = client:policy(own, "lock", { fenced = true })
      assert.is_true((lock:lock()))
      local entries, key = self.server.redis.entries, nil
      for name in pairs(entries) do
        if name:find ":own$" then key = name end
      end
      assert.is_string(key)
      assert.is_true(lock:unlock())
      assert.is_nil(entries[key])
    end)

  on_stage("does not make a user's policy break locks that it cannot break",
    function(_, client)
      local own = { name = "own", keys = simple.keys, exclusive = true,
        server = {} }
      for name, fn in pairs(simple.server) do own.server[name] = fn end
      own.server.break_ = nil
      local lock = client:policy(own, "lock", { fenced = true })
      assert.is_true((lock:lock()))
      local ok, code, detail = lock:break_lock()
      assert.same({ nil, "usage" }, { ok, code })
      assert.match("has no server.break_", detail, 1, true)
      assert.is_true(lock:unlock())
    end)
end)
