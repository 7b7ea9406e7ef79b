--- The commands of rlockctl on ZooKeeper: ls, status, top, break, wait. Holders
--- are programs of ours, and nodes that are named as Curator names them.

local codec = require "rlock.zookeeper.codec"
local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local frames = require "spec.tools.frames"
local on_zookeeper = require "spec.tools.on_zookeeper"
local peers = require "spec.tools.zookeeper_peer"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"
local sorted = require "rlock.util.sorted"
local terminal = require "spec.tools.terminal"
local zookeeper = require "spec.tools.zookeeper"

local server = on_zookeeper("the commands on ZooKeeper",
  { describe = describe, pending = pending, teardown = teardown })
if not server then return end

local on_terminal = terminal.only(it, pending)

local SOON = 10 * slow
local HOST = shell.run "uname -n":match "%S+"
local STOP, CONT = 19, 18

local peer, root, url, number = nil, nil, nil, 0

-- A program that holds a lock of each kind, and prints those it loses.
local HOLDER = ctl.file("holder.lua", [[
local rlock = require "rlock"
local client = assert(rlock.open())
local function take(name, lock)
  assert(lock:lock())
  lock:on_lost(function() print("lost " .. name) end)
end
io.stdout:setvbuf "line"
take("ours/lock", client:lock "ours/lock")
take("ours/mutex", client:mutex "ours/mutex")
take("ours/reader", client:read_write_lock("ours/reader"):read_lock())
take("ours/writer", client:read_write_lock("ours/writer"):write_lock())
assert(client:semaphore("ours/semaphore"):set(3))
assert(client:semaphore("ours/semaphore"):acquire(2))
take("ours/fair", client:fair_lock "ours/fair")
assert(client:permits("ours/permits"):set(1))
assert(client:permits("ours/permits"):acquire())
assert(client:latch("ours/latch"):set(3))
assert(client:barrier("ours/barrier"):set())
assert(client:double_barrier("ours/double", 1):enter())
assert(client:election("ours/leader"):campaign())
assert(client:election("ours/latched", { layout = "latch" }):campaign())
rlock.spawn(client.compute, client, "ours/value", { ttl = 60 }, function()
  print "holds"
  rlock.sleep(3600)
end)
rlock.sleep(3600)]])

local function hold()
  local holder = ctl.start { HOLDER, url = url }
  finally(function()
    holder:kill(15)
    holder:wait()
  end)
  holder:says "holds"
  return holder, ("%s: holder.lua (pid %d)"):format(HOST, holder.pid)
end

local function output(...) return ctl.output { url = url, ... } end
local function fault(status, ...)
  return ctl.fault(status, { url = url, ... })
end

-- Makes a persistent node and those above it.
local function make(path)
  local at = root
  for part in path:gmatch "[^/]+" do
    at = at .. "/" .. part
    peer:make(at)
  end
  return at
end

-- Makes a node as Curator does; returns its name.
local function curator(path, mark, address)
  number = number + 1
  return (assert(peer:make(("%s/_c_%08x-0000-4000-8000-000000000000-%s"):format(
    make(path), number, mark), address, codec.flags.sequential))
    :match "[^/]+$")
end

-- The lines of a table: name -> the rest of the line.
local function rows_of(text)
  local rows = {}
  for line in text:gmatch "[^\n]+" do
    local name, rest = line:match "^(.-)  +(.*)$"
    if name ~= "NAME" then rows[name] = rest end
  end
  return rows
end

before_each(function()
  peer = peer or peers.open(server)
  number = number + 1
  root = "/commands" .. number
  assert(peer:make(root))
  url = server.url .. root
end)

after_each(frames.reset)
after_each(fixtures.close)

teardown(ctl.clean)

