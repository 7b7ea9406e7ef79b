--- rlockctl simulate: the classic bugs of programs are found, each with a
--- seed that repeats it; and nothing is found in programs that are right.

local ctl = require "spec.cli.ctl"

local PLACE = "spec/fixtures/simulate/"

local function simulate(...)
  return ctl.run { "simulate", limit = 280, ... }
end

-- A program of the spec's own.
local function file(name, text) return ctl.file(name .. ".lua", text) end

teardown(ctl.clean)

describe("a simulation", function()
  it("finds an effect after the lease, and how to repeat it", function()
    local found = simulate("--seed", "1", "--runs", "200",
      PLACE .. "slow_effect.lua")
    assert.equal(1, found.status)
    assert.matches("slow_effect.lua:9: an update is lost, at ", found.out)
    assert.matches("FAULT ", found.out)
    local seed = found.out:match "rlockctl simulate %-%-seed (%d+) spec/"
    local again = simulate("--seed", seed, PLACE .. "slow_effect.lua")
    assert.equal(1, again.status)
    local steps = "^(.-)\n%d+ runs? "
    assert.equal(found.out:match(steps), again.out:match(steps))
  end)

  it("finds nothing where the server refuses what comes late", function()
    local found = simulate("--seed", "1", "--runs", "200",
      PLACE .. "guarded_effect.lua")
    assert.equal("", found.err)
    assert.matches("^200 runs with faults and 1 without.*: no bug found\n$",
      found.out)
    assert.equal(0, found.status)
  end)

  it("runs programs with two clients, which read metrics", function()
    local found = simulate("--faults", "none", "--runs", "1", file("two", [[
      local rlock = require "rlock"
      local one, other = assert(rlock.open()), assert(rlock.open())
      assert(one:lock("name"):with(function() return true end))
      assert(other:lock("name"):with(function() return true end))
      assert(rlock.metrics():find "rlock_acquired_total{.-} 2\n")]]))
    assert.equal("2 runs without faults: no bug found\n", found.out)
  end)

  it("finds an error that leaves tasks waiting, and a stray yield", function()
    local found = simulate("--faults", "none", "--runs", "1", file("yield", [[
      local rlock = require "rlock"
      rlock.spawn(function() rlock.event():wait() end)
      rlock.sleep(1)
      coroutine.yield()]]))
    assert.equal(1, found.status)
    assert.matches("a task called coroutine.yield", found.out)
    found = simulate("--faults", "none", "--runs", "1", file("argument", [[
      require "rlock".spawn "x"]]))
    assert.matches("bad argument fn of rlock.spawn", found.out)
    for _, name in ipairs { "always", "finally" } do
      local program = file(name .. "_text", ([[
        require "rlock.simulate".%s("a name", function() end)]]):format(name))
      local what = "bad fn of rlock.simulate." .. name
      assert.matches(what, simulate("--runs", "1", program).out)
    end
    found = simulate("--faults", "none", "--runs", "1", file("stuck", [[
      require "rlock".event():wait()]]))
    assert.matches("deadlock: every task waits", found.out)
  end)

  it("finds nothing without faults", function()
    local found = simulate("--seed", "1", "--runs", "50", "--faults", "none",
      PLACE .. "slow_effect.lua")
    assert.equal("51 runs without faults: no bug found\n", found.out)
  end)

  it("finds two locks in two orders, and who waits for whom", function()
    local found = simulate("--seed", "1", "--runs", "100",
      PLACE .. "two_orders.lua")
    assert.equal(1, found.status)
    assert.matches('process %d.%d waits for reentrant lock "[ab]"; process '
      .. '%d.%d waits for reentrant lock "[ab]", at ', found.out)
  end)

  it("finds an uncaught error, at its line", function()
    local found = simulate("--seed", "1", file("error", [[
      local rlock = require "rlock"
      rlock.sleep(1)
      error "no such row"]]))
    assert.equal(1, found.status)
    assert.matches("\nerror.lua:3: process 2.1 ends by an uncaught error: "
      .. "no such row, at 1.0", found.out)
  end)

  it("finds a lock that its task has not released", function()
    local found = simulate("--seed", "1", file("forgotten", [[
      local rlock = require "rlock"
      local client = assert(rlock.open())
      local lock = client:lock "name"
      rlock.spawn(function() assert(lock:lock()) end):join()
      while true do rlock.sleep(1) end]]))
    assert.equal(1, found.status)
    assert.matches("a task of process %d.1 has ended without releasing name",
      found.out)
  end)

  it("finds a permit that its process has not released", function()
    local found = simulate("--seed", "1", file("permit", [[
      local client = assert(require("rlock").open())
      local permits = client:permits "name"
      assert(permits:set(2))
      assert(permits:acquire { wait = 1, lease = 1 })
      assert(permits:acquire { wait = 1 })]]))
    assert.equal(1, found.status)
    assert.matches("process %d.1 has ended without releasing name", found.out)
  end)

  it("finds waits for what cannot come any more", function()
    for wait, text in pairs {
      ['client:semaphore("name"):acquire(2)'] =
        'process %d.1 waits for semaphore "name"',
      ['client:permits("name"):acquire()'] =
        'process %d.1 waits for permits "name"',
      ['client:latch("name"):set(1); client:latch("name"):wait()'] =
        'process %d.1 waits for latch "name"',
      [ [[local shared = require("rlock.simulate").shared "first"
        if shared.is_there then client:semaphore("name"):acquire() end
        shared.is_there = true
        rlock.spawn(function() rlock.event():wait() end):join()]] ] =
        "process %d.1 waits for an event or a task",
    } do
      local found = simulate("--seed", "1", "--faults", "none", "--runs", "1",
        file("waits", ([[
          local rlock = require "rlock"
          local client = assert(rlock.open())
          %s]]):format(wait)))
      assert.equal(1, found.status, wait)
      assert.matches(text .. ".*; and no task does anything else, at",
        found.out)
    end
  end)

  it("knows that a callback or another process may end a wait", function()
    for _, rest in ipairs {
      -- A leader, until it is lost, and those who want to be the next one.
      [[local over, hold = rlock.event(), client:lock("name"):hold()
        hold:on_lost(function() over:set() end)
        over:wait()]],
      [[local semaphore = client:semaphore "name"
        if require("rlock.simulate").shared("first").is_there then
          semaphore:acquire()
        else
          require("rlock.simulate").shared("first").is_there = true
          rlock.sleep(200)
          semaphore:release(2)
        end]],
    } do
      local found = simulate("--seed", "1", "--faults", "none", "--runs", "1",
        file("goes_on", [[
          local rlock = require "rlock"
          local client = assert(rlock.open())
          ]] .. rest))
      assert.equal(0, found.status, found.out)
    end
  end)

  it("finds a cycle with a multi-lock", function()
    local found = simulate("--seed", "1", "--runs", "50", file("multi", [[
      local rlock = require "rlock"
      local client <close> = assert(rlock.open())
      local a, b = client:lock "a", client:lock "b"
      for _ = 1, 3 do
        if math.random() < 0.5 then
          a:lock()
          rlock.sleep(0.01)
          local both = rlock.multi_lock { b, client:lock "c" }
          both:lock()
          both:unlock()
          a:unlock()
        else
          b:lock()
          rlock.sleep(0.01)
          a:lock()
          a:unlock()
          b:unlock()
        end
      end]]))
    assert.equal(1, found.status)
    assert.matches("process %d.%d waits for multi%-lock of 2 locks", found.out)
    assert.matches('process %d.%d waits for reentrant lock "a"', found.out)
  end)

  it("checks an invariant after each step", function()
    local found = simulate("--seed", "1", file("always", [[
      local rlock = require "rlock"
      local shared = require("rlock.simulate").shared "one"
      require("rlock.simulate").always(function()
        assert((shared.inside or 0) <= 1, "two are inside")
      end)
      shared.inside = (shared.inside or 0) + 1
      rlock.sleep(1)
      shared.inside = shared.inside - 1]]))
    assert.equal(1, found.status)
    assert.matches("two are inside, at 0.0", found.out)
  end)

  -- Only a fault of the server can do what this invariant does.
  it("reports two holders as a bug in rlock", function()
    local found = simulate("--seed", "1", file("two", [[
      local rlock = require "rlock"
      local simulate = require "rlock.simulate"
      simulate.always(function() simulate.redis("DEL", "name") end)
      local client <close> = assert(rlock.open())
      client:lock("name"):lock()
      rlock.sleep(1)]]))
    assert.equal(1, found.status)
    assert.matches('processes %d.1 and %d.1 hold reentrant lock "name" at the '
      .. "same time: this is a bug in rlock", found.out)
  end)

  it("knows that a program may break a lock, or delete its key", function()
    for _, call in ipairs { 'lock:break_lock()', 'client:call("DEL", "name")' }
    do
      local found = simulate("--seed", "1", "--runs", "20", file("breaks", ([[
        local rlock = require "rlock"
        local client <close> = assert(rlock.open())
        local lock = client:lock "name"
        %s
        lock:lock { wait = 5 }
        rlock.sleep(0.1)
        lock:unlock()]]):format(call)))
      assert.equal("", found.err)
      assert.equal(0, found.status)
    end
  end)

  it("counts a code that nothing catches; it is a bug with --strict",
    function()
      local program = file("codes", [[
        local rlock = require "rlock"
        local client <close> = assert(rlock.open())
        local lock = client:lock "name"
        assert(lock:lock())
        rlock.sleep(0.1)
        assert(lock:unlock())]])
      local words = { "simulate", "--seed", "1", "--runs", "100", "--faults",
        "pause", limit = 280, program }
      local found = ctl.run(words)
      assert.matches("^100 runs with faults and 1 without, processes ended by "
        .. "uncaught codes: .*lost %d+.*: no bug found\n$", found.out)
      table.insert(words, "--strict")
      found = ctl.run(words)
      assert.equal(1, found.status)
      assert.matches("codes.lua:%d+: process %d.1 ends by an uncaught error: "
        .. "%l+: .*, at ", found.out)
    end)

  it("raises where a program reaches outside, at its line", function()
    for call, text in pairs {
      ['io.popen "ls"'] = "io.popen cannot be simulated",
      ['os.execute "ls"'] = "os.execute cannot be simulated",
      ['io.open("x", "w")'] = "writing x cannot be simulated",
      ['require "rlock".exec { "ls" }'] = "rlock.exec cannot be simulated",
      ['require "socket"'] = "module socket cannot be simulated",
    } do
      local found = simulate("--seed", "1", file("outside", call))
      assert.equal(1, found.status)
      assert.matches("outside.lua:1: process %d.1 ends by an uncaught error: "
        .. text, found.out)
    end
  end)

  it("gives time, chance and modules to each process", function()
    file("counted", "count = (count or 0) + 1; return { n = count }")
    local path = file("own", [[
      package.path = arg[0]:match "^.*/" .. "?.lua;" .. package.path
      print(require("counted").n, count, os.time() > 1.6e9, math.random(9))
      local from = os.clock()
      while os.clock() < from + 1 do end
      error "the end"]])
    local found = simulate("--seed", "1", "--log", path)
    assert.matches("> 1 1 true %d\n", found.out)
    assert.equal(found.out, simulate("--seed", "1", "--log", path).out)
  end)

  it("ends a loop that neither waits nor reads the clock", function()
    local found = simulate("--seed", "1", file("busy", [[
      local n = 0
      while true do n = n + 1 end]]))
    assert.equal(1, found.status)
    assert.matches("busy.lua:2: .*a loop neither waits nor reads the clock",
      found.out)
  end)

  it("lets no pcall catch os.exit", function()
    local found = simulate("--seed", "1", "--runs", "3", file("exit", [[
      pcall(function() xpcall(os.exit, print) end)
      error "goes on"]]))
    assert.equal("", found.err)
    assert.matches("no bug found\n$", found.out)
  end)

  it("names what makes a run differ from the one before", function()
    for line, text in pairs {
      ['for key in pairs { [{}] = 1, [{}] = 2 } do first = first or key end'] =
        "pairs of a table keyed by objects",
      ['first = next { a = 1, b = 2 }'] = "next, whose order of keys",
      ['first = tostring {}'] = "tostring of a table",
    } do
      -- The error has the address of a table, through %p.
      local found = simulate("--seed", "1", file("differs", ([[
        local first
        %s
        error(("%%p"):format({}))]]):format(line)))
      assert.equal(1, found.status)
      assert.matches("Likely cause: " .. text .. ".*, at differs.lua:2",
        found.out)
    end
  end)

  it("names a command that the simulated server lacks", function()
    for _, place in ipairs { [[pcall(client.call, client, "PFADD", "key")]],
      [[require("rlock.simulate").finally(function()
        require("rlock.simulate").redis("PFADD", "key")
      end)]]
    } do
      local found = simulate("--seed", "1", file("lack", [[
        local client <close> = assert(require("rlock").open())
        ]] .. place))
      assert.equal(3, found.status)
      assert.equal("rlockctl: simulate: the simulated Redis has no command "
        .. "PFADD\n", found.err)
    end
  end)

  it("shows a column for each process, and since when it is wrong", function()
    local found = simulate("--seed", "1", "--runs", "200", "--processes", "2",
      "--log", file("columns", [[
      local rlock = require "rlock"
      local simulate = require "rlock.simulate"
      local shared = simulate.shared "one"
      simulate.finally(function()
        assert(not shared.is_wrong, "it went wrong")
      end)
      local client <close> = assert(rlock.open())
      local lock = client:lock "name"
      assert(lock:lock { wait = 100 })
      print "inside"
      client:call("SET", "key", "a text")
      shared.is_wrong = true
      rlock.sleep(0.1)
      client:call("GET", "key")
      assert(lock:unlock())]]))
    assert.equal(1, found.status)
    assert.matches("^seconds    process 1 +process 2\n", found.out)
    assert.matches("\n[%d.]+ +9 lock name %.%.%.\n", found.out)
    assert.matches("\n[%d.]+ +9 lock name = true\n[%d.]+ +> inside\n"
      .. "[%d.]+ +11 SET key a text = OK\n", found.out)
    assert.matches("\ncolumns.lua:4: .*it went wrong, at 0.0%d+ s; since "
      .. "process %d.1, columns.lua:11: SET key a text = OK\n", found.out)
  end)

  it("is one object for machines", function()
    local program = file("object", [[
      local client <close> = assert(require("rlock").open())
      client:call("RPUSH", "list", 1, 2, 3, 4)
      client:call("LRANGE", "list", 0, -1)
      error "the end"]])
    local found = simulate("--seed", "1", "--json", program)
    assert.equal(1, found.status)
    assert.matches('"line":"object.lua:4"', found.out, 1, true)
    assert.matches('"result":"{1, 2, 3, ...}"', found.out, 1, true)
    assert.matches('"command":"rlockctl simulate --seed 0 ' .. program .. '"',
      found.out, 1, true)
    assert.matches('"reproducible":true', found.out, 1, true)
    assert.matches("^{[^\n]*}\n$", found.out)
  end)

  it("injects faults that last, though no lock is taken", function()
    local found = simulate("--seed", "1", "--runs", "300", "--faults", "pause",
      "--log", file("counts", [[
      local rlock = require "rlock"
      for i = 1, 6 do print("line " .. i) end
      local client <close> = assert(rlock.open())
      local semaphore = client:semaphore "name"
      semaphore:set(3)
      assert(semaphore:acquire())
      local began = rlock.now()
      rlock.sleep(0.01)
      client:call("GET", "key")
      if rlock.now() > began + 0.5 then error "it was paused" end
      assert(semaphore:release())]]))
    assert.equal(1, found.status)
    assert.matches("it was paused", found.out)
    assert.matches("line 1\n.*line 2\n.*line 3\n.*line 4\n.*line 5\n.*line 6",
      found.out)
  end)

  it("keeps the invariants of a loop apart", function()
    local found = simulate("--seed", "1", file("loop", [[
      local simulate = require "rlock.simulate"
      for i = 1, 3 do
        simulate.always(function() assert(i ~= 2, "the second one") end)
      end
      require("rlock").sleep(1)]]))
    assert.equal(1, found.status)
    assert.matches("the second one", found.out)
  end)

  it("does not wait for a task that was cancelled", function()
    local found = simulate("--seed", "1", "--runs", "5", "--faults", "none",
      file("cancelled", [[
      local rlock = require "rlock"
      local client <close> = assert(rlock.open())
      local lock = client:lock "name"
      if lock:try_lock() then
        rlock.sleep(200)
        assert(lock:unlock())
      else
        local task = rlock.spawn(lock.lock, lock)
        rlock.sleep(1)
        task:cancel()
        task:join()
        rlock.sleep(150)
      end]]))
    assert.equal("", found.err)
    assert.matches("no bug found", found.out)
  end)

  it("follows each reader that a writer waits for", function()
    local found = simulate("--seed", "1", "--faults", "none", file("readers", [[
      local rlock = require "rlock"
      local client = assert(rlock.open())
      local lock = client:read_write_lock "name"
      local last = require("rlock.simulate").shared "last"
      last.n = (last.n or 0) + 1
      if last.n == 3 then
        rlock.sleep(1)
        assert(lock:write_lock():lock())
      else
        local is_second = last.n == 2
        rlock.spawn(function()
          assert(lock:read_lock():lock())
          while not is_second do rlock.sleep(1) end
        end)
        while true do rlock.sleep(1) end
      end]]))
    assert.equal(1, found.status)
    assert.matches("has ended without", found.out)
  end)

  it("runs a user's module whose name begins like ours", function()
    file("rlock_jobs", "return { os_remove = os.remove, here = here }")
    local found = simulate("--seed", "1", "--", file("jobs", [[
      package.path = arg[0]:match "^.*/" .. "?.lua;" .. package.path
      here = true
      assert(require("rlock_jobs").here)
      assert(math.type(math.random(0)) == "integer")
      require("rlock_jobs").os_remove "a"]]), "5% and more", "-x")
    assert.equal(1, found.status)
    assert.matches("os.remove cannot be simulated", found.out)
    assert.matches("\nrlockctl simulate %-%-seed 0 %-%- %S+jobs.lua "
      .. "'5%% and more' %-x\n", found.out)
  end)

  it("refuses wrong options", function()
    for option, text in pairs {
      ["--processes=0"] = "--processes: must be a whole number from 1",
      ["--for=soon"] = "--for: must be a duration, such as 30s",
      ["--faults=fire"] = "--faults: there is no fire; there are crash, pause, "
        .. "late, servers, restart, evict, clock, and none",
    } do
      local found = simulate(option, PLACE .. "two_orders.lua")
      assert.equal(206, found.status)
      assert.matches(text, found.err, 1, true)
    end
    assert.matches("which program", simulate().err)
  end)
end)

