--- The fenced lock on a real Redis: an RLock with increasing fencing tokens.

local fixtures = require "spec.tools.fixtures"
local redis = require "spec.tools.redis"
local slow = require "spec.tools.slow"
local states = require "spec.tools.states"
local task = require "spec.tools.task"

local server = redis.shared()

describe("a fenced lock", function()
  local client, name, counter, lock, fenced

  local function token_of(owner, want)
    local reply = assert(fenced.ask(name, "acquire", owner, "60000",
      want or "1"))
    assert.equal("held", reply[1])
    return reply[2]
  end

  before_each(function()
    client, name = fixtures.open { url = server.url }, fixtures.name "fenced"
    counter = "redisson_lock_token:{" .. name .. "}"
    lock = client:policy("fenced", name)
    fenced = states.of(client, "fenced")
  end)

  after_each(fixtures.close)

  it("gives the verdict of its state", function()
    fenced.play(name, [[
      peek a                       free
      break_ - publish             free
      break_ 5 publish             free
      release a 1 0 publish        lost
      renew a 60000 1              lost
      acquire a 60000 2            lost
      acquire a 60000 1            held
      acquire a 60000 1            held     -- the same request again
      acquire a 60000 2            held
      acquire b 60000 1            busy
      acquire b 60000 2            lost
      renew a 60000 1              held
      renew b 60000 1              lost
      release a 60000 1 publish    kept
      release a 60000 1 publish    kept
      release b 1 0 publish        lost
      break_ 5 publish             refused
      break_ x publish             refused
      release a 1 0 publish        freed
      release a 1 0 publish        lost
      acquire b 60000 1            held
      over
      renew b 60000 1              lost
      acquire a 60000 1            held
      acquire a 10 1               held     -- a lease is never shortened
      renew a 10 1                 held
      wait 20
      acquire b 60000 1            busy
      release a 1 0 publish        freed
      acquire a 10 1               held
      wait 20
      renew a 60000 1              lost
      release a 1 0 publish        lost
      acquire a 60000 1            held
      break_ - publish             freed
      peek a                       free
    ]])
  end)

  it("testTokenIncrease: every hold has a greater token", function()
    local last = 0
    for _, how in ipairs {
      { "lock" }, { "lock", { wait = 5 } }, { "lock", { lease = 10 } },
      { "try_lock" }, { "try_lock", { lease = 10 } },
    } do
      local ok, token = lock[how[1]](lock, how[2])
      assert.is_true(ok)
      assert.is_true(token > last)
      assert.equal(token, lock:token())
      assert.equal(("%d"):format(token), client:call("GET", counter))
      last = token
      assert.is_true(lock:unlock())
      assert.is_nil(lock:token())
    end
    assert.equal("integer", math.type(last))
    assert.is_true(last < 2 ^ 53)
  end)

  it("gives the same token for entering again and for the same request again",
    function()
      local _, token = lock:lock()
      assert.same({ true, token }, { lock:lock() })
      assert.same({ true, token }, { lock:try_lock { lease = 60 } })
      for _ = 1, 3 do assert.is_true(lock:unlock()) end
      local first = token_of "a"
      assert.is_true(first > token)
      for want = 1, 3 do assert.equal(first, token_of("a", tostring(want))) end
      assert.equal(("%d"):format(first), client:call("GET", counter))
    end)

  it("keeps the last token, without an expiry", function()
    assert.is_true((lock:lock { lease = 1000 }))
    assert.equal(-1, client:call("PTTL", counter))
    lock:unlock()
    client:call("PEXPIRE", counter, 1000000)   -- as an old rlock did
    assert.is_true((lock:lock()))
    assert.equal(-1, client:call("PTTL", counter))
  end)

  it("never decreases when the counter is deleted", function()
    local before = token_of "a"
    fenced.play(name, "release a 1 0 publish freed")
    client:call("DEL", counter)
    assert.is_true(token_of "b" > before)
    fenced.play(name, "release b 1 0 publish freed")
    client:call("SET", counter, "3")                 -- somebody restarted it
    assert.is_true(token_of "b" > before)
  end)

  it("never decreases when the clock is set back", function()
    client:call("SET", counter, "4000000000000000")      -- from the year 2096
    assert.equal(4000000000000001, token_of "a")
    fenced.play(name, "release a 1 0 publish freed")
    assert.equal(4000000000000002, token_of "a")
  end)

  it("goes on from Redisson's counter, which stays forever, as it goes on "
    .. "from ours", function()
    client:call("SET", counter, "41")
    local token = token_of "a"
    assert.is_true(token > 41)
    assert.equal(-1, client:call("PTTL", counter))
    fenced.play(name, "release a 1 0 publish freed")
    assert.equal(token + 1, client:call("INCR", counter))
    assert.is_true(token_of "a" > token + 1)
  end)

  it("refuses when numbers would lose precision", function()
    client:call("SET", counter, "9007199254740991")
    local ok, code, detail = lock:lock()
    assert.same({ nil, "refused" }, { ok, code })
    assert.matches("tokens", detail)
    assert.equal(0, client:call("EXISTS", name))
  end)

  it("is Redisson's RFencedLock: a hash with a field for each owner", function()
    local _, token = lock:lock()
    local state, fields = lock:peek(), {}
    assert.same({ 1, 1 }, { state.count, #state.holders })
    local flat = client:call("HGETALL", name)
    for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
    assert.matches(":%d+$", state.holders[1].owner)
    assert.same({ [""] = ("%d"):format(token), [state.holders[1].owner] = "1" },
      fields)
    task.run(function()
      assert.equal("busy", select(2, client:lock(name):try_lock()))
      assert.equal("busy", select(2, client:policy("mutex", name):try_lock()))
    end)
  end)

  it("waits for Redisson's holds", function()
    client:call("HSET", name, "java:1", 1)
    client:call("PEXPIRE", name, 100)
    assert.equal("busy", select(2, lock:try_lock()))
    assert.is_true((lock:lock { wait = 10 * slow }))
  end)

  it("gives a token to an owner that held it without one", function()
    client:call("HSET", name, "me", 1)
    client:call("PEXPIRE", name, 60000)
    local token = token_of "me"
    assert.is_true(token > 0)
    assert.equal(token, token_of "me")
  end)

  it("is broken by token only while that hold lasts", function()
    local _, token = lock:lock()
    assert.equal("refused", select(2, lock:break_lock(token - 1)))
    assert.is_true(lock:is_locked())
    assert.is_true(lock:break_lock(token))
    assert.is_false(lock:break_lock(token))
    assert.equal("lost", select(2, lock:unlock()))
    local _, later = lock:lock()
    assert.equal("refused", select(2, lock:break_lock(token)))
    assert.is_true(lock:is_held())
    client:call("HDEL", name, "")              -- a hold without a token
    assert.equal("refused", select(2, lock:break_lock(later)))
    assert.is_true(lock:break_lock())
  end)

  it("publishes 0 on Redisson's channel", function()
    local channel = "redisson_lock__channel:{" .. name .. "}"
    assert.same({ "0", "0" }, fixtures.messages(server, channel, function()
      lock:lock()
      lock:unlock()
      lock:lock()
      lock:break_lock()
    end))
  end)

  it("gives one token although the reply was lost and retried",
    function()
      local proxy = fixtures.proxy(server)
      local other = fixtures.open {
        url = proxy.url, timeout = 0.3 * slow,
      }
      local its = other:policy("fenced", name)
      its:lock()
      its:unlock()
      local before = tonumber(client:call("GET", counter))
      proxy:drop_replies(1, name)
      local ok, token = its:lock { wait = 5 * slow }
      assert.is_true(ok)
      assert.is_true(token > before)
      assert.equal(("%d"):format(token), client:call("GET", counter))
      assert.equal(1, its:hold_count())
      assert.is_true(its:unlock())
    end)

  it("reports a key of the wrong type", function()
    client:call("SET", name, "a string")
    assert.matches("WRONGTYPE", select(3, lock:lock()))
    assert.equal(0, client:call("EXISTS", counter))
    client:call("DEL", name)
    client:call("HSET", counter, "a", "b")
    assert.matches("WRONGTYPE", select(3, lock:lock()))
    assert.equal(0, client:call("EXISTS", name))
    client:call("DEL", counter)
    client:call("SET", counter, "not a number")
    assert.is_true((lock:lock()))
  end)

  it("orders the writes of many holders", function()
    local greatest, writes = 0, 0
    task.many(12, function()
      local other = fixtures.open { url = server.url }
      local its = other:policy("fenced", name)
      for _ = 1, 15 do
        local ok, token = its:lock { wait = 20 * slow }
        assert.is_true(ok)
        assert.is_true(token > greatest, "a token went back")
        greatest, writes = token, writes + 1
        assert.is_true(its:unlock())
      end
    end)
    assert.equal(180, writes)
  end)
end)

require "spec.rows.rlock" ("fenced", describe, it, before_each,
  after_each)
