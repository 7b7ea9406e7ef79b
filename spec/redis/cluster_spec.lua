--- Locks in a Redis Cluster: slots, redirections, wakes, a node that fails.

local control = require "spec.tools.control"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local host = require "rlock.host.uv"
local rlock = require "rlock"
local rlockctl = require "spec.tools.rlockctl"
local shell = require "spec.tools.shell"
local slot = require "rlock.redis.slot"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"
local within = require "spec.tools.within"

local SOON = 10 * slow

local cluster

-- A new name whose slot a node has.
local function name_on(node)
  local name
  repeat name = fixtures.name "cluster" until cluster:owner(name) == node
  return name
end

local function open(options) return fixtures.open(cluster.url, options) end

--- Starts a task that waits for a lock which another client holds.
---@return any # the task; and a function: does the task's client hear releases?
local function start_waiter(client, name)
  local lock = client:lock(name)
  local waiter = task.start(function() return lock:lock { wait = SOON } end)
  local channel = lock.record.policy.channel(lock.record.target)
  local function listens() return client.session.wakeup:is_live(channel) end
  eventually(listens, SOON, "the waiter listens")
  return waiter, listens, channel
end

-- A release wakes the waiter, long before its next poll.
local function wakes(lock, waiter)
  local before = rlock.now()
  assert.is_true(lock:unlock())
  assert.is_true(waiter:join())
  assert.is_true(rlock.now() - before < 2 * slow, "woken by a message")
end

