--- Release requests on a real Redis: which holders get one, and the reason that
--- their callbacks get.

local blind = require "spec.tools.blind_policy"
local control = require "spec.tools.control"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local kinds = require "rlock.lock.kinds"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"
local willing = require "spec.tools.willing"

local SOON = 10 * slow

local server, client, other, name

-- A command to the server without rlock.
local function ask(...) return control.ask(server, ...) end

local function channel_of(key)
  return ("rlock_release_request:{%s}"):format(key or name)
end

-- The number of clients that have a callback for a key.
local function listeners(key)
  return ask("PUBSUB", "NUMSUB", channel_of(key))[2]
end

local function await_listeners(n, key)
  eventually(function() return listeners(key) == n end, SOON,
    n .. " subscriptions")
end

local function unlock(hold) assert(hold:unlock()) end

-- The locks of each kind: { title, function (client) -> lock, the lock that
-- excludes it }.
local function each_lock(fn)
  for _, kind in ipairs(kinds) do
    if kind.pair then
      local function side(which)
        return function(of)
          local pair = of[kind.factory](of, name)
          return pair[which](pair)
        end
      end
      fn(kind.title .. ", a reader", side "read_lock", side "write_lock")
      fn(kind.title .. ", a writer", side "write_lock", side "read_lock")
    elseif not kind.driver then
      local function make(of) return of[kind.factory](of, name) end
      fn(kind.title, make, make)
    end
  end
end

