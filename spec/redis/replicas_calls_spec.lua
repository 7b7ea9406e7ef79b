--- Each call of each kind works if a replica must confirm it.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local kinds = require "rlock.lock.kinds"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local SOON = 10 * slow

-- An example of each public call, by the kind of object: a function of a new
-- object. Calls of which it has no example are a fault.
local examples = { lock = {}, pair = {} }

local function nothing() return true end

-- Runs fn(lock) while the lock is held.
local function held(fn)
  return function(lock)
    assert(lock:lock { wait = SOON })
    fn(lock)
    assert(lock:unlock())
  end
end

local lock = examples.lock

lock.lock, lock.unlock = held(nothing), held(nothing)

function lock.try_lock(its)
  assert(its:try_lock { lease = 30 })
  assert(its:unlock())
end

function lock.with(its) assert(its:with({ wait = SOON }, nothing)) end

function lock.hold(its)
  local hold = assert(its:hold { wait = SOON })
  assert.equal("held", hold:state())
  assert(hold:unlock())
end

lock.state = held(function(its) assert.equal("held", its:state()) end)
lock.valid_for = held(function(its) assert.is_true(its:valid_for() > 0) end)
lock.need = held(function(its) assert(its:need(0.1)) end)
lock.call = held(function(its)
  assert.equal("OK", its:call("SET", "replicated", 1))
end)
lock.transaction = held(function(its)
  assert.same({ "OK" }, its:transaction(function(t)
    t:call("SET", "replicated", 2)
  end))
end)
lock.set = held(function(its)          -- only on ZooKeeper
  assert.equal("usage", select(2, its:set("node", "value")))
end)
lock.on_lost = held(function(its) assert(its:on_lost(nothing)) end)
lock.on_release_request = held(function(its)
  assert(its:on_release_request(nothing))
end)
lock.request_release = held(function(its)
  assert.equal("refused", select(2, its:request_release "a spec"))
end)
lock.token = held(function(its)
  local name = its.record.policy.name
  local is_fenced = name:find "^fenced" and not name:find "%.read$"
  assert.equal(is_fenced and "number" or "nil", type(its:token()))
end)
lock.is_locked = held(function(its) assert.is_true(its:is_locked()) end)
lock.is_held = held(function(its) assert.is_true(its:is_held()) end)
lock.hold_count = held(function(its) assert.equal(1, its:hold_count()) end)
lock.ttl = held(function(its) assert.is_true(its:ttl() > 0) end)
lock.peek = held(function(its) assert.equal("held", its:peek().state) end)

function lock.break_lock(its)
  assert.is_false(its:break_lock())
  assert(its:lock { wait = SOON })
  assert.is_true(its:break_lock(its:token()))
  assert.equal("lost", select(2, its:unlock()))
end

function examples.pair.read_lock(its) held(nothing)(its:read_lock()) end

function examples.pair.write_lock(its) held(nothing)(its:write_lock()) end

local function filled(fn)
  return function(counter)
    assert(counter:set(2))
    fn(counter)
  end
end

local function take_and_release(permits)
  local id = assert(permits:acquire { wait = SOON })
  assert(permits:release(id))
end

examples.permits = {
  set = filled(nothing),
  acquire = filled(take_and_release), release = filled(take_and_release),
  try_acquire = filled(function(permits) assert(permits:try_acquire()) end),
  renew = filled(function(permits)
    assert(permits:renew(assert(permits:acquire()), 30))
  end),
  on_lost = filled(function(permits)
    assert(permits:on_lost(assert(permits:acquire()), nothing))
  end),
  valid_for = filled(function(permits)
    assert.is_true(permits:valid_for(assert(permits:acquire())) > 0)
  end),
  available = filled(function(permits)
    assert.equal(2, permits:available())
  end),
  acquired = filled(function(permits) assert.equal(0, permits:acquired()) end),
  peek = filled(function(its) assert.equal(2, its:peek().available) end),
}

examples.semaphore = {
  set = filled(nothing),
  acquire = filled(function(its) assert(its:acquire(2, { wait = SOON })) end),
  try_acquire = filled(function(its) assert(its:try_acquire()) end),
  release = filled(function(its) assert(its:release()) end),
  add = filled(function(its) assert(its:add(1)) end),
  drain = filled(function(its) assert.equal(2, its:drain()) end),
  available = filled(function(its) assert.equal(2, its:available()) end),
  peek = filled(function(its) assert.equal(2, its:peek().available) end),
}

examples.latch = {
  set = filled(nothing),
  count_down = filled(function(its) assert(its:count_down()) end),
  count = filled(function(its) assert.equal(2, its:count()) end),
  peek = filled(function(its) assert.equal(2, its:peek().count) end),
  delete = filled(function(its) assert.is_true(its:delete()) end),
  wait = filled(function(its)
    local waiter = task.start(function() return its:wait { wait = SOON } end)
    assert(its:count_down())
    assert(its:count_down())
    assert(waiter:join())
  end),
}

-- Functions of the classes that are no calls.
local internal = {}
for name in ([[__tostring abandon busy called class end_wait late mine new node
    retry show state_for take write]])
    :gmatch("%S+") do
  internal[name] = true
end

-- Runs the example of each function of an object's class.
local function try_all(make, list)
  local tried = 0
  for name, fn in pairs(getmetatable(make()).__index) do
    if type(fn) == "function" and not internal[name] then
      local example = assert(list[name], "no example of " .. name)
      local ok, why = pcall(example, make())
      assert(ok, name .. ": " .. tostring(why))
      tried = tried + 1
    end
  end
  assert.is_true(tried > 0)
end

describe("with a replica that confirms", function()
  local client

  setup(function()
    local args = { "--repl-diskless-sync-delay", "0" }
    local primary = fixtures.server { port = true, args = args }
    local replica = fixtures.server { port = true, args = args }
    replica:cli("REPLICAOF", "127.0.0.1", ("%d"):format(primary.port))
    eventually(function()
      return primary:info "connected_slaves" == 1
        and replica:info "master_link_status" == "up"
    end, SOON, "the replica follows")
    client = fixtures.open(primary.url, { replicas = 1,
      replica_timeout = 1 * slow, timeout = 3 * slow })
  end)
  teardown(fixtures.close)

  for _, kind in ipairs(kinds) do
    local function make(options)
      return client[kind.factory](client, fixtures.name(kind.name), options)
    end
    local list = examples[kind.pair and "pair" or kind.driver and kind.name
      or "lock"]

    it("each call of " .. kind.factory .. " works", function()
      assert(list, "no examples of this kind's calls")
      if not kind.pair then return try_all(make, list) end
      for name in pairs(list) do list[name](make()) end
      for _, side in ipairs { "read_lock", "write_lock" } do
        try_all(function() return make()[side](make()) end, lock)
      end
    end)

    if not kind.driver then
      it("each call of " .. kind.factory .. " works with tokens", function()
        try_all(function()
          local its = make { fenced = true }
          return kind.pair and its:write_lock() or its
        end, lock)
      end)
    end

    if not kind.driver then
      it("a waiter for " .. kind.factory .. " gets it", function()
        local name = fixtures.name(kind.name)
        local function of(owner)
          local its = client[kind.factory](client, name, { owner = owner })
          return kind.pair and its:write_lock() or its
        end
        local one, other = of "one", of "other"
        assert(one:lock())
        local waiter = task.start(function()
          return other:lock { wait = SOON }
        end)
        assert(one:unlock())
        assert.is_true(waiter:join())
        assert(other:unlock())
      end)
    end
  end
end)
