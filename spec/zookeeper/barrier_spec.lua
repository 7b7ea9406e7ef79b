--- Barriers and double barriers on a real ZooKeeper: their nodes, which are
--- Curator's, and what members see of each other, also of those that die.

local codec = require "rlock.zookeeper.codec"
local enter_together = require "spec.tools.enter_together"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local frames = require "spec.tools.frames"
local host = require "rlock.host.uv"
local on_zookeeper = require "spec.tools.on_zookeeper"
local peers = require "spec.tools.zookeeper_peer"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local server, open = on_zookeeper("barriers on ZooKeeper",
  { describe = describe, pending = pending, teardown = teardown })
if not server then return end

local PATIENCE = 20 * slow
local NODE_EXISTS = -110

local peer, client, name, path, over

before_each(function()
  peer = peer or peers.open(server)
  client, name, over = open(), fixtures.name "barrier", host.event()
  path = "/" .. name
end)

after_each(function()
  over:set()
  frames.reset()
  fixtures.close()
end)

local function nodes()
  local names = peer:names(path) or {}
  table.sort(names)
  return names
end

local function fails(code, ok, its_code, detail)
  assert.same({ nil, code }, { ok, its_code })
  assert.is_string(detail)
end

-- Does the client of a thing wait for a change of the path?
local function is_waiting(its)
  local link = its.session.server.connection
  return link.watches[path] and its.session.wakeup.count > 0
end

-- Starts a task with fn(client); returns once it waits.
local function start(fn, its)
  its = its or open()
  local waiting = task.start(fn, its)
  eventually(function() return is_waiting(its) end)
  return waiting
end