describe("a cluster", function()
  setup(function()
    cluster = require("spec.tools.cluster").start { masters = 3 }
  end)
  teardown(function()
    control.close()
    cluster:stop()
  end)
  after_each(fixtures.close)

  for _, publish in ipairs { "both", "spublish", "publish" } do
    it("passes a release request on once, publish = " .. publish, function()
      local name, asked = name_on(cluster.nodes[2]), {}
      local mine, theirs = open { publish = publish }:lock(name),
        open { publish = publish }:lock(name)
      assert.equal("not_held", select(2, theirs:request_release()))
      local hold = assert(mine:hold())
      assert.equal("refused", select(2, theirs:request_release()))
      hold:on_release_request(function(_, reason)
        asked[#asked + 1] = reason
      end)
      eventually(function() return (theirs:request_release "1") end, SOON)
      for i = 2, 5 do
        eventually(function() return asked[i - 1] end, SOON)
        assert.same({ true, 1 }, { theirs:request_release(tostring(i)) })
      end
      eventually(function() return asked[5] end, SOON)
      assert.same({ "1", "2", "3", "4", "5" }, asked)
      hold:unlock()
    end)
  end

  it("follows the slot of a lock that is asked for", function()
    local name, asked = name_on(cluster.nodes[1]), {}
    local hold = assert(open():lock(name):hold())
    hold:on_release_request(function(_, reason) asked[#asked + 1] = reason end)
    local theirs = open():lock(name)
    eventually(function() return (theirs:request_release "1") end, SOON)
    cluster:move(slot.of(name), cluster.nodes[3])
    eventually(function()
      theirs:request_release "2"
      return asked[#asked] == "2"
    end, SOON)
    hold:unlock()
  end)

  it("runs commands under a lock on keys of its slot only", function()
    local name, other = name_on(cluster.nodes[1]), name_on(cluster.nodes[2])
    local client = open()
    local lock = client:lock(name)
    assert(lock:lock())
    local key = ("{%s}:value"):format(name)
    assert.equal("OK", lock:call("SET", key, "one"))
    assert.equal("one", client:call("GET", key))
    local ok, code, detail = lock:call("SET", other, "two")
    assert.same({ nil, "usage" }, { ok, code })
    assert.matches("use keys such as " .. key, detail, 1, true)
    assert.is_false(client:call("GET", other))
    assert.is_true(lock:unlock())
  end)

  it("has locks on each of its nodes", function()
    local client = open()
    for _, node in ipairs(cluster.nodes) do
      local name = name_on(node)
      local lock = client:lock(name)
      assert.is_true(lock:lock())
      assert.equal("1", node:cli("EXISTS", name))
      assert.is_true(lock:unlock())
      assert.equal("0", node:cli("EXISTS", name))
    end
  end)

  it("may set its clocks forward", function()
    local client = open { seal = "time" }
    for _, node in ipairs(cluster.nodes) do
      local lock = client:lock(name_on(node))
      assert.is_true(lock:lock())
      local its = lock.record.target:route ""
      its.clock.ms = its.clock.ms - 5000      -- as if it were set forward
      assert.is_true(lock:try_lock())
      assert.is_true(lock:unlock())
    end
  end)

  it("is asked for its slots once, for any number of tasks", function()
    local function queries()
      local n = 0
      for _, node in ipairs(cluster.nodes) do
        n = n + node:stat "cluster|slots"
      end
      return n
    end
    local before, client = queries(), open { lazy = true }
    task.many(100, function()
      assert.is_true(client:lock(fixtures.name "many"):lock())
    end)
    assert.equal(1, queries() - before)
  end)

  it("wakes waiters on each node", function()
    local client, other = open(), open()
    for _, node in ipairs(cluster.nodes) do
      local name = name_on(node)
      local lock = client:lock(name)
      assert.is_true(lock:lock())
      wakes(lock, (start_waiter(other, name)))
    end
  end)

  it("follows a slot that has moved", function()
    local client = open()
    local source, target = cluster.nodes[1], cluster.nodes[2]
    local name = name_on(source)
    local lock = client:lock(name)
    assert.is_true(lock:lock())
    cluster:move(slot.of(name), target)
    assert.equal("1", target:cli("EXISTS", name))
    assert.is_true(lock:is_held())
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    assert.is_true(lock:unlock())
    assert.equal("0", target:cli("EXISTS", name))
  end)

  it("keeps renewing a hold whose slot has moved", function()
    local client, target = open { watchdog = 3 * slow }, cluster.nodes[3]
    local name = name_on(cluster.nodes[2])
    local lock = client:lock(name)
    assert.is_true(lock:lock())
    cluster:move(slot.of(name), target)
    local before = target:stat("evalsha")
    eventually(function() return target:stat("evalsha") > before + 1 end, SOON,
      "it is renewed there")
    assert.equal("held", lock:state())
    assert.is_true(lock:unlock())
  end)

  it("follows ASK while a slot is imported", function()
    local client, source, target = open(), cluster.nodes[3], cluster.nodes[1]
    local name = name_on(source)
    local number = slot.of(name)
    target:cli("CLUSTER", "SETSLOT", number, "IMPORTING", source.id)
    source:cli("CLUSTER", "SETSLOT", number, "MIGRATING", target.id)
    local lock = client:simple_lock(name)
    assert.is_true(lock:lock())
    assert.equal("0", source:cli("CLUSTER", "COUNTKEYSINSLOT", number))
    assert.equal("1", target:cli("CLUSTER", "COUNTKEYSINSLOT", number))
    assert.is_true(lock:is_held())
    assert.is_true(lock:unlock())
    for _, node in ipairs(cluster.nodes) do
      node:cli("CLUSTER", "SETSLOT", number, "NODE", target.id)
    end
  end)

  it("wakes a waiter after the slot of its channel has moved", function()
    for _, publish in ipairs { "publish", "spublish", "both" } do
      local client = open { publish = publish }
      local other = open { publish = publish }
      local source, target = cluster.nodes[2], cluster.nodes[1]
      local name = name_on(source)
      local lock = client:lock(name)
      assert.is_true(lock:lock())
      local waiter, listens, channel = start_waiter(other, name)
      cluster:move(slot.of(name), target)
      local its = other.session.wakeup.channels[channel]
      if publish ~= "publish" then
        eventually(function()
          return listens() and its.subscriber.node.options.port == target.port
        end, SOON, "the waiter listens at the new node")
      end
      wakes(lock, waiter)
    end
  end)

  it("refuses a name whose keys are in different slots", function()
    local client = open()
    assert.has_error(function() client:lock "a{b" end, 'bad lock name "a{b": '
      .. 'its keys "a{b" and "a{b:more" are in different slots of the cluster; '
      .. 'use a name such as "ab"')
    assert.is_true(client:lock("{a}b"):lock())
  end)

  it("refuses such a name of a computation, in the words of the caller",
    function()
      local client = open()
      for name, better in pairs { ["{x"] = "x", ["x}"] = "x", ["a}b"] = "ab",
          ["{}a"] = "a" } do
        local ok, problem = pcall(client.compute, client, name, { ttl = 1 },
          function() return "v" end)
        assert.is_false(ok)
        local named, other = problem:match
          '^bad lock name (%b"").*; use a name such as (%b"")$'
        assert.same({ '"' .. name .. '"', '"' .. better .. '"' },
          { named, other })
      end
      assert.equal("v", (client:compute("{a}b", { ttl = 1 },
        function() return "v" end)))
    end)

  it("refuses a policy whose keys are in different slots", function()
    local policy = {
      name = "split", keys = function(name) return { name, "of " .. name } end,
      server = {
        acquire = function() return { "held" } end,
        renew = function() return { "held" } end,
        release = function() return { "freed" } end,
      },
    }
    assert.error_matches(function() open():policy(policy, "x") end,
      'its keys "x" and "of x" are in different slots of the cluster; use a '
      .. 'name such as "{x}"', 1, true)
    assert(open():policy(policy, "{x}"))
  end)

  it("answers client:call from the node that has the key", function()
    local client = open()
    for _, node in ipairs(cluster.nodes) do
      local name = name_on(node)
      assert.equal("OK", client:call("SET", name, "x"))
      assert.equal("x", node:cli("GET", name))
      assert.equal(1, client:call("EVAL", "return redis.call('del', KEYS[1])",
        1, name))
    end
    assert.equal("PONG", client:call "PING")
  end)

  it("is named by the error of a client with redis://", function()
    local node, other = cluster.nodes[1], cluster.nodes[2]
    local client = fixtures.open("redis://127.0.0.1:" .. node.port)
    local ok, code, detail = client:lock(name_on(other)):try_lock()
    assert.same({ nil, "refused" }, { ok, code })
    assert.matches("redis+cluster://", detail, 1, true)
  end)

  it("is reached if its nodes have other names", function()
    local source, target = cluster.nodes[1], cluster.nodes[2]
    local function set(what, value)
      for _, node in ipairs(cluster.nodes) do
        assert.equal("OK", node:cli("CONFIG", "SET", what, value))
      end
    end
    local function goes_through(address)
      local client, name = open(), name_on(source)
      local lock = client:lock(name)
      assert.is_true(lock:lock())
      assert.equal(address .. ":" .. source.port, lock.record.target:where())
      cluster:move(slot.of(name), target)
      assert.is_true(lock:unlock())
      assert.equal(address .. ":" .. target.port, lock.record.target:where())
    end
    set("cluster-preferred-endpoint-type", "unknown-endpoint")
    goes_through "127.0.0.1"
    set("cluster-preferred-endpoint-type", "hostname")      -- "?": none is set
    goes_through "127.0.0.1"
    if host.name == "uv" then           -- nginx has no resolver here
      set("cluster-announce-hostname", "localhost")
      eventually(function()
        for _, node in ipairs(cluster.nodes) do
          local _, n = node:cli("CLUSTER", "SLOTS"):gsub("localhost", "")
          if n < #cluster.nodes then return false end
        end
        return true
      end, SOON, "all know the host names")
      goes_through "localhost"
      set("cluster-announce-hostname", "")
    end
    set("cluster-preferred-endpoint-type", "ip")
  end)

  it("is reached through the addresses of `nat`", function()
    local nat, source = {}, cluster.nodes[1]
    local there = host.name == "ngx" and "127.0.0.1:" or "localhost:"
    for _, node in ipairs(cluster.nodes) do
      nat["127.0.0.1:" .. node.port] = there .. node.port
    end
    for _, its in ipairs { nat, function(address) return nat[address] end } do
      local client = open { nat = its }
      local name = name_on(source)
      assert.is_true(client:lock(name):lock())
      assert.equal(there .. source.port,
        client:lock(name).record.target:where())
    end
  end)

  it("takes several locks of all nodes as one", function()
    local client, locks = open(), {}
    for i, node in ipairs(cluster.nodes) do
      locks[i] = client:lock(name_on(node))
    end
    local both = rlock.multi_lock(locks)
    assert.is_true(both:lock())
    for _, lock in ipairs(locks) do assert.is_true(lock:is_locked()) end
    assert.is_true(both:unlock())
  end)

  it("may be a member of a red lock", function()
    local clients = { open() }
    for i = 2, 3 do clients[i] = fixtures.open(fixtures.server().url) end
    local red = rlock.red_lock(clients, fixtures.name "red")
    assert.is_true(red:lock())
    assert.equal("held", red:state())
    assert.is_true(red:unlock())
  end)

  it("frees the locks of its other nodes while one does not answer", function()
    local client, names = open { timeout = 2 * SOON }, {}
    for i, node in ipairs(cluster.nodes) do
      names[i] = name_on(node)
      assert.is_true(client:lock(names[i]):lock())
    end
    local closing
    cluster.nodes[1]:pause()
    closing = task.start(function() client:close() end)
    eventually(function()
      return cluster.nodes[2]:cli("EXISTS", names[2]) == "0"
        and cluster.nodes[3]:cli("EXISTS", names[3]) == "0"
    end, SOON, "the others are free")
    cluster.nodes[1]:resume()
    closing:join()
  end)

  local function reads_of(node)
    return control.ask(node, "INFO", "stats")
      :match "total_reads_processed:(%d+)"
  end

  -- How often each node has read requests while fn() ran, at least.
  local function reads_in(fn)
    local least = {}
    for _ = 1, 5 do
      local before = {}
      for i, node in ipairs(cluster.nodes) do before[i] = reads_of(node) end
      fn()
      for i, node in ipairs(cluster.nodes) do
        local own = reads_of(node) - before[i] - 1     -- without that of INFO
        least[i] = math.min(least[i] or own, own)
      end
    end
    return least
  end

  it("is asked for several locks of a node in one round trip", function()
    local client, locks = open(), {}
    for _, node in ipairs(cluster.nodes) do
      for _ = 1, 3 do locks[#locks + 1] = client:lock(name_on(node)) end
    end
    local all = rlock.multi_lock(locks)
    assert.is_true(all:lock())          -- connects, loads scripts
    assert.is_true(all:unlock())
    -- In nginx, commands that are sent at once have a connection each.
    local n = rawget(_G, "ngx") and 6 or 2
    assert.same({ n, n, n }, reads_in(function()
      assert.is_true(all:lock())
      assert.is_true(all:unlock())
    end))
  end)

  it("leaves nothing held when a client is closed", function()
    local client, names = open(), {}
    for i, node in ipairs(cluster.nodes) do
      names[i] = name_on(node)
      assert.is_true(client:lock(names[i]):lock())
    end
    client:close()
    for i, node in ipairs(cluster.nodes) do
      assert.equal("0", node:cli("EXISTS", names[i]))
    end
  end)
end)

describe("an address of a cluster", function()
  after_each(fixtures.close)

  local function refusal(options)
    options.connect_timeout = 2 * slow
    local client, code, detail = rlock.open(options)
    assert.is_nil(client)
    return code, detail
  end

  it("may not be that of a single server", function()
    local server = fixtures.server { port = true }
    local code, detail = refusal { url = "redis+cluster://127.0.0.1:"
      .. server.port }
    assert.equal("redis", code)
    assert.matches("cluster support disabled", detail)
  end)

  it("may hide CLUSTER, and says what to do", function()
    local server = fixtures.server {
      port = true, args = { "--rename-command", "CLUSTER", "" },
    }
    local code, detail = refusal { url = "redis+cluster://127.0.0.1:"
      .. server.port }
    assert.equal("redis", code)
    assert.matches("hides CLUSTER: use redis://", detail, 1, true)
  end)

  it("may be translated", function()
    for _, nat in ipairs { "x:1", { "x:1" }, { ["x:1"] = "y" } } do
      assert.error_matches(function()
        rlock.open { url = "redis+cluster://x", nat = nat }
      end, "bad nat: must be a function, or a table such as", 1, true)
    end
    assert.same({ nil, "usage", "bad option nat: only for redis+cluster://" },
      { rlock.open { url = "redis://127.0.0.1", nat = {} } })
  end)

  it("where nothing listens is reported", function()
    local code, detail = refusal { url = "redis+cluster://127.0.0.1:1" }
    assert.equal("connect", code)
    assert.matches("no node of the cluster returned a slot map: 127.0.0.1:1: ",
      detail, 1, true)
  end)

  it("needs the cluster's password", function()
    cluster = fixtures.cluster { password = "secret" }
    assert.is_true(open():lock("a"):lock())
    local code, detail = refusal { url = cluster.url:gsub("secret", "wrong") }
    assert.equal("connect", code)
    assert.matches("WRONGPASS", detail)
    assert.is_nil(detail:find("wrong", 1, true))
    local client = fixtures.open { lazy = true,
      url = cluster.url:gsub("secret", "wrong"), timeout = 2 * SOON }
    local lock = client:lock "a"
    code, detail = select(2, within(SOON, lock.try_lock, lock))  -- no retries
    assert.equal("connect", code)
    assert.matches("^WRONGPASS .*from 127", detail)
    for _, node in ipairs(cluster.nodes) do
      node:cli("ACL", "SETUSER", "few", "on", ">pw", "~*", "&*", "+@all",
        "-cluster")
    end
    code, detail = refusal { url = cluster.url, username = "few",
      password = "pw" }
    assert.equal("redis", code)
    assert.matches("NOPERM.*%(permit %+cluster|slots;", detail)
  end)

  it("needs few permissions", function()
    cluster = fixtures.cluster { masters = 1 }
    cluster.nodes[1]:cli("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*",
      "+@read", "+@write", "+@pubsub", "+evalsha", "+script|load", "+time",
      "+info", "+ping", "+select", "+client|setname", "+client|id",
      "+client|kill", "+cluster|slots", "+asking",
      "+command|info", "+command|getkeys")
    local client, other = open { username = "app", password = "pw" },
      open { username = "app", password = "pw" }
    local lock = client:lock "x"
    assert.is_true(lock:lock())
    wakes(lock, (start_waiter(other, "x")))
    assert.equal("OK", client:call("SET", "y", "1"))
    assert.is_truthy(client:call("OBJECT", "ENCODING", "y"))
    assert.equal("", cluster.nodes[1]:cli("ACL", "LOG"))     -- no refusals
  end)

  it("of slots that no node has is reported", function()
    cluster = fixtures.cluster()
    local client = open { timeout = 0.5 * slow }
    local name = name_on(cluster.nodes[1])
    cluster.nodes[1]:cli("CLUSTER", "DELSLOTS", slot.of(name))
    local _, code, detail = client:lock(name):try_lock()
    assert.equal("redis", code)
    assert.matches("^CLUSTERDOWN", detail)
  end)
end)

describe("a cluster with replicas", function()
  before_each(function()
    cluster = fixtures.cluster { masters = 3, replicas = 3 }
  end)
  after_each(fixtures.close)

  it("continues after the master of a lock was killed", function()
    local client = open { watchdog = 5 * slow, timeout = 1 * slow }
    local victim = cluster.nodes[1]
    local name, elsewhere = name_on(victim), name_on(cluster.nodes[2])
    local lost
    assert.is_true(client:lock(elsewhere):lock())
    client:lock(elsewhere):on_lost(function() lost = true end)
    victim:kill()
    assert.is_true(client:lock(name):lock { wait = 20 * slow })
    assert.is_true(client:lock(name):unlock())
    assert.is_nil(lost)
    assert.is_true(client:lock(elsewhere):unlock())
  end)
end)

describe("rlockctl status in a cluster", function()
  after_each(fixtures.close)

  local function status(...)
    return (shell.run(shell.words { rlockctl, "--url", cluster.url, "status",
      ... }))
  end

  it("shows slot and node", function()
    cluster = fixtures.cluster()
    local node = cluster.nodes[2]
    local name = name_on(node)
    assert.is_true(open():lock(name):lock())
    assert.matches(("in slot %d, on 127.0.0.1:%d"):format(slot.of(name),
      node.port), status(name), 1, true)
    assert.matches(('"node":"127.0.0.1:%d","slot":%d,'):format(node.port,
      slot.of(name)), status("--json", name), 1, true)
  end)
end)

describe("rlockctl in a cluster", function()
  after_each(fixtures.close)

  local function ctl(...)
    return (shell.run(shell.words { rlockctl, "--url", cluster.url, ... }))
  end

  it("lists the locks of all masters, and who holds them", function()
    cluster = fixtures.cluster()
    local client, names = open { name = "me" }, {}
    for i = 1, 3 do
      names[i] = name_on(cluster.nodes[i])
      assert.is_true(client:lock(names[i]):lock())
      assert.is_true(client:fair_read_write_lock(names[i]):read_lock():lock())
    end
    assert.is_true(client:lock("{other}:a"):lock())
    cluster:owner("x{}y"):cli("HSET", "x{}y", "somebody", 1)  -- no lock here
    local text = ctl("ls", "cluster*")
    for _, name in ipairs(names) do
      assert.matches(name .. " +reentrant +%S+ +0 +%- +[^\n]+ me %(pid %d+%)",
        text)
      assert.matches(name .. " +fair_readwrite +", text)
    end
    assert.equal(6, select(2, text:gsub("\n", "")))
    assert.matches('"name":"{other}:a","node":"127.0.0.1:%d+","slot":%d+,',
      ctl("ls", "--json", "{*"))
  end)

  it("shows the locks of the other masters if one does not answer", function()
    cluster = fixtures.cluster()
    local client, names = open { name = "me", timeout = SOON }, {}
    for i = 1, 3 do
      names[i] = name_on(cluster.nodes[i])
      assert.is_true(client:lock(names[i]):lock { lease = 3600 })
    end
    cluster.nodes[3]:pause()
    local failure = "127.0.0.1:" .. cluster.nodes[3].port .. ": no "
    for command, prefix in pairs { ls = "incomplete list: ",
        ["top --once"] = "incomplete list: ",
        deadlocks = "incomplete search: " } do
      local text, ok = shell.run(shell.words { rlockctl, "--url", cluster.url }
        .. " " .. command)
      assert.is_false(ok)
      assert.matches(prefix .. failure, text, 1, true)
      for i = 1, command == "deadlocks" and 0 or 2 do
        assert.matches("\n" .. names[i] .. " ", text, 1, true)
      end
    end
    cluster.nodes[3]:resume()
  end)

  it("breaks a lock, and waits for one", function()
    cluster = fixtures.cluster()
    local client = open { watchdog = SOON / 2 }  -- `ctl` blocks the renewals
    local name, lost = name_on(cluster.nodes[2]), nil
    local lock = client:lock(name)
    assert.is_true(lock:lock())
    lock:on_lost(function() lost = true end)
    local ends = task.start(function()
      local process = host.process { file = rlockctl, stdin = "null",
        args = { "--url", cluster.url, "wait", name }, stdout = "null" }
      return process:wait(SOON)
    end)
    local channel = lock.record.policy.channel(lock.record.target)
    eventually(function()
      return cluster.nodes[2]:cli("PUBSUB", "NUMSUB", channel):match "1$"
    end, SOON, "it listens")
    assert.matches("is broken: it was held by ", ctl("break", "--force", name))
    assert.equal(0, (ends:join(SOON)))
    eventually(function() return lost end, SOON, "the holder is told")
  end)
end)
