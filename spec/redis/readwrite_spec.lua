--- The read/write lock on a real Redis: who may read and write when, how holds
--- end, Redisson's layout and behaviours, simulated Redisson readers and
--- writers of the same lock, and the cost of a reader among many.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local readwrite = require "rlock.policy.readwrite"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local seconds = require "spec.tools.seconds"
local slow = require "spec.tools.slow"
local states = require "spec.tools.states"
local task = require "spec.tools.task"

local SLACK = 0.5 * slow

local server = redis.shared()
local client, name, channel, index, pair, reading, writing, reader, writer

local function call(...)
  return (assert(client:call(...)))
end

local function open(options)
  return fixtures.open({ url = server.url }, options)
end

local function now_ms() return states.now_ms(client) end

-- The state as seen by others -------------------------------------------------

-- The hash, as { mode = "read", a = "1" }.
local function fields()
  local flat, result = call("HGETALL", name), {}
  for i = 1, #flat, 2 do result[flat[i]] = flat[i + 1] end
  return result
end

local function hold_key(owner, n)
  return ("{%s}:%s:rwlock_timeout:%d"):format(name, owner, n)
end

-- The key's TTL is about `ms`.
local function lives(key, ms)
  local left = call("PTTL", key)
  if math.abs(left - ms) > 1000 then
    error(("%s lives for %d ms, not %d"):format(key, left, ms), 2)
  end
end

local function is_gone()
  return call("EXISTS", name, index) == 0
end

-- The operations --------------------------------------------------------------

-- Plays a list of operations, each preceded by its side: "r acquire a 60000 1".
local function play(text)
  for line in text:gmatch("[^\n]+") do
    local side, rest = line:match("^%s*([rw])%s+(.*)")
    if side then
      (side == "r" and reading or writing).play(name, rest)
    elseif line:find("%S") then
      reading.play(name, line)
    end
  end
end

local function read(owner, lease, want)
  return assert(reading.ask(name, "acquire", owner, lease or "60000",
    want or "1"))[1]
end

local function write(owner, lease, want)
  return assert(writing.ask(name, "acquire", owner, lease or "60000",
    want or "1"))[1]
end

local function leave(owner, want, lease)
  return assert(reading.ask(name, "release", owner, lease or "1", want or "0",
    "publish"))[1]
end

local function stop_writing(owner, want, lease)
  return assert(writing.ask(name, "release", owner, lease or "1", want or "0",
    "publish"))[1]
end

-- Makes the leases of some readers end that long ago.
local function age(ms, ...)
  for _, field in ipairs { ... } do
    local score = call("ZSCORE", index, field)
    call("ZADD", index, ("%d"):format(now_ms() - ms), field)
    assert(tonumber(score) > 0)
    for n = 1, 3 do call("DEL", hold_key(field, n)) end
  end
end

-- Redisson's side, by its own rules -------------------------------------------

local java = {}

function java.read(owner, lease, n)
  local left = call("PTTL", name)
  if left == -2 then call("HSET", name, "mode", "read") end
  call("HINCRBY", name, owner, 1)
  call("SET", hold_key(owner, n or 1), "1", "PX", lease)
  call("PEXPIRE", name, math.max(left, lease))
end

function java.renew(owner, lease)
  call("PEXPIRE", hold_key(owner, 1), lease)
  if call("PTTL", name) < lease then call("PEXPIRE", name, lease) end
end

-- Its watchdog: the hash and the keys of all holds expire with its own lease.
function java.watch(lease)
  call("PEXPIRE", name, lease)
  for field, value in pairs(fields()) do
    for n = 1, tonumber(value) or 0 do
      call("PEXPIRE", hold_key(field, n), lease)
    end
  end
end

-- Releases its only read hold, and checks the keys of all others.
function java.leave(owner)
  call("HDEL", name, owner)
  call("DEL", hold_key(owner, 1))
  local most, others = -3, fields()
  for field, value in pairs(others) do
    for n = 1, tonumber(value) or 0 do
      most = math.max(most, call("PTTL", hold_key(field, n)))
    end
  end
  if most > 0 then
    call("PEXPIRE", name, most)
  elseif others.mode ~= "write" then
    call("DEL", name)
    call("PUBLISH", channel, "0")
  end
end

function java.write(owner, lease)
  if call("EXISTS", name) == 1 then return false end
  call("HSET", name, "mode", "write", owner .. ":write", "1")
  call("PEXPIRE", name, lease)
  return true
end

function java.stop_writing(owner)
  call("HDEL", name, owner .. ":write")
  if call("HLEN", name) == 1 then
    call("DEL", name)
    call("PUBLISH", channel, "1")
  else
    call("HSET", name, "mode", "read")
  end
end

-- Collects the messages on the channel.
local function listen()
  return (fixtures.listen(server, { channel }))
end

local function subscribers()
  return call("PUBSUB", "NUMSUB", channel)[2]
end

-- A task that waits for `lock`.
local function waits(lock, options)
  local waiting = task.start(function()
    return lock:lock(options or { wait = 20 })
  end)
  eventually(function() return subscribers() > 0 end)
  rlock.sleep(0.02)
  return waiting
end

local function setup()
  client, name = open(), fixtures.name "readwrite"
  channel = "redisson_rwlock:{" .. name .. "}"
  index = "rlock_rw_holds:{" .. name .. "}"
  pair = client:read_write_lock(name)
  reader, writer = pair:read_lock(), pair:write_lock()
  reading = states.of(client, readwrite.read)
  writing = states.of(client, readwrite.write)
end

local function teardown()
  call("DEL", name, index)
  fixtures.close()
end

