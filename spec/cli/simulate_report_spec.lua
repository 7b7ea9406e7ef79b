--- rlockctl simulate: its reports, their wording, and how to repeat a run.

local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"

local function simulate(...)
  return ctl.run { "simulate", limit = 280, ... }
end

-- A program of the spec's own.
local function file(name, text) return ctl.file(name .. ".lua", text) end

-- Runs a program without faults.
local function report(name, text, ...)
  return simulate("--seed", "1", "--faults", "none", file(name, text), ...)
end

local OPEN = [[local rlock = require "rlock"
local simulate = require "rlock.simulate"
local client = assert(rlock.open())
]]                                      -- lines 1 to 3

teardown(ctl.clean)

describe("a simulation without faults", function()
  it("finds a program in which no process succeeds", function()
    local found = report("never", OPEN .. [[
      assert(client:latch("gate"):set(1) or true)
      assert(client:latch("gate"):wait { wait = 1 })]])
    assert.equal(1, found.status)
    assert.matches("\nnever.lua:5: every process ends by an uncaught error, "
      .. "although no fault was injected: the program never works; process "
      .. "%d.1 ends by timeout: latch \"gate\" was not open in time, at",
      found.out)
  end)

  it("reports a code that does not come from a lost race", function()
    local found = report("refused", OPEN .. [[
      assert(client:semaphore("pool"):set(3))]])
    assert.equal(1, found.status)
    assert.matches("\nrefused.lua:4: process %d.1 ends by an uncaught error: "
      .. "refused: it was set before; 3 permits are available, although no "
      .. "fault was injected, at", found.out)
  end)

  it("allows some processes to lose a race", function()
    local found = report("race", OPEN .. [[
      assert(client:lock("name"):try_lock())
      rlock.sleep(1)
      client:close()]])
    assert.equal("2 runs without faults, processes ended by uncaught codes: "
      .. "busy 4: no bug found\n", found.out)
  end)
end)

describe("a loop that only reads the clock", function()
  it("ends after a day, at its line, in each run of the seed", function()
    local found = report("clock", OPEN .. "while rlock.now() > 0 do end")
    assert.equal(1, found.status)
    assert.matches("\nclock.lua:4: process %d.1 ends by an uncaught error: a "
      .. "loop has not waited for 86400 s of virtual time, at 86400.0%d+ s",
      found.out)
    assert.not_matches("Not reproducible", found.out)
  end)
end)

describe("the permits of a semaphore", function()
  local function leak(name, body)
    return report(name, OPEN .. [[
      local semaphore = client:semaphore "pool"
      local shared = simulate.shared "one"
      semaphore:set(3)
      ]] .. body)
  end

  it("must be released by the process that acquires them", function()
    local found = leak("leaks", [[
      assert(semaphore:acquire())
      shared.first = shared.first or client
      if shared.first ~= client then assert(semaphore:release()) end]])
    assert.equal(1, found.status)
    assert.matches("\nprocess (%d).1 has ended without releasing 1 permit of "
      .. 'semaphore "pool", at %S+ s; since process %1.1, leaks.lua:7: acquire',
      found.out)
  end)

  it("may serve as signals or tickets, or be reacquired", function()
    for i, body in ipairs {
      "assert(semaphore:acquire())",
      [[shared.n = (shared.n or 0) + 1
        local is_first = shared.n == 1
        if is_first then
          assert(semaphore:acquire(3))
          assert(semaphore:release())
        else
          assert(semaphore:acquire { wait = 100 })
          assert(semaphore:release(2))
        end]],
      [[assert(semaphore:acquire())
        assert(semaphore:add(-1))
        assert(semaphore:release())]],
      [[local n = assert(semaphore:drain())
        assert(semaphore:release(n))
        if semaphore:try_acquire() then semaphore:release() end]],
    } do
      local found = leak("ends" .. i, body)
      assert.equal(0, found.status, found.out)
    end
  end)

  it("of a killed process explain an endless wait", function()
    local path = file("killed", OPEN .. [[
      local semaphore = client:semaphore "pool"
      semaphore:set(1)
      semaphore:acquire()
      rlock.sleep(1)
      semaphore:release()]])
    local found = simulate("--seed", "1", "--runs", "200", "--faults", "crash",
      path)
    assert.equal(1, found.status)
    assert.matches('process %d.%d waits for semaphore "pool".*; process %d.%d '
      .. 'was killed while it had 1 permit of semaphore "pool": a semaphore '
      .. "does not recover them, client:permits does, at", found.out)
  end)

  it("of a killed process are no bug if nobody waits for them", function()
    local path = file("killed_later", OPEN .. [[
      local semaphore = client:semaphore "pool"
      semaphore:set(1)
      if semaphore:acquire { wait = 5 } then
        rlock.sleep(1)
        semaphore:release()
      end]])
    local found = simulate("--seed", "1", "--runs", "100", "--faults", "crash",
      path)
    assert.equal(0, found.status, found.out)
  end)
end)

