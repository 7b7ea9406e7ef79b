--- Values of nodes on a real ZooKeeper, and writes that a hold guards: a late
--- holder changes nothing.

local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local frames = require "spec.tools.frames"
local on_zookeeper = require "spec.tools.on_zookeeper"
local peers = require "spec.tools.zookeeper_peer"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local server, open = on_zookeeper("nodes on ZooKeeper",
  { describe = describe, pending = pending, teardown = teardown })
if not server then return end

local PATIENCE = 20 * slow
local STOP, CONT = 19, 18

local peer, client, name, path

teardown(ctl.clean)

-- The path of the only node of the lock.
local function own()
  return ("/%s/%s"):format(name, peer:names("/" .. name)[1])
end

-- Asserts a failure, and that the value is still "old".
local function unchanged(code, pattern, ok, its_code, detail)
  assert.same({ nil, code }, { ok, its_code })
  assert.matches(pattern, detail)
  assert.equal("old", (peer:get(path)))
end

before_each(function()
  peer = peer or peers.open(server)
  client, name = open(), fixtures.name "lock"
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
    local hold = assert(on_redis:lock(name):hold())
    for _, outcome in ipairs { { on_redis:get(path) },
        { on_redis:set(path, "new") }, { hold:set(path, "new") } } do
      unchanged("usage", "^get and set are for the nodes of ZooKeeper",
        table.unpack(outcome, 1, 3))
    end
  end)

  it("has arguments that are checked", function()
    local hold = assert(client:lock(name):hold())
    for _, case in ipairs {
      { "bad path: must be a string, is a nil", function() client:get() end },
      { "bad value: must be a string, is a number",
        function() client:set(path, 5) end },
      { "bad version: %-1", function() client:set(path, "new", -1) end },
      { "bad version: 1.5", function() hold:set(path, "new", 1.5) end },
      { "bad value: longer than 1000000 bytes",
        function() hold:set(path, ("x"):rep(1000001)) end },
      { "call it with a colon: hold:set", function() hold.set(path, "x") end },
    } do
      local ok, message = pcall(case[2])
      assert.is_false(ok, case[1])
      assert.matches("^spec/zookeeper/nodes_spec.lua:%d+: " .. case[1], message)
    end
  end)
end)

describe("a guarded write on ZooKeeper", function()
  it("is done while the lock is held", function()
    local lock = client:lock(name)
    unchanged("not_held", "", lock:set(path, "new"))
    assert(lock:lock())
    assert.same({ true, 1 }, { lock:set(path, "one") })
    assert.same({ true, 2 }, { lock:set(path, "two", 1) })
    local hold <close> = assert(lock:hold())
    assert.same({ true, 3 }, { hold:set(path, "three") })
    assert(hold:unlock())
    assert.equal("not_held", select(2, hold:set(path, "four")))
    assert.is_true(lock:with(function(its) return its:set(path, "five") end))
    assert.same({ "five", 4 }, { client:get(path) })
  end)

  it("is done by each kind of lock", function()
    local pair = client:read_write_lock(name .. "/pair")
    for i, lock in ipairs { client:mutex(name .. "/mutex"),
        client:fenced_lock(name .. "/fenced"), pair:write_lock(),
        pair:read_lock() } do
      assert(lock:lock())
      assert.same({ true, i }, { lock:set(path, "new") })
    end
    local both = rlock.multi_lock { client:lock(name), client:lock "other" }
    assert(both:lock())
    assert.equal("usage", select(2, both:set(path, "none")))
    assert.is_true(client:lock(name):set(path, "member"))
  end)

  it("reports another version or a missing node; may be repeated", function()
    local hold = assert(client:lock(name):hold())
    unchanged("zookeeper", "^BADVERSION for /value", hold:set(path, "new", 7))
    unchanged("zookeeper", "^NONODE for /none", hold:set("/none", "new"))
    assert.same({ true, 1 }, { hold:set(path, "new", 0) })
  end)

  it("changes nothing if the node of the hold was deleted", function()
    local lock = client:lock(name)
    local hold, why = assert(lock:hold())
    hold:on_lost(function(_, reason) why = reason end)
    client.session.server.connection.watches = {}       -- it does not know yet
    assert.is_true(peer:delete(own()))
    unchanged("lost", "", hold:set(path, "late"))
    eventually(function() return why end, PATIENCE)
    assert.equal("lost", hold:state())
    unchanged("lost", "its node was deleted", hold:set(path, "late"))
    assert.is_true(task.run(function()
      return open():lock(name):with(function(its)
        return its:set(path, "next")
      end)
    end))
  end)

  it("changes nothing once its session has ended", function()
    local hold = assert(client:lock(name):hold())
    local link = client.session.server.connection
    peers.end_session(server, link.session)
    local ok, code = hold:set(path, "late")
    assert.is_nil(ok)
    assert.truthy(code == "lost" or code == "timeout", code)
    eventually(function() return link.epoch == 2 end, PATIENCE)
    unchanged("lost", "", hold:set(path, "late"))
  end)

  it("changes nothing if its hold ends while it connects", function()
    local hold = assert(client:lock(name):hold())
    local link = client.session.server.connection
    link:leave "the spec wants it"
    function link.connect(...)
      link.connect = nil
      assert(hold:unlock())
      return link.connect(...)
    end
    unchanged("lost", "^its hold has ended", hold:set(path, "late"))
  end)

  it("is not retried if its outcome is unknown", function()
    local hold = assert(client:lock(name):hold())
    frames.reset()
    frames.lose_request "multi"
    unchanged("timeout", "", hold:set(path, "new"))
    frames.lose_reply "multi"
    assert.equal("timeout", select(2, hold:set(path, "new")))
    eventually(function() return peer:get(path) == "new" end)
    assert.equal(2, frames.count "multi")
    assert.is_true(hold:set(path, "newer", 1))
    frames.fail("multi", -1)
    assert.equal("timeout", select(2, hold:set(path, "newest")))
    frames.fail("get", -1)
    assert.same({ "newest", 3 }, { client:get(path) })
  end)

  it("has an unknown outcome if the reply is malformed", function()
    local hold = assert(client:lock(name):hold())
    for i, set in ipairs { function() return hold:set(path, "new") end,
        function() return client:set(path, "new") end } do
      frames.fail(i == 1 and "multi" or "set", 0)         -- and nothing else
      assert.equal("timeout", select(2, set()))
      frames.fail("get", 0)
      assert.same({ "new", i }, { client:get(path) })
    end
  end)

  it("changes nothing after its process was suspended", function()
    local file = ctl.file("late.lua", [[
      local client = assert(require "rlock".open { watchdog = 1 })
      local hold = assert(client:lock(arg[1]):hold())
      io.stdout:write("got\n"):flush()
      os.execute "while [ ! -e go ]; do sleep 0.02; done"
      print(hold:set(arg[2], "late"))
    ]])
    local holder = ctl.start { file, name, path, url = server.url,
      cwd = ctl.folder() }
    holder:says "got"
    holder:kill(STOP)
    assert.is_true(client:lock(name):lock { wait = PATIENCE })
    ctl.file("go", "")
    holder:kill(CONT)
    assert.matches("^got\nnil\tlost\t", holder:wait().out)
    assert.equal("old", (client:get(path)))
  end)
end)
