--- The examples for nginx, run with their own nginx.conf: they do what they
--- demonstrate.

local at_once = require "spec.tools.at_once"
local eventually = require "spec.tools.eventually"
local nginx = require "spec.tools.nginx"
local redis = require "spec.tools.redis"

local SECONDS = 60

describe("the example for nginx", function()
  local server, web

  setup(function()
    server = redis.start()
    web = nginx.start {
      conf = "examples/openresty/nginx.conf", env = { RLOCK_URL = server.url },
    }
  end)

  teardown(function()
    web:stop()
    server:stop()
  end)

  -- Repeats a request; counts the responses: "200 text" -> number.
  local function answers(times, path, method)
    local counts = {}
    at_once(times, function()
      local status, body = web:get(path, method)
      local answer = ("%s %s"):format(status, body)
      counts[answer] = (counts[answer] or 0) + 1
      return true
    end)
    return counts
  end

  local function lines_of(path)
    local status, body = web:get(path)
    assert.equal(200, status, body)
    local lines = {}
    for line in body:gmatch("[^\n]+") do lines[#lines + 1] = line end
    return lines
  end

  it("board: a lock that nobody has or wants has empty arrays", function()
    local status, body = web:get("/locks")
    assert.equal(200, status)
    local free = '{"name":"%s","holders":[],"waiters":[]}'
    assert.equal("[" .. free:format("printer") .. "," .. free:format("config")
      .. "]\n", body)
  end)

  it("cache: of 100 requests for a cold key one makes it, all get it",
    function()
      local got = answers(100, "/report/sales")
      local answer, times = next(got)
      assert.matches("^200 report sales, made 1 time", answer)
      assert.equal(100, times)
      assert.equal("1", server:cli("GET", "report:sales:made"))
      assert.same({ [answer] = 3 }, answers(3, "/report/sales"))
    end)

  it("cache: different keys are made at the same time", function()
    local last
    local function make(name)
      assert.equal(200, (web:get("/report/" .. name)))
      last = name
      return true
    end
    server:cli("HSET", "rlock_compute:{report:slow}", "somebody", "1")
    local slow = ngx.thread.spawn(make, "slow")
    assert(make("quick"))
    assert.equal("quick", last)
    server:script { { "DEL", "rlock_compute:{report:slow}" }, { "PUBLISH",
      "redisson_lock__channel:rlock_compute:{report:slow}", "0" } }
    assert(ngx.thread.wait(slow))
    assert.equal("slow", last)
  end)

  it("cron: every worker is ready, one of them does it in each period",
    function()
      assert.equal(4, #web:workers())
      eventually(function()
        return #lines_of("/cron") >= 4
      end, SECONDS, "four runs")
      eventually(function()
        return select(2, server:cli("CLIENT", "LIST"):gsub("\n", "")) >= 4
      end, SECONDS, "four workers have asked")
      local seen, before = {}, math.huge
      for _, run in ipairs(lines_of("/cron")) do
        local period = tonumber(run:match("^(%d+) worker [0-3]$"))
        assert.is_nil(seen[period])
        assert.is_true(period < before)              -- newest first
        seen[period], before = true, period
      end
    end)

  it("cron: a job that failed is not done; the next that looks does it",
    function()
      local function failures()
        return select(2, web:log():gsub("WRONGTYPE", ""))
      end
      server:script { { "DEL", "cron:runs" }, { "SET", "cron:runs", "wrong" } }
      eventually(function() return failures() > 0 end, SECONDS, "a failure")
      local done = server:cli("GET", "cron:heartbeat:done")
      eventually(function() return failures() > 4 end, SECONDS, "more of them")
      assert.equal(done, server:cli("GET", "cron:heartbeat:done"))
      server:cli("DEL", "cron:runs")
      eventually(function() return #lines_of("/cron") > 0 end, SECONDS, "a run")
    end)

  it("payment: an order is charged once, whoever asks is given its receipt",
    function()
      local receipt = "200 receipt 4711-1 over 25\n"
      assert.same({ [receipt] = 20 },
        answers(20, "/pay/4711?amount=25", "POST"))
      assert.same({ [receipt] = 1 }, answers(1, "/pay/4711?amount=25", "POST"))
      assert.equal("1", server:cli("GET", "bank:attempts:4711"))
    end)

  it("payment: an attempt that failed is told, and made again by who waits",
    function()
      assert.same({
        ["503 bank: the bank does not answer\n"] = 1,
        ["200 receipt 4712-1 over 25\n"] = 19,
      }, answers(20, "/pay/4712?amount=25&failures=1", "POST"))
      assert.equal("1", server:cli("GET", "bank:charges:4712"))
      assert.equal("2", server:cli("GET", "bank:attempts:4712"))
    end)

  it("payment: misuse is told, and charges nothing", function()
    assert.equal(400, (web:get("/pay/4713?amount=25")))
    assert.equal(400, (web:get("/pay/4713?amount=much", "POST")))
    assert.equal("", server:cli("GET", "bank:attempts:4713"))
  end)

  it("config: nobody reads a half-written one, and writers get their turn",
    function()
      local writers, versions = 2, {}
      local function write(i)
        for round = 1, 10 do
          local status, body = web:get(
            "/config?version=" .. i * 100 + round, "POST")
          assert.equal(200, status, body)
        end
        writers = writers - 1
        return true
      end
      local function read()
        repeat
          local lines = lines_of("/config")
          local version = lines[1]:match("%d+$")
          assert.same({ "hosts, version " .. version,
            "limits, version " .. version, "prices, version " .. version },
            lines)
          versions[version] = true
        until writers == 0
        return true
      end
      at_once(8, function(i) return i <= writers and write(i) or read() end)
      local count = 0
      for _ in pairs(versions) do count = count + 1 end
      assert.is_true(count > 2, count .. " versions were seen")
    end)
end)
