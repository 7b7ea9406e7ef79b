--- How shared calls end: with results, or because their task is refused, raises
--- an error or is killed.

local singleflight = require "rlock.util.singleflight"

local time, task, answer

-- A host whose tasks run when `step` resumes them. `answer` replaces the next
-- result of `daemon`.
local host = {
  now = function() return time end,
  is_over = function(its) return its.over end,
  guard = function(undo, what, fn, ...)
    local ok, why = pcall(fn, ...)
    if ok then return end
    undo(what)
    error(why, 0)
  end,
  event = function()
    local event = { set = function(self) self.is_set = true end }
    function event:pause(seconds)
      if task and not task.over and not task.is_stuck then task:step() end
      if not self.is_set then time = time + seconds end
      return self.is_set or false
    end
    return event
  end,
}

function host.daemon(fn, ...)
  if answer then return nil, "refused", answer end
  local co = coroutine.create(fn)
  local words = { ... }
  task = {}
  function task.step(self)
    self.ok = coroutine.resume(co, (table.unpack or unpack)(words))
    self.over = coroutine.status(co) == "dead"
  end
  return task
end

describe("a shared call", function()
  local self

  before_each(function()
    time, task, answer = 0, nil, nil
    self = singleflight.new(host)
  end)

  local function join(fn) return { self:join("key", time + 5, fn) } end

  it("returns what its function returned", function()
    assert.same({ 1, nil, 3 }, join(function() return 1, nil, 3 end))
    assert.same({ 2 }, join(function() return 2 end))
  end)

  it("that is refused ends at once, and the next one runs", function()
    answer = "no timer"
    assert.same({ nil, "refused", "no timer" }, join(function() return 1 end))
    assert.equal(0, time)
    answer = nil
    assert.same({ 2 }, join(function() return 2 end))
  end)

  it("that raises ends at once, and the next one runs", function()
    local results = join(function() error("oops", 0) end)
    assert.same({ nil, "closed" }, { results[1], results[2] })
    assert.equal(0, time)
    assert.is_false(task.ok)                   -- the host is told of the error
    assert.same({ 2 }, join(function() return 2 end))
  end)

  it("that is killed ends with the wait, and the next one runs", function()
    self:start("key", function() return 1 end)
    task.over = true
    assert.same({ 2 }, join(function() return 2 end))
    self:start("key", function() return 3 end)
    local killed = task
    function killed.step() killed.over = true end
    local results = join(function() return 4 end)
    assert.same({ nil, "closed" }, { results[1], results[2] })
    assert.same({ 5 }, join(function() return 5 end))
  end)

  it("that is abandoned returns the given results to its callers", function()
    self:abandon("key", 1)                     -- there is none
    self:start("key", function() return 1 end)
    function task.step() self:abandon("key", nil, "connect", "moved") end
    assert.same({ nil, "connect", "moved" }, join(function() return 2 end))
    assert.equal(0, time)
    assert.same({ 3 }, join(function() return 3 end))
  end)

  it("that is slow stays in flight", function()
    self:start("key", function() return 1 end)
    task.is_stuck = true
    assert.equal("timeout", join(function() return 2 end)[2])
    task.is_stuck = nil
    assert.same({ 1 }, join(function() return 2 end))
  end)
end)
