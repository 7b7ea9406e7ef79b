--- The read/write lock on a real Redis: who may read and write when, Redisson's
--- layout and behaviours, simulated Redisson readers and writers of the same
--- lock, and the cost of a reader among many. spec/check/readwrite_spec.lua has
--- the leases, at exact times.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local readwrite = require "rlock.policy.readwrite"
local redis = require "spec.tools.redis"
local slow = require "spec.tools.slow"
local states = require "spec.tools.states"
local task = require "spec.tools.task"

local LONG = 30 * slow            -- seconds for what must happen earlier

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
    return lock:lock(options or { wait = LONG })
  end)
  eventually(function() return subscribers() > 0 end)
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

  it("follow the rules in any order", function()
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

  it("list only the first of very many readers", function()
    for i = 1, 1000 do read("reader " .. i) end
    local reply = reading.ask(name, "peek", "reader 7")
    assert.same({ "held", 1 }, { reply[1], reply[3] })
    assert.is_true(#reply[4] >= 20 and #reply[4] <= 200)
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

describe("a read/write lock that Redisson uses too", function()
  before_each(setup)
  after_each(teardown)

  it("is not deleted under our reader when theirs unlocks", function()
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

  it("drops their dead readers while ours keep it alive", function()
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
end)

describe("a read hold beside a watchdog of Redisson", function()
  local WATCHDOG = 1.5 * slow
  local THEIRS = 3 * slow
  local LEASE = 30 * slow
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

  it("gets its lease back if their watchdog is dead", function()
    assert.is_true(reader:lock { lease = LEASE })
    local owner = owner_of_ours()
    local before = call("ZSCORE", index, owner)
    java_dies()
    eventually(function()
      return call("PTTL", name) > 10000 * slow
        and call("PTTL", hold_key(owner, 1)) > 10000 * slow
    end, LEASE)
    eventually(function()
      return call("EXISTS", hold_key("java:1", 1)) == 0
    end, LEASE)
    assert.equal("busy", write "b")
    assert(call("PTTL", name) <= tonumber(before) - now_ms() + 100 * slow)
    assert.equal(before, call("ZSCORE", index, owner))
    java.read("java:2", 1000)
    java.leave "java:2"
    assert(call("PTTL", name) > 10000 * slow)
    assert.is_true(reader:unlock())
    assert.is_true(is_gone())
  end)
end)

describe("a read/write lock with a missing or foreign key", function()
  before_each(setup)
  after_each(teardown)

  it("reports a key of the wrong type", function()
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

  it("is not misled by a malformed count", function()
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
end)

describe("a read/write lock", function()
  before_each(setup)
  after_each(teardown)

  it("wakes a writer when the last reader leaves", function()
    assert.is_true(reader:lock())
    local waiting = waits(writer)
    assert.is_true(reader:unlock())
    assert.is_true(waiting:join(LONG))
  end)

  it("refuses to let a reader write, which would deadlock", function()
    assert.is_true(reader:lock())
    local ok, code, detail = writer:lock { wait = 60 }
    assert.same({ nil, "refused" }, { ok, code })
    assert.matches("upgrade", detail)
    assert.is_true(reader:is_held())
    assert.is_true(reader:unlock())
    assert.is_true(writer:lock())
  end)

  it("uses the hash tag of its name, if there is one", function()
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

  it("is low without contention", function()
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
    assert.equal(12, commands(function() leave("a", "1", "5000") end))
  end)
end)

require "spec.rows.readwrite" ("readwrite", describe, it, before_each,
  after_each)
for _, kind in ipairs { "read", "write" } do
  require "spec.rows.rlock" (kind, describe, it, before_each,
    after_each)
end
