--- Signals to rlockctl run: while it waits, when it has just taken the lock,
--- while the command runs, while that is being killed, and when it has ended.

local alive = require "spec.tools.alive"
local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local server = redis.shared()
local NAME = "run:signals"
local INT, KILL, TERM = 2, 9, 15
local SIGNALS = { HUP = 1, INT = 2, QUIT = 3, TERM = 15, USR1 = 10, USR2 = 12 }
local AGAIN = 0.3 * slow     -- seconds after which a signal is another one

local function start(...)
  return ctl.start { "run", NAME, url = server.url, ... }
end

local function exists() return server:cli("EXISTS", NAME) == "1" end

local function assert_ended(status, running)
  local result = running:wait()
  assert.same({ status, 0 }, { result.status, result.signal }, result.err)
  assert.is_false(exists())
  return result
end

teardown(ctl.clean)

describe("rlockctl run --on-revoke", function()
  local WAITS = "trap 'echo heard; exit 9' %s; echo in; "
    .. "while :; do sleep 0.01; done"

  -- Asks the command's lock, once it can be asked.
  local function ask(name)
    task.run(function()
      local client <close> = assert(rlock.open(server.url))
      eventually(function()
        return (client:lock(name or NAME):request_release "for a test")
      end, 10 * slow)
    end)
  end

  for given, name in pairs { TERM = "TERM", SIGUSR1 = "USR1", ["12"] = "USR2" }
  do
    it(given .. " sends that signal to the command", function()
      local running = start("--on-revoke", given, "-c", WAITS:format(name))
      running:says("in")
      ask()
      local result = assert_ended(9, running)
      assert.equal("in\nheard\n", result.out)
      -- The shell, too, may report the signal.
      assert.equal('rlockctl: run: asked to release "' .. NAME
        .. '": for a test\n', result.err:match "^[^\n]*\n")
    end)
  end

  it("is told by --status-fd, and holds the lock while the command goes on",
    function()
      local running = start("-q", "--on-revoke", "USR1", "--status-fd", "1",
        "-c", [[
        n=0; trap 'n=$((n+1)); echo $n' USR1; echo in
        while [ $n -lt 2 ]; do sleep 0.01; done; exit 0]])
      running:says("in")
      ask()
      running:says("\n1\n")
      assert.is_true(exists())
      ask()
      local result = assert_ended(0, running)
      assert.is_nil(result.err:find("asked", 1, true))
      local asked = '{"event":"asked","name":"' .. NAME
        .. '","reason":"for a test"}'
      assert.truthy(result.out:find(asked, 1, true), result.out)
    end)

  it("works for several locks, and readers", function()
    local running = ctl.start { "run", NAME .. "," .. NAME .. "2", "--shared",
      "--on-revoke", "TERM", "-c", WAITS:format "TERM", url = server.url }
    running:says("in")
    task.run(function()
      local client <close> = assert(rlock.open(server.url))
      local writer = client:read_write_lock(NAME .. "2"):write_lock()
      eventually(function() return (writer:request_release()) end, 10 * slow)
    end)
    assert.equal(9, running:wait().status)
  end)

  it("needs a signal, and no permits", function()
    for _, bad in ipairs { "FOO", "0", "65", "1.5", "", "-3", "SIG" } do
      assert.matches("%-%-on%-revoke must be a signal", ctl.fault(206, {
        "run", NAME, "--on-revoke", bad, "--", "true", url = server.url }))
    end
    assert.matches("exclude each other", ctl.fault(206, { "run", NAME,
      "--on-revoke", "TERM", "--limit", "3", "--", "true", url = server.url }))
  end)
end)

