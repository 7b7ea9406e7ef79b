--- rlock.run under plain lua5.4: what it returns and raises, and how the
--- process ends.

local ctl = require "spec.cli.ctl"
local redis = require "spec.tools.redis"

local server = redis.shared()
local HUP, INT, TERM = 1, 2, 15

-- For programs: rlock, and work(fn), which runs fn while it holds a lock.
local HEAD = [[
local rlock = require "rlock"
io.stdout:setvbuf("line")
local function work(fn)
  return function(...)
    local client <close> = assert(rlock.open())
    local hold <close> = assert(client:lock("cli:run"):hold())
    local waits <close> = setmetatable({}, { __close = function()
      rlock.sleep(0.01)
      print "closed"
    end })
    return fn(...)
  end
end
]]

local function start(code)
  return ctl.start { program = "lua5.4", "-", stdin = HEAD .. code,
    url = server.url, env = ctl.lua_paths() }
end

local function run(code) return start(code):wait() end

local function assert_ended(status, result)
  assert.same({ status, 0 }, { result.status, result.signal }, result.err)
  assert.equal("0", server:cli("EXISTS", "cli:run"))
end

teardown(ctl.clean)

describe("rlock.run", function()
  if ctl.is_sanitized() then
    return pending("is for lua5.4; a sanitizer is built in")
  end

  it("returns what the function returned, again and again", function()
    local result = run [[
      print(rlock.run(work(function(...) return ... end), 1, nil, "x", nil))
      print(select("#", rlock.run(function() end)))
      print(rlock.run(rlock.run, rlock.now) > 0)]]
    assert.equal("closed\n1\tnil\tx\tnil\n0\ntrue\n", result.out)
    assert_ended(0, result)
  end)

  it("lasts as long as its tasks do", function()
    local result = run [[
      rlock.run(rlock.spawn, work(function()
        rlock.sleep(0.02)
        print "task"
      end))
      print "after"]]
    assert.equal("task\nclosed\nafter\n", result.out)
    assert_ended(0, result)
  end)

  it("raises what a task does not catch, when all have cleaned up", function()
    local code = [[
      rlock.run(work(function()
        rlock.spawn(error, "a mistake"):join()
      end))
      print "never"]]
    local result = run(code)
    assert.equal("closed\n", result.out)
    assert.matches("^lua5.4: .-a mistake\nstack traceback:", result.err)
    assert_ended(1, result)

    result = run(("print(pcall(function() %s end)) rlock.run(print)"):format(
      code))
    assert.matches("^closed\nfalse\t.-a mistake\n.*\n\n$", result.out)
    assert_ended(0, result)
  end)

  it("raises the code of a failed assert with its detail", function()
    local result = run [[
      local plain = assert
      print(pcall(rlock.run, function()
        assert(rlock.open("unix:///nowhere"))
      end))
      print(plain == assert)]]
    assert.matches("^false\tconnect: /nowhere: no such file or directory\n"
      .. "stack traceback:\n\t%[C%]: in function 'assert'\n\tstdin:%d+: .*\n"
      .. "true\n$", result.out)
    assert_ended(0, result)
  end)

  it("refuses what is no function, and to wait elsewhere", function()
    local result = run [[
      print(pcall(rlock.run, 1))
      print(pcall(rlock.sleep, 1))]]
    assert.matches("bad argument fn of rlock.run: must be a function",
      result.out)
    assert.matches("use rlock.spawn %(or rlock.run under plain lua%)",
      result.out)
  end)

  it("cleans up on os.exit, which ends the process", function()
    for call, status in pairs {
      ["os.exit()"] = 0, ["os.exit(false)"] = 1, ["pcall(os.exit, 7)"] = 7,
      ["rlock.spawn(os.exit, 8):join()"] = 8,
    } do
      local result = run(("rlock.run(work(function() %s end))\nprint 'never'")
        :format(call))
      assert.same({ "closed\n", "" }, { result.out, result.err }, call)
      assert_ended(status, result)
    end
  end)

  it("leaves os.exit and signals as they were", function()
    local result = run [[
      local exit = os.exit
      rlock.run(function() assert(os.exit ~= exit) end)
      assert(os.exit == exit)
      pcall(rlock.run, error)
      assert(os.exit == exit)
      assert(os.execute "kill -TERM $PPID")
      os.execute "sleep 20"]]
    assert.same({ TERM, "" }, { result.signal, result.err })
  end)

  for name, signal in pairs { HUP = HUP, INT = INT, TERM = TERM } do
    it("cleans up on SIG" .. name .. ", which ends the process", function()
      local program = start [[
        rlock.run(work(function()
          print "ready"
          rlock.sleep(60)
        end))
        print "never"]]
      program:says("ready")
      program:kill(signal)
      local result = program:wait()
      assert.same({ "ready\nclosed\n", "" }, { result.out, result.err })
      assert_ended(128 + signal, result)
    end)
  end

  it("cleans up on a signal that comes in a loop that never waits", function()
    local program = start [[
      local resume, wrap = coroutine.resume, coroutine.wrap
      rlock.run(function() coroutine.wrap(print) "ready" end)
      assert(coroutine.resume == resume and coroutine.wrap == wrap)
      rlock.run(work(function()
        print "loops"
        while true do pcall(coroutine.wrap(function()
          while true do pcall(rlock.now) end
        end)) end
      end))
      print "never"]]
    finally(function() program:kill(9) end)
    program:says("loops")
    program:kill(TERM)
    local result = program:wait()
    assert.same({ "ready\nloops\nclosed\n", "" }, { result.out, result.err })
    assert_ended(128 + TERM, result)
  end)

  it("ends at once by a second signal", function()
    local program = start [[
      rlock.run(function()
        local stays <close> = setmetatable({}, { __close = function()
          print "closing"
          rlock.sleep(0.3)
          print "again"
          rlock.sleep(60)
        end })
        print "ready"
        rlock.sleep(60)
      end)]]
    program:says("ready")
    program:kill(INT)
    program:says("again")
    program:kill(TERM)
    local result = program:wait()
    assert.same({ 143, 0 }, { result.status, result.signal })
  end)
end)
