--- Multi-locks: all members are held or none, whatever the contention for some
--- of them and whatever happens to their servers.

local control = require "spec.tools.control"
local fixtures = require "spec.tools.fixtures"
local losses = require "spec.tools.losses"
local occupy = require "spec.tools.occupy"
local wait = require "spec.tools.eventually"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"
local within = require "spec.tools.within"

local ask = control.ask
local TIMEOUT = 0.4 * slow          -- of one command
local LEASE = 4 * slow              -- of the watchdogs, for leases that expire
local SLACK = 20 * slow             -- tolerance of a bounded call

local servers, proxy, prefix, client, second

local function eventually(fn, seconds, what)
  return wait(fn, seconds or 20 * slow, what)
end

local function open(options)
  return fixtures.open({ url = servers[1].url, timeout = TIMEOUT }, options)
end

local function name(suffix) return prefix .. suffix end

local function is_taken(server, suffix)
  return ask(server, "EXISTS", name(suffix)) == 1
end

-- No server has a key of any of the locks.
local function nothing_is_left()
  eventually(function()
    for _, server in ipairs(servers) do
      local keys = server.pid and ask(server, "KEYS", prefix .. "*") or {}
      if keys[1] then return false, keys[1] end
    end
    return true
  end, nil, "no key is left")
end

local function start()
  servers = { fixtures.server(), fixtures.server() }
  prefix = fixtures.name "multi" .. ":"
  client, second = open(), open(servers[2].url)
end

-- Locks with these names on the first server, made by this client.
local function locks(by, ...)
  local all = {}
  for i, suffix in ipairs { ... } do all[i] = by:lock(name(suffix)) end
  return all
end

