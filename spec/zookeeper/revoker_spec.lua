--- Asking the holders of a lock to release it, on a real ZooKeeper: as
--- Curator's Revoker, and with a reason.

local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local frames = require "spec.tools.frames"
local on_zookeeper = require "spec.tools.on_zookeeper"
local peers = require "spec.tools.zookeeper_peer"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"
local willing = require "spec.tools.willing"

local server, open = on_zookeeper("a release request on ZooKeeper",
  { describe = describe, pending = pending, teardown = teardown })
if not server then return end

local SOON = 20 * slow

local peer, client, other, name

teardown(ctl.clean)

-- The path of the n-th node of the lock, or of a folder below it.
local function path_of(n, folder)
  local path = ("/%s%s"):format(name, folder or "")
  return path .. "/" .. peer:names(path)[n or 1]
end

local function data_of(...) return (peer:get(path_of(...))) end

local function is_marked(...) return data_of(...):find " revocable$" ~= nil end

local function unlock(hold) assert(hold:unlock()) end

local function pair_of(kind)
  return function(of, side)
    local pair = of[kind](of, name)
    return pair[side](pair)
  end
end

local function lock_of(kind)
  return function(of) return of[kind](of, name) end
end

before_each(function()
  peer = peer or peers.open(server)
  client, other, name = open(), open(), fixtures.name "asked"
end)

after_each(function()
  frames.reset()
  fixtures.close()
end)

