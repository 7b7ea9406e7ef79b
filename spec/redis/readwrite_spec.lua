--- The read/write lock on a real Redis: its keys, and what it costs among many
--- readers. spec/check/readwrite_spec.lua has the operations at exact times.

local fixtures = require "spec.tools.fixtures"
local readwrite = require "rlock.policy.readwrite"
local redis = require "spec.tools.redis"
local states = require "spec.tools.states"

local server = redis.shared()
local client, name, index, reading, writing

local function call(...)
  return (assert(client:call(...)))
end

local function read(owner, lease, want)
  return assert(reading.ask(name, "acquire", owner, lease or "60000",
    want or "1"))[1]
end

local function write(owner)
  return assert(writing.ask(name, "acquire", owner, "60000", "1"))[1]
end

local function leave(owner, want, lease)
  return assert(reading.ask(name, "release", owner, lease or "1", want or "0",
    "publish"))[1]
end

local function stop_writing(owner)
  return assert(writing.ask(name, "release", owner, "1", "0", "publish"))[1]
end

local function setup()
  client, name = fixtures.open { url = server.url }, fixtures.name "readwrite"
  index = "rlock_rw_holds:{" .. name .. "}"
  reading = states.of(client, readwrite.read)
  writing = states.of(client, readwrite.write)
end

local function teardown()
  call("DEL", name, index)
  fixtures.close()
end

describe("a read/write lock", function()
  before_each(setup)
  after_each(teardown)

  it("lists only the first of very many readers", function()
    for i = 1, 1000 do read("reader " .. i) end
    local reply = reading.ask(name, "peek", "reader 7")
    assert.same({ "held", 1 }, { reply[1], reply[3] })
    assert.is_true(#reply[4] >= 20 and #reply[4] <= 200)
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
