--- simulate.run: a function on a virtual clock, with the public module and the
--- time of one simulated process.

local rlock = require "rlock"
local simulate = require "rlock.simulate"

local run = simulate.run

-- The error of a simulation.
local function failure(...)
  local ok, message = pcall(function(...) return (run(...)) end, ...)
  assert.is_false(ok)
  return message
end

describe("simulate.run", function()
  it("returns what the function returns, after its tasks have ended", function()
    local last
    assert.same({ n = 3, nil, "b", nil }, table.pack(run(function()
      rlock.spawn(function()
        rlock.sleep(3600)
        last = rlock.now()
      end)
      return nil, "b", nil
    end)))
    assert.is_true(last >= 3600)
  end)

  it("replaces what a program knows of time and chance, and restores it",
    function()
      local names = { "open", "spawn", "sleep", "now", "event", "deadline" }
      local function functions()
        local list = { os.time, os.date, os.clock, os.exit, math.random, pairs }
        for _, name in ipairs(names) do list[#list + 1] = rlock[name] end
        return list
      end
      local before, inside = functions(), nil
      run(function() inside = functions() end)
      failure(function() error "it went wrong" end)
      for i, fn in ipairs(functions()) do
        assert.equal(before[i], fn)
        assert.not_equal(inside[i], fn)
      end
    end)

  it("is the same for the same seed", function()
    local function numbers()
      local list = { rlock.now(), os.time(), os.clock(), math.random() }
      list[5] = assert(rlock.open()).session.id
      return list
    end
    local first = run(numbers)
    assert.same(first, run(numbers, { seed = 1 }))
    assert.not_same(first, run(numbers, { seed = 2 }))
  end)

  it("begins with an empty server, at every address", function()
    for _ = 1, 2 do
      run(function()
        local clients = {}
        for i, url in ipairs { "local:", "redis://db.example:7000/0",
            "unix:///run/redis.sock", "redis+cluster://a,b",
            "redis+sentinel://a,b/main" } do
          clients[i] = assert(rlock.open { url = url, name = "spec",
            sentinel = url:find "sentinel" and { password = "x" } or nil })
        end
        assert.is_false(clients[1]:call("GET", "number"))
        assert.is_true(clients[1]:lock("name"):lock())
        for j = 2, 5 do
          assert.is_nil((clients[j]:lock("name"):try_lock()))
        end
        clients[1]:close()
        assert.is_true(clients[3]:lock("name"):try_lock())
        assert(clients[2]:call("SET", "number", 1))
      end)
    end
  end)

  it("raises the error itself, after every <close>", function()
    local value, closed = { "an error" }, false
    assert.equal(value, failure(function()
      local _ <close> = setmetatable({}, { __close = function()
        rlock.sleep(1)
        closed = true
      end })
      error(value)
    end))
    assert.is_true(closed)
  end)

  it("raises the error of a task, and unwinds the function", function()
    local closed = false
    assert.matches("virtual_spec.lua:%d+: in a task", failure(function()
      local _ <close> = setmetatable({}, { __close = function()
        closed = true
      end })
      rlock.spawn(function() error "in a task" end)
      rlock.sleep(1000)
    end))
    assert.is_true(closed)
  end)

  it("raises an error if the function does not end by itself", function()
    assert.equal("the program has called os.exit(3)", failure(function()
      os.exit(3)
    end))
    assert.matches("^the program has not ended after 10 s of virtual time",
      failure(function() rlock.sleep(11) end, { span = 10 }))
    assert.matches("^deadlock: every task waits", failure(function()
      rlock.event():wait()
    end))
  end)

  it("ends a loop on the clock", function()
    for _, now in ipairs { "now", "time", "clock" } do
      assert.is_true(run(function()
        local read = rlock[now] or os[now]
        local ends = read() + 2
        while read() < ends do end
        return true
      end))
    end
  end)

  it("ends an infinite loop with an error that has its line", function()
    assert.matches("virtual_spec.lua:%d+: a loop neither waits nor reads the "
      .. "clock$", failure(function() while true do end end))
    assert.matches("virtual_spec.lua:%d+: a loop has not waited for 60 s of "
      .. "virtual time$", failure(function()
        while rlock.now() < math.huge do end
      end, { span = 60 }))
    assert.matches("virtual_spec.lua:%d+: a loop neither waits",
      failure(function()
        rlock.spawn(function() while true do end end)
        rlock.sleep(1)
      end))
  end)

  it("runs a loop that polls the clock for a day within a minute", function()
    local began = os.clock()
    run(function()
      local ends = rlock.now() + 86000
      while rlock.now() < ends do end
    end)
    assert.is_true(os.clock() - began < 60)
  end)

  it("can stop the server", function()
    run(function(its)
      local client = assert(rlock.open { timeout = 2 })
      its.stop(10)
      local began = rlock.now()
      assert.is_nil((client:call("PING")))
      assert.near(2, rlock.now() - began, 0.1)
      rlock.sleep(8)
      assert.equal("PONG", client:call("PING"))
    end)
  end)

  it("refuses what it cannot do", function()
    for message, case in pairs {
      ["bad argument fn of simulate.run"] = { "x" },
      ["bad option sed of simulate.run"] = { print, { sed = 1 } },
      ["bad seed: must be a whole number"] = { print, { seed = 0.5 } },
      ["rlock.exec cannot be simulated"] = { function()
        rlock.exec { "true" }
      end },
      ["simulate.run has no ZooKeeper"] = { function()
        rlock.open "zk://127.0.0.1"
      end },
      ["this is a simulation already"] = { function() run(print) end },
    } do
      local text = failure(table.unpack(case))
      assert.matches(message, text, 1, true)
      assert.matches("virtual_spec.lua:%d+: ", text)
    end
  end)
end)

assert(loadfile("examples/simulate/virtual_clock_spec.lua", "t", _ENV))()