describe("a release request", function()
  after_each(fixtures.close)

  before_each(function()
    server = redis.shared()
    client, other = fixtures.open(server.url), fixtures.open(server.url)
    name = fixtures.name "asked"
  end)

  each_lock(function(title, make, make_other)
    it("is answered by the holder, who unlocks: " .. title, function()
      local mine, theirs = make(client), make_other(other)
      local ok, code, detail = theirs:request_release()
      assert.same({ nil, "not_held" }, { ok, code })
      assert.matches("^nobody holds ", detail)
      local hold = assert(mine:hold())
      assert.equal("refused", select(2, theirs:request_release "please"))
      hold:unlock()
      local reasons
      hold, reasons = willing(mine, unlock)
      eventually(function() return (theirs:request_release "please") end, SOON)
      assert.is_true(task.run(theirs.lock, theirs, { wait = SOON }))
      assert.same({ "please" }, reasons)
      assert.equal("free", hold:state())
    end)
  end)

  it("reaches a client once for all its holders, and all clients", function()
    local readers, all = {}, {}
    for i, of in ipairs { client, client, other } do
      local _, reasons = willing(of:read_write_lock(name):read_lock())
      readers[i] = reasons
    end
    await_listeners(2)
    local writer = other:read_write_lock(name):write_lock()
    assert.same({ true, 2 }, { writer:request_release "a writer comes" })
    eventually(function()
      return #readers[1] + #readers[2] + #readers[3] == 3
    end, SOON)
    for i = 1, 3 do all[i] = readers[i][1] end
    assert.same({ "a writer comes", "a writer comes", "a writer comes" }, all)
  end)

  it("reaches holders of a client in their order of registration", function()
    local called, expected = {}, {}
    for i = 1, 12 do
      expected[i] = i
      local reader = client:read_write_lock(name, { owner = "r" .. i })
        :read_lock()
      assert(reader:lock())
      reader:on_release_request(function() called[#called + 1] = i end)
    end
    await_listeners(1)
    assert(other:read_write_lock(name):write_lock():request_release())
    eventually(function() return #called == #expected end, SOON)
    assert.same(expected, called)
  end)

  it("is passed to a lock's callback, in a task of its own", function()
    local lock, told = client:lock(name, { owner = "me" }), rlock.event()
    assert(lock:lock())
    local caller = require("rlock.host.uv").current()
    local result
    lock:on_release_request(function(its, reason)
      result = { its, reason, require("rlock.host.uv").current() ~= caller }
      assert(its:unlock())              -- its owner has a name
      told:set()
    end)
    await_listeners(1)
    assert(other:lock(name):request_release "now")
    assert.is_true(told:wait(SOON))
    assert.same({ lock, "now", true }, result)
    assert.is_false(lock:is_locked())
  end)

  it("is counted and reported", function()
    local events = {}
    local mine = fixtures.open { url = server.url, name = "mine",
      log = function(_, event, fields)
        if event == "asked" then events[#events + 1] = fields end
      end }
    local pair = { mine:lock(name), mine:lock(name .. ":2") }
    local hold, reasons = willing(pair[1])
    local both = assert(rlock.multi_lock(pair):hold())
    assert.is_true(both:on_release_request(function() end))
    await_listeners(1)
    assert(other:lock(name):request_release "now")
    eventually(function() return events[2] and reasons[1] end, SOON)
    assert.equal(1, mine:stats().kinds.reentrant.asked)
    assert.equal(2, mine:stats().asked)
    table.sort(events, function(a, b) return a.kind > b.kind end)
    assert.same({ message = ('asked to release reentrant lock "%s": now')
      :format(name), kind = "reentrant", lock = name, client = "mine",
      reason = "now" }, events[1])
    assert.equal("asked to release multi-lock of 2 locks: now",
      events[2].message)
    both:unlock()
    hold:unlock()
  end)

  it("waits for nothing, and is ignored while the callback runs", function()
    local goes_on = rlock.event()
    local _, reasons = willing(client:lock(name), function()
      goes_on:wait(SOON)
    end)
    await_listeners(1)
    local lock = other:lock(name)
    assert.same({ true, 1 }, { lock:request_release "first" })
    eventually(function() return reasons[1] end, SOON)
    assert.same({ true, 1 }, { lock:request_release "second" })
    -- A third client hears it after the holder does.
    local heard = fixtures.listen(server, { "done" })
    ask("PUBLISH", "done", "")
    eventually(function() return heard[1] end, SOON)
    goes_on:set()
    eventually(function()
      return lock:request_release "third" and reasons[2]
    end, SOON)
    assert.same({ "first", "third" }, { reasons[1], reasons[2] })
  end)

  it("ends with the hold: no channel is left", function()
    local lock = client:lock(name)
    local hold = willing(lock)
    await_listeners(1)
    hold:unlock()
    await_listeners(0)
    assert.equal("not_held", select(2, other:lock(name):request_release()))
    hold = willing(lock)                 -- the grant's table is used again
    await_listeners(1)
    ask("DEL", name)
    assert.equal("lost", select(2, hold:unlock()))
    await_listeners(0)
    willing(lock)
    await_listeners(1)
    client:close()
    await_listeners(0)
  end)

  it("ends with a lost hold, unlocked or not", function()
    local lock = client:lock(name)
    local hold, reasons = willing(lock)
    await_listeners(1)
    ask("DEL", name)
    assert.equal("lost", select(2, hold:call("GET", name)))
    await_listeners(0)
    assert.equal("lost", select(2, hold:on_release_request(print)))
    assert.same({}, reasons)
    hold:unlock()
  end)

  it("does not reach a nested hold that is over", function()
    local lock = client:lock(name)
    local outer, reasons = willing(lock)
    local inner, others = willing(lock)
    assert.equal(2, #outer.hold.grant.listener)
    inner:unlock()
    assert.equal("not_held", select(2, inner:on_release_request(print)))
    assert.is_true(outer:on_release_request(function() end))
    assert.equal(2, #outer.hold.grant.listener)            -- not 3
    await_listeners(1)
    assert(other:lock(name):request_release "outer")
    eventually(function() return reasons[1] end, SOON)
    assert.same({}, others)
    outer:unlock()
  end)

  it("needs a hold", function()
    local lock = client:lock(name)
    assert.equal("not_held", select(2, lock:on_release_request(print)))
    assert.has_error(function() lock:on_release_request() end,
      "bad argument fn of on_release_request: must be a function")
    assert.has_error(function() lock.request_release() end,
      "call it with a colon: lock:request_release()")
  end)

  it("has a short text as its reason", function()
    local lock, long = client:lock(name), ("x"):rep(256)
    for _, bad in ipairs { 1, long .. "x", true } do
      assert.has_error(function() lock:request_release(bad) end, "bad reason "
        .. "of request_release: must be a text of at most 256 bytes")
    end
    local hold, reasons = willing(lock)
    await_listeners(1)
    for i, reason in ipairs { long, "", " a  b ", "a\nb\0c\127", "é" } do
      assert(lock:request_release(reason))
      eventually(function() return reasons[i] end, SOON)
    end
    assert.same({ long, "", " a  b ", "a?b?c?", "é" }, reasons)
    hold:unlock()
  end)

  it("may come from any program", function()
    local hold, reasons = willing(client:lock(name))
    await_listeners(1)
    local texts = { "", "1", "2 two", "2 two", "3 " .. ("x"):rep(1000),
      "\0 \1" }
    for _, text in ipairs(texts) do
      local before = #reasons
      ask("PUBLISH", channel_of(), text)
      if text ~= "2 two" or reasons[before] ~= "two" then
        eventually(function() return #reasons > before end, SOON, text)
      end
    end
    assert.same({ "", "", "two", ("x"):rep(256), "?" }, reasons)
    hold:unlock()
  end)

  it("is not counted for one who listens to all channels", function()
    local hold = assert(client:lock(name):hold())
    local monitor = require "socket.unix" ()
    assert(monitor:connect(server.socket))
    assert(monitor:send "PSUBSCRIBE rlock_*\r\n")
    assert(monitor:receive "*l")
    assert.equal("refused", select(2, other:lock(name):request_release()))
    monitor:close()
    hold:unlock()
  end)

  it("is not heard by waiters of the lock, nor of Redisson", function()
    local hold, reasons = willing(client:lock(name))
    await_listeners(1)
    local waiting = task.start(function()
      return other:lock(name):lock { wait = SOON }
    end)
    local channel = client:lock(name).record.target:channel()
    eventually(function()
      return ask("PUBSUB", "NUMSUB", channel)[2] == 1
    end, SOON)
    local messages = fixtures.messages(server, channel, function()
      assert(other:lock(name):request_release())
      eventually(function() return reasons[1] end, SOON)
    end)
    assert.same({}, messages)
    hold:unlock()
    assert.is_true(waiting:join())
  end)

  it("keeps to its database", function()
    local second = fixtures.open(server.url:gsub("%?.*", "") .. "?db=1")
    local hold, reasons = willing(client:lock(name))
    await_listeners(1)
    local lock = second:lock(name)
    assert.equal("not_held", select(2, lock:request_release "wrong"))
    local its, others = willing(lock)
    eventually(function() return (lock:request_release "second") end, SOON)
    eventually(function() return others[1] end, SOON)
    assert.same({}, reasons)
    its:unlock()
    hold:unlock()
  end)

  it("says so if the kind cannot tell whether it is held", function()
    local ok, code, detail = client:policy(blind, name):request_release()
    assert.same({ nil, "refused" }, { ok, code })
    assert.matches("has a callback", detail)
  end)

  it("fails if no server answers", function()
    local own = fixtures.server()
    local far = fixtures.open { url = own.url, timeout = 0.3 }
    local lock = far:lock(name)
    own:stop()
    assert.is_nil((lock:request_release()))
    assert.not_equal("not_held", select(2, lock:request_release()))
  end)

  it("is refused if the holder lacks the permission, whose waiters are still "
    .. "woken", function()
    local release = client:lock(name).record.target:channel()
    ask("ACL", "SETUSER", "app", "on", "nopass", "~*", "+@all", "resetchannels",
      "&" .. release, "&" .. release .. ":waiters*")
    local poor = fixtures.open { url = server.url, username = "app",
      password = "x" }
    local held = assert(poor:lock(name .. ":held"):hold())
    assert(held:on_release_request(print))
    local hold, got = assert(client:lock(name):hold()), nil
    local waiting = task.start(function()
      got = poor:lock(name):lock { wait = SOON }
    end)
    eventually(function()
      return ask("PUBSUB", "NUMSUB", release .. ":waiters")[2] == 1
    end, SOON)
    local lock = other:lock(name .. ":held")
    assert.equal("refused", select(2, lock:request_release()))
    hold:unlock()
    waiting:join(SOON)
    assert.is_true(got)
    held:unlock()
    local ok, code, detail = poor:lock(name .. ":held"):request_release()
    assert.same({ nil, "redis" }, { ok, code })
    assert.is_true(detail:find "NOPERM" ~= nil
      or detail:find "can't publish" ~= nil, detail)
  end)

  it("arrives after the connection was lost", function()
    local hold, reasons = willing(client:lock(name))
    await_listeners(1)
    ask("CLIENT", "KILL", "TYPE", "pubsub")
    await_listeners(1)
    assert(other:lock(name):request_release())
    eventually(function() return reasons[1] end, SOON)
    hold:unlock()
  end)
end)

describe("a release request to several locks", function()
  local members, others

  before_each(function()
    server = redis.shared()
    client, other = fixtures.open(server.url), fixtures.open(server.url)
    name = fixtures.name "asked"
    members = { client:lock(name), client:mutex(name .. ":2") }
    others = { other:lock(name), other:mutex(name .. ":2") }
  end)

  after_each(fixtures.close)

  it("reaches the holder of all, once", function()
    local mine, theirs = rlock.multi_lock(members), rlock.multi_lock(others)
    assert.equal("not_held", select(2, theirs:request_release()))
    local calls = 0
    local _, reasons = willing(mine, function() calls = calls + 1 end)
    await_listeners(1)
    await_listeners(1, name .. ":2")
    assert.same({ true, 2 }, { theirs:request_release "both" })
    eventually(function() return reasons[1] end, SOON)
    assert.is_true(task.run(function()
      return select(2, theirs:request_release "again") == 2
    end))
    eventually(function() return reasons[2] end, SOON)
    assert.same({ "both", "again" }, reasons)
  end)

  it("reaches the holders of some", function()
    local hold, reasons = willing(members[2], unlock)
    await_listeners(1, name .. ":2")
    local theirs = rlock.multi_lock(others)
    assert.same({ true, 1 }, { theirs:request_release() })
    eventually(function() return hold:state() == "free" end, SOON)
    assert.equal(1, #reasons)
    assert(members[1]:lock())
    assert.equal("refused", select(2, theirs:request_release()))
  end)

  it("ends with the hold that it was for", function()
    members[2] = client:lock(name .. ":2")             -- may be entered twice
    local mine = rlock.multi_lock(members)
    local hold = willing(mine)
    assert(mine:lock())
    await_listeners(1)
    assert(mine:unlock())               -- the other hold
    assert.equal(1, listeners())
    hold:unlock()
    await_listeners(0)
  end)

  it("reaches the holder of a red lock through any server", function()
    local servers, clients, far = {}, {}, {}
    for i = 1, 3 do
      servers[i] = fixtures.server()
      clients[i], far[i] = fixtures.open(servers[i].url),
        fixtures.open { url = servers[i].url, timeout = 0.5 * slow }
    end
    local mine, theirs = rlock.red_lock(clients, name),
      rlock.red_lock(far, name)
    assert.equal("not_held", select(2, theirs:request_release()))
    local held = assert(mine:hold())
    assert.equal("refused", select(2, theirs:request_release()))
    held:unlock()
    local hold, reasons = willing(mine, unlock)
    servers[1]:stop()
    eventually(function() return (theirs:request_release "red") end, SOON)
    eventually(function() return hold:state() == "free" end, SOON)
    assert.same({ "red" }, reasons)
  end)
end)
