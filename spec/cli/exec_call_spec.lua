--- rlock.exec: a command runs while locks are renewed and other tasks run.

local alive = require "spec.tools.alive"
local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local server = redis.shared()
local TTL = 1.5 * slow
local TERM = 15

-- Runs fn(lock, client) while the lock is held.
local function holding(fn)
  return function()
    task.run(function()
      local client <close> = assert(rlock.open {
        url = server.url, watchdog = TTL })
      local lock = client:lock("exec:lock")
      assert(lock:lock())
      fn(lock, client)
    end)
    assert.equal("0", server:cli("EXISTS", "exec:lock"))
  end
end

local function sh(text, options)
  return rlock.exec({ "sh", "-c", text }, options)
end

teardown(ctl.clean)

describe("rlock.exec", function()
  it("returns the exit status, or 128 + N for signal N", function()
    for text, status in pairs {
      ["true"] = 0, ["exit 1"] = 1, ["exit 255"] = 255, ["kill -9 $$"] = 137,
    } do
      assert.equal(status, sh(text))
    end
  end)

  it("passes arguments and the environment without a shell", function()
    local path = ctl.file("out", "")
    assert.equal(0, sh('printf "[%s]" "$A" "${HOME-unset}" >' .. path,
      { env = { A = "a b", HOME = false } }))
    assert.equal("[a b][unset]", files.read(path))
    assert.equal(1, rlock.exec { "test", "$A b", "=", "" })
  end)

  it("refuses what cannot be executed", function()
    assert.same({ nil, "refused", "no-such: no such file or directory" },
      { rlock.exec { "no-such" } })
    assert.same({ nil, "refused", "/etc: permission denied" },
      { rlock.exec { "/etc" } })
  end)

  it("renews the lock while other tasks run", holding(function(lock)
    local turns = 0
    local other = rlock.spawn(function()
      for _ = 1, 20 do
        rlock.sleep(TTL / 10)
        turns = turns + 1
      end
    end)
    assert.equal(0, sh("sleep " .. 2 * TTL, { lock = lock }))
    assert.is_true(turns > 10)
    other:join()
    assert.is_true(lock:unlock())
  end))

  it("stops the command if the lock is lost", holding(function(lock)
    local path = ctl.file("told", "")
    rlock.spawn(function()
      eventually(function() return files.read(path) ~= "" end)
      lock:break_lock()
    end)
    local status, code, detail = sh(("trap 'echo told >%s; exit 0' TERM; "
      .. "echo in >%s; while :; do sleep 0.01; done"):format(path, path),
      { lock = lock })
    assert.same({ nil, "lost" }, { status, code })
    assert.matches("expired or broken", detail)
    assert.equal("told\n", files.read(path))
  end))

  it("takes holds, and locks with a lease, for which it may run",
    holding(function(lock)
      assert(lock:unlock())
      local hold <close> = assert(lock:hold { lease = TTL })
      local status, code = sh("sleep 60", { lock = hold })
      assert.same({ nil, "lost" }, { status, code })
      assert.is_true(hold:valid_for() > 0)
    end))

  it("does not start without the lock", holding(function(lock)
    assert(lock:unlock())
    local path = ctl.folder() .. "/started"
    assert.same({ nil, "not_held", "the lock is not held" },
      { sh("touch " .. path, { lock = lock }) })
    assert.is_nil(files.read(path))
  end))

  it("continues with on_lost = ignore", holding(function(lock)
    assert.equal(0, sh(("redis-cli -s %s DEL exec:lock >/dev/null; sleep %g")
      :format(server.socket, TTL), { lock = lock, on_lost = "ignore" }))
    assert.equal("lost", select(2, lock:unlock()))
  end))

  it("rejects wrong arguments", function()
    for text, call in pairs {
      ["bad command of rlock.exec"] = { "true" },
      ["bad command of rlock%.exec"] = { { 1 } },
      ["bad lock: must be a lock or a hold"] = { { "x" }, { lock = "l" } },
      ["bad on_lost: must be"] = { { "x" }, { on_lost = "signal:NO" } },
      ["bad option lok of rlock.exec"] = { { "x" }, { lok = 1 } },
    } do
      local ok, message = pcall(rlock.exec, call[1], call[2])
      assert.is_false(ok)
      assert.matches(text, message)
    end
  end)

  it("ends the command before the lock is released, if the program ends",
    function()
      local path = ctl.file("order", "")
      local program = ctl.start { "-", url = server.url, stdin = ([[
        local rlock = require "rlock"
        local client <close> = assert(rlock.open())
        local lock = client:lock("exec:end")
        assert(lock:lock())
        rlock.exec({ "sh", "-c", "trap 'redis-cli -s %s EXISTS exec:end >%s; "
          .. "exit 0' TERM; echo pid $$; while :; do sleep 0.01; done" },
          { lock = lock })]]):format(server.socket, path) }
      local pid = eventually(function()
        return program:out():match("pid (%d+)\n")
      end, program.limit)
      program:kill(TERM)
      assert.equal(128 + TERM, program:wait().status)
      assert.is_false(alive(tonumber(pid)))
      assert.equal("1\n", files.read(path))
      assert.equal("0", server:cli("EXISTS", "exec:end"))
    end)

  -- A program with another child, and two commands, the first under the lock.
  -- Each command has a daemon that ignores TERM, and prints "<name> <pid>
  -- <daemon's pid>". It ends when its standard input does.
  local function start_two()
    return ctl.start { "-", url = server.url, stdin = [[
      local rlock = require "rlock"
      io.stdout:setvbuf("line")
      local other = io.popen("trap '' TERM; echo other $$; (setsid sh -c '"
        .. "echo orphan $$; exec sleep 60' &); exec sleep 60")
      print(other:read("l"))
      print(other:read("l"))
      local client = assert(rlock.open { watchdog = 9 })
      local lock = client:lock("exec:guarded")
      assert(lock:lock())
      local function run(name, options)
        return rlock.exec({ "sh", "-c", "(setsid sh -c \"trap '' TERM; echo "
          .. name .. " $$ \\$\\$; while :; do sleep 0.02; done\" &); "
          .. "while :; do sleep 0.02; done" }, options)
      end
      rlock.spawn(function()
        run "second"
      end)
      print("result", run("first", { lock = lock }))
      print("unlock", lock:unlock())
      print("again", lock:try_lock())]] }
  end

  local function pids_of(program, name)
    local pid, daemon
    eventually(function()
      pid, daemon = program:out():match(name .. " (%d+) ?(%d*)\n")
      return pid
    end, program.limit, name)
    return tonumber(pid), tonumber(daemon)
  end

  local kill, parent_of = ctl.kill, ctl.parent_of

  it("kills what a killed guard leaves, but no other child", function()
    local program = start_two()
    local other, orphan = pids_of(program, "other"), pids_of(program, "orphan")
    local first, daemon = pids_of(program, "first")
    local second, another = pids_of(program, "second")
    kill(parent_of(first))
    program:says("again\ttrue")
    assert.matches("result\tnil\tlost\tits guard was killed\n"
      .. "unlock\ttrue\n", program:out())
    assert.same({ false, false, true, true, true, true }, { alive(first),
      alive(daemon), alive(second), alive(another), alive(other),
      alive(orphan) })
    kill(orphan, other)
    program:kill(TERM)
    assert.equal(128 + TERM, program:wait().status)
    assert.same({ false, false }, { alive(second), alive(another) })
  end)

  it("leaves the lock to its lease if it cannot see the end", function()
    local program = start_two()
    local first, daemon = pids_of(program, "first")
    local guard = parent_of(first)
    kill(parent_of(guard), guard)
    program:says("again")
    assert.matches("result\tnil\tlost\tits guards were killed, so processes of "
      .. "the command may still run[^\n]*\nunlock\tnil\tlost[^\n]*\n"
      .. "again\tnil\tbusy", program:out())
    assert.same({ true, "1" }, { alive(daemon),
      server:cli("EXISTS", "exec:guarded") })
    kill(daemon, (pids_of(program, "orphan")), (pids_of(program, "other")))
    program:kill(TERM)
    program:wait()
    assert.equal("1", server:cli("EXISTS", "exec:guarded"))
    server:cli("DEL", "exec:guarded")
  end)

  it("works under plain lua5.4", function()
    if ctl.is_sanitized() then return pending("a sanitizer is built in") end
    local result = ctl.run { program = "lua5.4", "-", url = server.url,
      env = ctl.lua_paths(), stdin = [[
        local rlock = require "rlock"
        print(rlock.run(rlock.exec, { "sh", "-c", "echo in; exit 3" }))]] }
    assert.same({ 0, "in\n3\n", "" }, { result.status, result.out, result.err })
  end)
end)
