--- What programs see of tasks, events, sleep, cancellation and errors, on each
--- host.

local hosts = require "spec.tools.hosts"
local slow = require "spec.tools.slow"

local plain_it = it

local function specs(which)
  local rlock, task                     -- of the host
  local run = which.run

  local function it(name, fn)
    plain_it(name, function()
      which.play(function(its)
        rlock, task = its.rlock, its.task
        fn()
      end)
    end)
  end

  describe("a task", function()
    it("gets its arguments, and join returns its results, nils and all",
      function()
        local spawned = rlock.spawn(function(...)
          assert.equal(3, select("#", ...))
          return ...
        end, nil, "b", nil)
        local results = table.pack(spawned:join())
        assert.same({ n = 3, nil, "b", nil }, results)
        assert.same(results, table.pack(spawned:join()))
      end)

    it("starts after the one that spawned it waits, in the order of spawning",
      function()
        local order = {}
        for i = 1, 5 do rlock.spawn(function() order[#order + 1] = i end) end
        assert.same({}, order)
        rlock.sleep(0)
        assert.same({ 1, 2, 3, 4, 5 }, order)
      end)

    it("can be joined by many", function()
      local gate = rlock.event()
      local joined = rlock.spawn(function()
        gate:wait()
        return "done"
      end)
      local all = {}
      for i = 1, 10 do
        all[i] = task.start(function() return joined:join() end)
      end
      rlock.sleep(0)
      gate:set()
      for i = 1, 10 do assert.equal("done", all[i]:join()) end
    end)

    it("may use coroutines of its own that do not wait", function()
      local numbers = coroutine.wrap(function()
        for i = 1, 3 do coroutine.yield(i) end
      end)
      assert.same({ 1, 2, 3 }, { numbers(), numbers(), numbers() })
    end)
  end)

  describe("sleep", function()
    it("ends in order of time, never early", function()
      local order, all = {}, {}
      for i, seconds in ipairs { 0.06, 0.02, 0.04, 0.08, 0 } do
        all[i] = task.start(function()
          local before = rlock.now()
          rlock.sleep(seconds)
          assert.is_true(rlock.now() - before >= seconds)
          order[#order + 1] = seconds
        end)
      end
      for _, each in ipairs(all) do each:join() end
      assert.same({ 0, 0.02, 0.04, 0.06, 0.08 }, order)
    end)

    it("lets others run even for 0 seconds", function()
      local ran = false
      rlock.spawn(function() ran = true end)
      rlock.sleep(0)
      assert.is_true(ran)
    end)

    it("ends while other tasks wake each other without pause",
      function()
        local a, b, is_over = rlock.event(), rlock.event(), false
        local turns = 0
        local function play(mine, yours)
          while not is_over do
            mine:wait()
            turns = turns + 1
            yours:set()
          end
          yours:set()
        end
        local one, two = task.start(play, a, b), task.start(play, b, a)
        a:set()
        rlock.sleep(0.05)
        is_over = true
        one:join()
        two:join()
        assert.is_true(turns > 1000)
      end)
  end)

  describe("an event", function()
    it("that was set earlier ends one wait at once", function()
      local event = rlock.event()
      event:set()
      event:set()
      assert.is_true(event:wait())
      assert.is_false(event:wait(0.001))
      event:set()
      assert.is_true(event:wait(0))
      assert.is_false(event:wait(0))
    end)

    it("returns false after the timeout, not earlier", function()
      local before = rlock.now()
      assert.is_false(rlock.event():wait(0.03))
      assert.is_true(rlock.now() - before >= 0.03)
    end)

    it("that is set after a timeout ends the next wait",
      function()
        local event = rlock.event()
        assert.is_false(event:wait(0.001))
        event:set()
        assert.is_true(event:wait(1))
      end)

    it("wakes only its own waiter", function()
      local events, woken, all = {}, {}, {}
      for i = 1, 5 do
        events[i] = rlock.event()
        all[i] = task.start(function()
          events[i]:wait()
          woken[#woken + 1] = i
        end)
      end
      rlock.sleep(0)
      events[3]:set()
      all[3]:join()
      assert.same({ 3 }, woken)
      for _, i in ipairs { 5, 1, 4, 2 } do events[i]:set() end
      for i = 1, 5 do all[i]:join() end
      assert.same({ 3, 5, 1, 4, 2 }, woken)
    end)

    it("refuses a second waiter", function()
      local event = rlock.event()
      local first = task.start(function() return event:wait() end)
      rlock.sleep(0)
      local ok, message = pcall(function() event:wait(1) end)
      assert.is_false(ok)
      assert.matches("^[^\n]*host_spec.lua:%d+: another task waits for this "
        .. "event already$", message)
      event:set()
      assert.is_true(first:join())
    end)

    it("waits without a limit for nil or math.huge", function()
      local event = rlock.event()
      rlock.spawn(function()
        rlock.sleep(0.02)
        event:set()
      end)
      assert.is_true(event:wait(math.huge))
    end)

    it("wakes through a chain of any depth", function()
      local n = 20000
      local events = {}
      for i = 1, n + 1 do events[i] = rlock.event() end
      for i = 1, n do
        rlock.spawn(function()
          events[i]:wait()
          events[i + 1]:set()
        end)
      end
      rlock.sleep(0)
      events[1]:set()
      assert.is_true(events[n + 1]:wait(10 * slow))
    end)

    it("of the end of tasks wakes through a chain of any depth", function()
      local gate = rlock.event()
      local before = rlock.spawn(function() gate:wait() return 0 end)
      for _ = 1, 5000 do
        local joined = before
        before = rlock.spawn(function() return joined:join() + 1 end)
      end
      rlock.sleep(0)
      gate:set()
      assert.equal(5000, task.run(function() return before:join() end))
    end)
  end)

  describe("a task that is cancelled", function()
    local log

    before_each(function() log = {} end)

    local function note(text) log[#log + 1] = text end

    -- Cancels a task that waits in fn, and joins it.
    local function cancel_in(fn)
      local waiting = rlock.spawn(function()
        fn()
        note "went on"
      end)
      rlock.sleep(0.01)
      assert.is_true(waiting:cancel())
      assert.same({ n = 3, nil, "cancelled", "cancelled" },
        table.pack(task.run(function() return waiting:join() end)))
      assert.same({}, log)
    end

    it("is unwound where it sleeps", function()
      cancel_in(function() rlock.sleep(1000) end)
    end)

    it("is unwound in the wait for an event, and uses up no wake",
      function()
        local event = rlock.event()
        cancel_in(function() event:wait() end)
        event:set()
        assert.is_true(event:wait(0))
        cancel_in(function() event:wait(1000) end)
        event:set()
        assert.is_true(event:wait(0))
      end)

    it("is unwound where it joins another, which goes on", function()
      local gate = rlock.event()
      local other = rlock.spawn(function() gate:wait() return "fine" end)
      cancel_in(function() other:join() end)
      gate:set()
      assert.equal("fine", task.run(function() return other:join() end))
    end)

    it("before it has begun is unwound at its first wait", function()
      local begun = false
      local unborn = rlock.spawn(function()
        begun = true
        rlock.sleep(1000)
        note "went on"
      end)
      unborn:cancel()
      task.run(function() unborn:join() end)
      assert.is_true(begun)
      assert.same({}, log)
    end)

    it("is unwound once: it continues after a catch", function()
      local waiting = rlock.spawn(function()
        for _ = 1, 3 do note(tostring((pcall(rlock.sleep, 0.01)))) end
        return "to the end"
      end)
      rlock.sleep(0)
      assert.is_true(waiting:cancel())
      assert.is_false(waiting:cancel())
      assert.equal("to the end", task.run(function() return waiting:join() end))
      assert.same({ "false", "true", "true" }, log)
    end)

    it("after its end is not affected", function()
      local over = rlock.spawn(function() return 1 end)
      rlock.sleep(0)
      assert.is_false(over:cancel())
      assert.equal(1, over:join())
    end)

    it("by itself is unwound at its next wait", function()
      local own
      own = rlock.spawn(function()
        own:cancel()
        note "still runs"
        rlock.sleep(0)
        note "went on"
      end)
      task.run(function() own:join() end)
      assert.same({ "still runs" }, log)
    end)

    it("just as it was woken is unwound at its next wait", function()
      local event = rlock.event()
      local waiting = rlock.spawn(function()
        note(tostring(event:wait()))
        event:wait()
        note "went on"
      end)
      rlock.sleep(0)
      event:set()
      waiting:cancel()
      task.run(function() waiting:join() end)
      assert.same({ "true" }, log)
    end)
  end)

  describe("an error in a task", function()
    it("ends the program with a traceback and status 1, after every <close>",
      function()
        local output, status = run [[
          local rlock = require "rlock"
          local function closing(text)
            return setmetatable({}, { __close = function()
              rlock.sleep(0.01)
              print("closed " .. text)
            end })
          end
          rlock.spawn(function()
            local _ <close> = closing "the other"
            rlock.sleep(1000)
          end)
          rlock.spawn(function()
            local _ <close> = closing "the failing"
            rlock.sleep(0.01)
            local function culprit() error("it went wrong") end
            culprit()
          end)
          local _ <close> = closing "main"
          rlock.sleep(1000)
        ]]
        assert.equal(1, status)
        assert.matches("it went wrong", output)
        assert.matches("stack traceback", output)
        assert.matches("culprit", output)
        for _, who in ipairs { "the other", "the failing", "main" } do
          assert.matches("closed " .. who, output)
        end
      end)

    it("may be any value", function()
      local output, status = run "error({ 'a table' })"
      assert.equal(1, status)
      assert.matches("error object is a table", output)
      output, status = run [[error(setmetatable({}, {
        __tostring = function() return "speaks for itself" end }))]]
      assert.equal(1, status)
      assert.matches("speaks for itself", output)
      assert.equal(1, (select(2, run "error()")))
    end)

    it("that is caught has no effect", function()
      local output, status = run [[
        local rlock = require "rlock"
        print(pcall(function() rlock.sleep(0) error("caught", 0) end))]]
      assert.equal(0, status)
      assert.matches("false%s+caught", output)
    end)
  end)

  describe("the program", function()
    it("reports a deadlock of all tasks", function()
      local output, status = run 'require("rlock").event():wait()'
      assert.equal(1, status)
      assert.matches("deadlock: every task waits", output)
    end)

    it("waits for the tasks that outlive main", function()
      local output, status = run [[
        local rlock = require "rlock"
        rlock.spawn(function() rlock.sleep(0.05) print("the last") end)]]
      assert.equal(0, status)
      assert.matches("the last", output)
    end)

    it("ends with os.exit from any task, after every <close>", function()
      local output, status = run [[
        local rlock = require "rlock"
        rlock.spawn(function() rlock.sleep(0.01) os.exit(7) end)
        local _ <close> = setmetatable({}, { __close = function()
          rlock.sleep(0.01)
          print("tidy")
        end })
        rlock.sleep(1000)]]
      assert.equal(7, status)
      assert.equal("tidy\n", output)
    end)

    it("does not end before a cleanup of a few seconds at most, and then does",
      function()
        local output, status, seconds = run [[
          local rlock = require "rlock"
          local _ <close> = setmetatable({}, { __close = function()
            rlock.sleep(1000)
          end })
          os.exit(3)]]
        assert.equal(3, status, output)
        assert.is_true(seconds >= 5 and seconds < 15 * slow)
      end)

    it("does not wait for daemons", function()
      local output, status = run [[
        require("rlock.host.uv").daemon(require("rlock").sleep, 1000)
        print "the end"]]
      assert.equal("the end\n", output)
      assert.equal(0, status)
    end)

    it("ends with an error in a daemon", function()
      local output, status = run [[
        require("rlock.host.uv").daemon(error, "it went wrong")
        require("rlock").sleep(1000)
        print "went on"]]
      assert.equal(1, status)
      assert.matches("it went wrong", output)
      assert.not_matches("went on", output)
    end)

    it("ends with the first error", function()
      local output, status = run [[
        local rlock = require "rlock"
        local _ <close> = setmetatable({}, { __close = function()
          error "the second"
        end })
        rlock.spawn(error, "the first")
        rlock.sleep(1000)]]
      assert.equal(1, status)
      assert.matches("the first", output)
      assert.not_matches("the second", output)
    end)

    it("does not go on where a task joins one that fails", function()
      local output = run [[
        local rlock = require "rlock"
        local failing = rlock.spawn(function() error "it went wrong" end)
        failing:join()
        print "went on"]]
      assert.not_matches("went on", output)
    end)
  end)

  describe("a loop on the clock", function()
    for _, condition in ipairs { "rlock.now() < before + 0.3",
        "deadline:left() > 0" } do
      it("ends: " .. condition, function()
        local output, status, seconds = run([[
          local rlock = require "rlock"
          local before, deadline = rlock.now(), rlock.deadline(0.3)
          local order, ticks = {}, 0
          rlock.spawn(function()
            rlock.sleep(0.1)
            order[#order + 1] = "asleep"
          end)
          rlock.sleep(0)
          while ]] .. condition .. [[ do ticks = ticks + 1 end
          order[#order + 1] = "awake"
          rlock.sleep(0.01)
          print(ticks > 100, table.concat(order, " "))]])
        assert.equal("true\tawake asleep\n", output)
        assert.equal(0, status)
        assert.is_true(seconds >= 0.3)
      end)
    end
  end)

  describe("misuse of tasks", function()
    it("by a coroutine.yield outside of rlock ends the program",
      function()
        local output, status = run "print(1) coroutine.yield(3) print(2)"
        assert.equal(1, status)
        assert.matches("^1\n", output)
        assert.matches("a task called coroutine.yield", output)
        assert.not_matches("\n2\n", output)
      end)

    it("is refused by the argument's name", function()
      for _, case in ipairs {
        { "fn of rlock.spawn", function() rlock.spawn("x") end },
        { "fn of rlock.run", function() rlock.run() end },
        { "bad seconds", function() rlock.sleep("1") end },
        { "bad seconds", function() rlock.sleep(0 / 0) end },
        { "bad seconds", function() rlock.event():wait("x") end },
        { "bad seconds", function() rlock.deadline("x") end },
      } do
        local ok, message = pcall(case[2])
        assert.is_false(ok)
        assert.matches(case[1], message, 1, true)
        assert.matches("host_spec.lua:%d+:", message)
      end
    end)
  end)

  describe("waiting outside a task", function()
    -- The error when fn waits in a coroutine of the user's own.
    local function complaint(fn)
      local ok, message = coroutine.resume(coroutine.create(fn))
      return ok and "it was let through" or tostring(message)
    end

    it("is a usage error with advice", function()
      for what, fn in pairs {
        sleep = function() rlock.sleep(0.01) end,
        event = function() rlock.event():wait() end,
        join = function() rlock.spawn(function() end):join() end,
      } do
        assert.matches("^" .. what .. ": .*rlock%.spawn",
          what .. ": " .. complaint(fn))
      end
    end)

    it("is a usage error where Lua cannot yield", function()
      local ok, message = pcall(table.sort, { 1, 2 }, function()
        rlock.sleep(0)
      end)
      assert.is_false(ok)
      assert.matches("rlock cannot wait here: inside table.sort", message)
    end)

    it("does not disturb the tasks", function()
      complaint(function() rlock.sleep(1) end)
      rlock.sleep(0)
      assert.is_false(rlock.event():wait(0.001))
    end)
  end)
end

for _, which in ipairs(hosts) do
  describe("on " .. which.name, function() specs(which) end)
end
