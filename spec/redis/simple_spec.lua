--- The simple lock on a real Redis: SET NX PX, as clients in other languages
--- use it.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local redis = require "spec.tools.redis"
local slow = require "spec.tools.slow"
local states = require "spec.tools.states"
local task = require "spec.tools.task"

local server = redis.shared()

local function open() return fixtures.open { url = server.url } end

describe("a simple lock", function()
  local client, name, lock, simple

  before_each(function()
    client, name = open(), fixtures.name "simple"
    lock = client:policy("simple", name)
    simple = states.of(client, "simple")
  end)

  after_each(fixtures.close)

  it("gives the verdict of its state", function()
    simple.play(name, [[
      release a 1 0 publish        lost
      renew a 60000 1              lost
      break_ - publish             free
      peek a                       free
      acquire a 60000 1            held
      acquire a 60000 1            held     -- the same request again
      acquire b 60000 1            busy
      renew a 60000 1              held
      renew a 60000 1              held
      renew b 60000 1              lost
      release b 1 0 publish        lost
      peek b                       held
      release a 1 0 publish        freed
      release a 1 0 publish        lost
      renew a 60000 1              lost     -- extends nothing that is gone
      peek a                       free
      acquire b 60000 1            held
      over
      renew b 60000 1              lost
      release b 1 0 publish        lost
      acquire a 60000 1            held
      break_ b publish             refused
      peek a                       held
      break_ a publish             freed
      break_ a publish             free
      acquire b 60000 1            held
      break_ - publish             freed
      acquire a 10 1               held
      wait 20
      renew a 60000 1              lost
      acquire b 60000 1            held
      renew b 10 1                 held     -- a lease is never shortened
      wait 20
      acquire a 60000 1            busy
    ]])
  end)

  it("is a string: the owner, which expires with the lease", function()
    assert.is_true(lock:lock { lease = 20 })
    local owner = client:call("GET", name)
    assert.matches("^%x+%-%x+%-4%x+%-%x+%-%x+:%d+$", owner)
    local ttl = client:call("PTTL", name)
    assert.is_true(ttl > 10000 and ttl <= 20000, "ttl " .. ttl)
    local state = lock:peek()
    assert.same({ "held", 1 }, { state.state, state.count })
    assert.same({ { owner = owner, count = 1 } }, state.holders)
    assert.is_true(lock:unlock())
    assert.equal(0, client:call("EXISTS", name))
  end)

  it("returns the remaining lease of the holder", function()
    simple.ask(name, "acquire", "a", "60000", "1")
    local reply = simple.ask(name, "acquire", "b", "60000", "1")
    assert.equal("busy", reply[1])
    assert.is_true(reply[2] > 30000 and reply[2] <= 60000)
    client:call("PERSIST", name)
    assert.same({ "busy", -1 }, simple.ask(name, "acquire", "b", "60000", "1"))
  end)

  it("never shortens a lease", function()
    simple.ask(name, "acquire", "a", "60000", "1")
    simple.ask(name, "acquire", "a", "1000", "1")
    assert.is_true(client:call("PTTL", name) > 30000)
    simple.ask(name, "renew", "a", "1000", "1")
    assert.is_true(client:call("PTTL", name) > 30000)
    simple.ask(name, "renew", "a", "90000", "1")
    assert.is_true(client:call("PTTL", name) > 61000)
  end)

  it("keeps out, and is kept out by, SET name token NX PX", function()
    assert.equal("OK",
      client:call("SET", name, "python", "NX", "PX", 60000))
    assert.equal("busy", select(2, lock:try_lock()))
    assert.equal("not_held", select(2, lock:unlock()))
    client:call("DEL", name)
    assert.is_true(lock:try_lock())
    assert.is_false(client:call("SET", name, "go", "NX", "PX", 60000))
    assert.is_true(lock:unlock())
  end)

  it("does not touch the next holder's lock after its lease", function()
    assert.is_true(lock:lock { lease = 60 })
    simple.over(name)
    client:call("SET", name, "node", "NX", "PX", 60000)
    assert.equal("lost", select(2, lock:unlock()))
    assert.equal("node", client:call("GET", name))
  end)

  it("needs no channel for waiters", function()
    assert.is_true(lock:lock())
    local calls = server:stat("evalsha")
    local waiting = task.start(function()
      return open():policy("simple", name):lock { wait = 30 * slow }
    end)
    eventually(function() return server:stat("evalsha") > calls end)
    assert.same({}, client:call("PUBSUB", "CHANNELS", "*" .. name .. "*"))
    assert.is_true(lock:unlock())
    assert.is_true(waiting:join())
  end)

  it("can be broken by force, or only for a given owner", function()
    local mine = client:policy("simple", name, { owner = "me" })
    assert.is_true(mine:lock())
    assert.equal("refused", select(2, lock:break_lock("somebody")))
    assert.is_true(lock:break_lock("me"))
    assert.is_false(lock:break_lock())
    assert.equal("lost", select(2, mine:unlock()))
    assert.is_true(lock:try_lock())
    assert.is_true(lock:break_lock())
  end)
end)

require "spec.rows.rlock" ("simple", describe, it, before_each,
  after_each)
