--- Mutual exclusion, counted: nginx workers and rlockctl increment a number
--- that only the lock protects, and no update is lost although workers are
--- killed.
---
--- RLOCK_ROUNDS is the number of updates: 5000 by default, 20000 in
--- make soak.
--- #long

local eventually = require "spec.tools.eventually"
local nginx = require "spec.tools.nginx"
local process = require "spec.tools.process"
local redis = require "spec.tools.redis"
local rlockctl = require "spec.tools.rlockctl"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"

local ROUNDS = tonumber(os.getenv("RLOCK_ROUNDS") or 5000)
local LEASE = 3 * slow
local THREADS = 30              -- requests in flight
local TASKS = 10                -- in rlockctl
local KILLS = 5

local HTTP = [[
  init_worker_by_lua_block {
    locks = assert(require("resty.rlock").open { url = "%s", watchdog = %g })
    add_up = require "spec.tools.add_up"
  }
]]

local LOCATIONS = [[
  location = /add { content_by_lua_block {
    add_up(locks, 20)
    ngx.print("added")
  } }
]]

-- Each task increments until the number is reached.
local SCRIPT = [[
  local rlock = require "rlock"
  local add_up = require "spec.tools.add_up"
  local client = assert(rlock.open { watchdog = tonumber(arg[2]) })
  for _ = 1, tonumber(arg[1]) do
    rlock.spawn(function()
      repeat
        add_up(client, 20)
      until tonumber(client:call("GET", "sum:number")) >= tonumber(arg[3])
    end)
  end]]

describe("The workers of nginx and rlockctl", function()
  local server, web, client, is_over

  setup(function()
    server = redis.start()
    client = require("resty.rlock").open(server.url)
    web = nginx.start {
      workers = 2, http = HTTP:format(server.url, LEASE),
      locations = LOCATIONS,
    }
  end)

  teardown(function()
    is_over = true
    web:stop()
    server:stop()
  end)

  local function number()
    return tonumber(client:call("GET", "sum:number") or 0)
  end

  -- Sends requests until the number is reached or the spec has failed. A killed
  -- worker does not respond.
  local function request()
    local statuses = {}
    repeat
      local ok, status = pcall(web.get, web, "/add")
      status = ok and status or "none"
      statuses[status] = (statuses[status] or 0) + 1
      if not ok then ngx.sleep(0.01) end
    until is_over or number() >= ROUNDS
    return statuses
  end

  it("lose none of many updates, though workers are killed", function()
    local counting = process.start {
      file = "env", stdout = server.folder .. "/out",
      stderr = server.folder .. "/out",
      args = { "RLOCK_URL=" .. server.url, "LUA_PATH=./?.lua;;", rlockctl, "-e",
        SCRIPT, tostring(TASKS), tostring(LEASE), tostring(ROUNDS) },
    }
    local threads, kills = {}, 0
    for i = 1, THREADS do threads[i] = ngx.thread.spawn(request) end
    while kills < KILLS do
      local before = number()
      eventually(function()
        return number() >= before + ROUNDS / (KILLS + 2)
      end, 120 * slow, "updates")
      local workers = web:workers()
      shell.kill(workers[math.random(#workers)], "KILL")
      kills = kills + 1
      eventually(function()
        return #web:workers() == 2
      end, 10 * slow, "a new worker")
    end
    local all = {}
    for i = 1, THREADS do
      local _, statuses = assert(ngx.thread.wait(threads[i]))
      for status, n in pairs(statuses) do
        all[status] = (all[status] or 0) + n
      end
    end
    local status = counting:wait(60 * slow)
    local output = shell.run("cat " .. server.folder .. "/out")
    assert.equal(0, status, output)
    assert.is_true(number() >= ROUNDS)
    assert.equal(server:cli("GET", "sum:written"), server:cli("GET",
      "sum:number"))
    all.none, all[200] = nil, nil
    assert.same({}, all)
    eventually(function()
      return server:cli("EXISTS", "sum:lock") == "0"
    end, LEASE + 2 * slow)
  end)
end)
