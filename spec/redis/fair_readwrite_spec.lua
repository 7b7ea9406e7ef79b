--- The fair read/write lock on a real Redis: the order of admission.
--- spec/check/fair_readwrite_spec.lua has the operations at exact times.

local eventually = require "spec.tools.eventually"
local fair_readwrite = require "rlock.policy.fair_readwrite"
local fixtures = require "spec.tools.fixtures"
local redis = require "spec.tools.redis"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local LONG = 30 * slow           -- seconds for what must happen earlier

local server = redis.shared()
local client, name, keys, reader, writer

local function call(...)
  return (assert(client:call(...)))
end

local function is_gone()
  return call("EXISTS", table.unpack(keys)) == 0
end

-- A task that waits for a lock, queued behind the current waiters.
local function waits(lock)
  local before = call("ZCARD", keys[4])
  local waiting = task.start(function() return lock:lock { wait = LONG } end)
  eventually(function() return call("ZCARD", keys[4]) > before end)
  return waiting
end

local function setup()
  client = fixtures.open { url = server.url }
  name = fixtures.name "fair_readwrite"
  local pair = client:fair_read_write_lock(name)
  keys = fair_readwrite.read.keys(name)
  reader, writer = pair:read_lock(), pair:write_lock()
end

local function teardown()
  call("DEL", table.unpack(keys))
  fixtures.close()
end

describe("a fair read/write lock", function()
  before_each(setup)
  after_each(teardown)

  it("is granted in order of arrival", function()
    local order, waiting = {}, {}
    assert.is_true(writer:lock())
    for i, side in ipairs { "w", "w", "r", "w", "w", "r", "w" } do
      local lock = side == "w" and writer or reader
      waiting[i] = waits({ lock = function()
        assert(lock:lock { wait = LONG })
        order[#order + 1] = i
        return lock:unlock()
      end })
    end
    assert.is_true(writer:unlock())
    for i = 1, #waiting do assert.is_true(waiting[i]:join(LONG)) end
    assert.same({ 1, 2, 3, 4, 5, 6, 7 }, order)
    eventually(is_gone)
  end)

  it("wakes all readers up to the next writer, at once", function()
    assert.is_true(writer:lock())
    local inside, go = 0, false
    for _ = 1, 20 do
      waits({ lock = function()
        assert(reader:lock { wait = LONG })
        inside = inside + 1
        eventually(function() return go end, LONG)
        return reader:unlock()
      end })
    end
    local writes = waits(writer)
    for _ = 1, 5 do
      waits({ lock = function()
        assert(reader:lock { wait = LONG })
        inside = inside + 1
        return reader:unlock()
      end })
    end
    assert.is_true(writer:unlock())
    eventually(function() return inside == 20 end, LONG)
    assert.is_nil(writes.is_over)
    go = true
    assert.is_true(writes:join(LONG))
    assert.equal(20, inside)
  end)
end)

require "spec.rows.readwrite" ("fair_readwrite", describe, it,
  before_each, after_each)
for _, kind in ipairs { "fair_read", "fair_write" } do
  require "spec.rows.rlock" (kind, describe, it, before_each,
    after_each)
end
require "spec.rows.fair" ("fair_write", describe, it, before_each,
  after_each)
