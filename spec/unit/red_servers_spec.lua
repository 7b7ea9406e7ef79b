--- The servers of red locks, without one: which of them are independent, which
--- have lost their data, and which are skipped.

local availability = require "rlock.redis.availability"
local identity = require "rlock.redis.server_identity"

local clock

local function now() return clock end

-- A node whose server replies to INFO with this text.
local function node_of(where, text)
  local node = { where = where, host = { now = now }, connection = {},
    asked = 0 }
  function node.connect(self) return self.connection end
  function node.pipeline(self, _, commands)
    self.asked = self.asked + 1
    assert.same({ "INFO server", "INFO replication", "INFO persistence" },
      { table.concat(commands[1], " "), table.concat(commands[2], " "),
        table.concat(commands[3], " ") })
    if self.fails then return nil, "timeout", "late" end
    local replies = { self.text, "", "" }
    if self.lacks then replies[2] = nil end
    return replies, { nil, self.lacks }, { nil, "why" }
  end
  node.text = text
  return node
end

local function info(run_id, replication, role, more)
  return ("run_id:%s\r\nmaster_replid:%s\r\nrole:%s\r\n%s"):format(run_id,
    replication, role or "master", more or "")
end

local function identified(where, ...)
  local node = node_of(where, info(...))
  assert(identity.identify(node, 9))
  return node
end

-- Reconnects the node, to a server with this INFO.
local function reconnected(node, text)
  node.connection, node.text = {}, text
  return assert(identity.identify(node, 9))
end

before_each(function() clock = 1000 end)

describe("a server of a red lock", function()
  it("is identified once for each connection", function()
    local node = node_of("a", info("r1", "p1", "slave"))
    assert.is_nil(identity.of(node))
    local its = assert(identity.identify(node, 9))
    assert.same({ "r1", "p1", true },
      { its.run_id, its.replication, its.is_replica })
    assert.equal(its, identity.identify(node, 9))
    assert.equal(its, identity.of(node))
    assert.equal(its, identity.at(node.connection))
    assert.equal(1, node.asked)
    assert.is_false(reconnected(node, info("r1", "p1")).is_replica)
    assert.equal(2, node.asked)
    node.connection = nil
    assert.is_nil(identity.of(node))
  end)

  it("is not identified after a failure, but after an error reply", function()
    local node = node_of("a", info("r2", "p2"))
    node.fails = true
    assert.same({ nil, "timeout", "late" }, { identity.identify(node, 9) })
    node.fails, node.lacks = nil, "closed"
    assert.same({ nil, "closed", "why" }, { identity.identify(node, 9) })
    node.lacks = "redis"
    assert.equal("r2", identity.identify(node, 9).run_id)
    local none = node_of "b"
    none.connection = nil
    function none.connect() return nil, "connect", "refused" end
    assert.same({ nil, "connect", "refused" }, { identity.identify(none, 9) })
  end)

  it("is not independent of itself", function()
    local a, b, c = identified("a", "r3", "p3"), identified("b", "r3", "p3"),
      identified("c", "r4", "p4")
    assert.is_nil(identity.clash(c, a))
    assert.equal("b and a are the same server, not independent servers",
      identity.clash(a, b))
    assert.is_nil(identity.of(a))                -- not cached: it may change
    assert.equal("a and b are the same server, not independent servers",
      identity.clash(b, a))
  end)

  it("is not independent of its replica, even a disconnected one",
    function()
      local a, b = identified("a", "r5", "p5"),
        identified("b", "r6", "p5", "slave")
      b.connection = nil
      assert.equal("b and a are a server and its replica, not independent "
        .. "servers", identity.clash(a, b))
    end)

  it("is independent of a former replica", function()
    local a, b = identified("a", "r7", "p7"), identified("b", "r8", "p7")
    assert.is_true(identity.of(a).is_shared and identity.of(b).is_shared)
    assert.is_nil(identity.clash(a, b))
    assert.is_nil(identified("c", "r9", "p9").is_shared)
  end)
end)