describe("rlockctl ls on ZooKeeper", function()
  it("lists nothing if there is nothing", function()
    assert.equal("", output "ls")
    make "a/b/c"
    assert.equal("", output "ls")
  end)

  it("lists our locks, and who holds them", function()
    local _, who = hold()
    local rows = rows_of(output "ls")
    for name, pattern in pairs {
      ["ours/lock"] = "reentrant  %-     0        %d+     ",
      ["ours/mutex"] = "mutex      %-     0        %d+     ",
      ["ours/reader"] = "readwrite  %-     0        %d+     ",
      ["ours/semaphore"] = "semaphore  %-     0        %-      1 available; ",
      ["ours/fair"] = "reentrant  %-     0        %d+     ",
      ["ours/permits"] = "permits    %-     0        %-      0 available; ",
      ["ours/double"] = "barrier    %-     0        %d+     ",
      ["ours/leader"] = "reentrant  %-     0        %d+     ",
      ["ours/latched"] = "election   %-     0        %d+     ",
      ["ours/value/compute"] = "reentrant  %-     0        %d+     ",
    } do
      assert.matches("^" .. pattern .. who:gsub("%W", "%%%0"), rows[name])
    end
    assert.truthy(rows["ours/writer"]:find(who .. " (writes)", 1, true))
    assert.matches("^latch      .* at 3$", rows["ours/latch"])
    assert.matches("^barrier    .* nobody$", rows["ours/barrier"])
    assert.same(sorted(rows), sorted(rows_of(output("top", "--once",
      "--interval", "0.1"))))
  end)

  it("lists Curator's locks by address", function()
    curator("deep/er/lock", "lock-", "10.0.0.1")
    curator("deep/er/lock", "lock-", "10.0.0.2")
    curator("deep/pair", "__READ__", "10.0.0.3")
    curator("deep/pair", "__READ__", "10.0.0.4")
    curator("deep/pair", "__WRIT__", "10.0.0.5")
    curator("deep/mutex/leases", "lease-", "10.0.0.6")
    for i = 7, 9 do curator("locks/leases", "lease-", "10.0.0." .. i) end
    local rows = rows_of(output "ls")
    for name, pattern in pairs {
      ["deep/er/lock"] = "reentrant .* 1 .* 10.0.0.1$",
      ["deep/pair"] = "readwrite .* 1 .* 10.0.0.3 %(reads%); "
        .. "10.0.0.4 %(reads%)$",
      ["deep/mutex"] = "mutex .* 10.0.0.6$",
      locks = "semaphore .* 10.0.0.7; 10.0.0.8; 10.0.0.9$",
    } do
      assert.matches("^" .. pattern, rows[name])
      rows[name] = nil
    end
    assert.same({}, rows)
  end)

  it("has the fields of Redis' locks with --json", function()
    local node = curator("a", "lock-", "10.0.0.1")
    local next_node = curator("a", "lock-", "")
    local token = codec.number(select(2, peer:get(root .. "/a/" .. node))
      .created)
    assert.equal(('{"ends_with":"session","holders":[{"address":"10.0.0.1",'
      .. '"node":"%s","owner":"%s"}],"kind":"reentrant","name":"a","queue":'
      .. '[{"node":"%s","owner":"%s"}],"state":"held","token":%d,'
      .. '"waiters":1}\n'):format(node, node, next_node, next_node, token),
      output("ls", "--json"))
  end)

  it("takes a pattern and a limit", function()
    for _, name in ipairs { "x/a", "x/b", "y/a" } do
      curator(name, "lock-", "")
    end
    assert.equal("x/a\nx/b\n", output("ls", "--names", "x/*"))
    assert.equal("x/a\ny/a\n", output("ls", "--names", "*/a"))
    assert.equal("x/b\n", output("ls", "--names", "/x/b"))
    assert.equal("", output("ls", "--names", "none/*"))
    local result = ctl.run { url = url, "ls", "--limit", "1" }
    assert.same({ 0, "rlockctl: ls: there are more than 1; give a pattern or "
      .. "--limit\n" }, { result.status, result.err })
  end)

  it("never looks at the server's own nodes", function()
    for _, pattern in ipairs { "*", "zookeeper/*", "/zookeeper/*" } do
      assert.is_nil(ctl.output { url = server.url, "ls", "--names", pattern }
        :find "zookeeper")
    end
  end)

  it("says that it stopped early: a tree that is too deep", function()
    curator(("d/"):rep(40) .. "lock", "lock-", "")
    curator("near", "lock-", "")
    local result = ctl.run { url = url, "ls", "--names" }
    assert.same({ 0, "near\n" }, { result.status, result.out })
    result = ctl.run { url = url, "ls" }
    assert.same({ 0, "rlockctl: ls: the search stopped early: below 32 levels\n"
    }, { result.status, result.err })
  end)
end)