describe("a multi-lock", function()
  before_each(start)
  after_each(fixtures.close)

  it("testSimpleLock: is all of its members", function()
    local multi = rlock.multi_lock {
      client:lock(name "b"), second:lock(name "c"), client:lock(name "a"),
    }
    assert.is_true(multi:lock())
    assert.is_true(is_taken(servers[1], "a"))
    assert.is_true(is_taken(servers[1], "b"))
    assert.is_true(is_taken(servers[2], "c"))
    assert.is_true(multi:is_held())
    assert.equal("held", multi:state())
    assert(multi:valid_for() > 20)
    assert.is_true(multi:need(20))
    assert.equal("busy", select(2, task.run(function()
      return second:lock(name "c"):try_lock()
    end)))
    assert.same({ true, n = 1 }, table.pack(multi:unlock()))
    assert.equal("free", multi:state())
    assert.is_false(multi:is_held())
    assert.equal("not_held", select(2, multi:unlock()))
    nothing_is_left()
  end)

  it("has members of every kind", function()
    local members, rivals = {}, {}
    for i, by in ipairs { client, second } do
      members[#members + 1] = by:lock(name("lock" .. i))
      members[#members + 1] = by:mutex(name("mutex" .. i))
      members[#members + 1] = by:simple_lock(name("simple" .. i))
      members[#members + 1] = by:spin_lock(name("spin" .. i))
      members[#members + 1] = by:fenced_lock(name("fenced" .. i))
      members[#members + 1] = by:fair_lock(name("fair" .. i))
      local pair = by:read_write_lock(name("pair" .. i))
      members[#members + 1] = i == 1 and pair:read_lock() or pair:write_lock()
      rivals[members[#members]] = pair:write_lock()
    end
    local multi = rlock.multi_lock(members)
    for _, member in ipairs(members) do
      assert.is_true(multi:lock())
      assert.is_true(member:is_held())
      assert.equal("refused", select(2, multi:try_lock()))
      assert.is_true(multi:unlock())
      -- Whichever member is busy, it is waited for, and none is held.
      local holding = occupy(rivals[member] or member)
      assert.equal("timeout", select(2, multi:lock { wait = 0.05 * slow }))
      assert.equal("busy", select(2, multi:try_lock()))
      local waiting = task.start(function()
        local ok, code, detail = multi:lock { wait = 10 * slow }
        assert(ok or member:is_held(), ("%s %s"):format(code, detail))
        return multi:unlock()
      end)
      assert.is_true(holding.leave())
      assert.is_true(waiting:join())
    end
  end)

  it("counts a member once that is given twice", function()
    local multi = rlock.multi_lock(locks(client, "a", "b", "a"))
    assert.is_true(multi:lock())
    assert.equal(1, client:lock(name "a"):hold_count())
    assert.is_true(multi:unlock())
    nothing_is_left()
  end)

  it("testReentrantLock: may be entered again, and its members by themselves",
    function()
    local multi = rlock.multi_lock(locks(client, "a", "b"))
    local a = client:lock(name "a")
    assert.is_true(a:lock())
    assert.is_true(multi:lock())
    assert.is_true(multi:lock())
    assert.equal(3, a:hold_count())
    assert.is_true(multi:unlock())
    assert.is_true(multi:unlock())
    assert.equal(1, a:hold_count())
    assert.is_false(is_taken(servers[1], "b"))
    assert.is_true(a:unlock())
    nothing_is_left()
  end)

  it("is not entered again if a member cannot be", function()
    local multi = rlock.multi_lock {
      client:lock(name "a"), client:mutex(name "b"),
    }
    assert.is_true(multi:lock())
    local ok, code, detail = multi:lock()
    assert.is_nil(ok)
    assert.equal("refused", code)
    assert.matches(name "b", detail, 1, true)
    assert.equal(1, client:lock(name "a"):hold_count())
    assert.is_true(multi:unlock())
    nothing_is_left()
  end)

  it("locks members of one server in one round trip",
    function()
      proxy = fixtures.proxy(servers[1])
      local by = open { url = proxy.url, timeout = 20 * slow }
      local too = open { url = proxy.url, timeout = 20 * slow }
      local members = locks(by, "a", "b", "c", "d")
      for _, member in ipairs(locks(too, "e", "f")) do
        members[#members + 1] = member
      end
      local multi = rlock.multi_lock(members)
      assert.is_true(multi:lock())
      assert.is_true(multi:unlock())
      local before = control.evalshas(servers[1])
      -- The other members are taken while the first reply is late.
      proxy:hold(slow, name "a")
      local taking = task.start(function() return multi:lock() end)
      eventually(function()
        return control.evalshas(servers[1]) == before + #members
      end, nil, "all are asked for")
      assert.is_nil(taking.is_over)
      for _, suffix in ipairs { "a", "b", "c", "d", "e", "f" } do
        assert.is_true(is_taken(servers[1], suffix))
      end
      assert.is_true(taking:join())
      assert.equal(before + #members, control.evalshas(servers[1]))
    end)

  it("holds the requested lease, counted from the request", function()
    local multi = rlock.multi_lock {
      client:lock(name "a"), second:lock(name "b"),
    }
    assert.is_true(multi:lock { lease = 0.1 * slow })
    assert(multi:valid_for() <= 0.1 * slow)
    eventually(function() return multi:state() == "lost" end)
    assert.equal("lost", select(2, multi:need(0.001)))
    nothing_is_left()
    assert.equal("lost", select(2, multi:unlock()))
    nothing_is_left()
    assert.is_true(multi:lock())
    assert.is_true(multi:unlock())
  end)

  it("is a hold that can be passed to another task", function()
    local multi = rlock.multi_lock(locks(client, "a", "b"))
    local hold = assert(multi:hold())
    assert.is_true(task.run(function() return hold:unlock() end))
    assert.equal("not_held", select(2, hold:unlock()))
    do
      local closed <close> = assert(multi:hold())
      assert.is_true(closed:need(1))
    end
    nothing_is_left()
  end)

  it("leaves a hold() to its object while its task has others", function()
    local multi = rlock.multi_lock(locks(client, "a", "b"))
    assert.is_true(multi:lock())
    local hold = assert(multi:hold())
    assert.is_true(multi:unlock())
    assert.equal("held", hold:state())
    assert.is_true(hold:unlock())
    assert.equal("not_held", select(2, multi:unlock()))
    nothing_is_left()
  end)

  it("is held while a function runs, also when it raises", function()
    local multi = rlock.multi_lock(locks(client, "a", "b"))
    assert.same({ 1, 2 }, { multi:with(function(its, a)
      assert.is_true(its:is_held())
      return a, 2
    end, 1) })
    assert.has_error(function()
      multi:with(function() error("mine", 0) end)
    end, "mine")
    nothing_is_left()
  end)

  it("keeps a hold that a function took and did not release", function()
    local multi, inner = rlock.multi_lock(locks(client, "a", "b")), nil
    assert.is_true(multi:with(function(its)
      inner = assert(its:hold())
      return true
    end))
    assert.equal("held", inner:state())
    assert.is_true(inner:unlock())
    nothing_is_left()
  end)
end)

describe("a hold of a multi-lock that its task leaves behind", function()
  before_each(start)
  after_each(fixtures.close)

  it("lapses if nobody refers to it", function()
    local short = open { watchdog = slow }
    task.run(function()
      assert(rlock.multi_lock(locks(short, "a", "b")):hold())
    end)
    eventually(function()
      collectgarbage()
      return not is_taken(servers[1], "a") and not is_taken(servers[1], "b")
    end)
  end)
end)

describe("a multi-lock of which a member is busy", function()
  before_each(start)
  after_each(fixtures.close)

  it("testTryLock: takes nothing, and names the busy member", function()
    local multi = rlock.multi_lock {
      client:lock(name "a"), client:lock(name "b"), second:lock(name "c"),
    }
    for i, suffix in ipairs { "a", "b", "c" } do
      local by = i == 3 and second or client
      local holding = occupy(by:lock(name(suffix)))
      local ok, code, detail = within(SLACK, multi.try_lock, multi)
      assert.is_nil(ok)
      assert.equal("busy", code)
      assert.matches(name(suffix), detail, 1, true)
      assert.is_true(holding.leave())
      nothing_is_left()
    end
  end)

  it("waits no longer than requested", function()
    local holding = occupy(second:lock(name "b"))
    local multi = rlock.multi_lock {
      client:lock(name "a"), second:lock(name "b"),
    }
    local before = rlock.now()
    assert.equal("timeout", select(2, multi:lock { wait = 0.2 * slow }))
    local took = rlock.now() - before
    assert(took >= 0.2 * slow and took < 0.2 * slow + SLACK, took)
    assert.is_true(holding.leave())
    nothing_is_left()
  end)

  it("holds nothing while it waits", function()
    local holding = occupy(client:lock(name "b"))
    local multi = rlock.multi_lock(locks(client, "a", "b", "c"))
    local waiting = task.start(function()
      assert(multi:lock())
      return multi:unlock()
    end)
    eventually(function()
      return #ask(servers[1], "PUBSUB", "CHANNELS", "*" .. name "b" .. "*") > 0
    end)
    local other = open()
    for _ = 1, 50 do
      for _, suffix in ipairs { "a", "c" } do
        local its = other:lock(name(suffix))
        assert.is_true(within(SLACK, its.lock, its))
        assert.is_true(its:unlock())
      end
    end
    assert.is_true(holding.leave())
    assert.is_true(waiting:join())
    nothing_is_left()
  end)

  it("is woken when the member is free", function()
    local multi = rlock.multi_lock {
      client:lock(name "a"), second:lock(name "b"),
    }
    local holding = occupy(second:lock(name "b"))
    local waiting = task.start(function()
      assert(multi:lock())
      return rlock.now()
    end)
    eventually(function()
      return #ask(servers[2], "PUBSUB", "CHANNELS", "*" .. name "b" .. "*") > 0
    end)
    local before = rlock.now()
    assert.is_true(holding.leave())
    assert(waiting:join() - before < SLACK)
  end)

  it("leaves nothing when its task is cancelled", function()
    local multi = rlock.multi_lock {
      client:lock(name "a"), second:lock(name "b"),
    }
    local holding = occupy(second:lock(name "b"))
    local waiting = task.start(function() return multi:lock() end)
    eventually(function()
      return #ask(servers[2], "PUBSUB", "CHANNELS", "*" .. name "b" .. "*") > 0
    end)
    waiting:cancel()
    assert.is_true(holding.leave())
    nothing_is_left()
    servers[2]:pause()
    local asking = task.start(function() return multi:lock() end)
    rlock.sleep(0)
    asking:cancel()
    servers[2]:resume()
    nothing_is_left()
    assert.is_true(multi:lock { wait = 20 * slow })
    assert.is_true(multi:unlock())
  end)

  it("ends with closed when a client is closed under it", function()
    local holding = occupy(second:lock(name "b"))
    local by = open()
    local multi = rlock.multi_lock {
      by:lock(name "a"), second:lock(name "b"),
    }
    local waiting = task.start(function() return multi:lock() end)
    eventually(function()
      return #ask(servers[2], "PUBSUB", "CHANNELS", "*" .. name "b" .. "*") > 0
    end)
    by:close()
    assert.is_true(holding.leave())
    assert.equal("closed", select(2, waiting:join()))
    nothing_is_left()
  end)
end)

describe("multi-locks of the same members", function()
  before_each(start)
  after_each(fixtures.close)

  -- Tasks take one multi-lock each, for some rounds; one at a time is inside.
  local function contend(multis, rounds)
    local inside = 0
    task.many(#multis, function(i)
      for _ = 1, rounds do
        assert(multis[i]:lock { wait = 30 * slow })
        inside = inside + 1
        assert(inside == 1)
        rlock.sleep(0)
        inside = inside - 1
        assert(multis[i]:unlock())
      end
    end, 60 * slow)
    nothing_is_left()
  end

  it("in reversed order do not wait for each other", function()
    contend({
      rlock.multi_lock(locks(client, "a", "b", "c")),
      rlock.multi_lock(locks(client, "c", "b", "a")),
    }, 100)
  end)

  it("by several clients of two servers do not, either", function()
    local multis = {}
    for i = 1, 4 do
      local one, two = open(), open(servers[2].url)
      local members = { one:lock(name "a"), two:lock(name "b"),
        one:lock(name "c"), two:lock(name "d") }
      if i % 2 == 0 then members = { table.unpack(members, 3, 4) } end
      members[#members + 1] = one:lock(name "z")
      multis[i] = rlock.multi_lock(members)
    end
    contend(multis, 30)
  end)

  -- As two processes would that know the servers by different names.
  it("that are ordered differently do not, either", function()
    local one = { open(), open(servers[2].url) }
    local two = { open(), open(servers[2].url) }
    local multis = {
      rlock.multi_lock { one[1]:lock(name "a"), one[2]:lock(name "b") },
      rlock.multi_lock { two[1]:lock(name "a"), two[2]:lock(name "b") },
    }
    local groups = multis[2].groups
    groups[1], groups[2] = groups[2], groups[1]
    contend(multis, 60)
  end)

  it("in a ring come round", function()
    contend({
      rlock.multi_lock(locks(open(), "a", "b", "x")),
      rlock.multi_lock(locks(open(), "b", "c", "x")),
      rlock.multi_lock(locks(open(), "c", "a", "x")),
    }, 30)
  end)

  it("succeed for exactly one of ten that only try", function()
    local won, gate = 0, rlock.event()
    local multi = rlock.multi_lock {
      client:lock(name "a"), second:lock(name "b"),
    }
    local ended = 0
    task.many(10, function()
      local is_mine = multi:try_lock()
      ended = ended + 1
      if is_mine then
        won = won + 1
        eventually(function() return ended == 10 end)
        gate:set()
        assert(multi:unlock())
      end
    end)
    assert.equal(1, won)
    nothing_is_left()
  end)

  it("do not lock out tasks that need only one member", function()
    local multi = rlock.multi_lock(locks(open(), "a", "b"))
    local other, is_over, entered = open(), false, 0
    local rounds = task.start(function()
      while not is_over do
        assert(multi:lock())
        assert(multi:unlock())
      end
    end)
    for _ = 1, 15 do
      for _, suffix in ipairs { "a", "b" } do
        local its = other:lock(name(suffix))
        assert.is_true(its:lock { wait = 10 * slow })
        entered = entered + 1
        assert.is_true(its:unlock())
      end
    end
    is_over = true
    rounds:join()
    assert.equal(30, entered)
    nothing_is_left()
  end)
end)

describe("a multi-lock whose server is away", function()
  before_each(start)
  after_each(fixtures.close)

  local function mixed()
    return rlock.multi_lock {
      client:lock(name "a"), client:lock(name "b"), second:lock(name "c"),
    }
  end

  -- Which of the two it is depends on where the time ran out.
  local function away(code)
    assert(code == "connect" or code == "timeout", code)
  end

  it("fails in time, and leaves nothing elsewhere", function()
    local multi = mixed()
    servers[2]:kill()
    local ok, code, detail = within(TIMEOUT + SLACK, multi.try_lock, multi)
    assert.is_nil(ok)
    away(code)
    assert.matches(name "c", detail, 1, true)
    nothing_is_left()
    away(select(2, within(TIMEOUT + SLACK, multi.lock, multi,
      { wait = TIMEOUT })))
    away(select(2, within(1.5 * TIMEOUT + SLACK, multi.lock, multi,
      { wait = 1.5 * TIMEOUT })))
    nothing_is_left()
  end)

  it("is acquired within the wait, and holds nothing meanwhile", function()
    local multi = mixed()
    servers[2]:kill()
    local waiting = task.start(function()
      assert(multi:lock { wait = 30 * slow })
      return multi:unlock()
    end)
    -- The reachable members are held no longer than one attempt takes.
    local its = open():lock(name "a")
    for _ = 1, 20 do
      assert.is_true(its:lock { wait = 20 * slow })
      assert.is_true(its:unlock())
    end
    assert.is_nil(waiting.is_over)
    servers[2]:launch()
    assert.is_true(waiting:join())
    nothing_is_left()
  end)

  it("releases members whose replies came too late", function()
    proxy = fixtures.proxy(servers[2])
    local by = open { url = proxy.url, timeout = TIMEOUT }
    local multi = rlock.multi_lock {
      client:lock(name "a"), by:lock(name "c"),
    }
    assert.is_true(multi:lock())
    assert.is_true(multi:unlock())
    proxy:hold(3 * TIMEOUT, name "c")
    local ok, code = within(TIMEOUT + SLACK, multi.try_lock, multi)
    assert.is_nil(ok)
    assert.equal("timeout", code)
    nothing_is_left()
    assert.is_true(multi:lock { wait = 10 * slow })
    assert.is_true(multi:unlock())
    nothing_is_left()
  end)

  it("is held if only a reply was lost", function()
    proxy = fixtures.proxy(servers[2])
    local by = open { url = proxy.url, timeout = TIMEOUT }
    local multi = rlock.multi_lock {
      client:lock(name "a"), by:lock(name "c"),
    }
    assert.is_true(multi:lock())
    assert.is_true(multi:unlock())
    proxy:cut(1, name "c")
    assert.is_true(multi:lock { wait = 10 * slow })
    assert.is_true(by:lock(name "c"):is_held())
    assert.is_true(multi:unlock())
    nothing_is_left()
  end)
end)

describe("a multi-lock that loses a member", function()
  before_each(start)
  after_each(fixtures.close)

  it("is lost, reported once with its name, and released", function()
    local one = open { watchdog = LEASE }
    local two = open { watchdog = LEASE, url = servers[2].url }
    local multi = rlock.multi_lock {
      one:lock(name "a"), two:lock(name "b"), two:lock(name "c"),
    }
    assert.is_true(multi:lock())
    local heard = losses(multi)
    ask(servers[2], "DEL", name "b")
    eventually(function() return heard.n > 0 end)
    assert.equal(multi, heard.told)
    assert.matches(name "b", heard.reason, 1, true)
    assert.equal("lost", multi:state())
    assert.equal(0, multi:valid_for())
    assert.equal("lost", select(2, multi:need(0)) or "lost")
    assert.equal("lost", select(2, multi:lock()))
    local ok, code, detail = multi:unlock()
    assert.is_nil(ok)
    assert.equal("lost", code)
    assert.matches(name "b", detail, 1, true)
    nothing_is_left()
    assert.equal(1, heard.n)
    assert.is_true(multi:lock())
    assert.is_true(multi:unlock())
  end)

  it("goes from at_risk to lost when its server dies", function()
    local one = open { watchdog = LEASE }
    local two = open { watchdog = LEASE, url = servers[2].url }
    local multi = rlock.multi_lock { one:lock(name "a"), two:lock(name "b") }
    assert.is_true(multi:lock())
    local heard = losses(multi)
    servers[2]:kill()
    eventually(function() return multi:state() == "at_risk" end)
    assert.equal(0, heard.n)
    eventually(function() return heard.n > 0 end)
    assert.equal("lost", multi:state())
    assert.equal("lost", select(2, multi:unlock()))
    nothing_is_left()
    assert.equal(1, heard.n)
  end)

  it("gets no report of a lock that it had unlocked", function()
    local multi = rlock.multi_lock(locks(client, "a", "b"))
    local a = client:lock(name "a")
    assert.is_true(a:lock { lease = slow })
    assert.is_true(multi:lock { lease = 0.9 * slow })
    local heard, outer = losses(multi), losses(a)
    assert.is_true(multi:unlock())
    eventually(function() return outer.n > 0 end)
    assert.equal(0, heard.n)
    assert.equal("lost", select(2, a:unlock()))
  end)
end)

describe("rlock.multi_lock", function()
  before_each(start)
  after_each(fixtures.close)

  local function says(pattern, ...)
    local ok, message = pcall(rlock.multi_lock, ...)
    assert.is_false(ok)
    assert.matches(pattern, message)
  end

  it("refuses unsuitable members", function()
    says("bad locks", nil)
    says("bad locks", {})
    says("bad locks of multi_lock: .* number 2 is nil",
      { client:lock(name "a"), nil, client:lock(name "b") })
    says("bad locks", { client:lock(name "a"), b = client:lock(name "b") })
    says("bad member 2", { client:lock(name "a"), name "b" })
    says("bad member 1", { client })
    says("bad member 1", { client:semaphore(name "s") })
    says("bad member 1", {
      rlock.multi_lock(locks(client, "a")), client:lock(name "b"),
    })
    assert.has_error(function()
      rlock.multi_lock(locks(client, "a")):lock { waits = 1 }
    end)
  end)

  it("refuses one lock by two handles, which would deadlock", function()
    says("bad member 2.*is listed already", {
      client:lock(name "a"), open():lock(name "a"),
    })
    says("bad member 2.*is listed already", {
      client:lock(name "a"), client:mutex(name "a"),
    })
    says("bad member 2.*is listed already", {
      client:lock(name "a"), client:lock(name "a", { owner = "me" }),
    })
    assert.is_true(rlock.multi_lock {
      client:lock(name "a"), second:lock(name "a"),
    }:lock())
  end)
end)

require "spec.rows.rlock" ("multi", describe, it, before_each,
  after_each)
require "spec.rows.joint" ("multi", describe, it, before_each,
  after_each)