describe("a signal to rlockctl run", function()
  for name, signal in pairs(SIGNALS) do
    it(name .. " while it waits ends it with 205", function()
      task.run(function()
        local client <close> = assert(rlock.open(server.url))
        local hold <close> = assert(client:lock(NAME):hold())
        local running = start("-c", "echo ran")
        eventually(function()
          return server:cli("PUBSUB", "CHANNELS", "*" .. NAME .. "*") ~= ""
        end)
        running:kill(signal)
        local result = running:wait()
        assert.same({ 205, 0, "" },
          { result.status, result.signal, result.out })
        assert.equal('rlockctl: run: interrupted while waiting for "' .. NAME
          .. '"\n', result.err)
        assert.is_true(hold:need(1))
      end)
      assert.is_false(exists())
    end)

    it(name .. " ends the command, and its status says so", function()
      local running = start("-c", "echo in; exec sleep 60")
      running:says("in")
      running:kill(signal)
      assert.equal("", assert_ended(128 + signal, running).err)
    end)

    it(name .. " reaches the command, which may go on", function()
      local running = start("-c", ([[
        trap 'echo heard; exit 9' %s; echo in; while :; do sleep 0.01; done]])
        :format(name))
      running:says("in")
      running:kill(signal)
      assert.equal("in\nheard\n", assert_ended(9, running).out)
    end)
  end

  it("reaches the whole group of the command", function()
    local running = start("-c", "sleep 60 & echo in $!; wait")
    local pid = eventually(function()
      return running:out():match("in (%d+)\n")
    end, running.limit)
    running:kill(TERM)
    assert_ended(128 + TERM, running)
    assert.is_false(alive(tonumber(pid)))
  end)

  it("INT or TERM kills all, when it is the second", function()
    for first, second in pairs { [INT] = TERM, [TERM] = INT } do
      local running = start("-c", [[
        trap 'echo told' INT TERM
        (setsid sleep 60 & echo pid $!)
        echo in; while :; do sleep 0.01; done]])
      running:says("in")
      running:kill(first)
      running:says("told")
      require("rlock.host.uv").sleep(AGAIN)
      running:kill(second)
      local result = assert_ended(128 + KILL, running)
      assert.is_false(alive(tonumber(result.out:match("pid (%d+)"))))
    end
  end)

  it("that timeout(1) sends twice counts once", function()
    local result = ctl.run { program = "timeout", "--foreground",
      tostring(slow),
      ctl.binary, "run", NAME, "-c", [[
        trap 'echo told; exit 3' TERM; while :; do sleep 0.01; done]],
      url = server.url }
    assert.same({ 124, "told\n" }, { result.status, result.out })
    assert.is_false(exists())
  end)

  it("while the command is being killed changes nothing", function()
    local running = start("--hold-at-most", ("%gs"):format(0.5 * slow), "-c", [[
      trap 'echo told' TERM HUP; echo in; while :; do sleep 0.01; done]])
    running:says("told")
    running:kill(1)
    assert_ended(207, running)
  end)

  it("after the command has ended reaches those that it left", function()
    local running = start("-c", "setsid sleep 60 & echo pid $! $$; exit 4")
    local pid, main = eventually(function()
      return running:out():match("pid (%d+) (%d+)\n")
    end, running.limit)
    eventually(function() return not alive(tonumber(main)) end)
    running:kill(1)
    assert_ended(4, running)
    assert.is_false(alive(tonumber(pid)))
  end)

  it("at any moment leaves neither a lock nor a process", function()
    local path = ctl.file("pids", "")
    local all = {}
    for i = 1, 25 do
      all[i] = start("-w", "10m", "-c", ("echo $$ >>%s; exec sleep 60")
        :format(path))
    end
    for i = 25, 1, -1 do
      all[i]:kill(TERM)
      if i % 5 == 0 then require("rlock.host.uv").sleep(0.02) end
    end
    for _, running in ipairs(all) do
      local result = running:wait()
      local status = result.signal > 0 and 205 or result.status
      assert.is_true(status == 205 or status == 143, status .. result.err)
    end
    for pid in files.read(path):gmatch("%d+") do
      assert.is_false(alive(tonumber(pid)))
    end
    eventually(function() return not exists() end)
  end)

  it("that was ignored when it started stays so", function()
    local running = ctl.start { program = "sh", "-c",
      [[trap "" HUP; exec "$0" run run:signals -c 'kill -HUP $$; echo in
        sleep 0.3; echo out']], ctl.binary, url = server.url }
    running:says("in")
    running:kill(1)
    assert.equal("in\nout\n", assert_ended(0, running).out)
  end)

  it("INT is left to the terminal with --foreground, TERM is not", function()
    local running = start("--foreground", "-c", [[
      trap 'echo int' INT; trap 'echo term; exit 5' TERM
      echo in $(cut -d" " -f5 /proc/$$/stat)
      while :; do sleep 0.01; done]])
    running:says("in")
    assert.equal(files.read(("/proc/%d/stat"):format(running.pid))
      :match("^%d+ %(.-%) %a %d+ (%d+)"), running:out():match("in (%d+)"))
    running:kill(INT)
    running:kill(TERM)
    assert.matches("^in %d+\nterm\n$", assert_ended(5, running).out)
  end)
end)
