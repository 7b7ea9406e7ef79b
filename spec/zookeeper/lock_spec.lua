--- The lock on a real ZooKeeper: its nodes, waiters, losses.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local frames = require "spec.tools.frames"
local on_zookeeper = require "spec.tools.on_zookeeper"
local peers = require "spec.tools.zookeeper_peer"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local server, open = on_zookeeper("a lock on ZooKeeper",
  { describe = describe, pending = pending, teardown = teardown })
if not server then return end

local PATIENCE = 20 * slow
-- What the data of a node begin with: nginx writes the host name.
local ADDRESS = rawget(_G, "ngx") and "%S+" or "127%.0%.0%.1"

local peer

-- The nodes of a lock.
local function nodes(name) return peer:names("/" .. name) or {} end

describe("a lock on ZooKeeper", function()
  local client, name, lock

  before_each(function()
    peer = peer or peers.open(server)
    client, name = open(), fixtures.name "lock"
    lock = client:lock(name)
  end)

  after_each(function()
    frames.reset()
    fixtures.close()
  end)

  it("is a node of Curator's InterProcessMutex", function()
    local ok, token = lock:lock()
    assert.is_true(ok)
    local list = nodes(name)
    assert.equal(1, #list)
    assert.matches("^_c_%x+%-%x+%-%x+%-%x+%-%x+%-lock%-%d%d%d%d%d%d%d%d%d%d$",
      list[1])
    assert.equal(40, #list[1]:match "^(.*)lock%-%d+$")
    local data, stat = peer:get(("/%s/%s"):format(name, list[1]))
    assert.matches("^" .. ADDRESS .. " %S+:%d+ rlock,", data)
    assert.equal(token,
      require("rlock.zookeeper.codec").number(stat.created))
    assert.equal(token, lock:token())
    assert.is_true(lock:unlock())
    assert.same({}, nodes(name))
    assert.same({ nil, "not_held" }, { lock:unlock(), (select(2,
      lock:unlock())) })
  end)

  it("excludes others, and has larger tokens each time", function()
    local _, first = lock:lock()
    task.run(function()
      local ok, code = lock:try_lock()
      assert.same({ nil, "busy" }, { ok, code })
      ok, code = open():lock(name):lock { wait = 0.2 }
      assert.same({ nil, "timeout" }, { ok, code })
    end)
    eventually(function() return #nodes(name) == 1 end)
    assert(lock:unlock())
    local _, second = open():lock(name):try_lock()
    assert.is_true(second > first)
  end)

  it("is re-entered, and ends with the last hold", function()
    assert(lock:lock())
    assert(lock:lock())
    assert.equal(2, lock:hold_count())
    assert(lock:unlock())
    assert.is_true(lock:is_held())
    assert.equal(1, #nodes(name))
    assert(lock:unlock())
    assert.is_false(lock:is_locked())
  end)

  it("is handed over in order of arrival", function()
    local order, others = {}, {}
    assert(lock:lock())
    for i = 1, 5 do
      local other = i % 2 == 0 and lock or open():lock(name)
      others[i] = task.start(function()
        assert(other:lock())
        order[#order + 1] = i
        assert(other:unlock())
      end)
      eventually(function() return #nodes(name) == i + 1 end)
    end
    assert(lock:unlock())
    for i = 1, 5 do others[i]:join(PATIENCE) end
    assert.same({ 1, 2, 3, 4, 5 }, order)
    assert.same({}, nodes(name))
  end)

  it("leaves nothing of a waiter that gives up", function()
    assert(lock:lock())
    local waiting = task.start(function() return lock:lock { wait = 0.1 } end)
    assert.equal("timeout", select(2, waiting:join(PATIENCE)))
    eventually(function() return #nodes(name) == 1 end)
    waiting = rlock.spawn(function() return lock:lock() end)
    eventually(function() return #nodes(name) == 2 end)
    waiting:cancel()
    eventually(function() return #nodes(name) == 1 end)
    assert(lock:unlock())
    assert.is_nil(next(client.session.server.entries))
    assert.is_nil(next(client.session.server.doomed))
    assert.equal(0, client.session.wakeup.count)
  end)

  it("keeps no watch of waiters that have given up", function()
    local other, link = open(), client.session.server.connection
    assert(other:lock(name):lock())
    for _ = 1, 10 do
      assert.equal("timeout", select(2, lock:lock { wait = 0.01 }))
    end
    local semaphore = client:semaphore(name .. "/s")
    assert(semaphore:set(1))
    for _ = 1, 10 do
      assert(semaphore:acquire())
      assert(semaphore:release())
    end
    eventually(function() return next(link.watches) == nil end)
  end)

  it("wakes the next waiter when one before it gives up", function()
    assert(lock:lock())
    local first = task.start(function() return lock:lock { wait = 0.5 } end)
    eventually(function() return #nodes(name) == 2 end)
    local second = task.start(function() return lock:lock() end)
    eventually(function() return #nodes(name) == 3 end)
    assert.equal("timeout", select(2, first:join(PATIENCE)))
    assert(lock:unlock())
    assert.is_true(second:join(PATIENCE))
  end)

  it("is valid for a part of the session's time-out, and stays so", function()
    assert(lock:lock())
    local timeout = client.session.server.connection.timeout
    assert.equal(4, timeout)
    local least = math.huge
    local ends = rlock.now() + 1.5 * timeout
    while rlock.now() < ends do
      least = math.min(least, lock:valid_for())
      assert.is_true(lock:valid_for() <= 9 / 10 * timeout)
      rlock.sleep(0.05)
    end
    assert.is_true(least > 0, least)
    assert.equal("held", lock:state())
    assert.is_true(lock:ttl() > 0 and lock:ttl() <= 9 / 10 * timeout)
    assert.is_false(open():lock(name):ttl())
    assert(lock:unlock())
    assert(lock:lock { lease = 2 })
    assert.is_true(lock:ttl() <= 2)
  end)

  it("ends with an explicit lease", function()
    assert(lock:lock { lease = 0.3 })
    assert.is_true(lock:valid_for() <= 0.3)
    assert.is_true(open():lock(name):lock { wait = PATIENCE })
    assert.equal("lost", select(2, lock:unlock()))
  end)

  it("has a named owner, a hold and a body", function()
    local mine = client:lock(name, { owner = "me" })
    assert(mine:lock())
    assert.is_true(task.run(function()
      return client:lock(name, { owner = "me" }):lock()
    end))
    assert.equal("me", mine:peek().holders[1].owner)
    assert(mine:unlock())
    assert(mine:unlock())
    local hold = assert(lock:hold())
    assert.is_true(hold:token() > 0)
    assert.is_true(hold:need(0.1))
    assert(hold:unlock())
    assert.equal("done", lock:with(function() return "done" end))
    assert.same({}, nodes(name))
  end)

  it("is lost as soon as somebody deletes its node", function()
    local why
    assert(lock:lock())
    lock:on_lost(function(_, reason) why = reason end)
    rlock.sleep(0.3)
    assert.is_true(peer:delete("/" .. name .. "/" .. nodes(name)[1]))
    eventually(function() return why end, PATIENCE)
    assert.equal("its node was deleted", why)
    assert.equal("lost", lock:state())
    assert.equal("lost", select(2, lock:unlock()))
    assert.is_true(lock:try_lock())
  end)

  it("has a new token after its node was deleted and a reply lost", function()
    assert(lock:lock())
    local other = open()
    local its = other:lock(name)
    local job = task.start(function()
      local ok, token = its:lock { wait = PATIENCE }
      return ok, token, its:peek().token
    end)
    eventually(function() return nodes(name)[2] end, PATIENCE)
    local _, entry = next(its.record.target.entries)
    eventually(function() return entry.place.ahead end, PATIENCE)
    assert.is_true(peer:delete(entry.place:path()))
    local link = other.session.server.connection
    local post = link.post
    function link.post(...)
      entry.place.create = nil              -- the reply to a create is ignored
      return post(...)
    end
    assert(lock:unlock())
    local ok, token, shown = job:join(PATIENCE)
    link.post = nil
    assert.is_true(ok)
    assert.equal(shown, token)
  end)

  it("tells at each unlock that its node was deleted", function()
    assert(lock:lock())
    assert(lock:lock())
    assert.is_true(peer:delete("/" .. name .. "/" .. nodes(name)[1]))
    for _ = 1, 2 do
      local ok, code = lock:unlock()
      assert.same({ nil, "lost" }, { ok, code })
    end
    assert.is_true(lock:try_lock())
  end)

  it("is broken by force, with or without its token", function()
    local other = open():lock(name)
    assert.is_false(other:break_lock())
    local _, token = lock:lock()
    assert.equal("refused", select(2, other:break_lock(token - 1)))
    assert.is_true(other:break_lock(token))
    assert.is_true(other:try_lock())
  end)

  it("is lost with its session", function()
    local why
    assert(lock:lock())
    lock:on_lost(function(_, reason) why = reason end)
    local session = client.session.server.connection.session
    peers.end_session(server, session)
    eventually(function() return why end, PATIENCE)
    assert.equal("the session has expired", why)
    assert.equal(0, lock:valid_for())
    assert.equal("lost", select(2, lock:unlock()))
    assert.is_true(lock:try_lock())
  end)

  it("connects on first use", function()
    local lazy = open { lazy = true }:lock(name)
    assert.is_true(lazy:lock())
    assert.is_true(lazy:lock())
    assert.is_true(lazy:unlock())
    assert.is_true(lazy:unlock())
    assert.same({}, nodes(name))
  end)

  it("is waited for beyond the end of a session", function()
    local other = open()
    assert(lock:lock())
    local waiting = task.start(function()
      local mine = other:lock(name)
      local ok = mine:lock()
      return ok, mine:unlock()
    end)
    eventually(function() return #nodes(name) == 2 end)
    peers.end_session(server, other.session.server.connection.session)
    eventually(function() return #nodes(name) == 2 end, PATIENCE)
    assert(lock:unlock())
    assert.same({ true, true }, { waiting:join(PATIENCE) })
    assert.same({}, nodes(name))
  end)

  it("survives its connection", function()
    local lost = false
    assert(lock:lock())
    lock:on_lost(function() lost = true end)
    local link = client.session.server.connection
    link:leave "the spec wants it"
    assert.is_true(lock:valid_for() > 0)
    eventually(function() return link.is_ready and lock:state() == "held" end,
      PATIENCE)
    assert.is_false(lost)
    assert.equal(1, #nodes(name))
    assert.is_true(lock:unlock())
  end)

  it("wakes a waiter whose watch was lost with its connection", function()
    local other = open()
    assert(lock:lock())
    local waiting = task.start(function() return other:lock(name):lock() end)
    eventually(function() return #nodes(name) == 2 end)
    other.session.server.connection:leave "the spec wants it"
    assert(lock:unlock())
    assert.is_true(waiting:join(PATIENCE))
  end)

  it("is found again if the reply to its create is lost", function()
    local held = open():lock(name .. "/beside")      -- keeps the container
    assert(held:lock())
    assert(client.session.server:connect(1))
    frames.reset()
    frames.lose_reply "create2"
    local ok, token = lock:lock { wait = PATIENCE }
    assert.is_true(ok)
    assert.is_true(token > 0)
    assert.equal(2, #nodes(name))
    assert.equal(1, frames.count "create2")
    assert(lock:unlock())
    assert.same({ "beside" }, nodes(name))
  end)

  it("is made again if the create is lost", function()
    assert(client.session.server:connect(1))
    frames.lose_request "create2"
    assert.is_true(lock:lock { wait = PATIENCE })
    assert.equal(1, #nodes(name))
  end)

  it("is released if the reply to the delete is lost", function()
    assert(lock:lock())
    frames.lose_reply "delete"
    assert.is_true(lock:unlock())
    assert.same({}, nodes(name))
    assert(lock:lock())
    frames.lose_request "delete"
    assert.is_true(lock:unlock())
    assert.same({}, nodes(name))
  end)

  it("is requested again after a transient error", function()
    for _, err in ipairs { -1, -7, -127 } do
      for _, op in ipairs { "create2", "children", "delete" } do
        frames.fail(op, err)
        assert.is_true(lock:lock { wait = PATIENCE })
        assert.equal(1, #nodes(name))
        assert.is_true(lock:unlock())
        assert.same({}, nodes(name))
      end
    end
    assert.is_nil(next(client.session.server.doomed))
  end)

  it("is held in spite of frames without sense", function()
    assert(lock:lock())
    assert(lock:unlock())
    for n = 0, 40, 4 do
      for _, byte in ipairs { "\0", "\1", "\255" } do
        frames.garble(byte:rep(n))
        assert.is_true(lock:lock { wait = PATIENCE })
        assert.is_true(lock:unlock())
      end
    end
    assert.same({}, nodes(name))
    for byte, why in pairs { ["\0"] = "the server gives no session",
        ["\255"] = "this is not a ZooKeeper server" } do
      frames.garble(byte:rep(64))
      local opened, code, detail = rlock.open { url = server.url }
      assert.is_nil(opened)
      assert.equal("connect", code)
      assert.matches(why, detail)
    end
  end)

  -- Requests the lock without waiting for it. Its session has to be confirmed,
  -- which calls `meanwhile` instead.
  local function confirmed(meanwhile)
    local target, back = lock.record.target, client.session.server
    local validity = back.connection.validity
    function validity.synced() validity.ends = 0 end
    validity.wrote = validity.synced
    validity.synced()
    function back.sync(_, deadline)
      meanwhile(target, deadline, back.connection)
      return true
    end
    local reply = target:run("acquire", rlock.now() + PATIENCE, rlock.now(),
      "some:1", "4000", "1", { wait_ms = 0 })
    back.sync, validity.synced, validity.wrote = nil, nil, nil
    assert.equal("busy", reply[1])
    assert.is_nil(next(back.entries))
    assert.is_nil(next(target.entries))
  end

  it("is not granted by a request that was given up", function()
    confirmed(function(target, deadline)
      assert(target:run("release", deadline, rlock.now(), "some:1", "1", "0"))
    end)
    assert.same({}, nodes(name))
  end)

  it("is forgotten by a try whose session has ended", function()
    confirmed(function(_, deadline, link)
      peers.end_session(server, link.session)
      eventually(function() return link.epoch == 2 end, PATIENCE)
      assert(link:reach(deadline))
    end)
    assert.same({}, nodes(name))
  end)

  it("leaves no orphan if a lost request is given up", function()
    local link = client.session.server.connection
    assert(client.session.server:connect(1))
    local connect = link.connect
    frames.lose_reply "create2"
    function link.connect()
      if link.is_ready then return true end
      return nil, "connect", "the spec does not let it"
    end
    local ok, code = lock:lock { wait = 0.1 }
    link.connect = connect
    assert.same({ nil, "connect" }, { ok, code })
    eventually(function() return link.is_ready end, PATIENCE)
    eventually(function() return #nodes(name) == 0 end, PATIENCE)
    assert.is_nil(next(client.session.server.doomed))
  end)
end)