describe("a release request on ZooKeeper", function()
  for _, case in ipairs {
    { "lock", lock_of "lock" }, { "fair lock", lock_of "fair_lock" },
    { "fenced lock", lock_of "fenced_lock" }, { "mutex", lock_of "mutex" },
    { "reader", pair_of "read_write_lock", "read_lock", "write_lock" },
    { "writer", pair_of "fair_read_write_lock", "write_lock", "read_lock" },
  } do
    local title, make, side, other_side = table.unpack(case)
    it("is answered by the holder, who unlocks: " .. title, function()
      local mine, theirs = make(client, side), make(other, other_side)
      assert.equal("not_held", select(2, theirs:request_release()))
      local hold = assert(mine:hold())
      local ok, code, detail = theirs:request_release "please"
      assert.same({ nil, "refused" }, { ok, code })
      assert.matches("has a callback", detail)
      hold:unlock()
      local reasons
      hold, reasons = willing(mine, unlock)
      eventually(function() return (theirs:request_release "please") end, SOON)
      assert.is_true(task.run(theirs.lock, theirs, { wait = SOON }))
      assert.same({ "please" }, reasons)
      assert.equal("free", hold:state())
      assert.equal("not_held", select(2, hold:on_release_request(print)))
    end)
  end

  it("reaches each of the holders", function()
    local all = {}
    for i, of in ipairs { client, client, other } do
      local lock = of:read_write_lock(name, { owner = "reader " .. i })
        :read_lock()
      all[i] = select(2, willing(lock))
    end
    eventually(function()
      return is_marked(1) and is_marked(2) and is_marked(3)
    end, SOON)
    local writer = other:read_write_lock(name):write_lock()
    assert.same({ true, 3 }, { writer:request_release "a writer" })
    for i = 1, 3 do
      eventually(function() return all[i][1] end, SOON)
      assert.same({ "a writer" }, all[i])
    end
  end)

  it("may be Curator's, which has no reason", function()
    local hold, reasons = willing(client:lock(name))
    eventually(is_marked, SOON)
    local mine = data_of()
    for i = 1, 3 do
      assert(other:set(path_of(), "__REVOKE__"))
      eventually(function() return #reasons == i and is_marked() end, SOON)
      assert.equal(mine, data_of())
    end
    assert.same({ "", "", "" }, reasons)
    hold:unlock()
  end)

  it("is in Curator's format for holders without data, as Curator's", function()
    local hold = assert(client:lock(name):hold())
    local path = path_of()
    assert(other:set(path, ""))
    local lock = other:lock(name)
    assert.same({ true, 1 }, { lock:request_release "why" })
    assert.equal("__REVOKE__", (peer:get(path)))
    assert.same({ true, 1 }, { lock:request_release "again" })
    assert.equal("__REVOKE__", (peer:get(path)))
    hold:unlock()
  end)

  it("is not written over a holder's data without its callback", function()
    local hold = assert(client:lock(name):hold())
    local before = data_of()
    assert.equal("refused", select(2, other:lock(name):request_release()))
    assert.equal(before, data_of())
    hold:unlock()
  end)

  it("leaves the holder's identity to status", function()
    local hold, reasons = willing(client:lock(name))
    eventually(is_marked, SOON)
    local before = assert(client:lock(name):peek()).holders
    assert.equal(hold.hold.grant.owner_name, before[1].owner)
    assert(other:lock(name):request_release "please")
    eventually(function() return reasons[1] and is_marked() end, SOON)
    assert.same(before, client:lock(name):peek().holders)
    hold:unlock()
  end)

  it("arrives after a lost connection", function()
    local hold, reasons = willing(client:lock(name))
    eventually(is_marked, SOON)
    client.session.server.connection:leave "a test"
    assert(other:lock(name):request_release "while it was away")
    eventually(function() return reasons[1] end, SOON)
    assert.same({ "while it was away" }, reasons)
    hold:unlock()
  end)

  it("comes with its callback although that was set without a connection",
    function()
      local lock = client:lock(name)
      local hold = assert(lock:hold())
      client.session.server.connection:leave "a test"
      local reasons = {}
      assert.is_true(hold:on_release_request(function(_, reason)
        reasons[#reasons + 1] = reason
      end))
      eventually(is_marked, SOON)
      assert(other:lock(name):request_release "late")
      eventually(function() return reasons[1] end, SOON)
      hold:unlock()
    end)

  it("needs the login of the lock", function()
    local mine = open { url = server.url:gsub("//", "//a:b@"), acl = "creator" }
    local hold, reasons = willing(mine:lock(name), unlock)
    local ok, code = other:lock(name):request_release()
    assert.same({ nil, "zookeeper" }, { ok, code })
    local same = open { url = server.url:gsub("//", "//a:b@") }
    eventually(function() return (same:lock(name):request_release "ours") end,
      SOON)
    eventually(function() return hold:state() == "free" end, SOON)
    assert.same({ "ours" }, reasons)
  end)

  it("is sent by rlockctl revoke, and heeded by run --on-revoke", function()
    local running = ctl.start { url = server.url, "run", name, "--on-revoke",
      "TERM", "-c",
      "trap 'exit 9' TERM; echo in; while :; do sleep 0.01; done" }
    running:says "in"
    local result = eventually(function()
      local its = ctl.run { url = server.url, "revoke", name, "--reason", "it" }
      return its.status ~= 1 and its
    end, SOON)
    assert.same({ 0, "" }, { result.status, result.err })
    assert.matches(": sh %(pid %d+%): 1 asked to release it\n$", result.out)
    result = running:wait()
    assert.equal(9, result.status)
    assert.matches('": it\n', result.err)
    assert.equal(3, ctl.run { url = server.url, "revoke", name }.status)
    for _, make in ipairs { lock_of "mutex", pair_of "read_write_lock" } do
      name = fixtures.name "asked"
      local hold = assert(make(client, "read_lock"):hold())
      assert.matches("has a callback",
        ctl.fault(1, { url = server.url, "revoke", name }))
      hold:unlock()
    end
  end)

  it("reaches the holder of several locks once", function()
    local function both(of)
      return rlock.multi_lock { of:lock(name), of:lock(name .. "2") }
    end
    local mine, theirs = both(client), both(other)
    assert.equal("not_held", select(2, theirs:request_release()))
    local hold, reasons = willing(mine)
    eventually(function() return select(2, theirs:request_release "one") == 2
    end, SOON)
    eventually(function() return reasons[1] end, SOON)
    assert(theirs:request_release "two")
    eventually(function() return reasons[#reasons] == "two" end, SOON)
    hold:unlock()
  end)
end)
