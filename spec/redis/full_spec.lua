--- A server over its maxmemory, which refuses writes that need memory: no hold
--- is lost, and everything can be released. Random calls of each operation on
--- such a server are in spec/tools/policy_calls.lua.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local kinds = require "spec.tools.kinds"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local SOON = 10 * slow
local LEASE = 3 * slow                   -- of the watchdog

local NAMES = kinds.names(nil, true)

local server, servers

local function fill()
  for _, each in ipairs(servers) do
    each:cli("CONFIG", "SET", "maxmemory", "1")
    assert.matches("^OOM", each:cli("SET", "x", "1"))
  end
end

-- As kinds.open, on as many servers as the kind needs.
local function open(which, options)
  local urls = {}
  for i = 1, kinds.of[which].nodes or 1 do urls[i] = servers[i].url end
  return kinds.open(which, urls, options)
end

-- Takes a lock, twice if that is possible; a writer also reads. Returns what
-- was taken: a list of locks.
local function take(world, which)
  local kind, lock = kinds.of[which], world.lock(which)
  local taken = { lock, not kind.is_entered_once and lock or nil }
  if kind.reader then
    local read = kinds.of[kind.reader].lock(world.clients, which)
    taken[#taken + 1], taken[#taken + 2] = read, read
  end
  for _, each in ipairs(taken) do assert.is_true(each:lock { wait = SOON }) end
  return taken
end

describe("on a server over its maxmemory", function()
  before_each(function()
    servers = { fixtures.server(), fixtures.server(), fixtures.server() }
    server = servers[1]
  end)
  after_each(fixtures.close)

  it("all locks are renewed, and released hold by hold", function()
    local all = {}
    for _, which in ipairs(NAMES) do
      all[which] = take(open(which, { watchdog = LEASE }), which)
    end
    local client = fixtures.open(server.url, { watchdog = LEASE })
    local permits = client:permits "permits"
    assert.is_true(permits:set(2))
    local ids = { permits:acquire(), permits:acquire() }
    fill()
    local filled = rlock.now()
    eventually(function() return rlock.now() > filled + 1.2 * LEASE end)
    for which, taken in pairs(all) do
      for _, lock in ipairs(taken) do
        assert.equal("held", lock:state(), which)
      end
      for _, lock in ipairs(taken) do
        assert.same({ true }, { lock:unlock() }, which)
      end
      if kinds.of[which].is_built_in then
        assert.is_false(taken[1]:is_locked(), which)
      end
    end
    for _, id in ipairs(ids) do
      assert.same({ true }, { permits:release(id) })
    end
    assert.equal(2, permits:available())
  end)

  it("all locks can be broken, and waiters leave", function()
    local world, other, queued, waiting = {}, {}, {}, {}
    for _, which in ipairs(NAMES) do
      world[which] = open(which)
      other[which] = open(which)
      take(world[which], which)
      waiting[which] = task.start(function()
        return other[which].rival(which):lock { wait = SOON }
      end)
      local count = kinds.of[which].waiting
      queued[which] = count and function()
        return count(world[which].clients[1], which)
      end
    end
    for which, count in pairs(queued) do
      eventually(function() return count() == 1 end, SOON, which .. " waits")
    end
    fill()
    for which, its in pairs(waiting) do
      its:cancel()
      if kinds.of[which].is_built_in then
        local lock = world[which].lock(which)
        assert.same({ true }, { lock:break_lock() }, which)
        eventually(function() return lock:is_locked() == false end, SOON,
          which .. " is free")
      end
    end
    for which, count in pairs(queued) do
      eventually(function() return count() == 0 end, SOON, which .. " has left")
    end
  end)
end)
