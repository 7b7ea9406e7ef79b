--- client:compute on a real Redis: one computation for many callers, in tasks,
--- in clients and in processes.

local control = require "spec.tools.control"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local program = require "spec.tools.program"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local rows = require "spec.rows.compute"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local MOST = 1048576
local PATIENCE = 20 * slow
local SHORT = 1.5 * slow
local LONG = { ttl = 600 }

local server, name

local function open(options)
  return fixtures.open({ url = server.url }, options)
end

local function ask(...) return control.ask(server, ...) end

before_each(function()
  server, name = redis.shared(), fixtures.name "compute"
end)

after_each(fixtures.close)

describe("the function of client:compute", function()
  for _, row in ipairs(rows) do
    it(row[1], function() row[2](open, name, MOST) end)
  end
end)

-- The clients of a program with tasks that compute. Each computation is an item
-- of the list NAME:made.
local MANY = [[
  local rlock = require "rlock"
  local client = assert(rlock.open { watchdog = tonumber(arg[2]) })
  for i = 1, tonumber(arg[3]) do
    rlock.spawn(function()
      print(assert(client:compute(arg[1], { ttl = 600 }, function()
        client:call("RPUSH", arg[1] .. ":made", i)
        while client:call("EXISTS", arg[1] .. ":go") == 0 do
          rlock.sleep(0.01)
        end
        return "the value"
      end)))
    end)
  end]]

-- Starts a program, with this option `watchdog`.
local function start(script, watchdog, ...)
  return program.start(server, "-e", script, name, ("%g"):format(watchdog), ...)
end

-- How often it was computed.
local function made() return ask("LLEN", name .. ":made") end

describe("client:compute in several processes", function()
  it("computes once for 100 callers", function()
    local all = {}
    for i = 1, 4 do all[i] = start(MANY, 60, "25") end
    eventually(function() return made() == 1 end, PATIENCE)
    ask("SET", name .. ":go", "1")
    for _, each in ipairs(all) do
      assert.equal(0, (each:wait(PATIENCE)))
      assert.equal(25, select(2, each:output():gsub("the value", "")))
    end
    assert.equal(1, made())
  end)

  it("computes in another one when the first is killed", function()
    local one = start(MANY, SHORT, "5")
    eventually(function() return made() == 1 end, PATIENCE)
    local two = start(MANY, 60, "5")
    local channel = "redisson_lock__channel:rlock_compute:{" .. name .. "}"
    eventually(function()
      return ask("PUBSUB", "NUMSUB", channel)[2] == 1
    end, PATIENCE)
    one:kill(9)
    one:wait(PATIENCE)
    eventually(function() return made() == 2 end, PATIENCE)
    ask("SET", name .. ":go", "1")
    assert.equal(0, (two:wait(PATIENCE)))
    assert.equal(5, select(2, two:output():gsub("the value", "")))
  end)

  it("keeps a newer value when a paused process resumes", function()
    local paused = start([[
      local client = assert(require("rlock").open { watchdog = arg[2] + 0 })
      print(client:compute(arg[1], { ttl = 600 }, function()
        client:call("RPUSH", arg[1] .. ":made", "paused")
        os.execute("while [ ! -e " .. arg[3] .. " ]; do sleep 0.02; done")
        return "late"
      end))]], SHORT, server.folder .. "/go")
    eventually(function() return made() == 1 end, PATIENCE)
    assert.equal("newer", (open():compute(name, LONG, function()
      return "newer"
    end)))
    assert(io.open(server.folder .. "/go", "w")):close()
    assert.equal(0, (paused:wait(PATIENCE)))
    assert.matches("late\tcomputed\tnot stored: lost: ", paused:output())
    assert.equal("newer", ask("GET", "rlock_compute:{" .. name .. "}:value"))
  end)
end)

describe("the requests of client:compute", function()
  before_each(function() server = fixtures.server() end)

  it("are one for a value, without a lock", function()
    local client = open()
    assert(client:compute(name, LONG, function() return "value" end))
    ask("CONFIG", "RESETSTAT")
    for _ = 1, 10 do assert(client:compute(name, LONG, error)) end
    assert.equal(10, (server:stat "mget"))
    assert.equal(0, (server:stat "evalsha"))
  end)

  it("are one for each client that waits, when the value is there", function()
    local one, go, is_computing, others = open(), rlock.event(), nil, {}
    local first = task.start(function()
      return one:compute(name, LONG, function()
        is_computing = true
        go:wait(PATIENCE)
        return "value"
      end)
    end)
    eventually(function() return is_computing end, PATIENCE)
    for i = 1, 50 do
      others[i] = { client = i % 5 == 1 and open() or others[i - 1].client }
      others[i].task = task.start(function()
        return others[i].client:compute(name, LONG, error)
      end)
    end
    -- Each has asked for the lock again, after its subscription.
    eventually(function() return server:stat "evalsha" >= 1 + 2 * 10 end,
      PATIENCE)
    eventually(function()
      for i = 1, 50, 5 do
        local _, channel = next(others[i].client.session.wakeup.channels)
        if not channel or not channel.first or channel.first.is_woken then
          return false
        end
      end
      return true
    end, PATIENCE)
    ask("CONFIG", "RESETSTAT")
    go:set()
    for _, each in ipairs(others) do
      assert.equal("value", (each.task:join(PATIENCE)))
    end
    assert.equal("value", (first:join(PATIENCE)))
    assert.equal(10, (server:stat "mget"))
    -- The guarded write, loaded once, and the release.
    assert.is_true(server:stat "evalsha" + server:stat "eval" <= 3)
  end)

  it("go to the node that has the name, in a cluster", function()
    local url = fixtures.cluster().url
    local one, two = fixtures.open(url), fixtures.open(url)
    for i = 1, 5 do
      local its = ("%s %d"):format(name, i)
      assert.same({ its, "computed" }, { one:compute(its, LONG, function()
        return its
      end) })
      assert.same({ its, "cached" }, { two:compute(its, LONG, error) })
    end
  end)

  it("name keys in one slot, which expire", function()
    local client = open()
    assert(client:compute(name, { ttl = 100, stale = 50 }, function()
      return "value"
    end))
    local key = "rlock_compute:{" .. name .. "}"
    local keys = ask("KEYS", "*")
    table.sort(keys)
    assert.same({ key .. ":state", key .. ":value" }, keys)
    assert.equal("value", ask("GET", key .. ":value"))
    local value, state = ask("PTTL", key .. ":value"),
      ask("PTTL", key .. ":state")
    assert.is_true(state > 50000 and state <= 100000)
    assert.is_true(value > 100000 and value <= 150000)
  end)
end)
