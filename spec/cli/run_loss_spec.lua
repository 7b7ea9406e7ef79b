--- rlockctl run while its lock is lost, its server fails, or rlockctl itself is
--- stopped or killed: the command and all its descendants are dead before
--- another client can acquire the lock.
--- #long

local alive = require "spec.tools.alive"
local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local host = require "rlock.host.uv"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"

local server, client
local KILL, TERM, CONT, STOP = 9, 15, 18, 19
local TTL = 1.5 * slow
local NAME = "run:loss"

-- Commands that print their pids. Only SIGKILL ends the first; the second ends
-- when it catches a signal.
local STUBBORN = "trap '' TERM; echo pid $$; while :; do sleep 0.02; done"
local POLITE = "trap 'echo told; exit 0' %s; echo pid $$; "
  .. "while :; do sleep 0.01; done"

local function start(...)
  return ctl.start { "run", NAME, "--ttl", ("%gs"):format(TTL), "--kill-after",
    ("%gs"):format(TTL / 5), url = server.url, ... }
end

-- The pids that it prints after this word.
local function pid_of(running, word)
  return eventually(function()
    return tonumber(running:out():match((word or "pid") .. " (%d+)\n"))
  end, running.limit, "it prints its pid")
end

local function exists() return client:call("EXISTS", NAME) == 1 end

setup(function()
  server = redis.start()
  client = assert(rlock.open(server.url))
end)

teardown(function()
  client:close()
  server:stop()
  ctl.clean()
end)

before_each(function() client:call("DEL", NAME) end)

local function send(signal, ...)
  host.process { file = "kill", args = { signal, ... } }:wait()
end

local function guard_of(pid)
  return assert(io.open(("/proc/%d/stat"):format(pid))):read("a")
    :match("^.*%) %a (%d+)")
end

-- Waits until the process has ended; raises if the key expired before that.
local function assert_dies_first(pid)
  eventually(function()
    local is_there = exists()
    local runs = alive(pid)
    assert.is_true(is_there or not runs, "it outlived its lock")
    return not runs
  end, 3 * TTL, "it is killed")
end

local function assert_lost(result, text)
  assert.equal(203, result.status, result.err)
  assert.matches('rlockctl: run: lost "run:loss" %(' .. text, result.err)
end

