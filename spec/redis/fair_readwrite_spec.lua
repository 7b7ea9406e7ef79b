--- The fair read/write lock on a real Redis: verdicts, the order of admission,
--- and the cost of all this. spec/check/fair_readwrite_spec.lua has leases, and
--- which waiters keep or lose their places, at exact times.

local eventually = require "spec.tools.eventually"
local fair_readwrite = require "rlock.policy.fair_readwrite"
local files = require "spec.tools.files"
local fixtures = require "spec.tools.fixtures"
local program = require "spec.tools.program"
local redis = require "spec.tools.redis"
local slow = require "spec.tools.slow"
local states = require "spec.tools.states"
local task = require "spec.tools.task"

local LONG = 30 * slow           -- seconds for what must happen earlier

local server = redis.shared()
local client, name, keys, pair, sides, reader, writer

local function call(...)
  return (assert(client:call(...)))
end

local function open(options)
  return fixtures.open({ url = server.url }, options)
end

-- The operations --------------------------------------------------------------

-- "ra" is reader a, "wb" writer b. `waits` is "0" for a try.
local function acquire(who, waits, lease, want)
  local side, owner = sides[who:sub(1, 1)], who:sub(2)
  return assert(side.ask(name, "acquire", owner, lease or "60000", want or "1",
    waits or "1", "publish"))
end

local function verdict(...) return acquire(...)[1] end

local function release(who, want, lease)
  return assert(sides[who:sub(1, 1)].ask(name, "release", who:sub(2),
    lease or "1", want or "0", "publish"))[1]
end

local function renew(who, lease, want)
  return assert(sides[who:sub(1, 1)].ask(name, "renew", who:sub(2),
    lease or "60000", want or "1"))[1]
end

local function leave(who)
  return assert(sides[who:sub(1, 1)].ask(name, "leave", who:sub(2),
    "publish"))[1]
end

-- Plays a list of operations, each preceded by its side: "r acquire a ...".
local function play(text)
  for line in text:gmatch("[^\n]+") do
    local side, rest = line:match("^%s*([rw])%s+(.*)")
    if side then
      sides[side].play(name, rest)
    else
      assert(not line:find("%S"), line)
    end
  end
end

-- The state as others see it --------------------------------------------------

local function shown(list)
  for i = 1, #list do list[i] = list[i]:gsub(":", "", 1) end
  return table.concat(list, " ")
end

local function line() return shown(call("ZRANGE", keys[4], 0, -1)) end

local function holders()
  local list = call("ZRANGE", keys[1], 0, -1)
  table.sort(list)
  return shown(list)
end

local function is_gone()
  return call("EXISTS", table.unpack(keys)) == 0
end

