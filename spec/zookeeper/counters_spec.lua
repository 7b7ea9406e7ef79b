--- Permits with leases and latches on a real ZooKeeper.

local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local frames = require "spec.tools.frames"
local most_inside = require "spec.tools.most_inside"
local on_zookeeper = require "spec.tools.on_zookeeper"
local peers = require "spec.tools.zookeeper_peer"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local server, open = on_zookeeper("counters on ZooKeeper",
  { describe = describe, pending = pending, teardown = teardown })
if not server then return end

local PATIENCE = 20 * slow
local KILL = 9

local peer, client, name

teardown(ctl.clean)

local function nodes(path) return peer:names("/" .. name .. path) or {} end

before_each(function()
  peer = peer or peers.open(server)
  client, name = open(), fixtures.name "counter"
end)

after_each(function()
  frames.reset()
  fixtures.close()
end)

describe("permits on ZooKeeper", function()
  local permits

  -- Have all waiters left, without a node?
  local function is_clean(leases)
    return #nodes "/locks" == 0 and #nodes "/leases" == leases
      and client.session.wakeup.count == 0
  end

  before_each(function() permits = client:permits(name) end)

  it("have ids, and the nodes of a semaphore", function()
    assert.same({ 0, 0 }, { permits:available(), permits:acquired() })
    assert.equal("busy", select(2, permits:try_acquire()))
    assert.is_true(permits:set(2))
    assert.equal("\0\0\0\2", peer:get("/" .. name .. "/limit"))
    local id = assert(permits:acquire())
    assert.matches("^%x+$", id)
    assert.equal(32, #id)
    assert.matches("^_c_[%x-]+%-lease%-%d+$", nodes "/leases"[1])
    assert.same({ 1, 1 }, { permits:available(), permits:acquired() })
    assert.is_true(permits:valid_for(id) > 0)
    assert.is_true(permits:valid_for(id) <= 4 * 9 / 10)
    local other = assert(open():permits(name):acquire())
    assert.equal("busy", select(2, permits:try_acquire()))
    local state = permits:peek()
    assert.same({ "held", 0, 2 }, { state.state, state.available,
      state.in_use })
    assert.same({ id, other }, { state.holders[1].owner,
      state.holders[2].owner })
    assert.is_true(permits:release(id))
    assert.equal("lost", select(2, permits:release(id)))
    assert.equal(0, permits:valid_for(id))
    assert.equal(1, permits:available())
    eventually(function() return is_clean(1) end)
  end)

  it("belong to the session that took them", function()
    assert(permits:set(1))
    local id = assert(permits:acquire { lease = 60 })
    local other = open():permits(name)
    local ok, code, detail = other:release(id)
    assert.same({ nil, "not_held" }, { ok, code })
    assert.matches("session of another client", detail)
    assert.equal("not_held", select(2, other:renew(id, 5)))
    assert.equal(1, #nodes "/leases")
    client:close()
    assert.is_string(other:acquire { wait = PATIENCE })
  end)

  it("are as many as the last `set` says", function()
    assert(permits:set(3))
    local ids = {}
    for i = 1, 3 do ids[i] = assert(permits:acquire()) end
    assert(permits:set(1))
    assert.same({ -2, 3 }, { permits:available(), permits:acquired() })
    assert.is_true(permits:release(ids[1]))
    assert.is_true(permits:release(ids[2]))
    assert.equal("busy", select(2, permits:try_acquire()))
    local waiting = task.start(function() return permits:acquire() end)
    eventually(function() return #nodes "/leases" == 2 end)
    assert(open():permits(name):set(2))
    assert.is_string(waiting:join(PATIENCE))
    assert.same({ 0, 2 }, { permits:available(), permits:acquired() })
  end)

  it("are acquired in order, even by waiters before the first `set`", function()
    local order, all = {}, {}
    for i = 1, 4 do
      local its = i % 2 == 0 and permits or open():permits(name)
      all[i] = task.start(function()
        local id = assert(its:acquire())
        order[#order + 1] = i
        assert(its:release(id))
      end)
      eventually(function() return #nodes "/locks" == i end)
    end
    assert(permits:set(1))
    for i = 1, 4 do all[i]:join(PATIENCE) end
    assert.same({ 1, 2, 3, 4 }, order)
    eventually(function() return is_clean(0) end)
    assert.is_nil(next(client.session.server.entries))
    eventually(function()
      return next(client.session.server.connection.watches) == nil
    end)
  end)

  it("leave nothing of a waiter that gives up", function()
    assert(permits:set(1))
    local id = assert(permits:acquire())
    assert.equal("timeout", select(2, permits:acquire { wait = 0.1 }))
    local waiting = task.start(function() return permits:acquire() end)
    eventually(function() return #nodes "/leases" == 2 end)
    waiting:cancel()
    eventually(function() return is_clean(1) end)
    assert.is_true(permits:release(id))
    assert.is_nil(next(client.session.server.entries))
    assert.is_nil(next(client.session.server.doomed))
  end)

  it("are deleted at the end of their lease, unless it is renewed", function()
    assert(permits:set(1))
    local id, why = assert(permits:acquire { lease = slow }), nil
    permits:on_lost(id, function(_, reason) why = reason end)
    local began = rlock.now()
    assert.is_true(permits:renew(id, 1.5 * slow))
    assert.is_string(open():permits(name):acquire { wait = PATIENCE })
    assert.is_true(rlock.now() - began >= 1.5 * slow)
    eventually(function() return why end, PATIENCE)
    assert.equal("lost", select(2, permits:release(id)))
    assert.equal("lost", select(2, permits:renew(id, 1)))
  end)

  it("are renewed without a lease", function()
    local its, why = open { watchdog = 3 }:permits(name), nil
    assert(permits:set(1))
    local id = assert(its:acquire())
    assert(its:on_lost(id, function(_, reason) why = reason end))
    rlock.sleep(4.5)
    assert.is_nil(why)
    assert.is_true(its:valid_for(id) > 0)
    assert.is_true(its:release(id))
  end)

  it("are lost with their session, and if somebody deletes them", function()
    local why = {}
    local function note(_, reason) why[#why + 1] = reason end
    assert(permits:set(2))
    local id = assert(permits:acquire())
    assert(permits:on_lost(id, note))
    rlock.sleep(0.3)
    assert(peer:delete(("/%s/leases/%s"):format(name, nodes "/leases"[1])))
    eventually(function() return why[1] end, PATIENCE)
    id = assert(permits:acquire())
    assert(permits:on_lost(id, note))
    peers.end_session(server, client.session.server.connection.session)
    eventually(function() return why[2] end, PATIENCE)
    assert.same({ "its node was deleted", "the session has expired" }, why)
    assert.equal("lost", select(2, permits:release(id)))
    assert.is_string((permits:acquire()))
  end)

  it("are free again when their process is killed", function()
    local file = ctl.file("hold.lua", [[
      local client = assert(require "rlock".open { watchdog = 1 })
      assert(client:permits(arg[1]):acquire())
      io.stdout:write("got\n"):flush()
      require "rlock".sleep(60)
    ]])
    assert(permits:set(1))
    local holder = ctl.start { file, name, url = server.url }
    holder:says "got"
    assert.equal("busy", select(2, permits:try_acquire()))
    holder:kill(KILL)
    assert.is_string(permits:acquire { wait = PATIENCE })
  end)

  it("are acquired and released once if a reply is lost", function()
    assert(permits:set(2))
    for _, lost in ipairs { "create2", "children", "get", "delete" } do
      frames.lose_reply(lost)
      local id = assert(permits:acquire { wait = PATIENCE })
      assert.equal(1, permits:acquired())
      assert.is_true(permits:release(id))
      assert.equal(0, permits:acquired())
      eventually(function() return is_clean(0) end)
    end
    frames.lose_reply "set"
    assert.is_true(permits:set(5))
    assert.equal(5, permits:available())
  end)

  it("never exceed their limit", function()
    assert(permits:set(2))
    local most = most_inside(permits, function()
      return open():permits(name)
    end, PATIENCE)
    assert.is_true(most <= 2, most)
  end)

  it("share their nodes with a semaphore, and refuse those of a lock",
      function()
    local semaphore = open():semaphore(name)
    assert(semaphore:set(2))
    assert(semaphore:acquire(2))
    assert.equal("busy", select(2, permits:try_acquire()))
    assert.equal(2, #permits:peek().holders)
    local strange = ("/%s/leases/strange-lease-0000000099"):format(name)
    assert(peer:make(strange))
    assert.equal(3, #permits:peek().holders)
    assert(peer:delete(strange))
    assert.is_true(semaphore:release())
    assert.is_string((permits:acquire()))
    assert(client:lock(name .. "/lock"):lock())
    for _, its in ipairs { client:permits(name .. "/lock"),
        client:semaphore(name .. "/lock") } do
      local ok, code, detail = its:acquire()
      assert.same({ nil, "refused" }, { ok, code })
      assert.matches("has nodes of another kind of lock %(lock%-%)", detail)
    end
  end)
end)

describe("a latch on ZooKeeper", function()
  local latch

  local function data() return (peer:get(("/%s/latch"):format(name))) end

  -- The server deletes a path without nodes.
  local function keep_path()
    assert(peer:make(("/%s/kept"):format(name), ""))
  end

  -- Starts tasks that wait for it; returns once all are waiting.
  local function start_waiting(n)
    local all = {}
    for i = 1, n do
      local its = i % 2 == 0 and latch or open():latch(name)
      all[i] = task.start(function() return its:wait { wait = PATIENCE } end)
      eventually(function() return its.record.target.watched end)
    end
    return all
  end

  before_each(function() latch = client:latch(name) end)

  it("counts down to zero, and never below", function()
    assert.equal(0, latch:count())
    assert.same({ true, 0 }, { latch:count_down() })
    assert.is_true(latch:wait())
    assert.is_true(latch:set(2))
    local ok, code, detail = latch:set(5)
    assert.same({ nil, "refused" }, { ok, code })
    assert.matches("its count is 2", detail)
    assert.equal("timeout", select(2, latch:wait { wait = 0 }))
    assert.same({ true, 1 }, { open():latch(name):count_down() })
    assert.same({ "held", 1 }, { latch:peek().state, latch:peek().count })
    assert.same({ true, 0 }, { latch:count_down() })
    assert.same({ true, 0 }, { latch:count_down() })
    assert.is_true(latch:wait())
    assert.is_true(latch:set(1))
    assert.is_true(latch:delete())
    assert.is_false(latch:delete())
    assert.is_nil(data())
  end)

  it("lets all waiters continue at zero, or when it is deleted", function()
    assert(latch:set(2))
    local all = start_waiting(4)
    assert(open():latch(name):count_down())
    assert.equal("timeout", select(2, latch:wait { wait = 0.2 }))
    assert(latch:count_down())
    for i = 1, 4 do assert.is_true(all[i]:join(PATIENCE)) end
    assert(latch:set(1))
    all = start_waiting(2)
    assert.is_true(latch:delete())
    for i = 1, 2 do assert.is_true(all[i]:join(PATIENCE)) end
    assert.equal(0, client.session.wakeup.count)
  end)

  it("keeps its waiters after a lost connection or session",
      function()
    assert(latch:set(1))
    local other = open()
    local waiting = task.start(function() return other:latch(name):wait() end)
    local link = other.session.server.connection
    eventually(function() return next(link.watches) end)
    link:leave "the spec wants it"
    eventually(function() return next(link.watches) end, PATIENCE)
    peers.end_session(server, link.session)
    eventually(function() return link.epoch == 2 and next(link.watches) end,
      PATIENCE)
    assert(latch:count_down())
    assert.is_true(waiting:join(PATIENCE))
  end)

  it("counts each request once, even if a reply is lost", function()
    for i, lose in ipairs { frames.lose_reply, frames.lose_request } do
      lose "create2"
      assert.is_true(latch:set(5))
      if i == 1 then keep_path() end
      for _, op in ipairs { "set", "get", "set" } do
        lose(op)
        assert.is_true((latch:count_down()))
      end
      assert.equal(2, latch:count(), i)
      lose "set"
      assert.same({ true, 1 }, { latch:count_down() })
      lose "set"
      assert.same({ true, 0 }, { latch:count_down() })
      frames.fail("set", -7)
      assert.is_true(latch:set(1))
      assert.equal(1, latch:count())
      assert.is_true(latch:delete())
    end
  end)

  -- Runs fn() as a task that loses its connection. The client reconnects after
  -- meanwhile().
  local function interrupted(fn, meanwhile)
    local link = client.session.server.connection
    local connect = link.connect
    function link.connect()
      if link.is_ready then return true end
      rlock.sleep(0.01)
      return nil, "connect", "the spec does not let it"
    end
    local running = task.start(fn)
    eventually(function() return not link.is_ready end)
    meanwhile()
    link.connect = connect
    return running:join(PATIENCE)
  end

  it("is not set twice, if it was deleted before a retry", function()
    local path = ("/%s/latch"):format(name)
    local function set(op, n)
      frames.lose_reply(op)
      local ok, code, detail = interrupted(function() return latch:set(n) end,
        function()
          assert.matches("^" .. n, data())
          assert.is_true(peer:delete(path))
        end)
      assert.same({ nil, "timeout" }, { ok, code })
      assert.matches("it may have been set and deleted since$", detail)
      assert.is_nil(data())
    end
    set("create2", 5)
    assert.same({ true }, { latch:set(1) })
    keep_path()
    assert.same({ true, 0 }, { latch:count_down() })
    set("set", 2)
    frames.lose_request "create2"
    assert.is_true(latch:set(3))
    assert.equal(3, latch:count())
  end)

  -- Loses a request with `lose`. The client retries it after `meanwhile`.
  local function repeated(lose, count, meanwhile, left)
    assert(latch:set(count))
    local other = open():latch(name)
    lose "set"
    assert.same({ true, left }, {
      interrupted(function() return latch:count_down() end,
        function() meanwhile(other) end) })
    assert.equal(left, other:count())
  end

  it("does not count a duplicate after other requests", function()
    repeated(frames.lose_reply, 100, function(other)
      for _ = 1, 20 do assert(other:count_down()) end
    end, 79)
  end)

  it("does not count a retry after the latch was set again", function()
    repeated(frames.lose_request, 1, function(other)
      assert(other:count_down())
      assert(other:set(5))
    end, 5)
    assert(latch:delete())
    repeated(frames.lose_request, 1, function(other)
      assert(other:delete())
      assert(other:set(5))
    end, 5)
  end)

  it("remembers 100 requests, and refuses a node that is no latch", function()
    assert(latch:set(1))
    local path, slots = ("/%s/latch"):format(name), {}
    for i = 1, 150 do slots[i] = (":x:%d 9\n"):format(i) end
    assert.is_true(client:set(path, "7 1\n" .. table.concat(slots)))
    assert.same({ true, 6 }, { latch:count_down() })
    local _, lines = data():gsub("\n", "")
    assert.equal(101, lines)
    assert.matches("^6 1\n:x:52 9\n", data())
    for _, text in ipairs { "", "x", "5 1", "5\n", "-1 1\n",
        "99999999999 1\n", "1 99999999999\n" } do
      assert.is_true(client:set(path, text))
      assert.equal("refused", select(2, latch:count()))
      assert.equal("refused", select(2, latch:count_down()))
    end
    assert(client:lock(name .. "/lock"):lock())
    assert.equal("refused", select(2, client:latch(name .. "/lock"):set(1)))
  end)

  it("counts exactly, over many clients", function()
    assert(latch:set(60))
    local all = start_waiting(2)
    task.many(6, function()
      local its = open():latch(name)
      for _ = 1, 10 do assert((its:count_down())) end
    end, PATIENCE)
    for i = 1, 2 do assert.is_true(all[i]:join(PATIENCE)) end
    assert.equal(0, latch:count())
  end)
end)
