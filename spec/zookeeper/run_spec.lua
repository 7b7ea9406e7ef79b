--- Processes of rlockctl that share a lock on ZooKeeper: exclusion, wake-up, a
--- holder that is killed or suspended, a server that stops.

local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local on_zookeeper = require "spec.tools.on_zookeeper"
local peers = require "spec.tools.zookeeper_peer"
local rlock = require "rlock"
local slow = require "spec.tools.slow"

local server = on_zookeeper("rlockctl run on ZooKeeper",
  { describe = describe, pending = pending, teardown = teardown })
if not server then return end

local KILL, STOP, CONT = 9, 19, 18
local TTL = 2 * slow

local peer, number = nil, 0
local name

local function start(...)
  return ctl.start { "run", name, "--ttl", ("%gs"):format(TTL),
    url = server.url, ... }
end

local kill, parent_of = ctl.kill, ctl.parent_of

local function nodes() return #(peer:names("/" .. name) or {}) end

before_each(function()
  peer = peer or peers.open(server)
  number = number + 1
  name = "run:" .. number
end)

teardown(ctl.clean)

describe("rlockctl run on ZooKeeper", function()
  it("excludes another process, and names the holder", function()
    local holder = start("--", "sh", "-c", "echo got; sleep 60")
    holder:says "got"
    local other = ctl.run { "run", "-n", name, "--", "true", url = server.url }
    assert.equal(200, other.status)
    assert.matches('^rlockctl: run: reentrant lock "run:%d+" is held by %S+: '
      .. 'sh %(pid %d+%), renewed until released\n$', other.err)
    holder:kill(15)
    holder:wait()
    eventually(function() return nodes() == 0 end)
  end)

  it("leaves the lock to its time-out if both guards are killed", function()
    for option, paths in pairs { ["-v"] = { ":a", ":b" },
        ["--limit=2"] = { ":c/leases" } } do
      local names = {}
      for i, path in ipairs(paths) do names[i] = name .. path:match "^[^/]+" end
      local function has_each()
        for _, path in ipairs(paths) do
          if #(peer:names("/" .. name .. path) or {}) == 0 then return false end
        end
        return true
      end
      local holder = ctl.start { "run", table.concat(names, ","), option,
        "--ttl", ("%gs"):format(TTL), "-c", "echo $$; exec sleep 60",
        url = server.url }
      local pid = eventually(function()
        return tonumber((holder:out():match "^(%d+)\n"))
      end)
      local guard = parent_of(pid)
      kill(parent_of(guard), guard)
      assert.equal(203, holder:wait().status)
      assert.is_true(has_each())        -- its session did not end with it
      kill(pid)
      eventually(function() return not has_each() end, 10 * TTL)
    end
  end)

  it("is woken by the end of another process", function()
    local holder = ctl.start { "run", name, "--", "sh", "-c",
      "echo got; while [ ! -e go ]; do sleep 0.02; done", url = server.url,
      cwd = ctl.folder() }
    holder:says "got"
    local waiting = ctl.start { "run", name, "--", "echo", "mine",
      url = server.url }
    eventually(function() return nodes() == 2 end, 10 * slow)
    assert.equal("", waiting:out())
    ctl.file("go", "")
    assert.equal(0, holder:wait().status)
    assert.equal("mine\n", waiting:wait().out)
    assert.equal(0, nodes())
  end)

  it("gets the lock of a killed process after its time-out", function()
    local holder = start("--", "sh", "-c", "echo got; sleep 60")
    holder:says "got"
    local waiting = start("--", "echo", "mine")
    eventually(function() return nodes() == 2 end, 10 * slow)
    local began = rlock.now()
    holder:kill(KILL)
    holder:wait()
    assert.equal("mine\n", waiting:wait().out)
    assert.is_true(rlock.now() - began > TTL / 4)
  end)

  it("stops the command of a suspended process before others get the lock",
      function()
    local path = ctl.folder() .. "/beats"
    local holder = start("--kill-after", ("%gs"):format(TTL / 10), "--", "sh",
      "-c", "echo got; while :; do date +%s.%N >>" .. path
      .. "; sleep 0.02; done")
    holder:says "got"
    holder:kill(STOP)
    local waiting = ctl.start { "run", name, "--", "date", "+%s.%N",
      url = server.url }
    local taken = tonumber(waiting:wait().out)
    local last
    for line in io.lines(path) do last = tonumber(line) or last end
    assert.is_true(last < taken, ("%f, %f"):format(last, taken))
    holder:kill(CONT)
    assert.equal(203, holder:wait().status)
  end)

  it("stops the command when the server has stopped", function()
    local holder = start("--", "sh", "-c", "echo got; sleep 60")
    holder:says "got"
    local began = rlock.now()
    server:signal(STOP)
    local result = holder:wait()
    local took = rlock.now() - began
    server:signal(CONT)
    assert.equal(203, result.status)
    assert.is_true(took < TTL + 2 * slow, took)
    peer:close()
    peer = nil
  end)

  it("outlives a restart of the server", function()
    local holder = ctl.start { "run", name, "--ttl", "10s", "-w", "30", "--",
      "sh", "-c",
      "echo got; while [ ! -e end ]; do sleep 0.02; done", url = server.url,
      cwd = ctl.folder() }
    holder:says "got"
    server:kill()
    server:restart()
    -- Until it is back, the release may have no connection in time. The word
    -- itself has one connection.
    eventually(function()
      return tonumber(server:says "srvr":match "Connections: (%d+)" or 0) > 1
    end, 20 * slow)
    ctl.file("end", "")
    local result = holder:wait()
    assert.equal(0, result.status, result.err)
    assert.matches("^rlock: 1 hold is at risk: [^\n]+\n", result.err)
    eventually(function()               -- a release in vain: with the session
      return #(peers.open(server):names("/" .. name) or {}) == 0
    end, 20 * slow)
    peer:close()
    peer = nil
  end)

  it("reports a server that does not answer", function()
    server:signal(STOP)
    local result = ctl.run { "run", "-w", "1", name, "--", "true",
      url = server.url }
    server:signal(CONT)
    assert.equal(202, result.status)
    assert.matches("^rlockctl: run: [^\n]+\n$", result.err)
  end)

  it("has a clear error for each wrong address", function()
    local port = server.port
    for url, why in pairs {
      ["zk://127.0.0.1:1"] = { 202, "connection refused" },
      [("zk://127.0.0.1:%d/none"):format(port)] =
        { 1, "there is no node /none" },
      [("zks://127.0.0.1:%d"):format(port)] = { 202, "" },
      ["zk://127.0.0.1:x"] = { 206, "the port must be a number" },
    } do
      local result = ctl.run { "run", "-w", "2", name, "--", "true", url = url }
      assert.equal(why[1], result.status, url)
      assert.matches("^rlockctl: [^\n]+\n$", result.err)
      assert.truthy(result.err:find(why[2], 1, true), result.err)
    end
  end)

  it("refuses what ZooKeeper does not have", function()
    assert.matches("is not for ZooKeeper", ctl.fault(206, { "run", "--policy",
      "spin", name, "--", "true", url = server.url }))
  end)

  it("takes a permit with --limit", function()
    local function words(limit, ...)
      return { "run", "-n", "--limit", limit, url = server.url, name, "--",
        ... }
    end
    local holder = ctl.start(words("1", "sh", "-c", "echo got; sleep 60"))
    holder:says "got"
    assert.matches('^rlockctl: run: permits "run:%d+" are held by %S+: sh '
      .. "%(pid %d+%), renewed until released\n$",
      ctl.fault(200, words("1", "true")))
    assert.matches("is in use with a limit of 1",
      ctl.fault(206, words("2", "true")))
    holder:kill(15)
    holder:wait()
    assert.equal(0, ctl.run(words("1", "true")).status)
  end)
end)