describe("the report of a simulation", function()
  it("names the line of each call of a counter, and of a tail call", function()
    local found = report("counters", OPEN .. [[
      local semaphore, permits = client:semaphore "pool", client:permits "seats"
      local latch, barrier = client:latch "gate", client:barrier "stop"
      semaphore:set(3)
      semaphore:acquire(2)
      semaphore:release(2)
      permits:set(1)
      local id = permits:acquire { lease = 1 }
      permits:release(id)
      latch:set(1)
      latch:count_down()
      barrier:set()
      barrier:remove()
      client:compute("page", { ttl = 60 }, function() return "text" end)
      rlock.multi_lock { client:lock "a", client:lock "b" }:lock()
      client:double_barrier("phase", 1):enter()
      local function write()
        return client:call("SET", "key", "value")
      end
      write()
      error "the end"]], "--processes=1")
    assert.equal(1, found.status)
    for _, text in ipairs { "6 set pool 3 = true", "7 acquire pool 2 = true",
        "8 release pool 2 = true", "9 set seats 1 = true",
        "10 acquire seats = %x%x%x%x%x%x%x%x%.%.%.\n",
        "11 release seats %x%x%x%x%x%x%x%x%.%.%. = true",
        "12 set gate 1 = true",
        "13 count_down gate = true", "14 set stop = true",
        "15 remove stop = true", "16 compute page = text",
        "17 lock multi%-lock of 2 locks = true", "18 enter phase = true",
        "20 SET key value = OK" } do
      assert.matches("[%d.]+ +" .. text, found.out)
    end
  end)

  it("shows each position once, and the detail of an error code", function()
    for body, text in pairs {
      ['simulate.finally(function() error("wrong") end)'] =
        "\nwhere.lua:4: wrong, at",
      ['simulate.always(function() error("wrong", 0) end) rlock.sleep(1)'] =
        "\nwhere.lua:4: wrong, at",
      ['load("require [[rlock.simulate]].finally(error)", "=part")()'] =
        "\npart:1: nil, at",
      ['assert(rlock.open { url = "http://x" })'] = "\nwhere.lua:4: process "
        .. "%d.1 ends by an uncaught error: usage: bad url: must begin with",
      ['client:semaphore("pool"):acquire(-1)'] = "\nwhere.lua:4: process %d.1 "
        .. "ends by an uncaught error: bad n",
    } do
      local found = report("where", OPEN .. body)
      assert.equal(1, found.status, body)
      assert.matches(text, found.out)
    end
  end)

  it("treats false from an invariant as a violation", function()
    for body, text in pairs {
      ["always(function() return false end)"] = "the invariant returned false",
      ['finally(function() return false, "too few" end)'] = "too few",
    } do
      local program = 'require("rlock.simulate").' .. body
      local found = report("false", program)
      assert.equal(1, found.status, body)
      assert.matches("\nfalse.lua:1: " .. text .. ", at", found.out)
      found = ctl.run { file("false", program) }     -- without a simulation
      assert.equal(1, found.status)
      assert.matches(text:gsub("^the", "false.lua:1: this"), found.err)
    end
    assert.equal(0, report("nothing", 'require("rlock.simulate").finally('
      .. "function() end)").status)
  end)

  it("skips an invariant that reads data before rlock.open", function()
    local found = report("early", [[
      local simulate = require "rlock.simulate"
      simulate.always(function() simulate.redis("GET", "/number") end)
      require("rlock").sleep(1)
      local client = assert(require("rlock").open "redis+cluster://one,two")
      assert(client:lock("name"):with(function() return true end))]])
    assert.equal(0, found.status, found.out)
    found = report("too_early",
      'require("rlock.simulate").redis("GET", "number")')
    assert.matches("there is no server yet; the first rlock.open", found.out)
  end)
end)

