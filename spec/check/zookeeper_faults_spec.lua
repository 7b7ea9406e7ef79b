--- Runs each operation on a model of ZooKeeper, and loses each of its requests
--- or replies in turn. The operation returns the right result or error, raises
--- nothing, and leaks nothing.

local stage = require "spec.simulate.zookeeper.stage"

local EARLY, LATE = 0, 0.0007          -- before the request, or the reply,
                                       -- arrives
local WAIT = { wait = 10 }

-- Retries fn() until it has a result: a lost reply makes it fail.
local function insist(self, fn)
  for _ = 1, 5 do
    local ok, code, detail = fn()
    if ok ~= nil then return ok end
    assert(code == "closed" or code == "connect" or code == "timeout"
      or code == "refused", ("%s: %s"):format(code, detail))
    if code == "refused" then return nil end
    self.host.sleep(0.1)
  end
  error "all attempts have failed"
end

-- Title -> fn(self, client).
local programs = {
  ["a lock"] = function(_, own)
    local lock = own:lock "a"
    assert(lock:lock(WAIT))
    assert(lock:lock(WAIT))
    assert(lock:unlock())
    assert.equal(1, assert(lock:peek()).count)
    assert(lock:unlock())
    assert.is_false(lock:is_locked())
  end,
  ["try_lock and break_lock"] = function(_, own)
    local lock = own:lock "a"
    while not lock:try_lock() do end
    assert(lock:break_lock() ~= nil)
    local ok, code = lock:unlock()
    assert(ok or code == "lost", code)
  end,
  ["a lock with a lease"] = function(self, own)
    assert(own:lock("a"):lock { lease = 0.5, wait = 10 })
    self.host.sleep(1)
    own:lock("a"):unlock()
  end,
  ["a mutex"] = function(_, own)
    local mutex = own:mutex "m"
    assert(mutex:lock(WAIT))
    assert(mutex:is_locked())
    assert(mutex:unlock())
  end,
  ["a read/write lock"] = function(_, own)
    local pair = own:read_write_lock "p"
    local read, write = pair:read_lock(), pair:write_lock()
    assert(write:lock(WAIT))
    assert(read:lock(WAIT))
    assert(write:unlock())
    assert.equal("read", assert(read:peek()).state == "held" and "read")
    assert(read:unlock())
  end,
  ["a semaphore"] = function(self, own)
    local semaphore = own:semaphore "s"
    insist(self, function() return semaphore:set(3) end)
    assert(semaphore:acquire(2, WAIT))
    assert.equal(1, semaphore:available())
    assert.equal(1, insist(self, function() return semaphore:drain() end))
    assert(semaphore:release(3))
    self.host.sleep(1)
    assert.equal(3, semaphore:available())
  end,
  ["permits"] = function(self, own)
    local permits = own:permits "p"
    insist(self, function() return permits:set(2) end)
    local id = assert(permits:acquire(WAIT))
    assert.equal(1, permits:available())
    assert.equal(1, permits:acquired())
    assert.equal(1, #assert(permits:peek()).holders)
    assert(permits:renew(id, 5))
    assert(permits:release(id))
    self.host.sleep(1)
    assert.equal(2, permits:available())
  end,
  ["a latch"] = function(self, own)
    local latch = own:latch "l"
    insist(self, function() return latch:set(2) end)
    assert.same({ true, 1 }, { latch:count_down() })
    assert.equal(1, latch:count())
    assert.same({ true, 0 }, { latch:count_down() })
    assert.same({ true, 0 }, { latch:count_down() })
    assert(latch:wait(WAIT))
    assert.equal(0, latch:count())
    assert(latch:delete() ~= nil)
    assert.is_false(latch:delete())
  end,
  ["a barrier"] = function(self, own)
    local barrier = own:barrier "b"
    insist(self, function() return barrier:set() end)
    insist(self, function() return barrier:remove() end)
    assert(barrier:wait(WAIT))
  end,
  ["a double barrier"] = function(_, own)
    local barrier = own:double_barrier("d", 1)
    for _ = 1, 2 do
      assert(barrier:enter(WAIT))
      assert(barrier:leave(WAIT))
    end
  end,
  ["a computation"] = function(_, own)
    for _ = 1, 2 do
      assert(own:compute("c", { ttl = 60, wait = 10 }, function()
        return "x"
      end))
    end
  end,
  ["an election"] = function(self, own)
    local election = own:election "e"
    assert(election:campaign(WAIT))
    assert.is_string(election:leader())
    assert.same({}, election:candidates())
    assert(election:resign())
    self.host.sleep(1)
    assert.is_false((election:leader()))
  end,
  ["a node"] = function(self, own)
    self.ensemble:put("/n", "old")
    local hold = assert(own:lock("a"):hold(WAIT))
    assert.equal("old", (own:get "n"))
    insist(self, function() return own:set("n", "new") end)
    assert.equal("new", (own:get "n"))
    insist(self, function() return hold:set("n", "newer") end)
    assert.equal("newer", (own:get "n"))
    assert(hold:unlock())
  end,
}

-- Counts the requests, and drops the connection at number `which`. Returns a
-- function that returns the count.
local function lose(self, own, which, after)
  local link, frames, count = own.session.server.connection, self.host.frames, 0
  function self.host.frames(options)
    local its = frames(options)
    local send = its and its.send
    if not its then return frames(options) end
    function its.send(...)
      count = count + 1
      if count ~= which then return send(...) end
      if after > 0 then send(...) end
      self.universe:after(after, function() link:leave "the spec wants it" end)
      return true
    end
    return its
  end
  return function() return count end
end

-- Runs a program; returns how many requests it sent.
local function run(program, which, after)
  local count
  stage.play(1, function(self)
    self.host.sleep(1)
    local own = self.open { watchdog = 4 }
    count = lose(self, own, which, after)
    program(self, own)
    local server = own.session.server
    self.host.sleep(1.2)
    assert.same({}, self.ensemble:newest().tree:ephemerals())
    assert.is_nil(next(server.entries))
    assert.is_nil(next(server.doomed))
    assert.equal(0, own.session.pending)
    own:close()
  end)
  return count()
end

describe("on ZooKeeper, a lost request or reply does no harm to", function()
  for title, program in pairs(programs) do
    it(title, function()
      local n = run(program, 0, EARLY)
      for which = 1, n do
        for _, after in ipairs { EARLY, LATE } do
          local ok, why = pcall(run, program, which, after)
          if not ok then
            error(("number %d after %g s: %s"):format(which, after,
              type(why) == "table" and tostring(why.message or why) or why), 0)
          end
        end
      end
    end)
  end
end)
