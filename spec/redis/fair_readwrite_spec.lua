--- The fair read/write lock on a real Redis: the order of admission; which
--- waiters keep or lose their places; a writer's downgrade to a reader; and the
--- cost of all this.

local eventually = require "spec.tools.eventually"
local fair_readwrite = require "rlock.policy.fair_readwrite"
local files = require "spec.tools.files"
local fixtures = require "spec.tools.fixtures"
local program = require "spec.tools.program"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local seconds = require "spec.tools.seconds"
local slow = require "spec.tools.slow"
local states = require "spec.tools.states"
local task = require "spec.tools.task"

local SLACK = 0.5 * slow
local SKIPPED = 1.5 * slow       -- seconds until a dead waiter is skipped

local server = redis.shared()
local client, name, keys, pair, sides, reader, writer

local function call(...)
  return (assert(client:call(...)))
end

local function open(options)
  return fixtures.open({ url = server.url }, options)
end

local function now_ms() return states.now_ms(client) end

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

local function peek(who)
  return assert(sides[who:sub(1, 1)].ask(name, "peek", who:sub(2)))
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

local function member(who) return who:sub(1, 1) .. ":" .. who:sub(2) end

local function put_back(field, last, second)
  local first, rest = call("HGET", keys[6], field):match("(%d+):(%d+)")
  call("HSET", keys[6], field, ("%.0f:%.0f"):format(first - last,
    math.max(rest - second, 0)))
end

-- Makes the last signs of life of some waiters that much older, in a queue that
-- started long ago.
local function age(ms, ...)
  put_back("", 0, 60000)
  for _, who in ipairs { ... } do put_back(member(who), ms, 0) end
end

-- Makes all signs of life that much older, as if the server had stood still.
local function stand_still(ms)
  for _, field in ipairs(call("HKEYS", keys[6])) do
    put_back(field, ms, field == "" and ms or 0)
  end
end

-- Makes the leases of some holders end that long ago.
local function over(ms, ...)
  for _, who in ipairs { ... } do
    call("ZADD", keys[1], "XX", ("%d"):format(now_ms() - ms), member(who))
  end
end

