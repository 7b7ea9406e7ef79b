--- Events in the jobs of a worker timer that are cancelled: as the contract of
--- hosts (lua/rlock/README.md) says.

local eventually = require "spec.tools.eventually"
local host = require "resty.rlock.host"
local tasks = require "resty.rlock.host.tasks"

-- Cancels the running job, as if its request had ended.
local function cancel()
  tasks.worker_timer().threads[coroutine.running()].is_cancelled = true
end

describe("an event in a job that is cancelled", function()
  it("raises in wait, once", function()
    local ok, why, later = host.whole(function()
      cancel()
      local event = host.event()
      local ok, why = pcall(event.wait, event, 10)
      return ok, why, event:wait(0.001)
    end)
    assert.is_false(ok)
    assert.equal("the request has ended", why)
    assert.is_false(later)
  end)

  it("raises what wakes a wait", function()
    local event, begun, ok, why = host.event(), nil, nil, nil
    local thread = ngx.thread.spawn(function()
      host.whole(function()
        begun = true
        ok, why = pcall(event.wait, event, 10)
      end)
    end)
    eventually(function() return begun end)
    ngx.thread.kill(thread)
    eventually(function() return ok ~= nil end)
    assert.is_false(ok)
    assert.equal("the request has ended", why)
  end)

  it("returns it in pause", function()
    local is_set, code, why = host.whole(function()
      cancel()
      return host.event():pause(10)
    end)
    assert.same({ nil, "cancelled", "the request has ended" },
      { is_set, code, why })
  end)

  it("lets an internal job go on", function()
    local done, ok, is_set = host.event(), nil, nil
    host.daemon(function()
      cancel()
      local event = host.event()
      ok, is_set = pcall(event.wait, event, 10)
      done:set()
    end)
    assert.is_true(done:wait(10))
    assert.is_true(ok)
    assert.is_false(is_set)
  end)

  it("says in which phase it cannot wait", function()
    local get_phase = tasks.refusal
    tasks.refusal = function() return "cannot wait in the log phase" end
    local event = host.event()
    local ok, why = pcall(event.wait, event, 0.001)
    tasks.refusal = get_phase
    assert.is_false(ok)
    assert.equal("cannot wait in the log phase", why)
  end)
end)