describe("the command of rlockctl run", function()
  it("goes on for longer than the lease, which is renewed", function()
    local result = start("-c", ("sleep %g"):format(2 * TTL)):wait()
    assert.same({ 0, "" }, { result.status, result.err })
    assert.is_false(exists())
  end)

  it("gets TERM before the lease ends, if no server answers", function()
    local running = start("-c", POLITE:format "TERM")
    pid_of(running)
    server:pause()
    finally(function() server:resume() end)
    running:says("told")
    server:resume()
    assert_lost(running:wait(), "not renewed in time")
    assert.is_nil(running:err():find("guard", 1, true))
  end)

  -- The events of a run whose server hangs from the first word of the command
  -- until the run has ended, and the seconds after the command's end.
  local function events_without_server(...)
    local path = ctl.file("status", "")
    local running = ctl.start { program = "sh", "-c",
      'exec "$0" run "$@" 3>' .. path, ctl.binary, NAME, "--status-fd=3",
      "--ttl", ("%gs"):format(TTL), url = server.url, ... }
    local pid = pid_of(running)
    server:pause()
    finally(function() server:resume() end)
    eventually(function() return not alive(pid) end, running.limit, "its end")
    local ended, list = host.now(), {}
    local result = running:wait()
    local seconds = host.now() - ended
    server:resume()
    assert_lost(result, "not renewed in time")
    for event in files.read(path):gmatch '"event":"([%l_]+)"' do
      if event ~= "renewed" and event ~= "waiting" then
        list[#list + 1] = event
      end
    end
    return list, seconds
  end

  it("and its end are reported if no server answers", function()
    local list, seconds = events_without_server("-c", POLITE:format "TERM")
    assert.same({ "acquired", "at_risk", "child_exit", "lost", "released" },
      list)
    assert.is_true(seconds < 5 * slow, "two time-outs of 3 s")
    for _, how in ipairs { "term", "kill" } do
      list = events_without_server("--on-lost", how, "-c", STUBBORN)
      assert.same({ "acquired", "at_risk", "lost", "child_exit", "released" },
        list)
    end
  end)

  it("is dead before the server may give the lock away, if it ignores TERM",
    function()
      local running = start("-c", STUBBORN)
      local pid = pid_of(running)
      local before = host.now()
      local ms = client:call("PTTL", NAME)
      server:pause()
      finally(function() server:resume() end)
      eventually(function() return not alive(pid) end, 3 * TTL, "it is killed")
      assert.is_true(host.now() < before + TTL / 3 + ms / 1000)
      server:resume()
      assert_lost(running:wait(), "not renewed in time")
      assert.matches('rlockctl: guard: kills sh: past its deadline for '
        .. '"run:loss"\n', running:err())
    end)

  it("gets TERM at once if the lock was broken, then KILL", function()
    local running = start("-c", STUBBORN)
    local pid = pid_of(running)
    assert.is_true(client:lock(NAME):break_lock())
    eventually(function() return not alive(pid) end, TTL, "it is killed")
    assert_lost(running:wait(), "expired or broken")
  end)

  it("gets another signal, or SIGKILL, or nothing", function()
    local usr1 = start("--on-lost", "signal:USR1", "-c", POLITE:format "USR1")
    pid_of(usr1)
    client:lock(NAME):break_lock()
    assert_lost(usr1:wait(), "")
    assert.matches("told\n$", usr1:out())

    local kill = start("--on-lost=kill", "-c", STUBBORN)
    pid_of(kill)
    client:lock(NAME):break_lock()
    assert_lost(kill:wait(), "")

    local ignore = start("--on-lost=ignore", "-c", ([[
      echo pid $$; sleep %g; echo done]]):format(1.5 * TTL))
    pid_of(ignore)
    client:lock(NAME):break_lock()
    local result = ignore:wait()
    assert.equal(204, result.status)
    assert.matches("done\n$", result.out)
  end)

  it("goes on when the server comes back in time, with its data", function()
    local running = start("-c", ("echo pid $$; sleep %g"):format(2 * TTL))
    pid_of(running)
    for _ = 1, 2 do
      server:pause()
      host.sleep(TTL / 6)
      server:resume()
    end
    local result = running:wait()
    assert.same({ 0, "" }, { result.status,
      result.err:match("rlockctl:[^\n]*") or "" })
  end)

  it("is stopped when the server is restarted empty", function()
    local running = start("-c", STUBBORN)
    pid_of(running)
    server:restart()
    client:call("PING")
    assert_lost(running:wait(), "expired or broken")
  end)

  it("is stopped when the server is stopped for good", function()
    local running = start("-c", STUBBORN)
    local pid = pid_of(running)
    local since = host.now()
    server:kill()
    finally(function()
      server:restart()
      client:call("PING")
    end)
    eventually(function() return not alive(pid) end, 2 * TTL, "it is killed")
    assert.is_true(host.now() - since < TTL)
    assert_lost(running:wait(), "not renewed in time")
  end)
end)

describe("the guard of rlockctl run", function()
  it("kills the command in time if rlockctl was killed", function()
    local running = start("-c", STUBBORN)
    local pid = pid_of(running)
    running:kill(KILL)
    assert.equal(KILL, running:wait().signal)
    assert.is_true(alive(pid))
    assert_dies_first(pid)
    eventually(function()
      return running:err():find("guard: kills sh", 1, true)
    end)
  end)

  it("kills the command in time if rlockctl was stopped", function()
    local running = start("-c", STUBBORN)
    local pid = pid_of(running)
    running:kill(STOP)
    assert_dies_first(pid)
    running:kill(CONT)
    assert_lost(running:wait(), "")
  end)

  it("kills processes that have left the group, too", function()
    local running = start("-c", [[
      (setsid sh -c "trap '' TERM; echo escaped \$\$
        while :; do sleep 0.02; done" &)
      trap '' TERM; echo pid $$; while :; do sleep 0.02; done]])
    local pid, escaped = pid_of(running), pid_of(running, "escaped")
    running:kill(KILL)
    assert_dies_first(pid)
    assert_dies_first(escaped)
  end)

  it("sends TERM first, also if rlockctl was killed", function()
    local running = start("-c", POLITE:format "TERM")
    local pid = pid_of(running)
    running:kill(KILL)
    assert_dies_first(pid)
    assert.matches("told\n$", running:out())
  end)

  it("is not delayed when nobody reads standard error", function()
    local running = ctl.start { program = "bash", "-c", [[
      mkfifo "$1"; exec 4<>"$1"; head -c 65536 /dev/zero >&4
      exec "$0" run "$2" --ttl "$3" -c "$4" 2>&4]], ctl.binary,
      ctl.folder() .. "/fifo", NAME, ("%gs"):format(TTL), STUBBORN,
      url = server.url }
    local pid = pid_of(running)
    running:kill(KILL)
    assert_dies_first(pid)
  end)

  it("leaves the command alone with --on-lost=ignore", function()
    local running = start("--on-lost=ignore", "-c",
      ("echo pid $$; sleep %g; echo done"):format(1.5 * TTL))
    pid_of(running)
    running:kill(KILL)
    eventually(function() return running:out():find "done" end, 5 * TTL)
  end)

  it("may be killed: then the command is killed, too", function()
    local running = start("-c", STUBBORN)
    local pid = pid_of(running)
    local guard = guard_of(pid)
    assert.is_true(tonumber(guard) ~= running.pid)
    send("-9", guard)
    assert_lost(running:wait(), "its guard was killed")
    eventually(function() return not alive(pid) end, 1 * slow, "it is killed")
  end)

  -- Starts a command with a daemon that only SIGKILL ends. Returns the run, and
  -- the pids of command and daemon.
  local function start_daemon(...)
    local running = start("-c", [[
      (setsid sh -c "trap '' TERM; echo escaped \$\$
        while :; do sleep 0.02; done" &)
      echo pid $$; while :; do sleep 0.02; done]], ...)
    return running, pid_of(running), pid_of(running, "escaped")
  end

  it("may be killed: the lock outlives daemons of the command", function()
    for _ = 1, 3 do
      local running, pid, daemon = start_daemon()
      send("-9", guard_of(pid))
      assert_dies_first(daemon)
      assert_lost(running:wait(), "its guard was killed")
      assert.is_false(alive(pid))
      assert.is_false(exists())
    end
  end)

  it("may be killed after rlockctl: the lock outlives daemons", function()
    local running, pid, daemon = start_daemon()
    running:kill(KILL)
    running:wait()
    send("-9", guard_of(pid))
    assert_dies_first(daemon)
    assert.is_false(alive(pid))
  end)

  it("continues if its warden was killed", function()
    local running, pid, daemon = start_daemon()
    send("-9", guard_of(guard_of(pid)))
    client:lock(NAME):break_lock()
    assert_lost(running:wait(), "expired or broken")
    assert.same({ false, false }, { alive(pid), alive(daemon) })
  end)

  it("is continued by its warden", function()
    local running, pid, daemon = start_daemon()
    running:kill(STOP)
    send("-STOP", guard_of(pid))
    assert_dies_first(daemon)
    running:kill(CONT)
    assert_lost(running:wait(), "")
  end)

  it("may be killed with its warden: the lock is not released", function()
    for names, option in pairs { [NAME] = "-v", ["run:other"] = "--limit=2",
        [NAME .. ",run:other"] = "-v" } do
      local running = ctl.start { "run", names, option, "-c", [[
          (setsid sh -c 'echo escaped $$; exec sleep 60' &)
          echo pid $$; sleep 60]], url = server.url }
      local pid, daemon = pid_of(running), pid_of(running, "escaped")
      finally(function() send("-9", tostring(daemon)) end)
      local guard = guard_of(pid)
      send("-9", guard_of(guard), guard)
      local result = running:wait()
      assert.equal(203, result.status)
      assert.is_true(alive(daemon))
      assert.equal(1, client:call("EXISTS", names:match("[^,]+$")))
      if option ~= "-v" then
        assert.equal(1, client:permits(names):acquired())
      end
      assert.matches('rlockctl: run: lost "run:[^"]+": its guards were killed, '
        .. "so processes of the command may still run: it is not released, and "
        .. "ends with its lease\n$", result.err)
      assert.is_nil(result.err:find("stopped", 1, true))
      send("-9", tostring(daemon))
      for _, key in ipairs(client:call("KEYS", "*run:*")) do
        client:call("DEL", key)
      end
    end
  end)

  it("is missed, too, if rlockctl was killed with it", function()
    local running = start("-c", STUBBORN)
    local pid = pid_of(running)
    send("-9", tostring(running.pid), guard_of(pid))
    assert_dies_first(pid)
  end)

  it("is missed, too, by a command in our group", function()
    local running = start("--foreground", "-c", STUBBORN)
    local pid = pid_of(running)
    send("-9", guard_of(pid))
    assert_lost(running:wait(), "its guard was killed")
    eventually(function() return not alive(pid) end, 1 * slow, "it is killed")
  end)

  it("is continued if it was stopped", function()
    local running = start("-c", STUBBORN)
    local pid = pid_of(running)
    send("-STOP", guard_of(pid))
    client:lock(NAME):break_lock()
    eventually(function() return not alive(pid) end, TTL, "it is killed")
    assert_lost(running:wait(), "expired or broken")
  end)

  it("kills the command of an inner run, too", function()
    local running = start("-c", ([[
      exec %s run inner --ttl 20s -c 'trap "" TERM; echo pid $$
        while :; do sleep 0.02; done']]):format(ctl.binary))
    local pid = pid_of(running)
    running:kill(KILL)
    assert_dies_first(pid)
  end)
end)

describe("rlockctl run keeps the lock", function()
  it("until the command's background processes have ended", function()
    local running = start("--ttl=30", "-c", ("(sleep %g; echo late) & "
      .. "echo pid $$; exit 7"):format(TTL / 2))
    local pid = pid_of(running)
    eventually(function() return not alive(pid) end)
    while not running:out():find "late" do
      assert.is_true(exists())
      host.sleep(0.01)
    end
    assert.equal(7, running:wait().status)
    assert.is_false(exists())
  end)

  it("until daemons have ended or are killed", function()
    local running = start("--ttl=30", "-c", [[
      (setsid sh -c 'echo escaped $$; exec sleep 60' </dev/null &)
      echo pid $$; exit 0]])
    local pid, escaped = pid_of(running), pid_of(running, "escaped")
    eventually(function() return not alive(pid) end)
    assert.is_true(alive(escaped) and exists())
    running:kill(TERM)
    local result = running:wait()
    assert.same({ 0, false }, { result.status, alive(escaped) })
    assert.is_false(exists())
  end)
end)