describe("rlockctl status on ZooKeeper", function()
  it("shows a lock, its holder and the line", function()
    local _, who = hold()
    local waiting = ctl.start { url = url, "run", "ours/lock", "--", "true" }
    finally(function()
      waiting:kill(2)
      waiting:wait()
    end)
    eventually(function() return #peer:names(root .. "/ours/lock") == 2 end,
      SOON)
    assert.matches(('^"ours/lock" is held: reentrant lock\n  held by %s\n'
      .. '  until it is released, or its session ends\n  token %%d+\n'
      .. '  1%%. in line: %s: true %%(pid %d%%)\n$'):format(
      who:gsub("%W", "%%%0"), HOST:gsub("%W", "%%%0"), waiting.pid),
      output("status", "ours/lock"))
    assert.matches("^\"ours/semaphore\" is free: semaphore, 1 available, 2 in "
      .. "use\n", ctl.output { url = url, ends = 3, "status",
        "ours/semaphore" })
    assert.matches("\n  written by ", output("status", "/ours/writer"))
  end)

  it("shows permits by their ids, and a latch", function()
    local id = ("0a"):rep(16)
    peer:make(make "p" .. "/limit", codec.int(2))
    curator("p/leases", "lease-",
      "10.0.0.1 " .. id .. " rlock,me,web3,12,job.lua,")
    assert.equal(('"p" is free: permits, 1 available, 1 in use\n'
      .. "  held by web3: job.lua (pid 12), id %s\n"):format(id),
      ctl.output { url = url, ends = 3, "status", "p" }:match "^.-\n.-\n")
    assert.matches("is freed", output("break", "p", "--force", "--holder", id))
    local latch = fixtures.open({ url = url }):latch "l"
    assert(latch:set(2))
    assert.equal('"l" is held: latch at 2\n', output("status", "l"))
    assert.matches("^latch      .* at 2", rows_of(output "ls").l)
    assert.matches("no holder to break", fault(1, "break", "l", "--force"))
    local waiter = ctl.start { url = url, "wait", "l" }
    assert(latch:count_down())
    assert(latch:count_down())
    assert.equal(0, waiter:wait().status)
    assert.equal('"l" is free: latch at 0\n',
      ctl.output { url = url, ends = 3, "status", "l" })
    assert(latch:delete())
    peer:make(root .. "/l/latch", "2\nno set\n")
    assert.equal(4, ctl.run { url = url, "status", "l" }.status)
  end)

  it("shows a plain barrier, also one of Curator's, until it is removed",
    function()
      local client = fixtures.open { url = url }
      assert(client:barrier("b"):set())
      assert(peer:make(root .. "/c", "192.168.0.7"))
      assert(peer:make(root .. "/d", "some.text"))
      assert(peer:make(root .. "/e", "10.0.0.1:9092"))
      assert.matches("^barrier ", rows_of(output "ls").b)
      assert.equal("b\nc\n", output("ls", "--names"))
      assert.equal("c\n", output("ls", "--names", "/c"))
      for _, name in ipairs { "b", "c" } do
        assert.equal(('"%s" is held: barrier\n'):format(name),
          output("status", name))
        local waiting = ctl.start { url = url, "wait", name }
        assert.is_true(client:barrier(name):remove())
        assert.equal(0, waiting:wait().status)
        assert.equal(3, ctl.run { url = url, "status", name }.status)
      end
      assert.equal("", output "ls")
      for _, name in ipairs { "d", "e" } do
        assert.equal(4, ctl.run { url = url, "status", name }.status)
      end
    end)

  it("shows the members of a double barrier", function()
    curator("d", "member-",
      "10.0.0.1 " .. ("0a"):rep(16) .. " rlock,me,web3,12,job.lua,")
    peer:make(root .. "/d/ready")
    assert.matches('^"d" is held: barrier\n  held by web3: job.lua '
      .. "%(pid 12%)\n", output("status", "d"))
    assert.matches("^barrier ", rows_of(output "ls").d)
    local double = fixtures.open({ url = url }):double_barrier("left", 1)
    assert(double:enter() and double:leave())
    assert(peer:make(root .. "/left/ready"))
    assert.equal('"left" is free: barrier\n',
      ctl.output { url = url, ends = 3, "status", "left" })
    assert.is_nil(rows_of(output "ls").left)
  end)

  it("says if a node does not end with a session", function()
    local path = make "stuck"
    peer:make(path .. "/_c_1-lock-0000000001", "10.0.0.1")
    assert.matches("\n  without an expiry\n", output("status", "stuck"))
  end)

  it("ends with 3 for what is free, and 4 for what is no lock", function()
    make "empty"
    make "tree/x"
    peer:make(root .. "/data", "hello")
    for _, name in ipairs { "none", "none/below", "empty" } do
      assert.equal(('"%s" is free\n'):format(name),
        ctl.output { url = url, ends = 3, "status", name })
    end
    assert.equal('"tree" is unknown: a node whose children are no locks\'\n',
      ctl.output { url = url, ends = 4, "status", "tree" })
    assert.equal('"data" is unknown: a node with data, which is no lock\n',
      ctl.output { url = url, ends = 4, "status", "data" })
  end)

  it("shows nodes of two kinds at one path", function()
    curator("both", "lock-", "10.0.0.1")
    curator("both", "__WRIT__", "10.0.0.2")
    local text = output("status", "both")
    assert.matches("reentrant lock\n  held by 10.0.0.1\n", text)
    assert.matches("read/write lock\n  written by 10.0.0.2\n", text)
  end)

  it("escapes what a node claims", function()
    curator("evil", "lock-", "10.0.0.1\27[2J x rlock,a,%1b,1,\n,")
    assert.is_nil(output("status", "evil"):find("[^%C\n]"))
    assert.is_nil(output("status", "--json", "evil"):find("[^%C\n]"))
  end)
end)

