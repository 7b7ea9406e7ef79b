--- The metrics and the events of a client, on a real Redis.

local control = require "spec.tools.control"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local losses = require "spec.tools.losses"
local read = require "spec.tools.exposition"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local server, client, name, heard

local function note(level, event, fields)
  fields.level, fields.event = level, event
  heard[#heard + 1] = fields
end

-- The first event of this name, or nil.
local function event(wanted)
  for _, fields in ipairs(heard) do
    if fields.event == wanted then return fields end
  end
end

local function open(options)
  return fixtures.open({ url = server.url, name = "metrics", log = note },
    options)
end

local function start()
  server, heard = fixtures.server(), {}
  name = fixtures.name "metrics"
  client = open { watchdog = 3 * slow }
end

-- Fields of a table, in this order.
local function of(told, ...)
  local values = {}
  for i, field in ipairs { ... } do values[i] = told[field] end
  return values
end

local function held_by_another(lock)
  return task.start(function()
    assert(lock:lock())
    local event_ = rlock.event()
    lock.finish = function() event_:set() end
    event_:wait()
    assert(lock:unlock())
  end)
end

describe("client:stats()", function()
  before_each(start)
  after_each(fixtures.close)

  it("counts grants, and holds with their time", function()
    local lock = client:lock(name)
    for _ = 1, 3 do
      assert(lock:lock())
      assert(lock:lock())
      assert(lock:unlock())
      rlock.sleep(0.02)
      assert(lock:unlock())
    end
    local told = client:stats().kinds.reentrant
    assert.same({ 6, 0, 0, 0, 0 }, of(told, "acquired", "busy", "timeouts",
      "errors", "lost"))
    assert.equal(3, told.hold.count)
    assert.is_true(told.hold.sum >= 0.06)
    assert.equal(6, told.wait.count)
    assert.equal(6, told.round_trip.count)
    assert.is_true(told.round_trip.sum > 0)
  end)

  it("counts busy, timeouts and waits", function()
    local lock = client:lock(name)
    local holder = held_by_another(lock)
    eventually(function() return lock.finish end)
    assert.same({ "busy", "timeout" }, {
      (select(2, client:lock(name):try_lock())),
      (select(2, client:lock(name):lock { wait = 0.01 })),
    })
    local waiter = task.start(function()
      local own = client:lock(name)
      assert(own:lock { wait = 30 })
      assert(own:unlock())
    end)
    eventually(function()
      return heard[#heard].event == "waiting" and #heard >= 3
    end, 10 * slow)
    rlock.sleep(0.05)
    lock.finish()
    holder:join()
    waiter:join()
    local told = client:stats()
    assert.same({ 2, 1, 1, 0 }, of(told, "acquired", "busy", "timeouts",
      "errors"))
    assert.equal(2, told.wait.count)
    assert.is_true(told.wait.sum >= 0.05, told.wait.sum)
    assert.same({ 0.001, 1 }, told.wait.buckets[1])
  end)

  it("counts losses once, and what was held until then", function()
    local lock = client:lock(name)
    local lost = losses
    task.run(function()
      assert(lock:lock { lease = 0.1 })
      lost = losses(lock)
      control.ask(server, "DEL", name)
      eventually(function() return lost.n == 1 end, 10 * slow)
      assert.equal("lost", (select(2, lock:unlock())))
    end)
    local told = client:stats()
    assert.same({ 1, 1 }, of(told, "acquired", "lost"))
    assert.equal(1, told.hold.count)
    assert.equal("lost", event("lost").event)
    assert.same({ "warn", "reentrant", name, "metrics" },
      of(event("lost"), "level", "kind", "lock", "client"))
  end)

  it("counts errors", function()
    local mutex = client:mutex(name)
    assert(mutex:lock())
    assert.equal("refused", (select(2, mutex:lock())))
    assert(mutex:unlock())
    assert.equal(1, client:stats().kinds.mutex.errors)
  end)

  it("counts counters", function()
    local semaphore = client:semaphore(name .. "s")
    assert(semaphore:set(1))
    assert(semaphore:acquire())
    assert.equal("busy", (select(2, semaphore:try_acquire())))
    assert.equal("timeout",
      (select(2, semaphore:acquire { wait = 0.01 })))
    assert.same({ 1, 1, 1 }, of(client:stats().kinds.semaphore, "acquired",
      "busy", "timeouts"))
    local permits = client:permits(name .. "p")
    assert(permits:set(1))
    assert(permits:release(assert(permits:acquire())))
    local told = client:stats().kinds.permits
    assert.same({ 1, 1 }, { told.acquired, told.hold.count })
    assert(client:latch(name .. "l"):wait())
    assert.equal(1, client:stats().kinds.latch.acquired)
  end)

  it("counts several locks as one, beside the members", function()
    local several = rlock.multi_lock { client:lock(name),
      client:mutex(name .. "m") }
    local red = rlock.red_lock({ client }, name .. "r",
      { node_timeout = 2 * slow })
    for _, lock in ipairs { several, red } do
      assert(lock:lock { wait = 10 * slow })
      assert(lock:unlock())
    end
    local kinds = client:stats().kinds
    for _, kind in ipairs { "multi", "red", "mutex" } do
      assert.same({ 1, 0 }, of(kinds[kind], "acquired", "errors"))
      assert.equal(1, kinds[kind].hold.count)
    end
    assert.equal(2, kinds.reentrant.acquired)
  end)

  it("counts renewals that are late", function()
    local LEASE = 1.5 * slow
    local watched = open { watchdog = LEASE }
    local lock = watched:lock(name)
    assert(lock:lock())
    eventually(function()
      return watched:stats().round_trip.count >= 3
    end, 10 * LEASE)
    local before = watched:stats().late_renewals
    local until_ = rlock.now() + 0.6 * LEASE     -- the program is stuck
    while rlock.now() < until_ do local _ = nil end
    eventually(function()
      return watched:stats().late_renewals > before
    end, 10 * LEASE)
    assert(lock:unlock())
  end)

  it("keeps a series for the locks of the option metrics, no other", function()
    local listed = open { name = "listed", metrics = { name } }
    for _, each in ipairs { name, name .. "other" } do
      local lock = listed:lock(each)
      assert(lock:lock())
      assert(lock:unlock())
    end
    local told = listed:stats()
    assert.same({ 2, 2, 1 }, { told.acquired, told.kinds.reentrant.acquired,
      told.locks[name].acquired })
    assert.is_nil(told.locks[name .. "other"])
    local values = read(rlock.metrics())
    local labels = 'rlock_acquired_total{client="listed",kind="reentrant"%s}'
    assert.equal(1, values[labels:format("")])
    assert.equal(1, values[labels:format((',lock="%s"'):format(name))])
  end)

  it("refuses bad options", function()
    for _, bad in ipairs { { metrics = "all" }, { metrics = { 1 } },
        { metrics = { a = "b" } }, { log = "json" } } do
      bad.url = server.url
      local ok, message = pcall(rlock.open, bad)
      assert.is_false(ok)
      assert.matches("^[^\n]*bad %l+: must be a", message)
    end
  end)
end)

describe("rlock.metrics()", function()
  before_each(start)
  after_each(fixtures.close)

  it("has the numbers of open clients and of closed ones", function()
    local key = 'rlock_acquired_total{client="shut",kind="fair"}'
    local before = read(rlock.metrics())[key] or 0
    for i = 1, 2 do
      local brief = open { name = "shut" }
      local lock = brief:fair_lock(name)
      assert(lock:lock { lease = 10 })
      assert.equal(before + i, read(rlock.metrics())[key])
      brief:close()
      assert.equal(before + i, read(rlock.metrics())[key])
    end
    local held = 'rlock_hold_seconds_count{client="shut",kind="fair"}'
    assert.equal(2, read(rlock.metrics())[held])
  end)
end)

describe("the events of a client", function()
  before_each(start)
  after_each(fixtures.close)

  it("report waits and grants, with the time and the token", function()
    local lock = client:fenced_lock(name)
    local holder = held_by_another(lock)
    eventually(function() return lock.finish end)
    local waiter = task.start(function()
      local own = client:fenced_lock(name)
      assert(own:lock { wait = 30 })
      local token = own:token()
      assert(own:unlock())
      return token
    end)
    eventually(function() return event "waiting" end, 10 * slow)
    lock.finish()
    holder:join()
    local token, last = waiter:join(), heard[#heard]
    assert.same({ "info", "fenced", name, "metrics" },
      of(event("waiting"), "level", "kind", "lock", "client"))
    assert.same({ "acquired", token, name }, of(last, "event", "token", "lock"))
    assert.is_true(last.wait > 0)
    assert.matches("^acquired fenced lock .* after %d+%.%d+ s$", last.message)
  end)

  it("report locks at risk, reconnection and sealing", function()
    local lock = client:lock(name)
    assert(lock:lock())
    if not rawget(_G, "ngx") then      -- there, connections come from a pool
      control.ask(server, "CLIENT", "KILL", "TYPE", "normal")
      eventually(function() return event "disconnected" end, 10 * slow)
      assert.is_true(lock:is_held())
      assert.same({ "info", "metrics", 1 },
        of(event "sealed", "level", "client", "connections"))
      assert.equal(event("sealed").server, event("reconnected").server)
    end
    control.close(server)
    server:kill()
    server:restart()
    eventually(function() return event "at_risk" end, 40 * slow)
    assert.same({ "warn", name }, of(event "at_risk", "level", "lock"))
    assert.is_true(event("at_risk").valid_for > 0)
  end)

  it("do not affect a lock if the callback raises", function()
    local said = {}
    local host = require "rlock.host.uv"
    local log = host.log
    host.log = function(_, text) said[#said + 1] = text end
    local its = open { log = function() error "a fault of the program" end }
    local lock = its:lock(name)
    local ok = lock:lock()
    host.log = log
    assert.is_true(ok)
    assert.is_true(lock:unlock())
    if not rawget(_G, "ngx") then
      assert.matches("log callback raised: .*a fault of the program", said[1])
    end
  end)
end)
