--- The fenced lock on a real Redis: an RLock with increasing fencing tokens;
--- and the other kinds with the option `fenced`.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local kinds = require "spec.tools.kinds"
local redis = require "spec.tools.redis"
local slow = require "spec.tools.slow"
local rlock = require "rlock"
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

  it("follows the mark of a fair lock", function()
    local fair = client:fair_lock(name, { fenced = true })
    local _, token = fair:lock()
    assert.equal(("0%d"):format(token), client:call("HGET", name, ""))
    assert.equal(token, select(2, fair:lock()))
    assert.equal(token, fair:peek().token)
    assert.equal("refused", select(2, fair:break_lock(token + 1)))
    assert.is_true(fair:break_lock(token))
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

local FENCED = kinds.names(function(kind)
  return kind.is_fenced and not kind.rival
end, true)

for _, which in ipairs(FENCED) do
  describe("the option fenced: " .. which, function()
    local client, name, kind, clients, bare
    local is_entered_once = kinds.of[which].is_entered_once

    before_each(function()
      client, name = fixtures.open { url = server.url }, fixtures.name(which)
      clients, kind = { client }, kinds.of[which]
      bare = kinds.of[which:match "^fenced_(.*)$"]
    end)

    after_each(fixtures.close)

    local function of(owner)
      return kind.lock(clients, name, { owner = owner })
    end

    local function last_token()
      return tonumber(client:call("GET",
        "redisson_lock_token:{" .. name .. "}"))
    end

    -- The keys that are left, sorted.
    local function left()
      local keys = client:call("KEYS", "*" .. name .. "*")
      table.sort(keys)
      return keys
    end

    it("gives each hold a greater token, whoever takes it", function()
      local last = 0
      for i = 1, 6 do
        local lock = of(i % 3 == 0 and "me" or "you")
        local ok, token = lock:lock()
        assert.is_true(ok)
        assert.is_true(token > last)
        assert.same({ token, token, token },
          { lock:token(), lock:peek().token, last_token() })
        assert.is_true(lock:unlock())
        assert.is_nil(lock:token())
        last = token
      end
      assert.same({ "redisson_lock_token:{" .. name .. "}" }, left())
    end)

    it("gives one token to a hold, also after renewals", function()
      local lock = of "me"
      local its = states.of(client, getmetatable(lock.record.policy).__index)
      local _, token = assert(lock:lock { lease = 1 * slow })
      assert.equal("held", its.ask(name, "renew", "me", "60000", "1")[1])
      assert.same({ "held", token },          -- the same request again
        its.ask(name, "acquire", "me", "60000", "1", "0", "publish"))
      for _, key in ipairs(left()) do         -- a short lease changes nothing
        local ms = client:call("PTTL", key)
        assert.is_true(ms == -1 or ms > 30000, key)
      end
      if not is_entered_once then
        assert.same({ true, token }, { lock:lock() })
        assert.same({ true, token }, { lock:lock { lease = 5 } })
        assert.is_true(lock:unlock())
        assert.is_true(lock:unlock())
        assert.equal(token, lock:token())
      end
      assert.equal(token, last_token())
      assert.is_true(lock:unlock())
    end)

    it("gives a greater token when the lease of the last hold has ended",
      function()
        local _, token = assert(of("me"):lock { lease = 0.01 })
        local other = kind.lock({ fixtures.open { url = server.url } }, name,
          { owner = "me" })
        eventually(function() return not other:is_locked() end)
        assert.is_true(select(2, assert(other:lock())) > token)
      end)

    it("excludes the lock without tokens, which draws none", function()
      local _, token = assert(of("me"):lock())
      local plain = bare.lock(clients, name, { owner = "you" })
      assert.equal("busy", select(2, plain:try_lock()))
      assert.is_true(of("me"):unlock())
      assert.same({ true }, { plain:lock { wait = 10 * slow } })
      assert.is_nil(plain:token())
      assert.equal("busy", select(2, of("me"):try_lock()))
      assert.equal(1, #plain:peek().holders)
      assert.is_true(plain:unlock())
      assert.equal(token, last_token())
      assert.is_true(select(2, assert(of("me"):lock { wait = 10 * slow }))
        > token)
    end)

    it("gives no token to those who hold it after it was broken", function()
      local mine = of "me"
      local plain = bare.lock(clients, name, { owner = "you" })
      local _, token = assert(mine:lock())
      assert.is_true(plain:break_lock())
      assert.is_true((plain:lock { wait = 10 * slow }))
      assert.is_nil(mine:peek().token)
      assert.equal("refused", select(2, mine:break_lock(token)))
      assert.is_true(plain:unlock())
      mine:unlock()
      assert.is_true(select(2, assert(mine:lock { wait = 10 * slow })) > token)
    end)

    it("gives a token to an owner that held it without one", function()
      local plain = bare.lock(clients, name, { owner = "me" })
      local _, before = assert(of("other"):lock())
      assert.is_true(of("other"):unlock())
      assert.is_true(plain:lock())
      local ok, token, code = of("me"):lock()
      assert.is_true(ok, code)
      assert.is_true(token > before)
    end)

    it("is broken by token only while that hold lasts", function()
      local lock = of "me"
      local _, token = assert(lock:lock())
      assert.equal("refused", select(2, lock:break_lock(token - 1)))
      assert.is_true(lock:is_held())
      assert.is_true(lock:break_lock(token))
      assert.is_false(lock:break_lock(token))
      assert.same({ "redisson_lock_token:{" .. name .. "}" }, left())
      assert.equal("lost", select(2, lock:unlock()))
      local _, later = assert(lock:lock { wait = 10 * slow })
      assert.is_true(later > token)
    end)

    it("leaves no hold behind if the last token cannot be read", function()
      local key = "redisson_lock_token:{" .. name .. "}"
      client:call("HSET", key, "a", "b")
      assert.matches("WRONGTYPE", select(3, of("me"):try_lock()))
      client:call("SET", key, "9007199254740991")
      local ok, code, detail = of("me"):try_lock()
      assert.same({ nil, "refused", "the tokens are used up" },
        { ok, code, detail })
      assert.is_false(of("me"):is_locked())
    end)

    it("is given with a commanded write", function()
      local lock = of "me"
      local _, token = assert(lock:lock())
      assert.equal("OK", lock:call("SET", name .. ":value", token))
      assert.is_true(lock:break_lock())
      assert.equal("lost", select(2, lock:call("SET", name .. ":value", 0)))
      assert.equal(("%d"):format(token), client:call("GET", name .. ":value"))
    end)

    it("orders the writes of many holders", function()
      local greatest, writes = 0, 0
      task.many(6, function()
        local its = kind.lock({ fixtures.open { url = server.url } }, name)
        for _ = 1, 8 do
          local ok, token = its:lock { wait = 60 * slow }
          assert.is_true(ok)
          assert.is_true(token > greatest, "a token went back")
          greatest, writes = token, writes + 1
          assert.is_true(its:unlock())
        end
      end)
      assert.equal(48, writes)
    end)
  end)
end

describe("the option fenced", function()
  local client, name

  before_each(function()
    client, name = fixtures.open { url = server.url }, fixtures.name "fencing"
  end)

  after_each(fixtures.close)

  it("makes a lock the fenced lock", function()
    local lock = client:lock(name, { fenced = true })
    local _, token = assert(lock:lock())
    assert.equal(token, client:fenced_lock(name):token())
    assert.is_true(client:fenced_lock(name):unlock())
    assert.is_nil(client:lock(name, { fenced = false }):token())
  end)

  it("is for the writer of a read/write lock, which may also read", function()
    for _, method in ipairs { "read_write_lock", "fair_read_write_lock" } do
      local pair = client[method](client, name .. method, { fenced = true })
      local read, write = pair:read_lock(), pair:write_lock()
      assert.same({ true }, { read:lock() })
      assert.is_nil(read:token())
      assert.equal("refused", select(2, write:try_lock()))
      assert.is_true(read:unlock())
      local _, token = assert(write:lock())
      assert.same({ true }, { read:lock() })
      assert.same({ true, token }, { write:lock() })
      for _ = 1, 2 do assert.is_true(write:unlock()) end
      assert.is_nil(write:token())
      assert.is_true(read:unlock())
      assert.is_true(select(2, assert(write:lock())) > token)
    end
  end)

  it("hands the lock over to the waiter that has waited longest", function()
    for _, method in ipairs { "lock", "mutex" } do
      local fast = { url = server.url, watchdog = 60 }
      local a, b = fixtures.open(fast), fixtures.open(fast)
      local mine = a[method](a, name .. method, { fenced = true })
      local theirs = b[method](b, name .. method, { fenced = true })
      local _, token = assert(mine:lock())
      local waiting = task.start(function()
        return select(2, assert(theirs:lock { wait = 20 * slow }))
      end)
      local channel = "redisson_lock__channel:{" .. name .. method .. "}"
      eventually(function()
        return client:call("ZCARD", channel .. ":waiters") == 1
      end)
      assert.is_true(mine:unlock())
      assert.is_true(waiting:join() > token)
      assert.equal(1, b:stats().handed_over)
    end
  end)

  it("gives each member of a multi-lock its own token", function()
    local members = {
      client:mutex(name .. 1, { fenced = true }),
      client:fair_lock(name .. 2, { fenced = true }),
    }
    local both = rlock.multi_lock(members)
    assert.is_true(both:lock())
    for _, member in ipairs(members) do
      assert.equal(member:peek().token, member:token())
    end
    assert.has_error(function() both:token() end, "multi-lock of 2 locks has "
      .. "no token: ask its members")
    assert.is_true(both:unlock())
  end)

  it("is refused where there can be no token", function()
    local function says(text, fn, ...)
      local ok, message = pcall(fn, ...)
      assert.is_false(ok)
      assert.truthy(message:find(text, 1, true), message)
    end
    local option = { fenced = true }
    says("bad option fenced of red_lock: independent servers cannot issue a "
      .. "common token", rlock.red_lock, { client }, name, option)
    says("bad option fenced: give it to the factory of a built-in read/write "
      .. "lock, whose writer gets the tokens", client.policy, client,
      require "rlock.policy.readwrite".read, name, option)
    says("it has none", client.semaphore, client, name, option)
    says("bad fenced: must be a boolean, is a number", client.mutex, client,
      name, { fenced = 1 })
  end)

  it("works for a user's policy that is mutual exclusion", function()
    local simple, own = require "rlock.policy.simple", {}
    for field, value in pairs(simple) do own[field] = value end
    own.name = "mine"
    local lock = client:policy(own, name, { fenced = true })
    local _, token = assert(lock:lock())
    assert.equal(token, lock:peek().token)
    assert.is_true(lock:unlock())
    assert.is_true(select(2, assert(lock:lock())) > token)
    assert.equal(client:policy(own, name, { fenced = true }).record,
      lock.record)
    local function refuses(text, change)
      local its = {}
      for field, value in pairs(simple) do its[field] = value end
      change(its)
      local ok, message = pcall(client.policy, client, its, name,
        { fenced = true })
      assert.is_false(ok)
      assert.truthy(message:find("bad option fenced: " .. text, 1, true),
        message)
    end
    refuses("not known to be mutual exclusion", function(its)
      its.exclusive = nil
    end)
    refuses("server.peek is missing", function(its)
      its.server = { acquire = simple.server.acquire,
        release = simple.server.release }
    end)
    refuses("it has 8 keys", function(its)
      function its.keys() return { "1", "2", "3", "4", "5", "6", "7", "8" } end
    end)
  end)
end)

require "spec.rows.rlock" ("fenced", describe, it, before_each,
  after_each)