describe("rlockctl run --leader on ZooKeeper", function()
  for _, option in ipairs { "--leader", "--option=layout=latch",
    "--option=layout=selector" } do
    it("campaigns again after a loss, and is followed by others: " .. option,
      function()
        local RUNS = "echo got $$; exec sleep 600"
        local first = start("--leader", option, "-c", RUNS)
        first:says "got"
        local node = peer:names("/" .. name)[1]
        local second = start("--leader", option, "-c", RUNS)
        eventually(function() return nodes() == 2 end, 10 * slow)
        peer:delete(("/%s/%s"):format(name, node))
        second:says "got"
        eventually(function() return nodes() == 2 end, 20 * slow)
        local layout = option:match "layout=(%l+)"
        local client <close> = assert(rlock.open(server.url))
        local who = client:election(name, layout and { layout = layout })
          :leader()
        assert.matches("sh %(pid " .. second.pid .. "%)$", who)
        local status = ctl.output { "status", name, url = server.url }
        assert.matches(who, status, 1, true)
        assert.equal(layout == "latch", status:find("election", 1, true) ~= nil)
        second:kill(KILL)
        eventually(function() return select(2, first:out():gsub("got", ""))
          == 2 end, 30 * slow)
        first:kill(15)
        assert.equal(128 + 15, first:wait().status)
        second:wait()
      end)
  end
end)