describe("rlockctl doctor on ZooKeeper", function()
  local GOOD = "serving, version, tick, sessions, fsync, latency, connections, "
    .. "jute%-maxbuffer"

  -- Joins what it wraps.
  local function doctor(status, where, ...)
    local result = ctl.run { url = where, "doctor", ... }
    assert.same({ status, "" }, { result.status, result.err })
    return (result.out:gsub("\n      ", " "))
  end

  it("finds nothing on a good server", function()
    local where = server.url:match "//(.*)"
    local out = doctor(0, url)
    assert.matches(("^%s: ensemble\n  note: quorum: there is one server\n")
      :format(where .. root), out)
    assert.matches("note: session: the session time%-out is 10 s; the server "
      .. "grants 1 s to 10 s\n", out)
    assert.matches("\n  ok: sync, permissions, locks\n", out)
    assert.matches(("\n%s: zookeeper 3[%%d.]+, standalone\n  ok: %s\n$")
      :format(where, GOOD), out)
    assert.matches('"role":"standalone","server":"zookeeper","version":"3',
      doctor(0, url, "--json", "--name", "some/lock"))
    assert.same({}, peer:names(root))
  end)

  it("finds what is wrong with a server", function()
    local bad = zookeeper.start { tick = 3000, jute = 100000, more = [[
minSessionTimeout=4000
maxClientCnxns=50
4lw.commands.whitelist=srvr,conf]] }
    finally(function() bad:stop() end)
    local out = doctor(2, bad.url)
    for _, text in ipairs { "note: tick: tickTime is 3 s\n",
        "fault: sessions: minSessionTimeout is 4 s, tickTime 3 s\n",
        "note: connections: maxClientCnxns is 50\n",
        "warning: jute-maxbuffer: jute.maxbuffer is less than 1 MB\n",
        "unknown: fsync (mntr is not permitted (4lw.commands.whitelist))\n" }
    do
      assert.truthy(out:find(text, 1, true), text .. out)
    end
    assert.is_nil(out:find "session time%-out is 30 s")
  end)

  it("finds nodes that do not end with their session", function()
    peer:make(root .. "/stale", "", 0)
    peer:make(root .. "/stale/_c_0-lock-0000000000", "", 0)
    assert.matches("warning: locks: 1 locks without an end: stale\n",
      doctor(1, url))
  end)

  it("shows what a login may not do", function()
    local login = server.url:gsub("//", "//alice:secret@")
    local alice = peers.open { url = login }
    alice:make(root .. "/hers", "", 0, codec.CREATOR)
    alice:close()
    local function look(name, ...)
      return ctl.run { url = server.url:gsub("//", "//" .. name .. "@") .. root
        .. "/hers", ... }
    end
    local result = look("alice:secret", "doctor")
    assert.same({ 0, "" }, { result.status, result.err })
    assert.matches("note: login: the login crosses the network", result.out)
    assert.matches("\n  ok: sync, permissions, access, locks\n", result.out)
    assert.is_nil(result.out:find "secret")
    assert.matches("note: access: anyone may delete the nodes below /c",
      doctor(0, login .. root))
    result = look("alice:wrong", "doctor")
    assert.same({ 2, "" }, { result.status, result.err })
    assert.truthy(result.out:find(("fault: permissions: the login may not "
      .. "list, create below %s/hers\n"):format(root), 1, true), result.out)
    for _, words in ipairs { { "ls" }, { "top", "--once" }, { "status", "x" },
        { "wait", "x" }, { "break", "--force", "x" },
        { "run", "x", "--", "true" } } do
      result = look("alice:wrong", table.unpack(words))
      if words[1] == "ls" or words[1] == "top" or words[1] == "run" then
        assert.equal(208, result.status, words[1])
        assert.matches("^rlockctl: %l+: NOAUTH for [^\n]+\n$", result.err)
      end
      assert.is_nil((result.err .. result.out):find "wrong")
    end
  end)
end)