describe("a double barrier on ZooKeeper", function()
  local function member(n, its)
    return (its or open()):double_barrier(name, n)
  end

  -- The nodes of members.
  local function members()
    local list = {}
    for _, its in ipairs(nodes()) do
      if its ~= "ready" then list[#list + 1] = its end
    end
    return list
  end

  -- A node of a member of Curator's.
  local function make_foreign(first)
    local its = path .. "/" .. first .. "0000000-0000-4000-8000-000000000000"
    assert(peer:make(its, "", codec.flags.ephemeral))
    return its
  end

  it("has an ephemeral node for each member, and `ready` while it is open",
    function()
      local one, two = member(2), member(2)
      local entering = start(function() return one:enter() end, one)
      assert.matches("^_c_[%x-]+%-member%-%d+$", nodes()[1])
      enter_together(over, PATIENCE, two)
      assert.is_true(entering:join(PATIENCE))
      assert.same({ 2, "ready" }, { #members(), nodes()[3] })
    end)

  it("opens when the last one has entered, and ends when all have left, again "
    .. "and again", function()
    local inside, all = 0, {}
    for i = 1, 4 do all[i] = member(4, i % 2 == 0 and client or nil) end
    for _ = 1, 3 do
      local most = 0
      task.many(4, function(i)
        assert.is_true(all[i]:enter { wait = PATIENCE })
        inside = inside + 1
        most = math.max(most, inside)
        eventually(function() return most == 4 end, PATIENCE)
        inside = inside - 1
        assert.is_true(all[i]:leave { wait = PATIENCE })
        assert.equal(0, inside)
      end, PATIENCE)
      eventually(function() return #nodes() == 0 end)
    end
    assert.equal(0, client.session.wakeup.count)
    assert.is_nil(next(client.session.server.entries))
  end)

  it("takes a member out again that enters for too long", function()
    local one, two = member(2), member(2)
    fails("timeout", one:enter { wait = 0 })
    fails("timeout", one:enter { wait = 0.01 })
    eventually(function() return #nodes() == 0 end)
    fails("not_held", one:leave())
    local its = open()
    local waiting = start(function()
      return member(2, its):enter { wait = PATIENCE }
    end, its)
    assert.is_true(two:enter { wait = PATIENCE })
    assert.is_true(waiting:join(PATIENCE))
  end)

  it("lets one that is too many wait for the next round", function()
    local all = { member(2), member(2), member(2) }
    enter_together(over, PATIENCE, all[1], all[2])
    local its = open()
    local late = start(function()
      return member(2, its):enter { wait = PATIENCE }
    end, its)
    fails("timeout", all[3]:enter { wait = 0 })
    fails("timeout", all[1]:leave { wait = 0 })
    assert.is_true(all[2]:leave { wait = PATIENCE })
    assert.is_true(all[1]:leave { wait = PATIENCE })
    assert.is_true(all[3]:enter { wait = PATIENCE })
    assert.is_true(late:join(PATIENCE))
  end)

  it("never confuses its round with one after its path was deleted", function()
    local one, two = member(2), member(2)
    enter_together(over, PATIENCE, one, two)
    fails("timeout", one:leave { wait = 0 })
    assert.is_true(two:leave { wait = PATIENCE })
    eventually(function() return #nodes() == 0 end)
    assert(peer:delete(path))
    enter_together(over, PATIENCE, member(2), member(2))
    fails("lost", one:leave { wait = PATIENCE })
  end)

  it("tells those that enter that a member has died", function()
    local mortal = open()
    start(function() return member(3, mortal):enter() end, mortal)
    eventually(function() return #members() == 1 end)
    local waiting = start(function(its) return member(3, its):enter() end)
    eventually(function() return #members() == 2 end)
    peers.end_session(server, mortal.session.server.connection.session)
    fails("lost", waiting:join(PATIENCE))
    eventually(function() return #members() == 0 end)
  end)

  it("tells those that leave that a member has died, also the last one",
    function()
      local mortal = open()
      local one, two = member(3), member(3)
      enter_together(over, PATIENCE, one, two, member(3, mortal))
      local waiting = start(function() return one:leave() end,
        one)
      peers.end_session(server, mortal.session.server.connection.session)
      fails("lost", waiting:join(PATIENCE))
      fails("lost", two:leave())
      eventually(function() return #nodes() == 0 end)
      enter_together(over, PATIENCE, one, two, member(3))
    end)

  it("tells those that leave that a member's client was closed", function()
    local other = open()
    local one = member(2)
    enter_together(over, PATIENCE, one, member(2, other))
    local waiting = start(function() return one:leave() end,
      one)
    other:close()
    fails("lost", waiting:join(PATIENCE))
  end)

  it("lets others wait if a client is closed before the round opens",
    function()
      local other = open()
      local closing = start(function() return member(3, other):enter() end,
        other)
      eventually(function() return #members() == 1 end)
      local its = open()
      local waiting = start(function() return member(3, its):enter() end, its)
      eventually(function() return #members() == 2 end)
      other:close()
      fails("closed", closing:join(PATIENCE))
      eventually(function() return #members() == 1 end)
      enter_together(over, PATIENCE, member(3), member(3))
      assert.is_true(waiting:join(PATIENCE))
    end)

  it("ends the membership of a task that has ended", function()
    local one, two = member(2), member(2)
    local short = task.start(function() assert(one:enter()) end)
    enter_together(over, PATIENCE, two)
    short:join(PATIENCE)
    fails("lost", two:leave { wait = PATIENCE })
  end)

  it("opens, and ends, if replies are lost", function()
    for _, lost in ipairs { "create2", "children", "get", "multi", "set",
        "delete" } do
      for _, lose in ipairs { frames.lose_reply, frames.lose_request } do
        local one, two = member(2), member(2)
        lose(lost)
        enter_together(over, PATIENCE, one, two)
        assert.equal(2, #members())
        lose(lost)
        local waiting = task.start(function() return one:leave() end)
        assert.is_true(two:leave { wait = PATIENCE })
        assert.is_true(waiting:join(PATIENCE))
        frames.reset()
        eventually(function() return #nodes() == 0 end)
      end
    end
  end)

  it("is open for members of Curator's, too, which leave in their order",
    function()
      local one, two = member(3), member(3)
      local entering = start(function() return one:enter() end,
        one)
      local first = make_foreign "0"
      enter_together(over, PATIENCE, two)
      assert.is_true(entering:join(PATIENCE))
      assert.equal("ready", nodes()[4])
      local waiting = start(function() return one:leave() end,
        one)
      fails("timeout", two:leave { wait = 0.1 })
      eventually(function() return #members() == 1 end)
      assert(peer:delete(first))
      assert.is_true(waiting:join(PATIENCE))
      assert.is_true(two:leave { wait = PATIENCE })
      eventually(function() return #nodes() == 0 end)
    end)

  it("keeps the first node until members of Curator's have left", function()
    local one = member(2)
    local entering = start(function() return one:enter() end,
      one)
    local last = make_foreign "f"
    local made, why = peer:make(path .. "/ready")
    assert(made or why == NODE_EXISTS, why)      -- ours may be the first
    assert.is_true(entering:join(PATIENCE))
    local waiting = start(function() return one:leave() end,
      one)
    assert.equal(2, #members())
    assert(peer:delete(last))
    assert.is_true(waiting:join(PATIENCE))
    eventually(function() return #nodes() == 0 end)
  end)

  it("does not open by a `ready` that is left over", function()
    assert(peer:make(path, ""))
    assert(peer:make(path .. "/ready"))
    fails("timeout", member(2):enter { wait = 0.1 })
    eventually(function() return #nodes() == 0 end)
    enter_together(over, PATIENCE, member(2), member(2))
    eventually(function() return #nodes() == 3 end)
  end)

  it("is entered with the same n", function()
    local one = member(3)
    local waiting = start(function() return one:enter() end, one)
    assert.is_true(member(2):enter { wait = PATIENCE })
    local ok, code, detail = waiting:join(PATIENCE)
    fails("refused", ok, code, detail)
    assert.matches("has 2 members, not 3", detail)
  end)

  it("refuses the path of a lock, and the reverse", function()
    assert(client:lock(name):lock())
    local ok, code, detail = member(1):enter()
    fails("refused", ok, code, detail)
    assert.matches("has nodes of another kind of lock %(lock%-%)", detail)
  end)
end)

describe("a barrier on ZooKeeper", function()
  local barrier

  before_each(function() barrier = client:barrier(name) end)

  it("is Curator's node, which any client may remove", function()
    assert.is_true(barrier:wait())
    assert.is_false(barrier:remove())
    assert.is_true(barrier:set())
    assert.is_true(open():barrier(name):set())
    assert.is_string((peer:get(path)))
    fails("timeout", barrier:wait { wait = 0.01 })
    local waiting = {}
    for i = 1, 3 do
      waiting[i] = start(function(its)
        return its:barrier(name):wait { wait = PATIENCE }
      end)
    end
    assert.is_true(open():barrier(name):remove())
    for i = 1, 3 do assert.is_true(waiting[i]:join(PATIENCE)) end
    assert.is_nil(peer:get(path))
  end)

  it("stays set when the client that has set it is closed", function()
    local other = open()
    assert.is_true(other:barrier(name):set())
    other:close()
    fails("timeout", barrier:wait { wait = 0.01 })
    assert.is_true(barrier:remove())
  end)

  it("opens for those that wait, even if it is set again", function()
    assert.is_true(barrier:set())
    local its = open()
    local waiting = start(function() return its:barrier(name):wait() end, its)
    its.session.server.connection:leave "the spec wants it"
    assert.is_true(barrier:remove())
    assert.is_true(barrier:set())
    assert.is_true(waiting:join(PATIENCE))
  end)

  it("is set and removed if replies are lost", function()
    for _, lose in ipairs { frames.lose_reply, frames.lose_request } do
      lose "create2"
      assert.is_true(barrier:set())
      lose "exists"
      fails("timeout", barrier:wait { wait = slow })
      lose "delete"
      barrier:remove()
      assert.is_true(barrier:wait { wait = PATIENCE })
    end
  end)
end)