-- The set of queued writers matches the queue, and all keys have a TTL.
local function check_keys()
  local writers = {}
  for who in line():gmatch("%S+") do
    if who:sub(1, 1) == "w" then writers[#writers + 1] = who end
  end
  assert.equal(table.concat(writers, " "),
    shown(call("ZRANGE", keys[5], 0, -1)))
  for _, key in ipairs(keys) do
    local ttl = call("PTTL", key)
    assert.is_true(ttl == -2 or (ttl > 0 and ttl <= 60000), key .. " " .. ttl)
  end
end

-- A task that waits for a lock, queued behind the current waiters.
local function waits(lock, options)
  local before = call("ZCARD", keys[4])
  local waiting = task.start(function()
    return lock:lock(options or { wait = LONG })
  end)
  eventually(function() return call("ZCARD", keys[4]) > before end)
  return waiting
end

local function setup()
  client, name = open(), fixtures.name "fair_readwrite"
  pair = client:fair_read_write_lock(name)
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

  it("give the verdict of their state", function()
    play [[
      r peek a                              free
      w peek a                              free
      r break_ - publish                    free
      w break_ - publish                    free
      r release a 1 0 publish               lost
      w renew a 60000 1                     lost
      r leave a publish                     left
      r acquire a 60000 2 1 publish         lost
      w acquire a 60000 2 1 publish         lost
      r acquire a 60000 1 1 publish         held
      r acquire a 60000 1 1 publish         held     -- the same request again
      r acquire a 60000 2 1 publish         held
      r acquire a 60000 2 0 publish         held
      r acquire b 60000 1 0 publish         held     -- readers share
      r acquire c 60000 2 1 publish         lost
      w acquire c 60000 1 0 publish         busy     -- a try takes no place
      r acquire c 60000 1 0 publish         held
      w acquire d 60000 1 1 publish         busy
      w acquire d 60000 1 1 publish         busy
      r acquire e 60000 1 0 publish         busy     -- a writer was first
      r acquire e 60000 1 1 publish         busy
      r acquire a 60000 2 1 publish         held     -- who reads may again
      r acquire a 60000 3 1 publish         held
      w acquire a 60000 1 1 publish         refused  -- would wait for itself
      r release a 60000 1 publish           kept
      r release a 60000 1 publish           kept
      r release a 1 0 publish               freed
      r release a 1 0 publish               lost
      r renew b 60000 1                     held
      r renew a 60000 1                     lost
      r release b 1 0 publish               freed
      r release c 1 0 publish               freed
      r acquire e 60000 1 1 publish         busy     -- not its turn yet
      r acquire f 60000 1 0 publish         busy     -- nor that of a try
      w acquire f 60000 1 0 publish         busy
      w acquire d 60000 1 1 publish         held
      w acquire d 60000 1 1 publish         held
      w acquire d 60000 2 1 publish         held
      r acquire e 60000 1 1 publish         busy
      r acquire d 60000 1 1 publish         held     -- the writer may read
      r break_ - publish                    free     -- somebody writes
      w release d 60000 1 publish           kept
      w renew d 60000 1                     held
      w release d 1 0 publish               freed    -- and goes on as a reader
      w release d 1 0 publish               lost
      w break_ - publish                    free     -- somebody reads
      r acquire e 60000 1 1 publish         held
      w acquire f 60000 1 1 publish         busy
      r break_ 5 publish                    refused
      r break_ - publish                    freed
      r renew e 60000 1                     lost
      w leave f publish                     left
      w leave f publish                     left
      w acquire g 60000 1 0 publish         held
      w break_ 5 publish                    refused
      w break_ - publish                    freed
      r acquire a 60000 1 0 publish         held
      r acquire a 10 1 0 publish            held     -- never shortened
      r acquire b 10 1 0 publish            held
      r wait 20
      r release b 1 0 publish               lost
      w acquire b 60000 1 0 publish         busy
      r release a 1 0 publish               freed
      w acquire b 10 1 0 publish            held
      r wait 20
      r acquire a 10 1 0 publish            held
      r wait 20
      w acquire b 60000 1 0 publish         held
      w release b 1 0 publish               freed
    ]]
    eventually(is_gone)
  end)

  -- A model of the rules in a few lines: `held` is owner -> count, `queue` a
  -- list of waiters.
  local model = {}

  function model.place(queue, who)
    for i, other in ipairs(queue) do if other == who then return i end end
    return #queue + 1
  end

  function model.acquire(held, queue, who, waits_)
    local side, owner = who:sub(1, 1), who:sub(2)
    local place, is_free = model.place(queue, who), true
    if held[who] or (side == "r" and held["w" .. owner]) then
      held[who] = (held[who] or 0) + 1
      if queue[place] then table.remove(queue, place) end
      return "held"
    elseif side == "w" and held["r" .. owner] then
      return "refused"
    end
    for other in pairs(held) do
      if side == "w" or other:find "^w" then is_free = false end
    end
    for i = 1, place - 1 do
      if side == "w" or queue[i]:find "^w" then is_free = false end
    end
    if is_free then
      held[who] = 1
      if queue[place] then table.remove(queue, place) end
      return "held"
    end
    if waits_ == "1" then queue[place] = who end
    return "busy"
  end

  function model.release(held, who)
    if not held[who] then return "lost" end
    held[who] = held[who] > 1 and held[who] - 1 or nil
    return held[who] and "kept" or "freed"
  end

  function model.leave(queue, who)
    local place = model.place(queue, who)
    if queue[place] then table.remove(queue, place) end
    return "left"
  end

  it("follow the rules in any order", function()
    local seed = os.time()
    math.randomseed(seed)
    local held, queue = {}, {}
    for step = 1, 1500 do
      local who = ("rw"):sub(math.random(2)):sub(1, 1)
        .. ("abcdef"):sub(math.random(6)):sub(1, 1)
      local what, waits_ = math.random(10), math.random(4) > 1 and "1" or "0"
      local got, expected
      if what <= 6 then
        got = verdict(who, waits_, "60000", ("%d"):format(
          (held[who] or 0) + 1))
        expected = model.acquire(held, queue, who, waits_)
      elseif what <= 9 then
        got = release(who, ("%d"):format(math.max(0, (held[who] or 1) - 1)),
          "60000")
        expected = model.release(held, who)
      else
        got, expected = leave(who), model.leave(queue, who)
      end
      local all = {}
      for each in pairs(held) do all[#all + 1] = each end
      table.sort(all)
      local where = ("seed %d, step %d, %s"):format(seed, step, who)
      assert.same({ where, expected, table.concat(all, " "),
        table.concat(queue, " ") }, { where, got, holders(), line() })
      if step % 50 == 0 then check_keys() end
    end
  end)

  it("are published where the client's option says", function()
    for option, channels in pairs {
      publish = "publish", spublish = "spublish", both = "publish spublish",
    } do
      verdict "wa"
      verdict "rb"
      call("CONFIG", "RESETSTAT")
      sides.w.ask(name, "release", "a", "1", "0", option)
      local stats = call("INFO", "commandstats")
      for command in ("publish spublish"):gmatch("%a+") do
        assert.equal(channels:find("%f[%a]" .. command .. "%f[%A]") ~= nil,
          stats:find("cmdstat_" .. command .. ":", 1, true) ~= nil)
      end
      leave "rb"
    end
  end)

  it("change nothing if a key has the wrong type", function()
    verdict "ra"
    verdict "wb"
    verdict "rc"
    for i, key in ipairs(keys) do
      if i ~= 2 then
        call("RENAME", key, key .. ":kept")
        call("SET", key, "a string")
        local failed = 0
        for _, request in ipairs {
          { "r", "acquire", "a", "60000", "1", "1", "publish" },
          { "w", "acquire", "b", "60000", "1", "1", "publish" },
          { "r", "acquire", "c", "60000", "1", "1", "publish" },
          { "r", "release", "a", "1", "0", "publish" },
          { "w", "leave", "b", "publish" },
          { "r", "renew", "a", "60000", "1" },
          { "r", "peek", "a" },
        } do
          local reply, code, detail = sides[request[1]].ask(name,
            table.unpack(request, 2))
          if not reply then
            failed = failed + 1
            assert.equal("redis", code)
            assert.matches("WRONGTYPE", detail)
            assert.matches("fair_readwrite.lua:%d+", detail)
          end
        end
        assert.is_true(failed > 0, key)
        call("DEL", key)
        if call("EXISTS", key .. ":kept") == 1 then
          call("RENAME", key .. ":kept", key)
        end
        for _, who in ipairs { "ra", "wb", "rc" } do
          release(who)
          leave(who)
        end
        call("DEL", table.unpack(keys))
        verdict "ra"
        verdict("ra", "1", "60000", "2")
        verdict "wb"
        verdict "rc"
      else
        verdict("ra", "1", "60000", "2")
      end
    end
  end)

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
        commands(function() renew("rx", "70000") end),
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

  it("accepts any name and any owner", function()
    for _, odd in ipairs {
      "with spaces", "nul\0inside", "{tag}:x", "a{b", "x{}y", "}{",
      "new\nline", "\255\254", ("x"):rep(100000),
    } do
      local its = client:fair_read_write_lock(odd, { owner = odd:sub(1, 1000) })
      local others = client:fair_read_write_lock(odd)
      assert.is_true(its:read_lock():lock { lease = 10 })
      assert.is_true(others:read_lock():try_lock())
      assert.equal("timeout", select(2,
        client:fair_read_write_lock(odd, { owner = "another" }):write_lock()
          :lock { wait = 0.01 }))
      assert.is_true(others:read_lock():unlock())
      assert.is_true(its:read_lock():unlock())
      assert.is_true(its:write_lock():lock { lease = 10 })
      assert.is_true(its:read_lock():lock { lease = 10 })
      assert.is_true(its:write_lock():unlock())
      assert.is_true(its:read_lock():unlock())
    end
  end)
end)

describe("a dead waiter of a fair read/write lock", function()
  local WAITER = [[
    local rlock = require "rlock"
    local client = assert(rlock.open {})
    local pair = client:fair_read_write_lock(arg[1])
    local lock = arg[2] == "w" and pair:write_lock() or pair:read_lock()
    assert(lock:lock { wait = 60 })
    rlock.sleep(60)
  ]]
  local path

  before_each(function()
    setup()
    path = os.tmpname()
    files.write(path, WAITER)
  end)

  after_each(function()
    teardown()
    os.remove(path)
  end)

  -- A process that waits in the queue.
  local function process(side)
    local before = call("ZCARD", keys[4])
    local its = program.start(server, path, name, side)
    eventually(function() return call("ZCARD", keys[4]) > before end)
    return its
  end

  it("is skipped when the lock is freed", function()
    assert.is_true(writer:lock())
    local dead = {}
    for i, side in ipairs { "w", "r", "w", "w", "r" } do
      dead[i] = process(side)
    end
    local waiting = waits(writer)
    for _, its in ipairs(dead) do its:kill(9) end
    for _, its in ipairs(dead) do its:wait(5) end
    assert.is_true(writer:unlock())
    assert.is_true(waiting:join(LONG))
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
