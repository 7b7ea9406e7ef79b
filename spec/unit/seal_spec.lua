local seal = require "rlock.redis.seal"

local RUN_ID = ("0123456789"):rep(4)
local SERVER = "# Server\r\nrun_id:" .. RUN_ID .. "\r\n"
local NOPERM = "NOPERM this user has no permissions to run this command"
local BUSY = "BUSY Redis is busy running a script."

local log, told                         -- warnings; other reports

local function new(mode)
  log, told = {}, {}
  return seal.new({
    where = "there",
    report = function(_, level, _, text)
      local list = level == "warn" and log or told
      list[#list + 1] = text
    end,
  }, mode or "kill")
end

local function of(id, run_id)
  return { id = id, run_id = run_id }
end

-- Answers every command with this reply, or this error of Redis.
local function answering(reply, detail, code)
  local sent = {}
  return function(commands)
    local replies, codes, details = {}, {}, {}
    for i, command in ipairs(commands) do
      sent[#sent + 1] = table.concat(command, " ")
      replies[i] = reply
      if detail then codes[i], details[i] = code or "redis", detail end
    end
    return replies, codes, details
  end, sent
end

describe("a connection's identity", function()
  it("has the role from INFO, else from HELLO", function()
    local INFO = "# Replication\r\nrole:%s\r\nmaster_replid:%s\r\n"
    local replies = { "OK", 7, SERVER, 0, INFO:format("slave", RUN_ID) }
    local identity = seal.identity(replies, {}, {}, 2)
    assert.same({ "slave", RUN_ID }, { identity.role, identity.replication })
    replies = { { "proto", 2, "role", "master" }, 7, SERVER, 0 }
    assert.equal("master", seal.identity(replies, {}, {}, 2).role)
  end)

  it("has another role than wanted", function()
    local wanted = { host = "h", port = 1, role = "master" }
    assert.is_nil(seal.wrong({ role = "master" }, wanted))
    assert.is_nil(seal.wrong({ role = "slave" }, { host = "h", port = 1 }))
    assert.equal("h:1 is a replica, not the master",
      seal.wrong({ role = "slave" }, wanted))
    assert.equal("h:1 does not show its role: permit +info or +hello",
      seal.wrong({}, wanted))
  end)

  it("is its id and the run id of its server", function()
    assert.same({ id = 7, run_id = RUN_ID },
      seal.identity({ "OK", 7, SERVER }, {}, {}, 2))
  end)

  it("is refused where CLIENT ID or INFO is, or returns nothing", function()
    for _, detail in ipairs { NOPERM, "ERR unknown command 'CLIENT'" } do
      local identity = seal.identity({ nil, SERVER }, { "redis", nil, "redis" },
        { detail, nil, detail }, 1)
      assert.equal(detail, identity.refused)
    end
    assert.equal(NOPERM, seal.identity({ 7, SERVER },
      { nil, nil, "redis" }, { nil, nil, NOPERM }, 1).refused)
    assert.equal(NOPERM, seal.identity({ 7 }, { nil, "redis" },
      { nil, NOPERM }, 1).refused)
    for _, identity in ipairs {
      seal.identity({ 7, "no text of INFO" }, {}, {}, 1),
      seal.identity({ 7, { "run_id:1" } }, {}, {}, 1),
    } do
      assert.equal("INFO does not identify the server", identity.refused)
      assert.is_nil(identity.id)
    end
    assert.truthy(seal.identity({ "seven", SERVER }, {}, {}, 1).refused)
  end)

  it("is unknown while the server is busy or silent", function()
    assert.same({ nil, "redis", BUSY },
      { seal.identity({}, { "redis", "redis" }, { BUSY, BUSY }, 1) })
    assert.same({ nil, "timeout", "late" },
      { seal.identity({ 7 }, { nil, "timeout" }, { nil, "late" }, 1) })
  end)
end)

describe("a handshake", function()
  -- Its failure, and whether the connection is of no use.
  local function failure(role, replies, codes, details)
    local identity, code, detail, is_final = seal.handshake({ role = role,
      host = "h", port = 1, handshake = { { "AUTH", "x" } } }, function()
        return replies, codes, details
      end)
    assert.is_nil(identity)
    return { code, detail, is_final }
  end

  it("ends the connection to a server that refuses it", function()
    assert.same({ "redis", "WRONGPASS no (in reply to AUTH, from h:1)", true },
      failure(nil, {}, { "redis" }, { "WRONGPASS no" }))
  end)

  it("ends the connection to a server of another role", function()
    assert.same({ "refused", "h:1 is a replica, not the master", true },
      failure("master", { "OK", 7, SERVER, 0, "role:slave" }, {}, {}))
  end)

  it("ends one of unknown identity only if the role matters", function()
    for _, role in ipairs { "master", false } do
      assert.same({ "redis", BUSY, role == "master" }, failure(role or nil,
        { "OK" }, { [2] = "redis", [3] = "redis" }, { [2] = BUSY, [3] = BUSY }))
    end
  end)
end)

describe("sealing", function()
  it("kills the lost connections of the same run id only", function()
    local seals = new()
    seals:lost(of(3, "a"))
    seals:lost(of(4, "b"))
    seals:lost(of(5, "a"))
    local exchange, sent = answering(1)
    assert.is_true(seals:kill_pending(of(9, "a"), exchange))
    assert.same({ "CLIENT KILL ID 3", "CLIENT KILL ID 5" }, sent)
    assert.is_false(seals:is_pending("a"))
    assert.is_true(seals:is_pending("b"))
  end)

  it("is settled by a 0: the connection is gone already", function()
    local seals = new()
    seals:lost(of(3, "a"))
    assert.is_true(seals:kill_pending(of(9, "a"), (answering(0))))
    assert.is_false(seals:is_pending("a"))
  end)

  it("stays pending if the outcome is unknown", function()
    for detail, code in pairs {
      [BUSY] = "redis", ["LOADING Redis is loading"] = "redis",
      ["ERR max number of clients reached"] = "redis", late = "timeout",
      gone = "closed",
    } do
      local seals = new()
      seals:lost(of(3, "a"))
      assert.same({ nil, code, detail },
        { seals:kill_pending(of(9, "a"), (answering(nil, detail, code))) })
      assert.is_true(seals:is_pending("a"))
      assert.equal("kill", seals.mode)
    end
  end)

  it("is refused by NOPERM and unknown commands, reported once",
    function()
      for _, detail in ipairs { NOPERM, "ERR unknown command 'CLIENT'" } do
        local seals = new()
        seals:lost(of(3, "a"))
        local exchange, sent = answering(nil, detail)
        assert.is_true(seals:kill_pending(of(9, "a"), exchange))
        assert.equal("time", seals.mode)
        seals:lost(of(4, "a"))
        assert.is_true(seals:kill_pending(of(10, "a"), exchange))
        assert.equal(1, #sent)
        assert.equal(1, #log)
        assert.truthy(log[1]:find(detail, 1, true))
      end
    end)

  it("keeps a bounded number of pending kills, the latest", function()
    local seals = new()
    for i = 1, 150 do seals:lost(of(i, i <= 50 and "a" or "b")) end
    assert.is_false(seals:is_pending("a"))
    assert.is_true(seals:is_pending("b"))
    local exchange, sent = answering(1)
    assert.is_true(seals:kill_pending(of(1, "b"), exchange))
    assert.equal(100, #sent)
  end)

  it("kills all lost connections of one server, however many", function()
    local seals = new()
    for i = 1, 500 do seals:lost(of(i, "a")) end
    local exchange, sent = answering(1)
    assert.is_true(seals:kill_pending(of(501, "a"), exchange))
    assert.equal(500, #sent)
    assert.is_false(seals:is_pending("a"))
    seals:lost(of(501, "a"))
    assert.is_true(seals:kill_pending(of(502, "a"), exchange))
    assert.same({ "sealed 500 lost connections to there",
      "sealed 1 lost connection to there" }, told)
  end)

  it("does nothing when it is off", function()
    local seals = new("off")
    seals:lost(of(3, "a"))
    assert.is_false(seals:is_pending("a"))
    assert.is_true(seals:kill_pending({ refused = NOPERM }, (answering(1))))
    assert.equal("off", seals.mode)
    assert.equal(0, #log)
  end)
end)

describe("the test of sealing", function()
  local node, its, pauses, opened, answer

  before_each(function()
    pauses, opened, answer = {}, 0, false
    node = { open = function() opened = opened + 1 end }
    node.host = {
      random_number = function() return 1 end,
      service = function(fn, ...) fn(...) end,
      event = function()
        return { pause = function(_, seconds)
          pauses[#pauses + 1] = seconds
          if #pauses == node.ends_at then its.mode = "off" end
          return answer
        end }
      end,
    }
    its = seal.new(node, "kill")
  end)

  it("is repeated ten times, after growing pauses of up to a minute",
    function()
      its:probe { run_id = "a" }
      assert.same({ 1, 2, 3, 5, 9, 17, 33, 61, 61, 61 }, pauses)
      assert.equal(10, opened)
      its:probe { run_id = "a" }               -- no result: retried
      assert.equal(20, #pauses)
    end)

  it("ends when its node closes, or when it is not needed", function()
    node.ends_at = 3
    its:probe { run_id = "a" }
    assert.same({ 3, 2 }, { #pauses, opened })
    its.mode, node.is_closed = "kill", true
    its:probe { run_id = "b" }
    assert.same({ 4, 2 }, { #pauses, opened })
    node.is_closed, answer = nil, true
    its:probe { run_id = "c" }
    assert.same({ 5, 2 }, { #pauses, opened })
  end)

  it("runs in one task for each run id of a server", function()
    local begun = 0
    function node.host.service() begun = begun + 1 end
    its:probe { run_id = "a" }
    its:probe { run_id = "a" }
    assert.equal(1, begun)
    its:probe { run_id = "b" }
    its:probe {}
    assert.equal(2, begun)
    its.mode = "time"
    its:probe { run_id = "c" }
    assert.equal(2, begun)
  end)
end)
