--- What holds for locks on a majority of five servers besides.

local assert = require "luassert"
local locks = require "spec.interop.locks"
local world = require "spec.interop.world"

local LEASE = 60000

-- Lets somebody else have the lock on a server.
local function occupy(store, kind, name)
  if kind == "red" then
    world.call(store, "HSET", name, "somebody:1", 1)
    world.call(store, "PEXPIRE", name, LEASE)
  else
    world.call(store, "SET", name, "somebody", "PX", LEASE)
  end
end

local function majority(w, kind)
  for a in w:both_ways() do
    local name, task, stores = w:name(), a:task(), w:stores(kind)
    for i = 1, 3 do occupy(stores[i], kind, name) end
    assert.is_false(task:ask("take", kind, name, 0, LEASE))
    for i = 4, 5 do
      world.eventually(function()
        return world.call(stores[i], "EXISTS", name) == 0
      end, 30, "that nothing is left")
    end
    world.call(stores[1], "DEL", name)
    assert.is_true(task:ask("take", kind, name, 5000, LEASE))
    assert.is_true(task:ask("give", kind, name))
    for i = 2, 3 do
      assert.equal(1, world.call(stores[i], "EXISTS", name))
    end
  end
end

local function two_are_gone(w, kind)
  w.members[2]:kill()
  w.members[4]:kill()
  locks.together(w, kind, w:name(), 100)
  w.members[2]:restart()
  w.members[4]:restart()
  w:forget_stores()
end

local function entered_again(w, kind)
  for a, b in w:both_ways() do
    local name, holder, other = w:name(), a:task(), b:task()
    assert.is_true(holder:ask("take", kind, name, -1, LEASE))
    assert.is_true(holder:ask("take", kind, name, 0, LEASE))
    assert.is_true(holder:ask("give", kind, name))
    assert.is_false(other:ask("take", kind, name, 0, LEASE))
    assert.is_true(holder:ask("give", kind, name))
    assert.is_true(other:ask("take", kind, name, 5000, LEASE))
    assert.is_true(other:ask("give", kind, name))
  end
end

local both = {
  { "takes a majority, no less and no more", majority },
  { "loses no update while two servers of five are gone", two_are_gone },
}

return {
  exclusive = both,
  reentrant = {
    { "is entered again, and the other side waits for the last exit",
      entered_again }, both[1], both[2],
  },
}
