--- The mutex on a real Redis: an RLock that its holder cannot enter again.

local redis = require "spec.support.redis"
local rlock = require "rlock"
local states = require "spec.support.states"
local task = require "spec.support.task"

local slow = tonumber(os.getenv("RLOCK_SLOW") or 1)
local server = redis.shared()
local number = 0

describe("a mutex", function()
  local client, name, lock, mutex

  before_each(function()
    number = number + 1
    client, name = assert(rlock.open { url = server.url }), "mutex:" .. number
    lock = client:policy("mutex", name)
    mutex = states.of(client, "mutex")
  end)

  after_each(function() client:close() end)

  it("gives the verdict of its state", function()
    mutex.play(name, [[
      release a 1 0 publish        lost
      acquire a 60000 1            held
      acquire a 60000 1            held     -- the same request again
      acquire b 60000 1            busy
      release b 1 0 publish        lost
      renew a 60000 1              held
      renew b 60000 1              lost
      release a 1 0 publish        freed
      release a 1 0 publish        lost
      acquire b 60000 1            held
      over
      renew b 60000 1              lost
      acquire a 60000 1            held
      break_ - publish             freed
      break_ - publish             free
      peek a                       free
    ]])
  end)

  it("has one hold however often the request arrives", function()
    for _ = 1, 3 do mutex.ask(name, "acquire", "a", "60000", "1") end
    assert.same({ "a", "1" }, client:call("HGETALL", name))
  end)

  it("testReacquire: a second entry is refused at once, by any of its names",
    function()
      local again = client:policy("mutex", name)
      assert.is_true(lock:lock())
      for _, other in ipairs { lock, again } do
        for _, method in ipairs { "lock", "try_lock", "hold", "with" } do
          local before = rlock.now()
          local ok, code, detail = other[method](other, { wait = 20 },
            function() error("it runs without the lock") end)
          assert.same({ nil, "refused" }, { ok, code }, method)
          assert.matches("cannot be entered twice", detail)
          assert.is_true(rlock.now() - before < slow)
        end
      end
      assert.is_true(lock:unlock())
      assert.equal(0, client:call("EXISTS", name))
      assert.equal("not_held", select(2, lock:unlock()))
      assert.is_true(again:lock())
    end)

  it("is not asked for on the server when it is refused", function()
    assert.is_true(lock:lock())
    local calls = server:stat("evalsha")
    assert.equal("refused", select(2, lock:try_lock()))
    assert.equal(calls, server:stat("evalsha"))
  end)

  it("testContender: somebody else waits and gets it", function()
    assert.is_true(lock:lock())
    local waiting = task.start(function()
      return lock:lock { wait = 10 * slow }
    end)
    rlock.sleep(0)
    assert.is_true(lock:unlock())
    assert.is_true(waiting:join(5 * slow))
  end)

  it("excludes reentrant and spin locks of the same name", function()
    assert.is_true(lock:lock())
    task.run(function()
      assert.equal("busy", select(2, client:lock(name):try_lock()))
      assert.equal("busy", select(2, client:policy("spin", name):try_lock()))
    end)
  end)

  require "spec.support.rlock_rows" (it, before_each, after_each, {
    policy = "mutex" })
end)
