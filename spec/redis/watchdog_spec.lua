--- The watchdog on a real Redis: what it renews and for how long, and what it
--- reports if it cannot.

local control = require "spec.tools.control"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local host = require "rlock.host.uv"
local losses = require "spec.tools.losses"
local program = require "spec.tools.program"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local LEASE = 0.5 * slow         -- of the watchdog by default

local server, client, lock, name

local function fresh() return fixtures.name "watchdog" end

local function open(options)
  return fixtures.open({ url = server.url, watchdog = LEASE }, options)
end

-- A command to the server without rlock; does not block.
local function ask(...) return control.ask(server, ...) end

local function evalshas() return control.evalshas(server) end

-- Calls fn every few milliseconds for this time.
local function throughout(seconds, fn)
  local deadline = rlock.now() + seconds
  repeat
    fn()
    rlock.sleep(0.005)
  until rlock.now() >= deadline
end

-- The states that `to` goes through, until fn returns true.
local function states(to, fn, seconds)
  local seen = { to:state() }
  eventually(function()
    local state = to:state()
    if state ~= seen[#seen] then seen[#seen + 1] = state end
    return fn(state)
  end, seconds)
  return table.concat(seen, " ")
end

local function start()
  server = fixtures.server()
  client, name = open(), fresh()
  lock = client:lock(name)
end

describe("a hold without a lease", function()
  before_each(start)
  after_each(fixtures.close)

  it("is kept alive for many times its period", function()
    assert.is_true(lock:lock())
    local heard = losses(lock)
    throughout(8 * LEASE, function()
      assert.equal("held", lock:state())
      assert.is_true(lock:valid_for() > 0)
      assert.is_true(ask("PTTL", name) > 0)
    end)
    assert.is_true(lock:unlock())
    assert.equal(0, ask("EXISTS", name))
    assert.equal(0, heard.n)
  end)

  it("is renewed three times in each period, no more and not much less",
    function()
      assert.is_true(lock:lock())
      local before, began = evalshas(), rlock.now()
      throughout(5 * LEASE, function() end)
      local periods = (rlock.now() - began) / LEASE
      local renewals = evalshas() - before
      assert.is_true(renewals <= 3 * periods + 1, renewals .. " renewals")
      assert.is_true(renewals >= 2 * periods, renewals .. " renewals")
    end)

  it("is not renewed any more after its unlock", function()
    for _ = 1, 20 do
      local each = client:lock(fresh())
      assert.is_true(each:lock())
      assert.is_true(each:lock())
      assert.is_true(each:unlock())
      assert.is_true(each:unlock())
    end
    local before = evalshas()
    throughout(3 * LEASE, function() end)
    assert.equal(before, evalshas())
  end)

  it("is not renewed any more after its unlock while a renewal was on its way",
    function()
      local proxy = fixtures.proxy(server)
      local far = open { url = proxy.url }
      local held = far:lock(name)
      assert.is_true(held:lock())
      local seen = proxy:count(name)
      proxy:hold(LEASE / 6, name)
      eventually(function() return proxy:count(name) > seen end)
      assert.is_true(held:unlock())
      assert.equal("free", held:state())
      seen = proxy:count(name)
      throughout(2 * LEASE, function() end)
      assert.equal(seen, proxy:count(name))
      assert.equal(0, ask("EXISTS", name))
    end)

  it("is not renewed any more once an unlock has found it lost", function()
    assert.is_true(lock:lock())
    assert.is_true(lock:lock())
    ask("DEL", name)
    assert.equal("lost", select(2, lock:unlock()))
    local before = evalshas()
    throughout(2 * LEASE, function() end)
    assert.equal(before, evalshas())
    assert.equal("lost", select(2, lock:unlock()))
  end)

  it("never is said to be valid for longer than the server keeps it",
    function()
      assert.is_true(lock:lock())
      throughout(3 * LEASE, function()
        local valid, before = lock:valid_for(), rlock.now()
        local left = ask("PTTL", name) / 1000
        assert.is_true(valid <= left + (rlock.now() - before))
      end)
    end)

  it("is not at risk because the server forgot its scripts", function()
    assert.is_true(lock:lock())
    throughout(3 * LEASE, function()
      ask("SCRIPT", "FLUSH")
      assert.equal("held", lock:state())
      rlock.sleep(LEASE / 6)
    end)
    assert.is_true(lock:unlock())
  end)

  it("is kept alive for a named owner whose task has ended", function()
    local named = client:lock(name, { owner = "somebody" })
    task.run(function() assert.is_true(named:lock()) end)
    throughout(3 * LEASE, function()
      assert.is_true(ask("PTTL", name) > 0)
    end)
    assert.is_true(named:unlock())
  end)

  it("is kept alive while it is carried to another task", function()
    local hold = task.run(function() return assert(lock:hold()) end)
    throughout(3 * LEASE, function()
      assert.equal("held", hold:state())
      assert.is_true(ask("PTTL", name) > 0)
    end)
    assert.is_true(hold:unlock())
    assert.equal(0, ask("EXISTS", name))
  end)

  it("ends, and that is said, when its task ended without unlocking",
    function()
      local log, said = host.log, {}
      host.log = function(_, text) said[#said + 1] = text end
      local reason
      task.run(function()
        assert.is_true(lock:lock())
        lock:on_lost(function(_, why) reason = why end)
      end)
      local ok, message = pcall(function()
        eventually(function() return ask("EXISTS", name) == 0 end,
          4 * LEASE, "the server frees it")
        eventually(function() return reason end, 2 * LEASE)
      end)
      host.log = log
      assert(ok, message)
      assert.matches("ended without unlocking", table.concat(said, "\n"))
      local before = evalshas()
      throughout(2 * LEASE, function() end)
      assert.equal(before, evalshas())
    end)

  it("ends when its task has ended and nobody knows the hold, and that is said",
    function()
      local quiet = program.start(server, "-e", ([[
        local rlock = require "rlock"
        local client = assert(rlock.open { watchdog = %g })
        local lock = client:lock "%s"
        local kept
        rlock.spawn(function()
          local hold = assert(lock:hold())
          hold:on_lost(function(its, why) print(its, why) end)
          kept = hold
        end):join()
        rlock.sleep(%g)
        print(lock:peek().state)
        kept = nil
        while lock:peek().state == "held" do rlock.sleep(%g) end
        print "free"
        client:close()]]):format(LEASE, name, 2 * LEASE, LEASE / 3))
      assert.equal(0, quiet:wait(30 * slow))
      assert.matches("^held\nrlock: .* not renewed any more: its task ended"
        .. ".*\nreentrant lock .* lease.*\nfree\n$", quiet:output())
    end)

  it("ends with its process", function()
    local other = program.start(server, "-e", ([[
      local rlock = require "rlock"
      local client = assert(rlock.open { watchdog = %g })
      assert(client:lock("watchdog:killed"):lock())
      print "locked"
      io.stdout:flush()
      rlock.sleep(1000)]]):format(LEASE))
    eventually(function() return other:output():find("locked") end, 10 * slow)
    throughout(2 * LEASE, function()
      assert.equal(1, ask("EXISTS", "watchdog:killed"))
    end)
    other:kill(9)
    other:wait()
    eventually(function() return ask("EXISTS", "watchdog:killed") == 0 end,
      2 * LEASE)
  end)
end)

describe("many holds", function()
  before_each(start)
  after_each(fixtures.close)

  it("are renewed together", function()
    local n, gate = 500, rlock.event()
    local held, all = 0, {}
    for i = 1, n do
      all[i] = task.start(function()
        local each = client:lock("watchdog:many:" .. i)
        assert.is_true(each:lock())
        held = held + 1
        local own = rlock.event()
        all[i].leave = own
        own:wait()
        assert.is_true(each:unlock())
      end)
    end
    eventually(function() return held == n end, 10 * slow)
    local calls, reads = evalshas(), server:info("total_reads_processed")
    gate:wait(4 * LEASE)
    reads = server:info("total_reads_processed") - reads
    calls = evalshas() - calls
    for i = 1, n do all[i].leave:set() end
    for i = 1, n do all[i]:join() end
    assert.is_true(calls >= 4 * n, calls .. " renewals")
    assert.is_true(reads < calls / 10, reads .. " reads")
  end)

  it("are all lost in time when the server falls silent", function()
    local n, lost, late = 2000, 0, 0
    local far = open { watchdog = 2 * slow }
    local holds = {}
    for i = 1, n do holds[i] = far:lock("watchdog:silent:" .. i) end
    task.many(n, function(i)
      holds[i] = assert(holds[i]:hold())
      holds[i]:on_lost(function()
        lost = lost + 1
        if holds[i]:valid_for() > 0 then late = late + 1 end
      end)
    end)
    local last = 0
    for i = 1, n do last = math.max(last, holds[i]:valid_for()) end
    local deadline = rlock.now() + last
    server:pause()
    eventually(function() return lost == n end, last + 5 * slow)
    local took = rlock.now() - deadline
    server:resume()
    far:close()
    assert.equal(0, late)
    assert.is_true(took < 2 * slow, "the last one was told " .. took
      .. " s after its end at the earliest")
  end)

  it("do not suffer from one whose key is something else", function()
    local n, others = 50, {}
    assert.is_true(lock:lock())
    local heard = losses(lock)
    for i = 1, n do
      others[i] = client:lock("watchdog:other:" .. i)
      assert.is_true(others[i]:lock())
    end
    ask("SET", name, "a string")
    throughout(4 * LEASE, function()
      for i = 1, n do assert.equal("held", others[i]:state()) end
      assert.is_true(ask("PTTL", "watchdog:other:1") > 0)
    end)
    assert.equal(1, heard.n)
    assert.matches("WRONGTYPE", heard.reason)
    assert.equal("lost", select(2, lock:unlock()))
    for i = 1, n do assert.is_true(others[i]:unlock()) end
  end)

  it("do not suffer from one that may not be renewed", function()
    server:cli("ACL", "SETUSER", "alice", "on", ">word", "~*", "&*", "+@all")
    local limited = open { username = "alice", password = "word" }
    local n, others, bad = 50, {}, limited:lock("bad")
    assert.is_true(bad:lock())
    local heard = losses(bad)
    for i = 1, n do
      others[i] = limited:lock("good:" .. i)
      assert.is_true(others[i]:lock())
    end
    server:cli("ACL", "SETUSER", "alice", "resetkeys", "~good:*",
      "~redisson*")
    assert.equal("held at_risk lost", states(bad, function(state)
      for i = 1, n do assert.equal("held", others[i]:state()) end
      return state == "lost"
    end))
    throughout(2 * LEASE, function()
      for i = 1, n do assert.equal("held", others[i]:state()) end
    end)
    assert.equal(1, heard.n)
    for i = 1, n do assert.is_true(others[i]:unlock()) end
  end)
end)

describe("holds within holds", function()
  before_each(start)
  after_each(fixtures.close)

  it("with a lease never shorten the outer one, nor does their end",
    function()
      assert.is_true(lock:lock())
      assert.is_true(lock:lock { lease = LEASE / 10 })
      throughout(2 * LEASE, function()
        assert.equal("held", lock:state())
        assert.is_true(ask("PTTL", name) > 0)
      end)
      assert.is_true(lock:unlock())
      throughout(4 * LEASE, function()
        assert.equal("held", lock:state())
        assert.is_true(ask("PTTL", name) > 0)
      end)
      assert.is_true(lock:unlock())
      assert.equal(0, ask("EXISTS", name))
    end)

  it("with a long lease leave the outer one its own when they end, renewed",
    function()
      assert.is_true(lock:lock())
      assert.is_true(lock:lock { lease = 10 * LEASE })
      assert.is_true(ask("PTTL", name) > 9000 * LEASE)
      assert.is_true(lock:unlock())
      assert.is_true(ask("PTTL", name) <= 1000 * LEASE)
      throughout(4 * LEASE, function()
        assert.is_true(lock:valid_for() > 0 and lock:valid_for() <= LEASE)
        assert.is_true(ask("PTTL", name) > 0)
      end)
      assert.is_true(lock:unlock())
    end)

  it("are kept alive within a lease, and when they end the lease counts",
    function()
      local lease = 2 * LEASE
      local before = rlock.now()
      assert.is_true(lock:lock { lease = lease })
      assert.is_true(lock:lock())
      local heard = losses(lock)
      throughout(2 * lease, function()
        assert.equal("held", lock:state())
        assert.is_true(ask("PTTL", name) > 0)
      end)
      assert.is_true(rlock.now() - before > lease)
      -- The outer hold's lease is over: only the inner hold is alive.
      assert.is_true(lock:unlock())
      assert.is_true(lock:valid_for() <= 0.001)
      eventually(function() return heard.n == 1 end)
      -- Redis keeps the key slightly longer than we rely on it.
      eventually(function() return ask("EXISTS", name) == 0 end)
      assert.equal("lost", select(2, lock:unlock()))
      assert.equal(1, heard.n)
    end)

  it("that are kept alive give back the rest of the lease", function()
    assert.is_true(lock:lock { lease = 30 * LEASE })
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    local ttl = ask("PTTL", name)
    assert.is_true(ttl > 20000 * LEASE and ttl <= 30000 * LEASE)
    local before = evalshas()
    throughout(2 * LEASE, function() end)
    assert.equal(before, evalshas())
    assert.is_true(lock:unlock())
  end)

  it("are not counted on any more once their unlock is under way", function()
    local proxy = fixtures.proxy(server)
    local far = open { url = proxy.url, watchdog = 20 * LEASE }
    local its = far:lock(name)
    local outer = assert(its:hold { lease = 3 * LEASE })
    assert.is_true(its:lock())
    assert.is_true(outer:valid_for() > 15 * LEASE)
    -- The server has released it, but the reply is late.
    local seen = proxy:count(name)
    proxy:hold(6 * LEASE, name)
    local deadline = rlock.now() + 5 * LEASE
    local watching = task.start(function()
      eventually(function() return proxy:count(name) > seen end)
      repeat
        local valid, before = outer:valid_for(), rlock.now()
        local left = ask("PTTL", name) / 1000
        assert.is_true(valid <= math.max(0, left + rlock.now() - before))
      until rlock.now() >= deadline
    end)
    its:unlock()
    watching:join()
    assert.equal(0, outer:valid_for())
  end)

  it("may be given up in any order", function()
    local kept = assert(lock:hold())
    local leased = assert(lock:hold { lease = 3 * LEASE })
    assert.is_true(kept:unlock())
    local before = evalshas()
    assert.is_true(ask("PTTL", name) > 2000 * LEASE)
    local reason
    leased:on_lost(function(_, why) reason = why end)
    eventually(function() return reason end, 6 * LEASE)
    assert.equal(before, evalshas())
    assert.equal(0, leased:valid_for())
    assert.equal("lost", select(2, leased:unlock()))
  end)
end)

describe("a hold with a lease", function()
  before_each(start)
  after_each(fixtures.close)

  it("is never renewed", function()
    assert.is_true(lock:lock { lease = 3 * LEASE })
    local heard = losses(lock)
    local before, last = evalshas(), math.huge
    eventually(function()
      local left = ask("PTTL", name)
      assert.is_true(left <= last)
      last = left
      return left < 0
    end, 6 * LEASE)
    assert.equal(before, evalshas())
    eventually(function() return heard.n == 1 end)
    assert.matches("lease", heard.reason)
    assert.equal("lost", lock:state())
  end)

  it("is valid for less and less, down to nothing, whatever the server does",
    function()
      local before = rlock.now()
      assert.is_true(lock:lock { lease = LEASE })
      local heard = losses(lock)
      server:pause()
      local ok, message = pcall(function()
        local last = lock:valid_for()
        assert.is_true(last <= LEASE and last > 0)
        eventually(function()
          local valid = lock:valid_for()
          assert.is_true(valid <= last)
          assert.is_true(valid <= math.max(0, before + LEASE - rlock.now())
            + 0.1 * slow)
          last = valid
          return valid == 0
        end, LEASE + 1 * slow)
        assert.equal("lost", select(2, lock:need(0.001)))
        eventually(function() return heard.n == 1 end)
        assert.is_true(heard.at - before < LEASE + 0.5 * slow)
      end)
      server:resume()
      assert(ok, message)
    end)

  it("says when its end is near before it is over", function()
    assert.is_true(lock:lock { lease = LEASE })
    assert.is_true(lock:need(LEASE / 2))
    eventually(function() return not lock:need(LEASE / 2) end)
    assert.is_true(lock:valid_for() > 0)
    assert.equal("held", lock:state())
  end)
end)

describe("a hold that is in danger", function()
  before_each(start)
  after_each(fixtures.close)

  it("is lost to its task, though its handle was collected as garbage",
    function()
      local told = rlock.event()
      assert(client:lock(name):lock())
      client:lock(name):on_lost(function() told:set() end)
      ask("DEL", name)
      assert.is_true(told:wait(10 * slow))
      lock = nil
      collectgarbage()
      collectgarbage()
      assert.equal("lost", client:lock(name):state())
      assert.equal("lost", select(2, client:lock(name):unlock()))
      assert.equal("not_held", select(2, client:lock(name):unlock()))
    end)

  it("is at risk, and held again when the server returns in time", function()
    local far = open { watchdog = 6 * LEASE }
    local held = far:lock(name)
    assert.is_true(held:lock())
    local heard = losses(held)
    server:pause()
    local ok, message = pcall(states, held, function(state)
      return state == "at_risk"
    end, 6 * LEASE)
    local left = held:valid_for()
    server:resume()
    assert(ok, message)
    assert.is_true(left > LEASE, "only " .. left .. " s were left")
    assert.equal("at_risk held", states(held, function(state)
      return state == "held"
    end, left))
    throughout(6 * LEASE, function() assert.equal("held", held:state()) end)
    assert.equal(0, heard.n)
    assert.is_true(held:unlock())
  end)

  it("is held, at risk, lost when the server goes away", function()
    assert.is_true(lock:lock())
    local heard = losses(lock)
    server:kill()
    local valid = lock:valid_for()
    local deadline = rlock.now() + valid
    assert.equal("held at_risk lost", states(lock, function(state)
      if state == "lost" then
        assert.is_true(rlock.now() >= deadline - 0.05)
        assert.equal(0, lock:valid_for())
      end
      return state == "lost"
    end, valid + 2 * slow))
    assert.is_true(rlock.now() - deadline < 0.5 * slow)
    eventually(function() return heard.n == 1 end)
    assert.equal(lock, heard.told)

    server:restart()
    assert.equal("lost", select(2, lock:unlock()))
    assert.is_true(lock:lock { wait = 10 * slow })
    assert.is_true(lock:unlock())
    assert.equal(1, heard.n)
  end)

  it("is not lost when the server is back in time with its data", function()
    local far = open { watchdog = 10 * LEASE }
    local held = far:lock(name)
    assert.is_true(held:lock())
    -- To the client, a restart with data is a closed connection and, for a
    -- while, no server.
    server:cli("CONFIG", "SET", "requirepass", "for a while")
    control.close()
    server.password = "for a while"
    server:cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    states(held, function(state) return state == "at_risk" end, 10 * LEASE)
    server:cli("CONFIG", "SET", "requirepass", "")
    server.password = nil
    assert.equal("at_risk held", states(held, function(state)
      return state == "held"
    end, 10 * LEASE))
    assert.is_true(held:unlock())
  end)

  it("survives a lost reply to its renewal", function()
    local proxy = fixtures.proxy(server)
    local far = open {
      url = proxy.url, watchdog = 6 * LEASE, timeout = LEASE,
    }
    local held = far:lock(name)
    assert.is_true(held:lock())
    local heard = losses(held)
    proxy:mute(1, name)
    local seen = proxy:count(name)
    eventually(function() return proxy:count(name) >= seen + 3 end,
      12 * LEASE, "two renewals after the one that was dropped")
    assert.equal("held", held:state())
    assert.equal(0, heard.n)
    assert.is_true(held:unlock())
    assert.equal(0, ask("EXISTS", name))
  end)

  it("survives the end of its connection at any moment", function()
    assert.is_true(lock:lock())
    local heard = losses(lock)
    throughout(5 * LEASE, function()
      ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
      rlock.sleep(LEASE / 7)
    end)
    assert.equal(0, heard.n)
    assert.is_true(lock:unlock())
  end)
end)

describe("on_lost", function()
  before_each(start)
  after_each(fixtures.close)

  local function is_told(reason, fn)
    local heard = losses(lock)
    local also = losses(lock)
    fn()
    eventually(function() return heard.n > 0 and also.n > 0 end,
      3 * LEASE + 2 * slow)
    assert.matches(reason, heard.reason)
    assert.equal(lock, heard.told)
    assert.equal("lost", lock:state())
    assert.equal(0, lock:valid_for())
    throughout(2 * LEASE, function() end)
    assert.equal("lost", select(2, lock:unlock()))
    assert.equal("not_held", select(2, lock:unlock()))
    throughout(LEASE, function() end)
    assert.equal(1, heard.n)
    assert.equal(1, also.n)
  end

  it("runs in time, though the next renewal is much later", function()
    local its = open { watchdog = 60 * slow }
    assert.is_true(its:lock(fresh()):lock())
    local watchdog = its.session.watchdog
    eventually(function() return watchdog.wake_deadline > rlock.now() end)
    local leased, is_lost = its:lock(name)
    assert.is_true(leased:lock { lease = LEASE })
    leased:on_lost(function() is_lost = true end)
    eventually(function() return is_lost end, 10 * slow)
  end)

  it("is called once when the key was deleted", function()
    assert.is_true(lock:lock())
    is_told("server does not have it", function() ask("DEL", name) end)
  end)

  it("is called once when the lock was broken by force", function()
    assert.is_true(lock:lock())
    is_told("broken", function()
      local other = open()
      assert.is_true(other:lock(name):break_lock())
    end)
  end)

  it("is called once when everything was flushed", function()
    assert.is_true(lock:lock())
    is_told("server does not have it", function() ask("FLUSHALL") end)
  end)

  it("is called once when another owner has it", function()
    assert.is_true(lock:lock())
    is_told("server does not have it", function()
      ask("DEL", name)
      ask("HSET", name, "somebody:1", "1")
    end)
    assert.equal("1", ask("HGET", name, "somebody:1"))
  end)

  it("is called once when the key became something else", function()
    assert.is_true(lock:lock())
    is_told("WRONGTYPE", function() ask("SET", name, "a string") end)
    assert.equal("a string", ask("GET", name))
  end)

  it("is called once when the server was stopped beyond the lease", function()
    assert.is_true(lock:lock())
    is_told("not renewed in time", function()
      server:pause()
      pcall(eventually, function() return lock:state() == "lost" end,
        LEASE + 2 * slow)
      server:resume()
    end)
  end)

  it("is called once when the server came back empty", function()
    assert.is_true(lock:lock())
    is_told(".", function()
      server:restart()
    end)
  end)

  it("is called once when a lease ended", function()
    assert.is_true(lock:lock { lease = LEASE })
    is_told("lease", function() end)
  end)

  it("is called once when it is unlock that finds it lost", function()
    assert.is_true(lock:lock { lease = 100 * LEASE })
    local heard = losses(lock)
    ask("DEL", name)
    assert.equal("lost", select(2, lock:unlock()))
    eventually(function() return heard.n == 1 end)
    throughout(LEASE, function() end)
    assert.equal(1, heard.n)
  end)

  it("is called at once when it is asked for after the loss", function()
    assert.is_true(lock:lock())
    ask("DEL", name)
    eventually(function() return lock:state() == "lost" end)
    local heard = losses(lock)
    eventually(function() return heard.n == 1 end)
    assert.equal("lost", select(2, lock:unlock()))
  end)

  it("is not called for a hold that was unlocked", function()
    assert.is_true(lock:lock())
    local heard = losses(lock)
    assert.is_true(lock:unlock())
    assert.is_true(lock:lock { lease = LEASE })
    eventually(function() return ask("EXISTS", name) == 0 end)
    assert.equal("lost", select(2, lock:unlock()))
    throughout(LEASE, function() end)
    assert.equal(0, heard.n)
  end)

  it("is refused to who does not hold the lock", function()
    local ok, code = lock:on_lost(function() end)
    assert.is_nil(ok)
    assert.equal("not_held", code)
  end)

  it("may itself wait, lock and unlock", function()
    assert.is_true(lock:lock())
    local result
    lock:on_lost(function(lost)
      rlock.sleep(0.01)
      result = { lost:lock { wait = 5 * slow }, (lost:unlock()) }
    end)
    ask("DEL", name)
    eventually(function() return result end, 5 * slow)
    assert.same({ true, true }, result)
    assert.equal("lost", select(2, lock:unlock()))
  end)
end)

describe("a process that was stopped beyond its lease", function()
  before_each(start)
  after_each(fixtures.close)

  it("learns of its loss at once when it goes on, and takes nothing back",
    function()
      local other = program.start(server, "-e", ([[
        local rlock = require "rlock"
        local lease = %g
        local client = assert(rlock.open { watchdog = lease })
        local lock = client:lock(...)
        assert(lock:lock())
        lock:on_lost(function(_, reason) print("on_lost " .. reason) end)
        io.stdout:setvbuf "line"
        print "locked"
        local before = rlock.now()
        repeat
          before = rlock.now()
          rlock.sleep(0.005)
        until rlock.now() - before > lease
        print("valid " .. lock:valid_for())
        rlock.sleep(lease)
        print("unlock", lock:unlock())
      ]]):format(LEASE), name)
      eventually(function() return other:output():find("locked") end,
        10 * slow)
      throughout(2 * LEASE, function()
        assert.equal(1, ask("EXISTS", name))
      end)
      other:kill(19)
      assert.is_true(lock:lock { wait = LEASE + 5 * slow })
      throughout(LEASE, function() end)
      other:kill(18)
      local status = other:wait()
      local output = other:output()
      assert.equal(0, status, output)
      assert.matches("valid 0", output)
      assert.matches("on_lost", output)
      assert.equal(1, (select(2, output:gsub("on_lost", ""))))
      assert.matches("unlock%s+nil%s+lost", output)
      assert.is_true(lock:is_held())
      assert.is_true(lock:unlock())
    end)
end)
