--- Leader election on a real ZooKeeper: the nodes of its layouts.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local on_zookeeper = require "spec.tools.on_zookeeper"
local peers = require "spec.tools.zookeeper_peer"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local server, open = on_zookeeper("an election on ZooKeeper",
  { describe = describe, pending = pending, teardown = teardown })
if not server then return end

local LONG = 30 * slow
local WHO = "[^:]+: [^(]+%(pid %d+%)"
local NODE = "^_c_%x+%-%x+%-%x+%-%x+%-%x+%-"
local EPHEMERAL = 3                     -- and sequential

-- Layouts, the nodes' marks, and their data.
local LAYOUTS = {
  own = { "lock%-", "^%S+ rlock,%S+ rlock,%S+$" },
  latch = { "latch%-", "^" .. WHO .. "$" },
  selector = { "lock%-", "^" .. WHO .. "$" },
}

local peer, name

local function nodes() return peer:names("/" .. name) or {} end

before_each(function()
  peer = peer or peers.open(server)
  name = fixtures.name "election"
end)

after_each(fixtures.close)

for layout, row in pairs(LAYOUTS) do
  local function candidate()
    return open():election(name,
      { layout = layout ~= "own" and layout or nil })
  end

  describe("an election on ZooKeeper, layout " .. layout, function()
    it("has one leader, and the candidate that came first is next", function()
      local first, second, third = candidate(), candidate(), candidate()
      local ok, token = first:campaign()
      assert.is_true(ok)
      local node = nodes()[1]
      assert.matches(NODE .. row[1] .. "%d%d%d%d%d%d%d%d%d%d$", node)
      assert.matches(row[2], (peer:get(("/%s/%s"):format(name, node))))
      local one = task.start(second.campaign, second)
      eventually(function() return #third:candidates() == 1 end, LONG)
      local other = task.start(third.campaign, third)
      eventually(function() return #first:candidates() == 2 end, LONG)
      local who, state = third:leader()
      assert.matches("^" .. WHO .. "$", who)
      assert.equal(token, state.token)
      assert.same({ who, who }, third:candidates())
      assert.is_true(first:resign())
      local _, later = one:join(LONG)
      assert.is_true(later > token)
      assert.is_true(second:is_leader())
      assert.is_false(third:is_leader())
      assert.is_true(second:resign())
      assert.is_true((other:join(LONG)))
      assert.is_true(third:resign())
      assert.same({}, nodes())
      assert.equal(false, (first:leader()))
    end)

    it("is led by another if its node is deleted", function()
      local first, second, changes = candidate(), candidate(), {}
      first:on_change(function(leads, why)
        changes[#changes + 1] = tostring(leads) .. (why and " " .. why or "")
      end)
      assert(first:campaign())
      local node = nodes()[1]
      local campaign = task.start(second.campaign, second)
      eventually(function() return #first:candidates() == 1 end, LONG)
      peer:delete(("/%s/%s"):format(name, node))
      assert.is_true((campaign:join(LONG)))
      eventually(function() return #changes == 2 end, LONG)
      assert.same({ "true", "false its node was deleted" }, changes)
    end)

    it("waits for a participant of Curator, and names it", function()
      local mark = layout == "latch" and "latch-" or "lock-"
      local election = candidate()
      assert(election:campaign())
      assert(election:resign())             -- the path exists
      local path = peer:make(("/%s/_c_%s-%s"):format(name,
        "00000000-0000-4000-8000-000000000000", mark), "java: 42", EPHEMERAL)
      assert.equal("java: 42", (election:leader()))
      local campaign = task.start(election.campaign, election)
      eventually(function() return #election:candidates() == 1 end, LONG)
      peer:delete(path)
      assert.is_true((campaign:join(LONG)))
    end)
  end)
end

describe("an election on ZooKeeper", function()
  it("refuses a path with nodes of another layout", function()
    assert(open():election(name):campaign())
    local ok, code, detail = open():election(name, { layout = "latch" })
      :campaign { wait = 0 }
    assert.same({ nil, "refused" }, { ok, code })
    assert.matches("another kind of lock %(lock%-%)", detail)
  end)
end)