describe("rlockctl break on ZooKeeper", function()
  it("frees a lock of any kind, and its holder finds it lost", function()
    local holder = hold()
    for _, name in ipairs { "ours/lock", "ours/mutex", "ours/reader",
        "ours/writer" } do
      assert.matches(('^"%s" is broken: it was held by [^\n]+ %%(pid %d%%)\n$')
        :format(name, holder.pid), output("break", "--force", name))
      holder:says("lost " .. name .. "\n")
      assert.equal(3, ctl.run { url = url, "break", "--force", name }.status)
    end
  end)

  it("breaks Curator's, and wakes the next", function()
    local node = curator("a", "lock-", "10.0.0.1")
    local waiting = ctl.start { url = url, "run", "a", "--", "echo", "mine" }
    eventually(function() return #peer:names(root .. "/a") == 2 end, SOON)
    assert.equal('"a" is broken: it was held by 10.0.0.1\n',
      output("break", "--force", "a"))
    assert.equal("mine\n", waiting:wait().out)
    assert.is_nil(peer:get(root .. "/a/" .. node))
  end)

  it("breaks only the hold with that token", function()
    local node = curator("a", "lock-", "10.0.0.1")
    local token = codec.number(select(2, peer:get(root .. "/a/" .. node))
      .created)
    assert.matches("the hold with that token is over",
      fault(1, "break", "a", "--force", "--token", ("%d"):format(token + 1)))
    assert.matches("is broken", output("break", "a", "--force", "--token",
      ("%d"):format(token)))
  end)

  it("frees one permit or one reader", function()
    for i = 1, 3 do curator("s/leases", "lease-", "10.0.0." .. i) end
    assert.matches("permits are freed one at a time",
      fault(1, "break", "s", "--force"))
    local names = peer:names(root .. "/s/leases")
    assert.equal('"s" is freed from 10.0.0.2\n',
      output("break", "s", "--force", "--holder", names[2]))
    assert.same({ names[1], names[3] }, peer:names(root .. "/s/leases"))
    assert.matches("there is no such holder",
      fault(1, "break", "s", "--force", "--holder", names[2]))
    local reader = curator("p", "__READ__", "10.0.0.4")
    curator("p", "__READ__", "10.0.0.5")
    assert.equal('"p" is freed from 10.0.0.4\n',
      output("break", "p", "--force", "--holder", reader))
    assert.equal(1, #peer:names(root .. "/p"))
  end)

  it("refuses what is no lock", function()
    make "tree/x"
    assert.matches("it is a node whose children are no locks'",
      fault(1, "break", "tree", "--force"))
    assert.truthy(peer:get(root .. "/tree/x"))
  end)
end)

describe("rlockctl wait on ZooKeeper", function()
  -- Starts it; returns when it watches the lock.
  local function start_waiting(name)
    local function watches()
      return tonumber(server:says "mntr":match "zk_watch_count%s+(%d+)")
    end
    local before = watches()
    local waiter = ctl.start { url = url, "wait", name }
    eventually(function() return watches() > before end, SOON)
    return waiter
  end

  it("ends when it is free, or after its limit", function()
    assert.equal("", output("wait", "a"))
    local node = curator("a", "lock-", "")
    assert.equal(201, ctl.run { url = url, "wait", "-w", "0.2", "a" }.status)
    local waiter = start_waiting "a"
    peer:delete(root .. "/a/" .. node)
    assert.same({ 0, "", "" }, { waiter:wait().status, waiter:out(),
      waiter:err() })
  end)

  it("waits for a permit and for a mutex", function()
    local nodes = {}
    make "s"
    peer:make(root .. "/s/limit", codec.int(1))
    for i, name in ipairs { "m", "s" } do
      nodes[i] = ("%s/%s/leases/%s"):format(root, name,
        curator(name .. "/leases", "lease-", ""))
      assert.equal(201, ctl.run { url = url, "wait", "-w", "0.1", name }
        .status)
      local waiter = start_waiting(name)
      peer:delete(nodes[i])
      assert.equal(0, waiter:wait().status)
    end
  end)
end)

describe("rlockctl top on ZooKeeper", function()
  it("prints a table", function()
    curator("a", "lock-", "10.0.0.1")
    curator("a", "lock-", "10.0.0.2")
    local rows = rows_of(output("top", "--once", "--interval", "100ms"))
    assert.matches("^reentrant  >0%.%ds  %-     1        0%.0       0%.%ds     "
      .. "10%.0%.0%.1$", rows.a)
  end)

  on_terminal("breaks a lock in the live table", function()
    curator("a", "lock-", "10.0.0.1")
    local screen = terminal.open(shell.words { "env", "RLOCK_URL=" .. url,
      ctl.binary, "top", "--interval", "0.1" }, { folder = ctl.folder(),
      columns = 100, lines = 24 })
    finally(function() screen:close() end)
    screen:shows "\na .* 10%.0%.0%.1"
    screen:type "b"
    screen:shows 'Break "a", held by 10%.0%.0%.1%? '
    screen:type "y"
    screen:shows '"a" is broken: it was held by 10%.0%.0%.1'
    assert.same({}, peer:names(root .. "/a"))
  end)

  it("counts each node as a grant", function()
    local statistics = require "rlockctl.top.statistics"
    local self = statistics.new(0)
    for i, token in ipairs { 100, 100, 5000 } do
      statistics.add(self, { state = "held", token = token, holders = {
        { owner = "me", node = "lock-" .. token } } }, i)
    end
    assert.equal(2, self.grants)
  end)
end)

describe("the commands with bad input", function()
  local COMMANDS = { { "ls" }, { "status", "x" }, { "doctor" },
    { "top", "--once" }, { "break", "x", "--force" }, { "wait", "x" },
    { "wait", "x", "-w", "1" } }

  it("have a clear error for each wrong address", function()
    for _, case in ipairs {
      { "zk://127.0.0.1:1", 202, "connection refused" },
      { server.url .. "/none", 1, "there is no node /none" },
      { "zk://127.0.0.1:x", 206, "port must be a number" },
    } do
      for _, words in ipairs(COMMANDS) do
        local result = ctl.run { url = case[1], table.unpack(words) }
        local is_found = case[2] == 1 and words[1] == "doctor"
        assert.equal(is_found and 2 or case[2], result.status, words[1])
        if not is_found then
          assert.matches("^rlockctl: [^\n]+\n$", result.err)
        end
        assert.truthy((result.err .. result.out):find(case[3], 1, true))
      end
    end
  end)

  it("survive answers that are malformed", function()
    local store = require "rlockctl.cli.stores.zookeeper"
    local client = fixtures.open { url = url }
    curator("a", "lock-", "10.0.0.1")
    local function at(name)
      return function() return store.at(client, name) end
    end
    local function names() return store.names(client) end
    for _, body in ipairs { "", "\255\255\255\255", "\127\255\255\255",
        codec.int(3), codec.int(1) .. codec.int(100) .. "x" } do
      for _, look in ipairs { at "a", names } do
        assert(look())                  -- connected, so nothing else is sent
        local link = client.session.server.connection
        frames.garble(codec.int(link.xid + 1) .. ("\0"):rep(8) .. codec.int(0)
          .. body)
        local result, code, detail = look()
        assert.is_nil(result)
        assert.is_string(code)
        assert.is_nil(detail:find "%c")
      end
    end
  end)

  it("end in time if the server does not answer", function()
    server:signal(STOP)
    finally(function() server:signal(CONT) end)
    for _, words in ipairs { { "ls" }, { "doctor" },
        { "wait", "x", "-w", "1" } } do
      local result = ctl.run { url = url, limit = 12 * slow,
        table.unpack(words) }
      assert.equal(202, result.status)
      assert.matches("^rlockctl: [^\n]+\n$", result.err)
    end
  end)

  it("refuse names that are no paths, and policies", function()
    for _, name in ipairs { "a//b", "a/../b", "/", "zookeeper/x" } do
      assert.matches("bad name", fault(206, "status", name))
      assert.matches("bad name", fault(206, "break", "--force", name))
      assert.matches("bad name", fault(206, "wait", name))
      assert.matches("bad name", fault(206, "doctor", "--name", name))
    end
    assert.matches("%-%-policy is for Redis",
      fault(206, "status", "x", "--policy", "fair"))
    assert.matches("%-%-policy is for Redis",
      fault(206, "doctor", "--name", "x", "--policy", "fair"))
  end)

  it("name the holder of Curator's lock when run does not get it", function()
    curator("a", "lock-", "10.0.0.1")
    assert.equal('rlockctl: run: reentrant lock "a" is held by 10.0.0.1\n',
      fault(200, "run", "-n", "a", "--", "true"))
  end)
end)