describe("the operations of a read/write lock", function()
  before_each(setup)
  after_each(teardown)

  it("give the verdict of their state: readers", function()
    play [[
      r peek a                       free
      r break_ - publish             free
      r release a 1 0 publish        lost
      r renew a 60000 1              lost
      r acquire a 60000 2            lost
      r acquire a 60000 1            held
      r acquire a 60000 1            held     -- the same request again
      r acquire a 60000 2            held
      r acquire a 60000 2            held
      r acquire b 60000 2            lost
      r acquire b 60000 1            held     -- readers share
      r renew a 60000 2              held
      r renew a 60000 2              held
      r renew c 60000 1              lost
      r release a 60000 1 publish    kept
      r release a 60000 1 publish    kept
      r release c 1 0 publish        lost
      r release a 1 0 publish        freed
      r release a 1 0 publish        lost
      r renew a 60000 1              lost
      r peek a                       held
      r release b 1 0 publish        freed
      r peek a                       free
      r acquire a 60000 1            held
      over
      r renew a 60000 1              lost
      r release a 1 0 publish        lost
      r acquire a 60000 2            lost
    ]]
    assert.equal(0, call("EXISTS", name))
  end)

  it("give the verdict of their state: writers", function()
    play [[
      w peek a                       free
      w break_ - publish             free
      w release a 1 0 publish        lost
      w renew a 60000 1              lost
      w acquire a 60000 2            lost
      w acquire a 60000 1            held
      w acquire a 60000 1            held     -- the same request again
      w acquire a 60000 2            held
      w acquire a 60000 2            held
      w acquire b 60000 1            busy
      w acquire b 60000 2            lost
      w renew a 60000 2              held
      w renew b 60000 1              lost
      w release a 60000 1 publish    kept
      w release a 60000 1 publish    kept
      w release b 1 0 publish        lost
      w peek a                       held
      w release a 1 0 publish        freed
      w release a 1 0 publish        lost
      w peek a                       free
      w acquire a 60000 1            held
      over
      w renew a 60000 1              lost
      w release a 1 0 publish        lost
      w acquire b 60000 1            held
    ]]
  end)

  it("give the verdict of their state: both sides", function()
    play [[
      r acquire a 60000 1            held
      w acquire b 60000 1            busy
      w acquire b 60000 2            lost
      w acquire a 60000 1            refused  -- it would wait for itself
      w acquire a 60000 1            refused
      w acquire a 60000 2            lost
      w renew a 60000 1              lost
      w release a 1 0 publish        lost
      w break_ - publish             free     -- nobody writes
      w peek a                       free
      r release a 1 0 publish        freed
      w acquire a 60000 1            held
      r acquire b 60000 1            busy
      r acquire b 60000 2            lost
      r renew b 60000 1              lost
      r release b 1 0 publish        lost
      r peek a                       free
      r acquire a 60000 1            held     -- the writer may read
      r acquire a 60000 1            held
      r acquire a 60000 2            held
      w acquire a 60000 2            held
      r acquire b 60000 1            busy
      w acquire b 60000 1            busy
      r renew a 60000 2              held
      w renew a 60000 2              held
      r peek a                       held
      w peek a                       held
      r break_ - publish             free     -- somebody writes
      r release a 60000 1 publish    kept
      r release a 1 0 publish        freed
      w release a 60000 1 publish    kept
      r acquire a 60000 1            held
      w release a 1 0 publish        freed    -- and goes on as a reader
      w release a 1 0 publish        lost
      w acquire b 60000 1            busy
      r acquire b 60000 1            held
      w acquire a 60000 1            refused
      r release b 1 0 publish        freed
      r release a 1 0 publish        freed
      w acquire b 60000 1            held
      w break_ x publish             refused
      w break_ - publish             freed
      r acquire b 60000 1            held
      r break_ x publish             refused
      r break_ - publish             freed
      r peek b                       free
      r acquire a 60000 1            held
      r acquire a 10 1               held     -- a lease is never shortened
      r acquire b 10 1               held
      wait 20
      r release b 1 0 publish        lost
      w acquire b 60000 1            busy
      r release a 1 0 publish        freed
      w acquire b 10 1               held
      wait 20
      r acquire a 10 1               held
      wait 20
      w acquire b 60000 1            held
      w release b 1 0 publish        freed
    ]]
    assert.is_true(is_gone())
  end)

  it("follow the rules in whatever order they come", function()
    local seed = os.time()
    math.randomseed(seed)
    local reads, writes = {}, {}              -- owner -> count

    local function expected(what, owner)
      if what == "read" then
        local other = next(writes)
        if other and other ~= owner then return "busy" end
        reads[owner] = (reads[owner] or 0) + 1
        return "held"
      elseif what == "write" then
        if writes[owner] then
          writes[owner] = writes[owner] + 1
          return "held"
        end
        if not next(writes) and reads[owner] then return "refused" end
        if next(writes) or next(reads) then return "busy" end
        writes[owner] = 1
        return "held"
      end
      local side = what == "leave" and reads or writes
      if not side[owner] then return "lost" end
      side[owner] = side[owner] > 1 and side[owner] - 1 or nil
      return side[owner] and "kept" or "freed"
    end

    local function layout()
      local result = { mode = next(writes) and "write" or next(reads)
        and "read" or nil }
      for owner, n in pairs(reads) do result[owner] = ("%d"):format(n) end
      for owner, n in pairs(writes) do
        result[owner .. ":write"] = ("%d"):format(n)
      end
      return result
    end

    for step = 1, 1500 do
      local owner = ("abcdef"):sub(math.random(6)):sub(1, 1)
      local what = ({ "read", "write", "leave", "stop" })[math.random(4)]
      local more = ("%d"):format((what == "read" and reads[owner]
        or what == "write" and writes[owner] or 0) + 1)
      local less = ("%d"):format(math.max(0, (what == "leave"
        and reads[owner] or writes[owner] or 1) - 1))
      local where = ("seed %d, step %d, %s %s"):format(seed, step, what, owner)
      local verdict = what == "read" and read(owner, "60000", more)
        or what == "write" and write(owner, "60000", more)
        or what == "leave" and leave(owner, less, "60000")
        or what == "stop" and stop_writing(owner, less, "60000")
      assert.same({ where, expected(what, owner), layout() },
        { where, verdict, fields() })
      for holder, n in pairs(reads) do
        assert.is_true(call("PTTL", hold_key(holder, n)) > 1000, where)
        assert.equal(0, call("EXISTS", hold_key(holder, n + 1)), where)
      end
      if next(reads) or next(writes) then
        assert.is_true(call("PTTL", name) > 1000, where)
      end
    end
  end)

  it("say why a reader cannot write", function()
    read "a"
    local reply = writing.ask(name, "acquire", "a", "60000", "1")
    assert.matches("^upgrade", reply[2])
  end)

  it("tell who reads and who writes, and in which mode it is", function()
    read("a", "60000")
    read("a", "60000", "2")
    read "b"
    local reply = reading.ask(name, "peek", "a")
    local holders = {}
    for i = 1, #reply[4], 2 do holders[reply[4][i]] = reply[4][i + 1] end
    assert.same({ a = "2", b = "1" }, holders)
    assert.same({ "held", 2, { "mode", "read" } },
      { reply[1], reply[3], reply[5] })
    reply = writing.ask(name, "peek", "a")
    assert.same({ "free", -2, 0, {}, { "mode", "read" } }, reply)
    leave("a", "0")
    leave "b"
    write "a"
    read("a", "60000")
    reply = writing.ask(name, "peek", "a")
    assert.same({ "a", "1" }, reply[4])
    assert.same({ "mode", "write" }, reply[5])
    assert.same({ "a", "1" }, reading.ask(name, "peek", "b")[4])
  end)

  it("list some of very many readers", function()
    for i = 1, 1000 do read("reader " .. i) end
    local reply = reading.ask(name, "peek", "reader 7")
    assert.same({ "held", 1 }, { reply[1], reply[3] })
    assert.is_true(#reply[4] >= 20 and #reply[4] <= 200)
  end)

  it("refuse owners that cannot be told from other fields", function()
    for _, bad in ipairs { "mode", "a:write", ":write" } do
      for _, side in ipairs { reading, writing } do
        assert.equal("refused", side.ask(name, "acquire", bad, "1000", "1")[1])
      end
    end
    write "a"
    read "a"
    for _, bad in ipairs { "mode", "a:write" } do
      for _, side in ipairs { reading, writing } do
        assert.equal("lost", side.ask(name, "renew", bad, "1000", "1")[1])
        assert.equal("lost",
          side.ask(name, "release", bad, "1", "0", "publish")[1])
        assert.equal(0, side.ask(name, "peek", bad)[3])
      end
    end
    assert.same({ mode = "write", a = "1", ["a:write"] = "1" }, fields())
  end)
end)

describe("the layout of a read/write lock", function()
  before_each(setup)
  after_each(teardown)

  it("is Redisson's for readers: mode, counts, a key for each hold", function()
    read("a", "30000")
    assert.same({ mode = "read", a = "1" }, fields())
    assert.equal("1", call("GET", hold_key("a", 1)))
    read("a", "20000", "2")
    read("b", "10000")
    assert.same({ mode = "read", a = "2", b = "1" }, fields())
    assert.equal("1", call("GET", hold_key("a", 2)))
    lives(name, 30000)
    lives(hold_key("a", 1), 30000)
    lives(hold_key("b", 1), 10000)
    leave("a", "1", "25000")
    assert.equal(0, call("EXISTS", hold_key("a", 2)))
    lives(hold_key("a", 1), 25000)
    lives(name, 25000)
    leave "a"
    assert.equal(0, call("EXISTS", hold_key("a", 1)))
    lives(name, 10000)
    leave "b"
    assert.equal(0, call("EXISTS", name, index, hold_key("b", 1)))
  end)

  it("is Redisson's for writers: mode and a count, nothing else", function()
    write("a", "30000")
    assert.same({ mode = "write", ["a:write"] = "1" }, fields())
    lives(name, 30000)
    assert.equal(0, call("EXISTS", index))
    write("a", "30000", "2")
    assert.same({ mode = "write", ["a:write"] = "2" }, fields())
    read("a", "10000")
    assert.same({ mode = "write", ["a:write"] = "2", a = "1" }, fields())
    stop_writing "a"
    assert.same({ mode = "read", a = "1" }, fields())
  end)

  it("has no key that stays for ever, in any state", function()
    local function check()
      for _, key in ipairs(call("KEYS", "*" .. name .. "*")) do
        local ttl = call("PTTL", key)
        assert.is_true(ttl > 0 and ttl <= 60000, key .. " " .. ttl)
      end
    end
    for _, step in ipairs {
      function() read "a" end, function() read("a", "60000", "2") end,
      function() read("b", "20000") end,
      function() leave("a", "1", "30000") end,
      function() leave "a" end, function() leave "b" end,
      function() write "c" end, function() read("c", "30000") end,
      function() write("c", "40000", "2") end,
      function() stop_writing("c", "1", "20000") end,
      function() stop_writing "c" end, function() read "d" end,
    } do
      step()
      check()
    end
  end)

  it("lists in its sorted set whose lease ends when", function()
    local before = now_ms()
    read("a", "60000")
    read("b", "20000")
    local ends = tonumber(call("ZSCORE", index, "b"))
    assert.is_true(ends >= before + 20000 and ends <= now_ms() + 20000)
    lives(index, 60000)
    leave "a"
    assert.same({ "b" }, call("ZRANGE", index, 0, -1))
  end)

  it("says 0 when the last reader leaves, 1 when the writer does", function()
    local heard = listen()
    read "a"
    read "b"
    leave "a"
    assert.same({}, { heard[1] })
    leave "b"
    eventually(function() return heard[1] end)
    write "a"
    stop_writing "a"
    eventually(function() return heard[2] end)
    write "a"
    read "a"
    leave "a"
    read "a"
    stop_writing "a"                             -- downgrades to a reader
    eventually(function() return heard[3] end)
    leave "a"
    eventually(function() return heard[4] end)
    read "a"
    reading.ask(name, "break_", "", "publish")
    eventually(function() return heard[5] end)
    write "a"
    writing.ask(name, "break_", "", "publish")
    eventually(function() return heard[6] end)
    assert.same({ "0", "1", "1", "0", "0", "1" }, table.move(heard, 1, 9, 1,
      {}))
  end)

  it("is published where the client's option says", function()
    for option, channels in pairs {
      publish = "publish", spublish = "spublish", both = "publish spublish",
    } do
      call("CONFIG", "RESETSTAT")
      local its = open { publish = option }
      assert.is_true(its:read_write_lock(name):write_lock():lock())
      its:close()
      local stats = call("INFO", "commandstats")
      for command in ("publish spublish"):gmatch("%a+") do
        assert.equal(channels:find("%f[%a]" .. command .. "%f[%A]") ~= nil,
          stats:find("cmdstat_" .. command .. ":", 1, true) ~= nil)
      end
    end
  end)
end)

describe("the leases of a read/write lock", function()
  before_each(setup)
  after_each(teardown)

  it("are never shortened by another reader, a renewal or a second entry",
    function()
      read("a", "60000")
      read("b", "1000")
      lives(name, 60000)
      reading.ask(name, "renew", "a", "1000", "1")
      read("a", "1000", "2")
      lives(name, 60000)
      lives(hold_key("a", 2), 60000)
      write("c", "1000")
      lives(name, 60000)
    end)

  it("end with what is left when the longest is given back", function()
    read("a", "60000")
    read("b", "20000")
    read("c", "30000")
    leave "a"
    lives(name, 30000)
    leave "b"
    lives(name, 30000)
    read("c", "50000", "2")
    lives(name, 50000)
    leave("c", "1", "25000")
    lives(name, 25000)
    leave("c", "1", "40000")             -- a remaining hold may need more
    lives(name, 40000)
    lives(index, 40000)
  end)

  it("of a writer that reads are its own: each ends when it must", function()
    write("a", "20000")
    read("a", "60000")
    lives(name, 60000)
    leave "a"
    lives(name, 20000)
    assert.equal(0, call("EXISTS", index))
    read("a", "10000")
    lives(name, 20000)
    write("a", "40000", "2")
    lives(name, 40000)
    stop_writing("a", "1", "30000")
    lives(name, 30000)
    writing.ask(name, "renew", "a", "50000", "1")
    lives(name, 50000)
    stop_writing "a"
    lives(name, 10000)
  end)

  it("of a reader that is dead ends its hold, while others read on", function()
    read "a"
    read "b"
    age(1, "a")
    assert.equal("lost", reading.ask(name, "renew", "a", "60000", "1")[1])
    assert.equal("lost", read("a", "60000", "2"))
    assert.equal(0, reading.ask(name, "peek", "a")[3])
    assert.equal("lost", leave "a")
    assert.same({ mode = "read", b = "1" }, fields())
    read "c"
    age(1, "b")
    assert.equal("busy", write "b")              -- no upgrade
    read "d"
    leave "d"
    assert.equal("held", read "b")               -- a new hold
    assert.same({ mode = "read", b = "1", c = "1" }, fields())
    lives(hold_key("b", 1), 60000)
  end)

  it("of dead readers leave nothing behind, while others come and go",
    function()
      for i = 1, 200 do read("dead " .. i, "60000") end
      local dead = {}
      for i = 1, 200 do dead[i] = "dead " .. i end
      age(1, table.unpack(dead))
      for i = 1, 100 do
        read("alive " .. i)
        if i > 1 then leave("alive " .. (i - 1)) end
      end
      assert.same({ mode = "read", ["alive 100"] = "1" }, fields())
      assert.equal(1, call("ZCARD", index))
    end)

  it("of dead readers do not keep a writer out when the last live one leaves",
    function()
      for i = 1, 20 do read("dead " .. i) end
      read "alive"
      for i = 1, 20 do age(1, "dead " .. i) end
      assert.equal("busy", write "w")
      leave "alive"
      assert.equal("held", write "w")
    end)

  it("of a dead reader keep a writer out no longer than they last", function()
    read("dead", "300")
    read("alive", "60000")
    local waiting = waits(writer)
    local took = seconds(function()
      leave "alive"
      assert.is_true(waiting:join(5 * slow))
    end)
    assert.is_true(took > 0.2 and took < 0.35 + SLACK, "took " .. took)
  end)

  it("of a writer that reads on let others read when they are over", function()
    write("a", "30000")
    read("a", "60000")
    assert.equal("busy", read "b")
    age(1, "a:write")
    assert.equal("held", read "b")
    assert.same({ mode = "read", a = "1", b = "1" }, fields())
    assert.equal("lost", writing.ask(name, "renew", "a", "1000", "1")[1])
  end)

  it("tell a reader how long a writer that reads on will write", function()
    write("a", "30000")
    read("a", "60000")
    local reply = reading.ask(name, "acquire", "b", "60000", "1")
    assert.is_true(reply[2] > 29000 and reply[2] <= 30000)
    reply = writing.ask(name, "acquire", "b", "60000", "1")
    assert.is_true(reply[2] > 59000 and reply[2] <= 60000)
  end)

  it("of the reading of a writer that are over do not end its writing",
    function()
      write("a", "60000")
      read("a", "30000")
      age(1, "a")
      assert.equal("held", writing.ask(name, "renew", "a", "60000", "1")[1])
      assert.same({ mode = "write", ["a:write"] = "1" }, fields())
      assert.equal(0, call("EXISTS", index))
      lives(name, 60000)
      read("a", "30000")
      age(1, "a")
      assert.equal("busy", read "b")
      assert.same({ mode = "write", ["a:write"] = "1" }, fields())
      assert.equal("freed", stop_writing "a")
      assert.is_true(is_gone())
    end)

  it("of a writer that both reads and writes can be over for its own next "
    .. "request", function()
      write("a", "30000")
      read("a", "60000")
      age(1, "a:write")
      assert.equal("lost", stop_writing "a")
      assert.same({ mode = "read", a = "1" }, fields())
      assert.equal("refused", write "a")
    end)
end)

describe("a read/write lock that Redisson uses too", function()
  before_each(setup)
  after_each(teardown)

  it("is not wiped out under our reader by the unlock of theirs", function()
    java.read("java:1", 30000)
    read("a", "40000")
    read("a", "40000", "2")
    java.leave "java:1"
    assert.same({ mode = "read", a = "2" }, fields())
    lives(name, 40000)
    reading.ask(name, "renew", "a", "60000", "2")
    java.read("java:1", 30000)
    java.leave "java:1"
    lives(name, 60000)
    leave("a", "1", "20000")
    java.read("java:1", 30000)
    java.leave "java:1"
    lives(name, 20000)
    leave "a"
    assert.is_true(is_gone())
  end)

  it("is freed by their last reader when ours is dead", function()
    read("a", "20000")
    java.read("java:1", 30000)
    age(1, "a")
    java.leave "java:1"
    assert.equal(0, call("EXISTS", name))
    assert.equal("held", write "b")
  end)

  it("lasts as long as their readers need, whoever of ours leaves", function()
    read("a", "60000")
    java.read("java:1", 30000)
    leave "a"
    assert.same({ mode = "read", ["java:1"] = "1" }, fields())
    lives(name, 30000)
    java.renew("java:1", 50000)
    read("b", "20000")
    leave "b"
    lives(name, 50000)
    java.leave "java:1"
    assert.equal("held", write "c")
  end)

  it("lasts as long as the last hold of their readers", function()
    java.read("java:1", 30000)
    java.read("java:1", 50000, 2)
    read("a", "60000")
    leave "a"
    lives(name, 50000)
  end)

  it("is not shortened for ours while theirs cannot all be found", function()
    for i = 1, 1000 do java.read("java:" .. i, 30000) end
    read("a", "60000")
    leave "a"
    lives(name, 60000)
    assert.equal(1001, call("HLEN", name))
  end)

  it("loses their dead readers, however many ours keep it alive", function()
    for i = 1, 40 do java.read("java:" .. i, 30000) end
    java.read("java:alive", 30000)
    read("a", "60000")
    for i = 1, 40 do call("DEL", hold_key("java:" .. i, 1)) end
    for i = 1, 500 do
      read("b" .. i)
      leave("b" .. i)
      if call("HLEN", name) == 3 then break end
    end
    assert.same({ mode = "read", a = "1", ["java:alive"] = "1" }, fields())
    leave "a"
    lives(name, 30000)
  end)

  it("is free when our last reader leaves their dead ones alone", function()
    java.read("java:1", 30000)
    read("a", "60000")
    call("DEL", hold_key("java:1", 1))
    local heard = listen()
    leave "a"
    assert.is_true(is_gone())
    eventually(function() return heard[1] == "0" end)
  end)

  it("takes no notice of what we knew of a lock that they deleted", function()
    read("a", "60000")
    read("b", "50000")
    call("DEL", name)                            -- a forced release
    java.read("java:1", 30000)
    assert.equal("lost", reading.ask(name, "renew", "a", "60000", "1")[1])
    read("c", "10000")
    assert.same({ "c" }, call("ZRANGE", index, 0, -1))
    leave "c"
    lives(name, 30000)
    assert.same({ mode = "read", ["java:1"] = "1" }, fields())
    read("a", "60000")
    call("DEL", name)
    read("b", "20000")
    assert.same({ "b" }, call("ZRANGE", index, 0, -1))
    lives(name, 20000)
    call("DEL", name)
    assert.is_true(java.write("java:1", 30000))
    assert.equal("busy", read "a")
    assert.equal("busy", write "a")
  end)

  it("keeps out both sides while they write, and their writer while we do",
    function()
      assert.is_true(java.write("java:1", 30000))
      assert.equal("busy", read "a")
      assert.equal("busy", write "a")
      java.stop_writing "java:1"
      assert.equal("held", read "a")
      assert.is_false(java.write("java:1", 30000))
      leave "a"
      write "a"
      assert.is_false(java.write("java:1", 30000))
      stop_writing "a"
      assert.is_true(java.write("java:1", 30000))
    end)

  it("leaves no ghost when a writer of theirs that also read stops", function()
    java.write("java:1", 30000)
    java.read("java:1", 30000)
    assert.equal("busy", read "a")
    java.stop_writing "java:1"
    assert.equal("held", read "a")
    java.leave "java:1"
    leave "a"
    assert.is_true(is_gone())
  end)

  it("wakes all of our readers by their 1", function()
    java.write("java:1", 600000)
    local done = 0
    for _ = 1, 20 do
      task.start(function()
        assert(reader:lock { wait = 20 })
        done = done + 1
      end)
    end
    eventually(function() return subscribers() > 0 end)
    rlock.sleep(0.05)
    assert.equal(0, done)
    java.stop_writing "java:1"
    assert.is_true(seconds(function()
      eventually(function() return done == 20 end)
    end) < SLACK)
  end)
end)

describe("a read hold beside a watchdog of Redisson", function()
  local WATCHDOG = 0.6 * slow
  local THEIRS = 1.5 * slow
  local LEASE = 10 * slow
  local its

  before_each(function()
    setup()
    its = open { watchdog = WATCHDOG }
    reader = its:read_write_lock(name):read_lock()
  end)
  after_each(function()
    its:close()
    teardown()
  end)

  -- Redisson's reader renews the lock once more, and dies.
  local function java_dies()
    java.read("java:1", 30000)
    java.watch(1000 * THEIRS)
  end

  local function owner_of_ours()
    for field in pairs(fields()) do
      if field ~= "mode" and field ~= "java:1" then return field end
    end
  end

  it("gets its lease back when their watchdog is dead", function()
    assert.is_true(reader:lock { lease = LEASE })
    local owner = owner_of_ours()
    local before = call("ZSCORE", index, owner)
    java_dies()
    eventually(function()
      return call("PTTL", name) > 5000 * slow
        and call("PTTL", hold_key(owner, 1)) > 5000 * slow
    end, THEIRS)
    eventually(function() return call("EXISTS", hold_key("java:1", 1)) == 0 end)
    assert.equal("busy", write "b")
    assert(call("PTTL", name) <= tonumber(before) - now_ms() + 100 * slow)
    assert.equal(before, call("ZSCORE", index, owner))
    java.read("java:2", 1000)
    java.leave "java:2"
    assert(call("PTTL", name) > 5000 * slow)
    assert.is_true(reader:unlock())
    assert.is_true(is_gone())
  end)

  it("keeps the longest of its leases, and no longer", function()
    assert.is_true(reader:lock { lease = LEASE })
    assert.is_true(reader:lock { lease = 2 * slow })
    local owner = owner_of_ours()
    local before = call("ZSCORE", index, owner)
    assert.is_true(reader:unlock())
    java_dies()
    eventually(function() return call("PTTL", name) > 5000 * slow end, THEIRS)
    assert(tonumber(call("ZSCORE", index, owner)) <= tonumber(before) + 1)
    assert.is_true(reader:unlock())
  end)

  it("ends with its lease, though it is restated until then", function()
    local lost = {}
    assert.is_true(reader:lock { lease = 2 * slow })
    assert.is_true(reader:on_lost(function(_, why) lost[#lost + 1] = why end))
    local owner = owner_of_ours()
    local before = call("ZSCORE", index, owner)
    local renewed = 0
    eventually(function()
      call("PEXPIRE", name, 5000 * slow)
      assert.equal(before, call("ZSCORE", index, owner) or before)
      if reader:state() == "held" then renewed = renewed + 1 end
      return lost[1]
    end, 5 * slow)
    assert.equal("its lease has ended", lost[1])
    assert(math.abs(now_ms() - tonumber(before)) < 1000 * slow)
    assert(renewed > 1)
    assert.equal("lost", select(2, reader:unlock()))
    assert.equal(1, #lost)
  end)

  it("learns that it was broken before its lease ends", function()
    local lost
    assert.is_true(reader:lock { lease = 60 })
    assert.is_true(reader:on_lost(function(_, why) lost = why end))
    call("DEL", name, index)
    eventually(function() return lost end, WATCHDOG + SLACK)
    assert.equal("lost", reader:state())
    assert.equal(0, reader:valid_for())
    assert.equal("lost", select(2, reader:unlock()))
  end)

  it("is not restated for a lease that ends before that is needed", function()
    local calls = server:stat "evalsha"
    assert.is_true(reader:lock { lease = 0.2 * slow })
    eventually(function() return reader:valid_for() == 0 end)
    rlock.sleep(WATCHDOG / 3)
    assert.equal(calls + 1, (server:stat "evalsha"))
    assert.equal("lost", select(2, reader:unlock()))
  end)

  it("costs a writer nothing: its lease is not restated", function()
    writer = its:read_write_lock(name):write_lock()
    assert.is_true(writer:lock { lease = 60 })
    local calls = server:stat "evalsha"
    rlock.sleep(WATCHDOG)
    assert.equal(calls, (server:stat "evalsha"))
    assert.is_true(writer:unlock())
  end)

  it("is no longer by a restatement that comes late", function()
    read("a", "20000")
    call("PEXPIRE", name, 5000)
    assert.same({ "held" }, reading.ask(name, "renew", "a", "60000", "1", "1"))
    lives(name, 20000)
    lives(hold_key("a", 1), 20000)
    lives(index, 20000)
    call("DEL", index)               -- and with it the ends of the leases
    assert.same({ "held" }, reading.ask(name, "renew", "a", "30000", "1", "1"))
    lives(name, 30000)
  end)
end)

describe("a read/write lock that loses a key or finds another", function()
  before_each(setup)
  after_each(teardown)

  it("respects its readers without the sorted set", function()
    read("a", "60000")
    read("b", "30000")
    call("DEL", index)
    assert.equal("busy", write "c")
    leave "a"
    lives(name, 30000)
    assert.equal("held", reading.ask(name, "renew", "b", "40000", "1")[1])
    lives(name, 40000)
    assert.same({ "b" }, call("ZRANGE", index, 0, -1))
    leave "b"
    assert.is_true(is_gone())
  end)

  it("lets its writer go on without the sorted set", function()
    write("a", "60000")
    read("a", "30000")
    call("DEL", index)
    assert.equal("held", reading.ask(name, "renew", "a", "30000", "1")[1])
    assert.equal("held", writing.ask(name, "renew", "a", "30000", "1")[1])
    assert.equal("busy", read "b")
    call("DEL", index)
    assert.equal("freed", leave "a")
    assert.same({ mode = "write", ["a:write"] = "1" }, fields())
    lives(name, 60000)
    read("a", "30000")
    call("DEL", index)
    assert.equal("freed", stop_writing "a")
    assert.same({ mode = "read", a = "1" }, fields())
    lives(name, 30000)
  end)

  it("counts a reader's hold by the hash, not by its hold keys", function()
    read("a", "60000")
    call("DEL", hold_key("a", 1))
    assert.equal("held", reading.ask(name, "renew", "a", "60000", "1")[1])
    lives(hold_key("a", 1), 60000)
  end)

  it("says what is wrong when a key is something else", function()
    local function wrong(side, op, ...)
      local reply, code, detail = side.ask(name, op, ...)
      assert.is_nil(reply)
      assert.equal("redis", code)
      assert.matches("WRONGTYPE", detail)
    end
    local before
    local function all_wrong(both)
      wrong(reading, "acquire", "a", "1000", "1")
      if not both then return end
      wrong(writing, "acquire", "a", "1000", "1")
      wrong(reading, "release", "a", "1", "0", "publish")
      wrong(writing, "release", "a", "1", "0", "publish")
      wrong(reading, "renew", "a", "1000", "1")
      wrong(writing, "renew", "a", "1000", "1")
      wrong(reading, "peek", "a")
      wrong(reading, "break_", "", "publish")
    end
    call("SET", name, "a string")
    all_wrong(true)
    assert.equal("a string", call("GET", name))
    call("DEL", name)
    call("SET", index, "a string")
    all_wrong()
    assert.equal(0, call("EXISTS", name))
    call("DEL", index)
    read "a"
    read "b"
    call("SET", index, "a string")
    before = fields()
    all_wrong()
    wrong(reading, "renew", "a", "1000", "1")
    wrong(reading, "release", "a", "1", "0", "publish")
    assert.same(before, fields())
    call("DEL", index)
    call("DEL", hold_key("a", 1))
    call("LPUSH", hold_key("a", 1), "not a string")
    assert.equal("held", reading.ask(name, "renew", "a", "60000", "1")[1])
    assert.equal("1", call("GET", hold_key("a", 1)))
  end)

  it("is not had by anybody while a plain lock of its name is held", function()
    local plain = client:lock(name)
    assert.is_true(plain:lock { lease = 60 })
    local before = fields()
    assert.equal("busy", read "a")
    assert.equal("busy", write "a")
    assert.same(before, fields())
    assert.is_true(plain:unlock())
    assert.equal("held", read "a")
    call("HDEL", name, "mode")
    call("PERSIST", name)
    assert.same({ "busy", -1 }, reading.ask(name, "acquire", "b", "60000", "1"))
  end)

  it("does not go astray by a count that is none", function()
    for _, odd in ipairs { "x", "-1", "1e300", "0.5", "" } do
      call("HSET", name, "mode", "read", "odd", odd)
      call("PEXPIRE", name, 60000)
      assert.equal("held", read "a")
      assert.equal("freed", leave "a")
      assert.equal("held", read "odd")
      call("HSET", name, "odd", odd)
      assert.equal("freed", leave "odd")
      assert.is_true(is_gone())
    end
  end)

  it("gives an expiry to a lock that has none", function()
    call("HSET", name, "mode", "read", "java:1", "1")
    assert.equal(-1, writing.ask(name, "acquire", "a", "1000", "1")[2])
    read("a", "60000")
    lives(name, 60000)
  end)
end)

describe("a read/write lock", function()
  before_each(setup)
  after_each(teardown)

  it("wakes a writer when the last reader leaves", function()
    assert.is_true(reader:lock())
    local waiting = waits(writer)
    assert.is_true(reader:unlock())
    assert.is_true(seconds(function() waiting:join(5) end) < SLACK)
  end)

  it("refuses to let a reader write, instead of waiting for itself", function()
    assert.is_true(reader:lock())
    local ok, code, detail = writer:lock { wait = 60 }
    assert.same({ nil, "refused" }, { ok, code })
    assert.matches("upgrade", detail)
    assert.is_true(reader:is_held())
    assert.is_true(reader:unlock())
    assert.is_true(writer:lock())
  end)

  it("keeps a writer that goes on as a reader alive, either way", function()
    local watched = open { watchdog = 0.6 * slow }
    local its = watched:read_write_lock(name)
    local ours, theirs = its:read_lock(), its:write_lock()
    assert.is_true(theirs:lock())
    assert.is_true(ours:lock())
    assert.is_true(ours:unlock())                    -- keeps writing
    local ends = rlock.now() + 1.2 * slow
    while rlock.now() < ends do
      assert.equal("busy", select(2, reader:try_lock()))
      rlock.sleep(0.05)
    end
    assert.is_true(ours:lock())
    assert.is_true(theirs:unlock())                  -- keeps reading
    ends = rlock.now() + 1.2 * slow
    while rlock.now() < ends do
      assert.equal("busy", select(2, writer:try_lock()))
      rlock.sleep(0.05)
    end
    assert.equal("held", ours:state())
    assert.is_true(ours:unlock())
  end)

  it("uses the tag of its name, where it has one", function()
    for _, odd in ipairs { "{test}:abc:key", "plain", "a{b", "x{}y" } do
      local its = client:read_write_lock(odd):read_lock()
      assert.is_true(its:lock { lease = 10 })
      local prefix = odd:find("{", 1, true) and odd or "{" .. odd .. "}"
      local owner = call("ZRANGE", "rlock_rw_holds:" .. prefix, 0, 0)[1]
      assert.equal("1", call("GET",
        prefix .. ":" .. owner .. ":rwlock_timeout:1"))
      assert.is_true(its:unlock())
      assert.equal(0, call("EXISTS", odd))
    end
  end)

  it("forgets what was asked when the answers are lost, on either side",
    function()
      local proxy = fixtures.proxy(server)
      local cut = open { url = proxy.url, timeout = 0.3 * slow }
      local its = cut:read_write_lock(name)
      assert.is_true(its:write_lock():lock())
      proxy:cut(1)
      assert.is_true(its:read_lock():lock())         -- retried
      assert.same({ 1, 1 }, { its:write_lock():hold_count(),
        its:read_lock():hold_count() })
      proxy:cut(1)
      assert.is_true(its:write_lock():unlock())
      assert.equal("busy", select(2, writer:try_lock()))
      assert.is_true(reader:try_lock())
      assert.is_true(reader:unlock())
      proxy:cut(1)
      assert.is_true(its:read_lock():unlock())
      assert.is_true(writer:try_lock())
    end)
end)

describe("a task that holds one side of a read/write lock", function()
  local proxy, cut, its, another

  before_each(function()
    setup()
    proxy = fixtures.proxy(server)
    cut = open { url = proxy.url, timeout = 0.3 * slow }
    its = cut:read_write_lock(name)
    another = cut:read_write_lock(name .. ":another")
    assert.is_true(its:write_lock():lock())
  end)

  after_each(function()
    proxy:thaw()
    teardown()
  end)

  it("is the same owner to the other side, whatever became of its requests "
    .. "for other locks", function()
      proxy:freeze()
      assert.equal("timeout", select(2, another:read_lock():try_lock()))
      proxy:thaw()
      assert.is_true(its:read_lock():lock { wait = 10 })
      assert.is_true(its:write_lock():unlock())
      assert.is_true(reader:try_lock())
      assert.is_true(its:read_lock():unlock())
    end)

  it("gets the other side though nobody knows what became of the first "
    .. "request for it, and keeps it", function()
      proxy:freeze()
      assert.equal("timeout", select(2, its:read_lock():try_lock()))
      proxy:thaw()
      assert.is_true(its:read_lock():lock { wait = 10 })
      assert.is_true(its:write_lock():unlock())
      eventually(function() return cut.session.pending == 0 end)
      assert.same({ 0, 1 }, { its:write_lock():hold_count(),
        its:read_lock():hold_count() })
      assert.equal("busy", select(2, writer:try_lock()))
    end)
end)

describe("what a read/write lock costs the server", function()
  before_each(setup)
  after_each(teardown)

  local function commands(fn) return states.commands(client, fn) end

  it("does not grow with the readers", function()
    local most = {}
    read "warm"
    write "warm"
    for _, readers in ipairs { 10, 1000 } do
      for i = 1, readers do read("reader " .. i) end
      read("one more", "30000")
      leave "one more"
      read("one more", "30000")
      most[#most + 1] = commands(function() leave "one more" end)
      most[#most + 1] = commands(function()
        read("one more", "30000")
      end)
      most[#most + 1] = commands(function() write "a writer" end)
    end
    assert.same(table.move(most, 1, 3, 1, {}), table.move(most, 4, 6, 1, {}))
    assert.is_true(most[1] <= 10 and most[2] <= 9 and most[3] <= 2)
  end)

  it("does not grow with the writers that wait: one is woken at a time",
    function()
      local all, begun = {}, server:stat("evalsha")
      write "a"
      for i = 1, 30 do
        all[i] = task.start(function()
          assert.is_true(writer:lock { wait = 30 * slow })
          return writer:unlock()
        end)
      end
      eventually(function() return server:stat("evalsha") > begun + 30 end)
      local asked = server:stat("evalsha")
      stop_writing "a"
      for i = 1, 30 do assert.is_true(all[i]:join(30 * slow)) end
      asked = server:stat("evalsha") - asked
      assert.is_true(asked <= 5 * 30, "asked " .. asked)
    end)

  it("is little for who is alone", function()
    read "warm"
    leave "warm"
    write "warm"
    stop_writing "warm"
    assert.equal(4, commands(function() write "a" end))
    assert.equal(3, commands(function() stop_writing "a" end))
    assert.equal(9, commands(function() read "a" end))
    assert.equal(4, commands(function() leave "a" end))
    for want = 1, 2 do read("a", "60000", tostring(want)) end
    assert.equal(11, commands(function() leave("a", "1", "70000") end))
    assert.equal(11, commands(function() leave("a", "1", "5000") end))
  end)
end)

require "spec.rows.readwrite" ("readwrite", describe, it, before_each,
  after_each)
for _, kind in ipairs { "read", "write" } do
  require "spec.rows.rlock" (kind, describe, it, before_each,
    after_each)
end
