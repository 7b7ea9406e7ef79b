--- The mutex on a real Redis: an RLock that its holder cannot re-enter.

local fixtures = require "spec.tools.fixtures"
local redis = require "spec.tools.redis"
local states = require "spec.tools.states"
local task = require "spec.tools.task"

local server = redis.shared()

describe("a mutex", function()
  local client, name, lock, mutex

  before_each(function()
    client, name = fixtures.open { url = server.url }, fixtures.name "mutex"
    lock = client:policy("mutex", name)
    mutex = states.of(client, "mutex")
  end)

  after_each(fixtures.close)

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
      break_ - publish             free
      peek a                       free
    ]])
  end)

  it("has one hold, even if the request arrives repeatedly", function()
    for _ = 1, 3 do mutex.ask(name, "acquire", "a", "60000", "1") end
    assert.same({ "a", "1" }, client:call("HGETALL", name))
  end)

  it("sends no request when it is refused", function()
    assert.is_true(lock:lock())
    local calls = server:stat("evalsha")
    assert.equal("refused", select(2, lock:try_lock()))
    assert.equal(calls, server:stat("evalsha"))
  end)

  it("excludes reentrant and spin locks of the same name", function()
    assert.is_true(lock:lock())
    task.run(function()
      assert.equal("busy", select(2, client:lock(name):try_lock()))
      assert.equal("busy", select(2, client:policy("spin", name):try_lock()))
    end)
  end)
end)

require "spec.rows.rlock" ("mutex", describe, it, before_each,
  after_each)