describe("the servers of a simulation", function()
  local function counter(open)
    return file("servers", ([[
      local rlock = require "rlock"
      local simulate = require "rlock.simulate"
      local inside = simulate.shared "inside"
      local client <close> = assert(rlock.open(%s))
      local lock = client:lock "name"
      for _ = 1, 3 do
        local ok = lock:lock { wait = 5 }
        if ok and lock:valid_for() > 1 then
          inside.n = (inside.n or 0) + 1
          rlock.sleep(0.01)
          inside.n = inside.n - 1
        end
        if ok then lock:unlock() end
      end]]):format(open))
  end

  it("are those of an option, or of the program's URL", function()
    for words, open in pairs {
      ["--cluster"] = "", ["--sentinel"] = '"redis://db:7000/2"',
      ["--replicas=2"] = "", ["--zookeeper"] = "",
      ["--processes=3"] = '"redis+cluster://one,two"',
      ["--processes=2"] = '"redis+sentinel://one,two/main"',
      ["--span=30s"] = '"zk://one,two/app"',
    } do
      local found = simulate("--seed", "1", "--runs", "10", words,
        counter(open))
      assert.equal("", found.err)
      assert.matches("^10 runs with faults and 1 without.*no bug found\n$",
        found.out)
      assert.equal(0, found.status)
    end
  end)

  it("have faults of their own", function()
    for sort, fault in pairs { sentinel = "failover", cluster = "move",
      replicas = "failover to a replica", zookeeper = "server restarts" } do
      local plans, kinds = require "rlockctl.simulate.plan", {}
      for seed = 1, 50 do
        for _, event in ipairs(plans.make(seed, { moments = { 1, 2 },
          lease = 30, sort = sort }, { servers = true })) do
          kinds[event[2]] = true
        end
      end
      assert.is_true(kinds[fault])
    end
  end)

  -- The injected faults cause two holders here, so this is no bug in rlock.
  it("break an assumption only on request, and the report says so", function()
    local program = file("assumption", [[
      local rlock = require "rlock"
      local shared = require("rlock.simulate").shared "holders"
      local client <close> = assert(rlock.open())
      local lock = client:lock "name"
      for _ = 1, 4 do
        assert(lock:lock { lease = 20 })
        shared.n = (shared.n or 0) + 1
        if shared.n > 1 then error "two are inside" end
        rlock.sleep(1)
        shared.n = shared.n - 1
        lock:unlock()
      end]])
    for name, text in pairs {
      restart = "the server lost its data, which no lock survives",
      evict = "the server evicted a key, which no lock survives",
      clock = "the server's clock was stepped: leases end early",
    } do
      local found = simulate("--seed", "1", "--runs", "400", "--faults", name,
        program)
      assert.equal(1, found.status, found.out)
      assert.matches("two are inside %(earlier, " .. text .. "%), at",
        found.out)
    end
    assert.equal(0, simulate("--seed", "1", "--runs", "100", "--faults",
      "servers", program).status)
  end)

  it("have data from the start", function()
    for option, read in pairs {
      ["--cluster"] = 'client:call("GET", "number")',
      ["--zookeeper"] = 'client:get "/number"',
    } do
      local found = simulate("--seed", "1", "--log", option, "--data",
        "number=5,/number=5", file("data", ([[
          local client = assert(require("rlock").open())
          error((%s))]]):format(read)))
      assert.matches("uncaught error: 5, at", found.out)
    end
  end)

  it("are of one sort", function()
    local found = simulate("--seed", "1", "--faults", "none", file("sorts", [[
      local client <close> = assert(require("rlock").open "zk://here")
      require("rlock").open "redis://there"]]))
    assert.equal(1, found.status)
    assert.matches("redis://there: all servers of a simulation are of one "
      .. "sort, here zookeeper", found.out)
    found = simulate("--cluster", "--zookeeper", PLACE .. "two_orders.lua")
    assert.equal(206, found.status)
    assert.matches("--cluster and --zookeeper: choose one", found.err, 1, true)
  end)
end)

describe("without a simulation", function()
  it("the same program checks its invariants when it ends", function()
    local function run(n)
      return ctl.run { file("plain", ([[
        local simulate = require "rlock.simulate"
        simulate.finally(function() assert(%d == 1, "not one") end)
        print(simulate.shared "a" == simulate.shared "a")]]):format(n)) }
    end
    assert.same({ 0, "true\n" }, { run(1).status, run(1).out })
    local wrong = run(2)
    assert.equal(1, wrong.status)
    assert.matches("not one", wrong.err)
  end)
end)