-- Collects the messages on this lock's channels.
local function listen(...)
  local channels = {}
  for i, who in ipairs { ... } do
    channels[i] = keys[2] .. ":" .. member(who)
  end
  return (fixtures.listen(server, channels, function(channel, payload)
    assert(payload == "0")
    return (channel:sub(#keys[2] + 2):gsub(":", "", 1))
  end))
end

local function told(heard)
  rlock.sleep(0.02)                       -- silence cannot be awaited
  local text = table.concat(heard, " ")
  for i = #heard, 1, -1 do heard[i] = nil end
  return text
end

-- A task that waits for a lock, queued behind the current waiters.
local function waits(lock, options)
  local before = call("ZCARD", keys[4])
  local waiting = task.start(function()
    return lock:lock(options or { wait = 30 })
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

  it("let in by order of arrival: readers together, writers alone", function()
    assert.equal("held", verdict "wa")
    for who in ("rb rc wd re rf wg rh"):gmatch("%S+") do
      assert.equal("busy", verdict(who))
    end
    assert.equal("rb rc wd re rf wg rh", line())
    check_keys()
    -- Each step: the holder that leaves, then the new holders, in any order.
    for _, step in ipairs {
      { "wa", "rb rc" }, { "rb", "" }, { "rc", "wd" }, { "wd", "re rf" },
      { "rf", "" }, { "re", "wg" }, { "wg", "rh" }, { "rh", "" },
    } do
      release(step[1])
      for who in ("rh wg rf re wd rc rb"):gmatch("%S+") do
        if (" " .. line() .. " "):find(" " .. who .. " ", 1, true) then
          verdict(who)
        end
      end
      local expected = step[2]
      if expected == "" then expected = step[1] == "rb" and "rc"
        or step[1] == "rf" and "re" or "" end
      assert.equal(expected, holders())
      check_keys()
    end
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

  it("follow the rules in whatever order they come", function()
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

  it("keep a place, however often one asks", function()
    verdict "wa"
    for _ = 1, 3 do
      for who in ("rb wc rd"):gmatch("%S+") do verdict(who) end
    end
    assert.equal("rb wc rd", line())
    leave "rb"
    assert.equal("wc rd", line())
    verdict "rb"
    assert.equal("wc rd rb", line())
    check_keys()
  end)

  it("let a reader in beside readers, but not past a writer that waits",
    function()
      verdict "ra"
      assert.equal("held", verdict "rb")
      verdict "wc"
      assert.equal("busy", verdict "rd")
      assert.equal("busy", verdict("re", "0"))
      leave "wc"
      assert.equal("held", verdict "rd")
      assert.equal("held", verdict("re", "0"))
    end)

  it("tell those whose turn it is, and nobody else", function()
    local heard = listen("rb", "rc", "wd", "re", "wf")
    verdict "wa"
    for who in ("rb rc wd re wf"):gmatch("%S+") do verdict(who) end
    assert.equal("", told(heard))
    release "wa"
    assert.equal("rb rc", told(heard))
    verdict "rb"
    verdict "rc"
    release "rb"
    assert.equal("", told(heard))
    release "rc"
    assert.equal("wd", told(heard))
    verdict "wd"
    verdict "rd"                             -- the writer reads
    release "wd"                             -- and downgrades to a reader
    assert.equal("re", told(heard))
    verdict "re"
    release "rd"
    sides.r.ask(name, "break_", "", "publish")
    assert.equal("wf", told(heard))
  end)

  it("tell those behind a waiter that leaves", function()
    local heard = listen("rb", "wc", "rd", "re", "wf")
    verdict "ra"
    for who in ("wc rd re wf"):gmatch("%S+") do verdict(who) end
    leave "rd"
    assert.equal("", told(heard))
    leave "wc"
    assert.equal("re", told(heard))
    leave "re"
    assert.equal("", told(heard))            -- readers still hold it
    release "ra"
    assert.equal("wf", told(heard))
    verdict "rd"
    leave "wf"
    assert.equal("rd", told(heard))
  end)

  it("tell one that is silent, too, but do not count on it", function()
    local heard = listen("rb", "wc", "wd", "re", "wf", "rg")
    verdict "wa"
    for who in ("rb wc wd re wf rg"):gmatch("%S+") do verdict(who) end
    age(1300, "rb", "wc")
    release "wa"
    assert.equal("rb wc wd", told(heard))
    for _, who in ipairs { "rb", "wc" } do leave(who) end
    verdict "wd"
    told(heard)
    age(1300, "wf")
    release "wd"
    assert.equal("re rg", told(heard))       -- rg checks on wf
  end)

  it("tell nobody of a waiter that leaves while a writer has it", function()
    local heard = listen("rb", "wc")
    verdict "wa"
    verdict "wd"
    verdict "rb"
    verdict "wc"
    leave "wd"
    assert.equal("", told(heard))
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

  it("never shorten a lease, and give each hold its own", function()
    verdict("ra", "1", "30000")
    verdict("rb", "1", "10000")
    renew("ra", "1000")
    verdict("ra", "1", "1000", "2")
    local function ttl()
      return math.floor(call("PTTL", keys[1]) / 1000 + 0.5)
    end
    assert.equal(30, ttl())
    renew("rb", "50000")
    assert.equal(50, ttl())
    release "rb"
    assert.equal(30, ttl())
    release("ra", "1", "20000")
    assert.equal(20, ttl())
    release("ra", "1", "40000")
    assert.equal(40, ttl())
    check_keys()
    release "ra"
    verdict("wa", "1", "20000")
    verdict("ra", "1", "40000")
    assert.equal(40, ttl())
    release "ra"
    assert.equal(20, ttl())
    verdict("ra", "1", "10000")
    release "wa"
    assert.equal(10, ttl())
  end)

  it("count the holds of each side", function()
    verdict "wa"
    verdict("wa", "1", "60000", "2")
    verdict "ra"
    assert.same({ "held", 2, { "a", 2 } },
      { peek "wa" [1], peek "wa" [3], peek "wa" [4] })
    assert.same({ "held", 1, { "a", 1 } },
      { peek "ra" [1], peek "ra" [3], peek "ra" [4] })
    verdict("ra", "1", "60000", "2")
    assert.equal(2, peek "ra" [3])
    release("wa", "1", "60000")
    assert.equal(1, peek "wa" [3])
    release "wa"
    assert.equal(0, peek "wa" [3])
    assert.equal("free", peek "wb" [1])
    verdict "wc"
    verdict "rd"
    assert.same({ "queue", { "w:c", "r:d" } }, peek "ra" [5])
    release("ra", "1", "60000")
    assert.equal(1, peek "ra" [3])
    assert.equal(0, call("EXISTS", keys[3]))
  end)

  it("forget a count with its hold", function()
    verdict("rb", "1", "60000")
    verdict("ra", "1", "40")
    verdict("ra", "1", "40", "2")
    release "rb"
    eventually(function() return call("EXISTS", keys[1]) == 0 end)
    verdict "ra"
    assert.equal(1, peek "ra" [3])
  end)

  it("say when it is worth asking again", function()
    verdict("wa", "1", "30000")
    local ms = acquire("rb", "0")[2]
    assert.is_true(ms > 29000 and ms <= 30000)
    ms = acquire("wb", "0")[2]
    assert.is_true(ms > 29000 and ms <= 30000)
    verdict("ra", "1", "60000")
    ms = acquire("rb", "0")[2]
    assert.is_true(ms > 29000 and ms <= 30000)   -- the writer's lease
    ms = acquire("wb", "0")[2]
    assert.is_true(ms > 59000 and ms <= 60000)
  end)

  it("change nothing when a key is something else", function()
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

  it("cost the same, however many read and wait", function()
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

describe("a place in the line of a fair read/write lock", function()
  before_each(setup)
  after_each(teardown)

  it("is lost by who is silent, when it is its turn", function()
    verdict "wa"
    for who in ("wb rc wd re"):gmatch("%S+") do verdict(who) end
    release "wa"
    age(1300, "wb", "rc")
    assert.equal("held", verdict "wd")
    assert.equal("re", line())
    check_keys()
  end)

  it("is lost by a writer that is silent before readers, who are told",
    function()
      local heard = listen("wb", "rc", "rd", "we")
      verdict "ra"
      for who in ("wb rc rd we"):gmatch("%S+") do verdict(who) end
      age(1300, "wb")
      assert.equal("held", verdict "rc")
      assert.equal("rd we", line())
      assert.equal("rd", told(heard))
      assert.equal("held", verdict "rd")
    end)

  it("is not lost by who is silent in the middle, as long as others come "
    .. "before it", function()
      verdict "wa"
      for who in ("wb rc wd"):gmatch("%S+") do verdict(who) end
      release "wa"
      age(5000, "rc")
      assert.equal("busy", verdict "wd")
      assert.equal("wb rc wd", line())
    end)

  it("is not lost by who has shown itself, and who asks is told how long that "
    .. "stands", function()
      verdict "wa"
      verdict "wb"
      verdict "wc"
      release "wa"
      age(600, "wb")
      local reply = acquire "wc"
      assert.equal("busy", reply[1])
      assert.is_true(reply[2] > 500 and reply[2] <= 600, reply[2])
    end)

  it("is not lost when it was the server that was silent", function()
    verdict "wa"
    for who in ("wb rc wd"):gmatch("%S+") do verdict(who) end
    release "wa"
    stand_still(10000)
    assert.equal("busy", verdict "wd")
    assert.equal("busy", verdict "rc")
    assert.equal("wb rc wd", line())
    assert.equal("held", verdict "wb")
    release "wb"
    assert.equal("held", verdict "rc")
    assert.equal("wd", line())
  end)

  it("is lost after such a silence too, by who remains silent", function()
    verdict "wa"
    for who in ("wb rc wd"):gmatch("%S+") do verdict(who) end
    release "wa"
    stand_still(10000)
    local reply = acquire "wd"
    assert.equal("busy", reply[1])
    assert.is_true(reply[2] > 1100 and reply[2] <= 1200, reply[2])
    stand_still(1300)
    assert.equal("held", verdict "wd")
  end)

  it("is lost by many at once", function()
    verdict "wa"
    for i = 1, 200 do verdict((i % 3 == 0 and "w" or "r") .. i) end
    verdict "wlast"
    release "wa"
    for i = 1, 200 do age(2000, (i % 3 == 0 and "w" or "r") .. i) end
    assert.equal("held", verdict "wlast")
    assert.equal("", line())
  end)

  it("is lost by 300 at most in one request", function()
    verdict "wa"
    local signs, places = {}, {}
    local old = now_ms() - 2000
    for i = 1, 500 do
      places[2 * i - 1], places[2 * i] = i, "r:" .. i
      signs[2 * i - 1], signs[2 * i] = "r:" .. i, ("%d:%d"):format(old, i)
    end
    call("ZADD", keys[4], table.unpack(places))
    call("HSET", keys[6], table.unpack(signs))
    verdict "wlast"
    age(0)
    release "wa"
    assert.same({ "busy", 1 }, acquire "wlast")
    assert.equal("held", verdict "wlast")
  end)

  it("does not keep a try out when nobody is there any more", function()
    verdict "wa"
    verdict "wb"
    verdict "rc"
    release "wa"
    assert.equal("busy", verdict("wd", "0"))
    assert.equal("busy", verdict("rd", "0"))
    assert.is_true(call("PTTL", keys[6]) <= 3000)
    call("DEL", keys[6])                       -- as when it expires
    assert.equal("held", verdict("wd", "0"))
    release "wd"
    assert.equal("held", verdict("rd", "0"))
    assert.equal("wb rc", line())
  end)

  it("is given time to show itself where the signs of life are lost", function()
    verdict "wa"
    verdict "wb"
    verdict "rc"
    release "wa"
    call("DEL", keys[6])
    assert.equal("busy", verdict "rc")
    assert.equal("busy", verdict "rc")
    assert.equal("wb rc", line())
    stand_still(1300)
    assert.equal("held", verdict "rc")
    verdict "wd"
    verdict "re"
    release "rc"
    call("DEL", keys[6])
    assert.equal("held", verdict "wd")         -- still its turn
  end)

  it("is not kept by a sign of life from the future", function()
    verdict "wa"
    verdict "wb"
    verdict "rc"
    release "wa"
    stand_still(-3600000)
    assert.equal("busy", verdict "rc")
    stand_still(1300)
    assert.equal("held", verdict "rc")
  end)

  it("is kept by a sign of life where the line is lost", function()
    verdict "wa"
    for who in ("wb rc wd"):gmatch("%S+") do verdict(who) end
    call("DEL", keys[4], keys[5])
    age(20000, "wb", "rc", "wd")
    for who in ("wd rc wb"):gmatch("%S+") do verdict(who) end
    assert.equal("wb rc wd", line())
    check_keys()
  end)

  it("is lost by a writer that stands among the writers alone", function()
    verdict "ra"
    verdict "wb"
    verdict "rc"
    call("ZREM", keys[4], "w:b")
    age(1300, "wb")
    assert.equal("held", verdict "rc")
    check_keys()
  end)

  it("does not stand on a sign of life that is none", function()
    verdict "wa"
    verdict "wb"
    verdict "rc"
    release "wa"
    for _, odd in ipairs { "x", "", "1:", ":1", "-5:2", "1e9:1" } do
      call("HSET", keys[6], "w:b", odd)
      assert.equal("busy", verdict "rc")
    end
    age(1300, "wb")
    assert.equal("held", verdict "rc")
  end)
end)

describe("the leases of a fair read/write lock", function()
  before_each(setup)
  after_each(teardown)

  it("end for us first, though Redis ends them to the millisecond", function()
    local taken = 0
    for _ = 1, 400 do
      local hold = reader:hold { lease = 0.004 }
      if hold then
        task.run(function()
          repeat until writer:try_lock { lease = 1 }
          assert.equal(0, hold:valid_for())
          assert.is_true(writer:unlock())
        end)
        hold:unlock()
        taken = taken + 1
      end
    end
    assert.is_true(taken > 0)
  end)

  it("end the hold of a reader that is dead, while others read on", function()
    verdict "ra"
    verdict "rb"
    over(1, "ra")
    assert.equal("lost", renew "ra")
    assert.equal("lost", verdict("ra", "1", "60000", "2"))
    assert.equal("lost", release "ra")
    assert.equal(0, peek "ra" [3])
    assert.same({ "b", 1 }, peek "rb" [4])
    release "rb"
    assert.equal("held", verdict "wc")
  end)

  it("of dead readers leave nothing behind while others come and go",
    function()
      for i = 1, 100 do verdict("rdead" .. i) end
      for i = 1, 100 do over(i, "rdead" .. i) end
      for i = 1, 30 do
        verdict("r" .. i)
        if i > 1 then release("r" .. (i - 1)) end
      end
      assert.equal("r30", holders())
    end)

  it("of dead readers do not keep a writer out when the last live one leaves",
    function()
      for i = 1, 100 do verdict("rdead" .. i) end
      verdict "ralive"
      for i = 1, 100 do over(1, "rdead" .. i) end
      assert.equal("busy", verdict "wa")
      release "ralive"
      assert.equal("held", verdict "wa")
    end)

  it("of a writer that reads on let others read when they are over", function()
    verdict "wa"
    verdict "ra"
    verdict "rb"
    verdict "wc"
    over(1, "wa")
    assert.equal("held", verdict "rb")
    assert.equal("busy", verdict "wc")
    assert.equal("lost", release "wa")
    assert.equal("ra rb", holders())
  end)

  it("of the reading of a writer do not end its writing", function()
    verdict "wa"
    verdict "ra"
    over(1, "ra")
    assert.equal("busy", verdict "rb")
    assert.equal("wa", holders())
  end)

  it("leave nothing in Redis when all are over", function()
    verdict("wa", "1", "20")
    verdict("ra", "1", "20", "1")
    verdict("wa", "1", "20", "2")
    eventually(function() return is_gone() end)
  end)
end)

describe("a fair read/write lock", function()
  before_each(setup)
  after_each(teardown)

  it("lets its writer read, though it gave up waiting for another lock",
    function()
      local another = client:fair_read_write_lock(name .. ":another")
      task.run(function() assert(another:write_lock():lock()) end)
      assert.is_true(writer:lock())
      assert.equal("timeout", select(2,
        another:write_lock():lock { wait = 0.05 }))
      assert.is_true(reader:try_lock())
      assert.is_true(writer:unlock())
      assert.is_true(reader:unlock())
    end)

  it("refuses to let a reader write", function()
    assert.is_true(reader:lock())
    local ok, code, detail = writer:lock { wait = 60 }
    assert.same({ nil, "refused" }, { ok, code })
    assert.matches("upgrade", detail)
    assert.equal(0, call("EXISTS", keys[4]))
  end)

  it("is given in order of arrival", function()
    local order, waiting = {}, {}
    assert.is_true(writer:lock())
    for i, side in ipairs { "w", "w", "r", "w", "w", "r", "w" } do
      local lock = side == "w" and writer or reader
      waiting[i] = waits({ lock = function()
        assert(lock:lock { wait = 30 })
        order[#order + 1] = i
        return lock:unlock()
      end })
    end
    assert.is_true(writer:unlock())
    for i = 1, #waiting do assert.is_true(waiting[i]:join(10 * slow)) end
    assert.same({ 1, 2, 3, 4, 5, 6, 7 }, order)
    eventually(is_gone)
  end)

  it("wakes all readers up to the next writer, at once", function()
    assert.is_true(writer:lock())
    local inside, go = 0, false
    for _ = 1, 20 do
      waits({ lock = function()
        assert(reader:lock { wait = 30 })
        inside = inside + 1
        eventually(function() return go end, 30)
        return reader:unlock()
      end })
    end
    local writes = waits(writer)
    for _ = 1, 5 do
      waits({ lock = function()
        assert(reader:lock { wait = 30 })
        inside = inside + 1
        return reader:unlock()
      end })
    end
    local took = seconds(function()
      assert.is_true(writer:unlock())
      eventually(function() return inside == 20 end)
    end)
    assert.is_true(took < 0.2 + SLACK, "took " .. took)
    assert.is_nil(writes.is_over)
    go = true
    assert.is_true(writes:join(5))
    assert.equal(20, inside)
  end)

  it("starves neither writers among many readers, nor readers among writers",
    function()
      local clients, over_at = {}, rlock.now() + 1.5 * slow
      for i = 1, 4 do clients[i] = open() end
      local entries = { r = 0, w = 0 }
      local longest = 0
      local inside = { r = 0, w = 0 }
      task.many(40, function(i)
        local side = i % 5 == 0 and "w" or "r"
        local its = clients[i % 4 + 1]:fair_read_write_lock(name)
        local lock = side == "w" and its:write_lock() or its:read_lock()
        while rlock.now() < over_at do
          longest = math.max(longest, seconds(function()
            assert(lock:lock { wait = 30 })
          end))
          inside[side] = inside[side] + 1
          entries[side] = entries[side] + 1
          assert(inside.w == 0 or inside.w + inside.r == 1, "not alone")
          rlock.sleep(0.001)
          assert(inside.w == 0 or inside.w + inside.r == 1, "not alone")
          inside[side] = inside[side] - 1
          assert(lock:unlock())
        end
      end, 60 * slow)
      assert.is_true(entries.w >= 24, "writers: " .. entries.w)
      assert.is_true(entries.r >= 60, "readers: " .. entries.r)
      assert.is_true(longest < 0.5 * slow + SLACK, "longest " .. longest)
      for i = 1, 4 do clients[i]:close() end
      eventually(is_gone)
    end)

  it("leaves nothing in the line when one gives up or is cancelled", function()
    assert.is_true(writer:lock())
    task.run(function()
      assert.equal("timeout", select(2, reader:lock { wait = 0.05 }))
      assert.equal("timeout", select(2, writer:lock { wait = 0.05 }))
    end)
    eventually(function() return line() == "" end)
    local cancelled = waits(writer)
    cancelled:cancel()
    eventually(function() return line() == "" end)
    eventually(function()
      return call("EXISTS", keys[4], keys[5], keys[6]) == 0
    end)
  end)

  it("lets readers in at once when the writer before them gives up", function()
    assert.is_true(reader:lock())
    local writes = task.start(function()
      return writer:lock { wait = 0.4 * slow }
    end)
    eventually(function() return line() ~= "" end)
    local reads = waits(reader)
    writes:join(5)
    assert.is_true(seconds(function()
      assert.is_true(reads:join(5))
    end) < 0.2 + SLACK)
  end)

  it("is kept alive by the watchdog, either side and both", function()
    local watched = open { watchdog = 0.6 * slow }
    local its = watched:fair_read_write_lock(name)
    assert.is_true(its:write_lock():lock())
    assert.is_true(its:read_lock():lock())
    local function stays(lock, seconds_)
      local ends = rlock.now() + seconds_
      while rlock.now() < ends do
        assert.equal("busy", select(2, lock:try_lock()))
        rlock.sleep(0.05)
      end
    end
    stays(reader, 1.2 * slow)
    assert.is_true(its:write_lock():unlock())
    stays(writer, 1.2 * slow)
    assert.equal("held", its:read_lock():state())
    assert.is_true(its:read_lock():unlock())
    watched:close()
    assert.is_true(writer:try_lock())
  end)

  it("survives lost answers, on either side", function()
    local proxy = fixtures.proxy(server)
    local cut = open { url = proxy.url }
    local its = cut:fair_read_write_lock(name)
    assert.is_true(its:write_lock():lock())
    proxy:cut(1)
    assert.is_true(its:read_lock():lock())
    assert.same({ 1, 1 }, { its:write_lock():hold_count(),
      its:read_lock():hold_count() })
    proxy:cut(1)
    assert.is_true(its:write_lock():unlock())
    proxy:cut(1)
    assert.is_true(its:read_lock():unlock())
    assert.is_true(writer:lock())
    proxy:cut(1)
    local waiting = waits(its:write_lock())
    assert.equal(1, call("ZCARD", keys[4]))
    proxy:cut(1)
    assert.is_true(writer:unlock())
    assert.is_true(waiting:join(5))
    cut:close()
    eventually(is_gone)
  end)

  it("keeps the order when the server stands still", function()
    local own = fixtures.server()
    local its = open { url = own.url, timeout = 10 * slow }
    local lock = its:fair_read_write_lock(name):write_lock()
    local order = {}
    assert.is_true(lock:lock())
    for i = 1, 8 do
      task.start(function()
        assert(lock:lock { wait = 60 })
        order[#order + 1] = i
        assert(lock:unlock())
      end)
      eventually(function()
        return its:call("ZCARD", keys[4]) == i
      end)
    end
    own:background("DEBUG", "SLEEP", "2.5")
    rlock.sleep(0.1)
    assert.is_true(lock:unlock())
    eventually(function() return #order == 8 end, 20 * slow)
    assert.same({ 1, 2, 3, 4, 5, 6, 7, 8 }, order)
  end)

  it("takes any name and any owner", function()
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
    print "in"
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

  for _, case in ipairs {
    { "a writer before a writer", { "w" }, "w" },
    { "a writer before readers", { "w" }, "r" },
    { "a reader before a writer", { "r" }, "w" },
    { "five of them", { "w", "r", "w", "w", "r" }, "w" },
  } do
    it("is skipped in time when the lock is held meanwhile: " .. case[1],
      function()
        assert.is_true(writer:lock())
        local dead = {}
        for i, side in ipairs(case[2]) do dead[i] = process(side) end
        local waiting = waits(case[3] == "w" and writer or reader)
        for _, its in ipairs(dead) do its:kill(9) end
        for _, its in ipairs(dead) do its:wait(5) end
        assert.is_true(writer:unlock())
        assert.is_true(seconds(function()
          assert.is_true(waiting:join(10 * slow))
        end) < SKIPPED)
      end)

    it("is skipped in time when the lock is free: " .. case[1], function()
      assert.is_true(writer:lock())
      local dead = {}
      for i, side in ipairs(case[2]) do dead[i] = process(side) end
      for _, its in ipairs(dead) do its:kill(19) end      -- retries no more
      local waiting = waits(case[3] == "w" and writer or reader)
      local took = seconds(function()
        assert.is_true(writer:unlock())
        for _, its in ipairs(dead) do its:kill(9) end
        assert.is_true(waiting:join(10 * slow))
      end)
      assert.is_true(took < SKIPPED, "took " .. took)
      for _, its in ipairs(dead) do its:wait(5) end
    end)
  end

  it("is skipped at once when it died long before its turn", function()
    assert.is_true(writer:lock())
    local dead = process "w"
    local waiting = waits(writer)
    dead:kill(9)
    dead:wait(5)
    local last = call("HVALS", keys[6])
    eventually(function()
      for _, sign in ipairs(last) do
        if now_ms() - tonumber(sign:match("^%d+")) < 1100 then return false end
      end
      return true
    end)
    assert.is_true(writer:unlock())
    assert.is_true(seconds(function()
      assert.is_true(waiting:join(10 * slow))
    end) < SLACK)
  end)

  it("is skipped by who comes only then, and does not keep a try out for ever",
    function()
      assert.is_true(writer:lock())
      local dead = process "w"
      dead:kill(9)
      dead:wait(5)
      assert.is_true(writer:unlock())
      assert.is_true(seconds(function()
        assert.is_true(writer:lock { wait = 10 })
      end) < SKIPPED)
      assert.is_true(writer:unlock())
      assert.is_true(writer:lock())
      dead = process "w"
      dead:kill(9)
      dead:wait(5)
      assert.is_true(writer:unlock())
      assert.equal("busy", select(2, writer:try_lock()))
      eventually(function() return (writer:try_lock()) end, 4 * slow)
    end)

  it("that let nobody know ends with its lease when it had got the lock",
    function()
      local its = program.start(server, path, name, "r")
      eventually(function() return its:output():find "in" end)
      its:kill(9)
      its:wait(5)
      call("ZADD", keys[1], "XX", ("%d"):format(now_ms() + 300),
        call("ZRANGE", keys[1], 0, 0)[1])
      call("PEXPIRE", keys[1], 300)
      local took = seconds(function()
        assert.is_true(writer:lock { wait = 10 })
      end)
      assert.is_true(took < 0.3 + SLACK, "took " .. took)
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
