--- Values of nodes on a real ZooKeeper.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local frames = require "spec.tools.frames"
local peers = require "spec.tools.zookeeper_peer"
local redis = require "spec.tools.redis"
local zookeeper = require "spec.tools.zookeeper"

if not zookeeper.is_installed() then
  return describe("nodes on ZooKeeper", function()
    pending "needs libzookeeper-java (spec/tools/deps zookeeper)"
  end)
end

local server = zookeeper.start()
local peer, client, path

teardown(function() server:stop() end)

local function open(options)
  return fixtures.open({ url = server.url, watchdog = 4 }, options)
end

-- Asserts a failure, and that the value is still "old".
local function unchanged(code, pattern, ok, its_code, detail)
  assert.same({ nil, code }, { ok, its_code })
  assert.matches(pattern, detail)
  assert.equal("old", (peer:get(path)))
end

before_each(function()
  peer = peer or peers.open(server)
  client = open()
  path = "/" .. fixtures.name "value"
  assert(peer:make(path, "old"))
end)

after_each(function()
  frames.reset()
  fixtures.close()
end)

describe("a node of ZooKeeper", function()
  it("is read and set, with its version", function()
    assert.same({ "old", 0 }, { client:get(path) })
    assert.same({ true, 1 }, { client:set(path, "new") })
    assert.same({ true, 2 }, { client:set(path, "newer", 1) })
    assert.same({ "newer", 2 }, { client:get(path:sub(2)) })
    assert.same({ true, 3 }, { client:set(path, "") })
    assert.same({ "", 3 }, { client:get(path) })
    local long = ("x"):rep(1000000)
    assert.same({ true, 4 }, { client:set(path, long) })
    assert.same({ long, 4 }, { client:get(path) })
  end)

  it("is below the chroot", function()
    assert(peer:make(path .. "/below", "deep"))
    local other = open { url = server.url .. path }
    assert.same({ "deep", 0 }, { other:get "/below" })
    assert.same({ true, 1 }, { other:set("below", "deeper") })
    assert.equal("deeper", (peer:get(path .. "/below")))
  end)

  it("is not set with another version, or if it does not exist", function()
    unchanged("zookeeper", "^BADVERSION for /value:%d+: the node has another",
      client:set(path, "new", 1))
    unchanged("zookeeper", "^NONODE for /none: there is no such node$",
      client:set("none", "new"))
    unchanged("zookeeper", "^NONODE for /none: there is no such node$",
      client:get "none")
    unchanged("usage", '^bad path "a//b": on ZooKeeper it is a path, and it '
      .. "has an empty part$", client:get "a//b")
    unchanged("usage", "it is the root", client:set("/", "new"))
  end)

  it("is read again after a lost reply, but set once only", function()
    frames.lose_reply "get"
    assert.equal("old", (client:get(path)))
    frames.lose_request "set"
    unchanged("timeout", "", client:set(path, "new"))
    frames.lose_reply "set"
    assert.equal("timeout", select(2, client:set(path, "new")))
    eventually(function() return peer:get(path) == "new" end)
    assert.same({ true, 2 }, { client:set(path, "newer", 1) })
  end)

  it("is only on ZooKeeper", function()
    local on_redis = fixtures.open { url = redis.shared().url }
    for _, outcome in ipairs { { on_redis:get(path) },
        { on_redis:set(path, "new") } } do
      unchanged("usage", "^get and set are for the nodes of ZooKeeper",
        table.unpack(outcome, 1, 3))
    end
  end)

  it("has arguments that are checked", function()
    for _, case in ipairs {
      { "bad path: must be a string, is a nil", function() client:get() end },
      { "bad value: must be a string, is a number",
        function() client:set(path, 5) end },
      { "bad version: %-1", function() client:set(path, "new", -1) end },
      { "bad version: 1.5", function() client:set(path, "new", 1.5) end },
      { "bad value: longer than 1000000 bytes",
        function() client:set(path, ("x"):rep(1000001)) end },
    } do
      local ok, message = pcall(case[2])
      assert.is_false(ok, case[1])
      assert.matches("^spec/zookeeper/nodes_spec.lua:%d+: " .. case[1], message)
    end
  end)
end)
