--- The fair read/write lock on a real Redis: the order of admission, and what
--- it costs. spec/check/fair_readwrite_spec.lua has the operations at exact
--- times.

local eventually = require "spec.tools.eventually"
local fair_readwrite = require "rlock.policy.fair_readwrite"
local fixtures = require "spec.tools.fixtures"
local redis = require "spec.tools.redis"
local slow = require "spec.tools.slow"
local states = require "spec.tools.states"
local task = require "spec.tools.task"

local LONG = 30 * slow           -- seconds for what must happen earlier

local server = redis.shared()
local client, name, keys, sides, reader, writer

local function call(...)
  return (assert(client:call(...)))
end

-- The operations --------------------------------------------------------------

-- "ra" is reader a, "wb" writer b. `waits` is "0" for a try.
local function verdict(who, waits)
  return assert(sides[who:sub(1, 1)].ask(name, "acquire", who:sub(2), "60000",
    "1", waits or "1", "publish"))[1]
end

local function release(who)
  return assert(sides[who:sub(1, 1)].ask(name, "release", who:sub(2), "1", "0",
    "publish"))[1]
end

local function renew(who)
  return assert(sides[who:sub(1, 1)].ask(name, "renew", who:sub(2), "70000",
    "1"))[1]
end

local function leave(who)
  return assert(sides[who:sub(1, 1)].ask(name, "leave", who:sub(2),
    "publish"))[1]
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
  sides = {
    r = states.of(client, fair_readwrite.read),
    w = states.of(client, fair_readwrite.write),
  }
end

local function teardown()
  call("DEL", table.unpack(keys))
  fixtures.close()
end

describe("the operations of a fair read/write lock", function()
  before_each(setup)
  after_each(teardown)

  it("cost the same for any number of readers and waiters", function()
    local function commands(fn) return states.commands(client, fn) end
    local costs = {}
    verdict "wx"
    leave "wx"
    release "wx"
    verdict "rx"
    renew "rx"
    release "rx"
    for i, n in ipairs { 10, 500 } do
      for k = 1, n do verdict("r" .. k) end
      local its = {
        commands(function() verdict "rx" end),
        commands(function() renew "rx" end),
        commands(function() release "rx" end),
      }
      verdict "wfirst"
      for k = 1, n do verdict((k % 2 == 0 and "rwait" or "wwait") .. k) end
      its[4] = commands(function() verdict "rlast" end)
      its[5] = commands(function() verdict "rlast" end)
      its[6] = commands(function() verdict "wlast" end)
      its[7] = commands(function() verdict "wlast" end)
      its[8] = commands(function() leave "wlast" end)
      its[9] = commands(function() verdict("wtry", "0") end)
      costs[i] = its
      call("DEL", table.unpack(keys))
    end
    assert.same(costs[1], costs[2])
    assert.is_true(math.max(table.unpack(costs[1])) <= 14)
    assert.equal(5, commands(function() verdict "wa" end))
    assert.equal(6, commands(function() release "wa" end))
    assert.equal(6, commands(function() verdict "ra" end))
    assert.equal(6, commands(function() release "ra" end))
  end)
end)

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
