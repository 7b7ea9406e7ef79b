--- The deadlines that rlock.exec gives its guard, on a virtual clock; and what
--- the guard makes of them.

local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"

local KILL = 9
local real = package.loaded["rlock.host.uv"] or require "rlock.host.uv"

-- A fresh rlock.exec on a host whose clock is `time.now`. `job.limits` are the
-- soft and hard deadlines, in order. `job.at` are functions that each call of
-- job:next runs, and that return a report.
local function new_exec()
  local time, job = { now = 1000 }, { limits = {}, at = {} }
  function job:limit(soft, hard) table.insert(self.limits, { soft, hard }) end
  function job:next() return table.remove(self.at, 1)() end
  function job:close() end
  local host = setmetatable({ now = function() return time.now end,
    job = function(options)
      job.signal = options.soft_signal
      job:limit(options.soft, options.hard)
      return job
    end }, { __index = real })
  local loaded = package.loaded
  local before = loaded["rlock.host.uv.exec"]
  loaded["rlock.host.uv.exec"], loaded["rlock.host.uv"] = nil, host
  local exec = require "rlock.host.uv.exec"
  loaded["rlock.host.uv.exec"], loaded["rlock.host.uv"] = before, real
  return exec, time, job
end

-- A lock of which `left` seconds are left.
local function new_lock(left)
  return {
    left = left, valid_for = function(self) return self.left end,
    state = function() return "held" end, on_lost = function() end,
  }
end

describe("the deadlines of a command", function()
  it("are at hold_at_most for the signal, kill_after later for the kill",
    function()
      for seconds, kill_after in pairs { [1] = 5, [6] = 0.5, [10] = 0 } do
        local exec, _, job = new_exec()
        local run <close> = exec.start({ "x" }, { hold_at_most = seconds,
          kill_after = kill_after })
        run.is_gone = true
        assert.same({ { 1000 + seconds, 1000 + seconds + kill_after } },
          job.limits)
        assert.equal(real.signals.TERM, job.signal)
      end
    end)

  it("are both at hold_at_most, if there is no signal", function()
    local exec, _, job = new_exec()
    local run <close> = exec.start({ "x" }, { hold_at_most = 6,
      on_lost = "kill" })
    run.is_gone = true
    assert.same({ { 1006, 1006 } }, job.limits)
    assert.is_nil(job.signal)
  end)

  it("stay there while the lock is renewed, but end before its lease",
    function()
      local exec, time, job = new_exec()
      local lock = new_lock(9)
      local run <close> = exec.start({ "x" }, { lock = lock, hold_at_most = 12,
        kill_after = 2 })
      assert.same({ 1006.5, 1008.5 }, job.limits[1])
      job.at = { function()
        time.now, lock.left = 1003, 9         -- renewed at 1003
        return "started", 1
      end, function()
        time.now, lock.left = 1006, 20
        return "ended", 0
      end, function() return "gone", 0 end }
      run:wait()
      assert.same({ { 1006.5, 1008.5 }, { 1009.5, 1011.5 }, { 1012, 1014 } },
        job.limits)
    end)

  it("are at once if the lock is known to be lost; the kill is later, unless "
    .. "on_lost is \"kill\"", function()
    for on_lost, grace in pairs { term = 2, ["signal:USR1"] = 2, kill = 0 } do
      local exec, time, job = new_exec()
      local lock = new_lock(30)
      local run <close> = exec.start({ "x" }, { lock = lock, kill_after = 2,
        on_lost = on_lost })
      job.at = { function()
        time.now, lock.left = 1003, 0
        return "started", 1
      end, function() return "ended", 9 end, function()
        return "gone", 0
      end }
      run:wait()
      assert.same({ 1003, 1003 + grace }, job.limits[2], on_lost)
      assert.is_nil(job.limits[3])
    end
  end)
end)

describe("the guard", function()
  -- Starts a command that ignores its signal, WINCH; returns its job.
  local function start(soft, hard)
    return assert(real.job { soft = soft, hard = hard,
      soft_signal = real.signals.WINCH, args = { "sleep", "60" } })
  end

  -- Waits for this report; returns the time.
  local function at(job, wanted)
    return eventually(function()
      return job:next(0.1) == wanted and real.now()
    end, 20 * slow, wanted)
  end

  it("is not early", function()
    local soft = real.now() + 0.2
    local hard = soft + 0.2
    local job = start(soft, hard)
    assert.is_true(at(job, "softened") >= soft)
    assert.is_true(at(job, "killed") >= hard)
    at(job, "gone")
    job:close()
  end)

  it("signals at each soft deadline", function()
    local job = start(real.now(), math.huge)
    at(job, "softened")
    job:limit(real.now() + 0.1 * slow, math.huge)
    at(job, "softened")
    job:signal(KILL)
    at(job, "gone")
    job:close()
  end)

  local function parent_of(pid)
    return files.read(("/proc/%d/stat"):format(tonumber(pid)))
      :match("^.*%) %a (%d+)")
  end

  -- An empty group's number may become that of another command's group.
  it("may be killed with its warden: no group of an ended command is killed",
    function()
      local path = os.tmpname()
      local job = assert(real.job { soft = math.huge, hard = math.huge,
        args = { "sh", "-c", [[
          (while [ -e "$1" ]; do sleep 0.01; done; rm "$1.2") &
          echo $! >"$1.2"]], "sh", path } })
      at(job, "ended")
      local guard = parent_of(files.read(path .. ".2"))
      shell.run(("kill -9 %s %s"):format(parent_of(guard), guard))
      assert.equal(-1, eventually(function()
        local what, value = job:next(0.1)
        return what == "gone" and value
      end, 20 * slow, "gone"))
      job:close()
      os.remove(path)
      eventually(function() return not io.open(path .. ".2") end, 20 * slow,
        "the process of that group goes on")
    end)
end)