describe("the command that repeats a run", function()
  it("has every option that changes it, and RLOCK_URL", function()
    file("lib/more_words", 'return "more"')
    local path = file("options", [[
      local client = assert(require("rlock").open())
      error(require("more_words") .. " " .. client:get "/number")]])
    local lib, url = ctl.folder() .. "/lib", "zk://me:secret@here"
    for option, variable in pairs { ["--url=" .. url] = false, ["-v"] = url } do
      local found = ctl.run { "simulate", "--seed", "3", "--faults", "none",
        "--processes", "2", "--span", "20s", "--strict", "--lua-path", lib,
        "--data", "/number=5", option, "--", path, "", "-x y",
        url = variable, limit = 280 }
      assert.equal(1, found.status, found.err)
      assert.matches("uncaught error: more 5, at", found.out)
      local command = found.out:match "\n(rlockctl simulate [^\n]+)\n"
      assert.equal(("rlockctl simulate --seed 0 --processes 2 --span 20s "
        .. "--faults none --data '/number=5' --strict --url zk://here "
        .. "--lua-path %s -- %s '' '-x y'"):format(lib, path), command)
      local again = ctl.run { "-c", 'rlockctl() { "$0" "$@"; }; ' .. command,
        ctl.binary, program = "sh", limit = 280 }
      assert.equal(found.out, again.out)
    end
  end)
end)

describe("the end of a simulation", function()
  it("is one object with --json, for an error, too", function()
    local found = simulate("--json", "--runs", "x", file("any", "return"))
    assert.equal(206, found.status)
    assert.equal('{"error":"--runs: must be a whole number from 1"}\n',
      found.out)
    found = simulate("--json", "--seed", "1", file("lacks", [[
      local client = assert(require("rlock").open())
      client:call("PFADD", "key")]]))
    assert.equal(3, found.status)
    assert.matches('^{.*"error":"the simulated Redis has no command PFADD"',
      found.out)
  end)

  -- The hundredths of a second of CPU time that a process has used.
  local function used(pid)
    local fields = {}
    for word in files.read(("/proc/%d/stat"):format(pid)):match "%) (.*)"
      :gmatch "%S+" do
      fields[#fields + 1] = word
    end
    return tonumber(fields[12])
  end

  it("by a signal prints the result so far", function()
    local path = file("goes_on", OPEN .. [[
      client:lock("name"):with({ wait = 9 }, function() rlock.sleep(1) end)]])
    for option, text in pairs { ["--log"] = "interrupted, no bug found\n$",
      ["--json"] = '^{.*"interrupted":true.*}\n$' } do
      local its = ctl.start { "simulate", "--for", "9m", option, path,
        limit = 280 }
      eventually(function() return used(its.pid) > 100 end, 200)
      its:kill(2)
      local found = its:wait()
      assert.equal(130, found.status)
      assert.matches(text, found.out)
    end
  end)
end)

describe("the library debug of a simulation", function()
  it("has only functions that cannot reach other processes", function()
    assert.equal(0, report("debugs", [[
      assert(debug.traceback("a"):find "^a\n")
      assert(debug.getinfo(1, "l").currentline == 2)]]).status)
    local found = report("reaches", [[
      debug.setupvalue(print, 1, nil)]])
    assert.matches("debug.setupvalue cannot be simulated", found.out)
  end)
end)

describe("the servers of several addresses", function()
  local program = [[
    local rlock = require "rlock"
    local clients = {}
    for i = 1, 3 do
      clients[i] = assert(rlock.open { url = "redis://host" .. i, lazy = true })
    end
    local lock = rlock.red_lock(clients, "name")
    for _ = 1, 2 do
      local ok = lock:lock { wait = 20, lease = 5 }
      if ok then
        local shared = require("rlock.simulate").shared "one"
        if shared.inside and lock:valid_for() > 0.1 then error "two" end
        shared.inside = lock:valid_for() > 1
        rlock.sleep(0.01)
        shared.inside = false
        lock:unlock()
      end
    end
  ]]

  it("are independent, so a red lock can be held", function()
    local found = report("red", program)
    assert.equal("2 runs without faults: no bug found\n", found.out)
    assert.equal(0, found.status)
  end)

  it("have their own faults, and the report names the server", function()
    local path = file("red_faults", program
      .. [[if clients[3]:lock("other"):lock { wait = 3 } then
        clients[3]:lock("other"):unlock()
      else
        error "the third one is away"
      end]])
    local found = simulate("--seed", "1", "--runs", "400", "--faults",
      "servers", path)
    assert.matches("FAULT freeze%s+host3:6379 ", found.out)
    assert.matches("the third one is away", found.out)
  end)

  it("are the same server if the address is the same", function()
    local found = report("same", [[
      local rlock = require "rlock"
      local one = assert(rlock.open "redis://me:secret@host")
      local other = assert(rlock.open "redis://host:6379/0")
      local third = assert(rlock.open "redis://host:6379/1")
      local lock = one:lock "name"
      if lock:try_lock() then
        assert(not other:lock("name"):try_lock())
        assert(third:lock("name"):try_lock())
        assert(third:lock("name"):unlock())
        lock:unlock()
      end]], "--processes=1")
    assert.equal(0, found.status, found.out)
  end)
end)