describe("a server that was restarted", function()
  -- The quarantine 100 s later, for a lease of 30 s, with these lines of INFO.
  local function quarantine_after(lines, run_id)
    local node = identified("a", "r", "p")
    assert.equal(0, identity.quarantine(node, 30, clock))
    clock = clock + 100
    reconnected(node, info(run_id or "s", "p", nil, lines))
    return identity.quarantine(node, 30, clock), node
  end

  it("does not count until its leases have ended", function()
    assert.equal(20, (quarantine_after "uptime_in_seconds:10\r\n"))
    assert.equal(0, (quarantine_after "uptime_in_seconds:40\r\n"))
    assert.equal(30, (quarantine_after ""))
  end)

  it("counts with an append-only file, or with the same run id", function()
    assert.equal(0, (quarantine_after(
      "uptime_in_seconds:10\r\naof_enabled:1\r\n")))
    assert.equal(0, (quarantine_after("uptime_in_seconds:10\r\n", "r")))
  end)

  it("does not count if it is another server, which ran already", function()
    assert.equal(30, (quarantine_after(
      "uptime_in_seconds:101\r\naof_enabled:1\r\n")))
  end)

  it("is recognized by a changed run id, not a missing one", function()
    local node = identified("a", "r", "p")
    reconnected(node, "")
    assert.equal(0, identity.quarantine(node, 30, clock))
    reconnected(node, info("r", "p"))
    assert.equal(0, identity.quarantine(node, 30, clock))
  end)

  it("is returned by `standing` only if it counts", function()
    local _, node = quarantine_after "uptime_in_seconds:10\r\n"
    assert.is_nil(identity.standing(node, 30, clock))
    assert.is_nil(identity.standing(node, 30, clock + 19.9))
    assert.equal(identity.of(node), identity.standing(node, 30, clock + 20))
    node.connection = {}
    assert.is_nil(identity.standing(node, 30, clock + 20))
    assert.is_nil(identity.standing(node_of "b", 30, clock))
  end)

  it("ran already if it started before the former one's last reply", function()
    for _, fn in ipairs {
      function(node) assert(identity.standing(node, 30, clock)) end,
      function(node) assert(identity.identify(node, 9)) end,
    } do
      clock = 1000
      local node = identified("a", "t", "p")
      clock = 1050
      fn(node)
      clock = 1100
      reconnected(node, info("u", "p", nil,
        "uptime_in_seconds:60\r\naof_enabled:1\r\n"))
      assert.equal(30, identity.quarantine(node, 30, clock))
    end
  end)
end)

describe("a server that does not answer", function()
  local node, go

  -- What PING returns: "ok", or a code and a detail.
  local answers

  before_each(function()
    go, answers = nil, {}
    node = { options = { timeout = 1 }, asked = 0 }
    node.host = {
      now = now, sleep = function(seconds) clock = clock + seconds end,
      service = function(fn, ...) go = { fn, ... } end,
    }
    function node.call(self, deadline, words, n)
      assert.same({ clock + 1, { "PING" }, 1 }, { deadline, words, n })
      self.asked = self.asked + 1
      local answer = answers[self.asked] or answers[#answers]
      if answer == "ok" then return "PONG" end
      return nil, answer:match "^(%S+) (.*)$"
    end
  end)

  local function run() go[1](go[2], go[3]) end

  it("is skipped after 10 ms, with the reason", function()
    assert.is_nil(availability.why_away(node))
    availability.mark_away(node, "silent")
    assert.is_nil(availability.why_away(node))
    clock = clock + 0.009
    assert.is_nil(availability.why_away(node))
    clock = clock + 0.0011
    assert.equal("away for 0.0 s: silent", availability.why_away(node))
    clock = clock + 2
    assert.equal("away for 2.0 s: silent", availability.why_away(node))
    availability.mark_away(node, "again")
    assert.equal("away for 2.0 s: silent", availability.why_away(node))
  end)

  it("is probed every 20 ms, and counts again once it replies", function()
    answers = { "timeout silent", "redis LOADING it loads", "ok" }
    availability.mark_away(node, "silent")
    run()
    assert.near(1000.04, clock, 1e-9)
    assert.equal(3, node.asked)
    assert.is_nil(node.away)
  end)

  it("counts again when it replies with a permanent error",
    function()
      answers = { "redis NOAUTH a password" }
      availability.mark_away(node, "silent")
      run()
      assert.same({ 1, nil }, { node.asked, node.away })
    end)

  -- Probes a server that is gone; calls fn() after each pause.
  local function probe(fn)
    answers = { "closed gone" }
    availability.mark_away(node, "silent")
    local sleep = node.host.sleep
    function node.host.sleep(seconds)
      sleep(seconds)
      fn()
    end
    run()
  end

  it("reports the last reason", function()
    probe(function()
      assert.matches(": gone$", availability.why_away(node) or ": gone")
      node.is_closed = node.asked == 9
    end)
    assert.equal(9, node.asked)
  end)

  it("is probed for as long as it is used", function()
    probe(function()
      if clock < 1020 then availability.why_away(node) end
    end)
    assert.near(1025, clock, 0.041)
  end)

  it("is not probed if it is unused for five seconds", function()
    answers = { "closed gone" }
    availability.mark_away(node, "silent")
    run()
    assert.near(1005, clock, 0.021)
    assert.is_nil(node.away)
  end)
end)
