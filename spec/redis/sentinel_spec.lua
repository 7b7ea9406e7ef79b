--- A master behind Redis Sentinel, through failovers of all kinds.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local host = require "rlock.host.uv"
local rlock = require "rlock"
local sentinel = require "spec.tools.sentinel"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local SOON = 15 * slow
local NONE = "127.0.0.1:1"              -- nothing listens there

local PID = host.pid and host.pid() or rawget(_G, "ngx").worker.pid()

local set, client, lock

local function open(options)
  return fixtures.open({ url = set.url, watchdog = 6 * slow }, options)
end

-- One set for all tests: it takes seconds to start.
setup(function() set = sentinel.start { sleep = rlock.sleep } end)
teardown(function() set:stop() end)

local function start()
  set:settle()
  client = open()
  lock = client:lock(fixtures.name "sentinel")
end

-- What the server says without rlock.
local function has(server, name) return server:cli("EXISTS", name) == "1" end

-- The port to which the client's commands go.
local function port_of(its)
  local connection = its.session.server.node.connection
  return connection and connection.address.port
end

-- Fails over to a replica that has every write, and waits until a client has
-- followed.
local function follow(its, fail_over)
  local old = set:master()
  for _, server in ipairs(set.servers) do
    if server ~= old then
      eventually(function() return old:has_reached(server) end, SOON,
        "a replica has every write")
    end
  end
  fail_over(old)
  eventually(function()
    local port = port_of(its)
    return port and port ~= old.port
  end, SOON, "the client has another master")
  return old
end

local function collect_losses(its)
  local losses = {}
  its:on_lost(function(_, why) losses[#losses + 1] = why end)
  return losses
end

describe("a client with Sentinel", function()
  before_each(start)
  after_each(fixtures.close)

  it("locks on the master", function()
    assert.is_true(lock:lock())
    assert.is_true(has(set:master(), lock.record.name))
    assert.is_true(lock:unlock())
    assert.is_false(has(set:master(), lock.record.name))
  end)

  it("follows a failover: its holds go on, and waiters are woken", function()
    local brief = client:lock(fixtures.name "brief")
    assert.is_true(lock:lock() and brief:lock { lease = 60 })
    local losses, before = collect_losses(lock), brief:valid_for()
    local other = open():lock(lock.record.name)
    local waiting = task.start(function()
      local ok = other:lock { wait = SOON }
      return ok, other:unlock()
    end)
    local old = follow(client, function() set:fail_over() end)
    eventually(function()
      return lock:state() == "held" and brief:state() == "held"
    end, SOON)
    assert.equal(set:master().port, port_of(client))
    assert.not_equal(old.port, port_of(client))
    assert(brief:valid_for() <= before)
    local ms = tonumber(set:master():cli("PTTL", brief.record.name))
    assert(ms > 0 and ms <= 60000, ms)
    assert.is_true(lock:unlock())
    local ok, released = waiting:join()
    assert.is_true(ok and released)
    assert.equal(0, #losses)
  end)

  it("follows when the master is killed #long", function()
    assert.is_true(lock:lock())
    local old = follow(client, function(master) master:kill() end)
    eventually(function() return lock:state() == "held" end, SOON)
    assert.is_true(lock:unlock())
    assert.not_equal(old.port, port_of(client))
  end)

  it("leaves a frozen master that comes back as a replica #long",
    function()
      assert.is_true(lock:lock())
      local old = follow(client, function(master) master:pause() end)
      eventually(function() return lock:state() == "held" end, SOON)
      local port = port_of(client)
      old:resume()
      eventually(function() return old:info "role" == "slave" end, SOON)
      assert.equal(port, port_of(client))
      assert.is_true(lock:unlock())
    end)

  it("reports a hold that the new master lacks before a renewal", function()
    local its = open { watchdog = 60 * slow }
    lock = its:lock(fixtures.name "leased")
    assert.is_true(lock:lock { lease = 120 * slow })
    local renewed = its:lock(fixtures.name "renewed")
    assert.is_true(renewed:lock())
    local losses, others = collect_losses(lock), collect_losses(renewed)
    follow(its, function(master)
      for _, server in ipairs(set.servers) do
        if server ~= master then
          server:cli("CONFIG", "SET", "replica-read-only", "no")
          server:cli("DEL", lock.record.name, renewed.record.name)
          server:cli("CONFIG", "SET", "replica-read-only", "yes")
        end
      end
      master:kill()
    end)
    eventually(function() return #losses + #others == 2 end, SOON)
    assert.equal("lost", lock:state())
  end)

  it("opens while a failover is under way #long", function()
    set:master():kill()
    local other
    if host.name == "ngx" then          -- opens at the first request
      eventually(function() other = rlock.open(set.url) return other end, SOON)
    else
      other = open { connect_timeout = SOON }
    end
    local its = other:lock(lock.record.name)
    assert.is_true(its:lock { wait = SOON })
    assert.is_true(its:unlock())
    other:close()
  end)

  it("may be a member of a multi-lock and of a red lock #long", function()
    local clients = { client }
    for i = 2, 3 do clients[i] = fixtures.open(fixtures.server().url) end
    local red = rlock.red_lock(clients, fixtures.name "red")
    local multi = rlock.multi_lock { lock, clients[2]:lock "x" }
    for _, each in ipairs { red, multi } do
      assert.is_true(each:lock { wait = SOON })
      follow(client, function() set:fail_over() end)
      eventually(function() return each:state() == "held" end, SOON)
      assert.is_true(each:unlock())
      set:settle()
    end
  end)

  it("needs only one live Sentinel", function()
    set.sentinels[1]:pause()
    local url = set.url:gsub("://", "://" .. NONE .. ",")
    local other = open { url = url }
    set.sentinels[1]:resume()
    local its = other:lock(lock.record.name)
    assert.is_true(its:lock { wait = SOON })
    assert.is_true(its:unlock())
  end)

  it("learns the other Sentinels #long", function()
    local one = set:url_of(set.name, { set.sentinels[1] })
    local other = open { url = one, watchdog = 2 * SOON }
    local its = other:lock(lock.record.name)
    assert.is_true(its:lock())
    follow(other, function()
      set.sentinels[1]:pause()
      set:fail_over()
    end)
    assert.same({ true }, { its:unlock() })
  end)
end)

describe("a counter under a lock, without confirmed replicas", function()
  before_each(start)
  after_each(fixtures.close)

  local TASKS, FAILOVERS, SHORT = 6, 2, 0.005
  local counter, sections, is_long, is_over

  -- Adds to the counter; stops at once when told of the loss.
  local function add(its)
    local seconds = is_long and SOON or SHORT
    local told, mine, value = rlock.event(), { began = rlock.now() }, counter
    its:on_lost(function()
      mine.is_told = true
      told:set()
    end)
    if is_long then is_long, mine.is_long = false, true end
    sections[#sections + 1] = mine
    told:wait(seconds)
    counter, mine.ended = value + 1, rlock.now()
    local ok, code = its:unlock()
    mine.is_told = mine.is_told or not ok and code == "lost"
  end

  local function count(name)
    local its = open():lock(name)
    while not is_over do
      if its:lock { wait = 1 } then add(its) end
    end
  end

  -- Somebody is granted the lock by a master whose replicas do not know it.
  local function lose_a_grant()
    local master = set:master()
    set:cut(master)
    is_long = true
    eventually(function() return not is_long end, SOON)
    local long = sections[#sections]
    assert.is_true(long.is_long)
    master:kill()
    eventually(function() return long.ended end, SOON)
    local n = #sections
    eventually(function() return #sections > n + TASKS end, SOON)
    set:settle()
  end

  -- Sections that began before the one before had ended.
  local function overlaps()
    local n, longest, last = 0, 0, nil
    for _, each in ipairs(sections) do
      if last and each.began < last.ended then
        assert.is_true(last.is_told, "an overlap that nobody was told of")
        n, longest = n + 1, math.max(longest, last.ended - each.began)
      end
      if not last or each.ended > last.ended then last = each end
    end
    return n, longest
  end

  it("may miss an addition, but reports an overlap at once #long", function()
    counter, sections, is_over = 0, {}, false
    local tasks = {}
    for i = 1, TASKS do tasks[i] = task.start(count, lock.record.name) end
    for _ = 1, FAILOVERS do lose_a_grant() end
    is_over = true
    for _, each in ipairs(tasks) do each:join() end
    local n, longest = overlaps()
    print(("%d additions, %d failovers, %d overlaps, the longest %.1f ms")
      :format(#sections, FAILOVERS, n, longest * 1000))
    assert(counter >= #sections - n, counter)
    assert(longest < slow, longest)
  end)
end)

describe("rlockctl status with Sentinel", function()
  before_each(start)
  after_each(fixtures.close)

  local function status(...)
    return (shell.run(shell.words { os.getenv "RLOCKCTL", "--url", set.url,
      "status", ... }))
  end

  it("names the master and its address", function()
    local node = ("127.0.0.1:%d"):format(set:master().port)
    assert.is_true(lock:lock())
    assert.matches("\n  on " .. node .. ", the master of mymaster\n",
      status(lock.record.name))
    assert.matches('"master":"mymaster","name":"[^"]*","node":"' .. node .. '"',
      status("--json", lock.record.name))
    assert.is_true(lock:unlock())
  end)

  it("says who holds it, as `ls` does; break frees it", function()
    local function run(...)
      return (shell.run(shell.words { os.getenv "RLOCKCTL", "--url", set.url,
        ... }))
    end
    local who = ": [^\n]* %(pid " .. PID .. "%)"
    assert.is_true(lock:lock())
    assert.matches("held by [^\n]+" .. who, status(lock.record.name))
    assert.matches("\n" .. lock.record.name .. " +reentrant +[^\n]+" .. who,
      run("ls", lock.record.name))
    assert.matches("is broken", run("break", "--force", lock.record.name))
    assert.is_false(lock:is_locked())
    assert.equal("", run("wait", lock.record.name))
  end)
end)

describe("an error with Sentinel", function()
  before_each(start)
  after_each(fixtures.close)

  local function refused(url, options)
    local its = { url = url, connect_timeout = 1 * slow }
    for name, value in pairs(options or {}) do its[name] = value end
    local opened, code, detail = rlock.open(its)
    assert.is_nil(opened)
    assert.equal("connect", code)
    return detail
  end

  it("names the Sentinels that do not answer, and why", function()
    local detail = refused("redis+sentinel://127.0.0.1:1,127.0.0.1:2/mymaster")
    assert.matches("^mymaster: no Sentinel answers; 127.0.0.1:1: .*refused",
      detail)
    assert.matches("; 127.0.0.1:2: .*refused", detail)
  end)

  it("names the masters that the Sentinels know", function()
    local detail = refused(set:url_of "nomaster")
    assert.matches("^nomaster: no Sentinel knows it; 127.0.0.1:%d+: it knows "
      .. 'no master "nomaster", only: mymaster;', detail)
  end)

  it("says that a Sentinel is no server", function()
    local its = fixtures.open("redis://127.0.0.1:" .. set.sentinels[1].port)
    local ok, code, detail = its:lock("x"):try_lock()
    assert.same({ nil, "redis" }, { ok, code })
    assert.matches("is it a Sentinel, or a proxy?", detail, 1, true)
  end)

  it("says that a server is no Sentinel", function()
    local detail = refused(set:url_of(set.name, { set:master() }))
    assert.matches("it is not a Sentinel", detail)
  end)
end)

describe("a red lock with Sentinels", function()
  before_each(start)
  after_each(fixtures.close)

  it("is held through a failover of a member #long", function()
    local clients, servers, lost = { client }, {}, nil
    for i = 2, 3 do
      servers[i] = fixtures.server()
      clients[i] = fixtures.open(servers[i].url, { watchdog = 6 * slow })
    end
    local red = rlock.red_lock(clients, fixtures.name "red")
    assert.is_true(red:lock())
    red:on_lost(function(_, why) lost = why end)
    follow(client, function() set:fail_over() end)
    assert.equal("held", red:state())
    assert.is_true(red:is_held())
    assert.is_true(red:unlock())
    servers[3]:kill()                   -- so the majority needs the master
    assert.is_true(red:lock { wait = SOON })
    assert.is_true(has(set:master(), red.name))
    assert.is_true(red:unlock())
    assert.is_nil(lost)
  end)
end)

describe("Sentinels with a password", function()
  local small

  setup(function()
    small = sentinel.start { sleep = rlock.sleep, replicas = 1, sentinels = 1,
      quorum = 1, password = "secret", sentinel_password = "other" }
  end)
  teardown(function() small:stop() end)
  after_each(fixtures.close)

  local function opened(url, own)
    return rlock.open { url = url, sentinel = own }
  end

  it("use their own, not the master's", function()
    local its = fixtures.open(small.url, {
      sentinel = { password = "other" }, watchdog = 6 * slow,
    })
    local held = its:lock "x"
    assert.is_true(held:lock())
    eventually(function()
      return small.servers[1]:has_reached(small.servers[2])
    end, SOON, "the replica has the lock")
    small:fail_over()
    eventually(function()
      return port_of(its) == small.servers[2].port and held:state() == "held"
    end, SOON)
    assert.is_true(held:unlock())
  end)

  it("get it from the environment in rlockctl", function()
    local command = shell.words { os.getenv "RLOCKCTL", "--url", small.url,
      "status", "x" }
    assert.matches("it requires a password", (shell.run(command)), 1, true)
    for _, login in ipairs { "", "RLOCK_SENTINEL_USERNAME=default " } do
      assert.matches("the master of mymaster", (shell.run(login
        .. "RLOCK_SENTINEL_PASSWORD=other " .. command)), 1, true)
    end
    assert.matches("it refuses the user or password", (shell.run(
      "RLOCK_SENTINEL_USERNAME=x RLOCK_SENTINEL_PASSWORD=other " .. command)),
      1, true)
  end)

  it("need few permissions", function()
    for _, each in ipairs(small.sentinels) do
      assert.equal("OK", each:cli("ACL", "SETUSER", "app", "reset", "on",
        ">own", "&*", "+subscribe", "+ping", "+info", "+client|setname",
        "+sentinel|get-master-addr-by-name", "+sentinel|master",
        "+sentinel|masters", "+sentinel|sentinels"))
    end
    local its = fixtures.open(small.url, {
      sentinel = { username = "app", password = "own" },
    })
    local held = its:lock "x"
    assert.is_true(held:lock())
    local known = its.session.server.node.sentinel
    assert.equal("number", type(known.epoch))
    eventually(function() return known.listener end)
    assert.is_true(held:unlock())
  end)

  it("report that they require one", function()
    local none, code, detail = opened(small.url)
    assert.is_nil(none)
    assert.equal("connect", code)
    assert.matches("it requires a password: sentinel = { password = ... }",
      detail, 1, true)
    assert.not_matches("secret", detail)
  end)

  it("refuse a wrong one", function()
    local none, code, detail = opened(small.url, { password = "hunter2" })
    assert.is_nil(none)
    assert.equal("connect", code)
    assert.matches("it refuses the user or password of the option sentinel",
      detail, 1, true)
    assert.not_matches("hunter2", detail)
  end)

  it("name a master that hides its INFO", function()
    for _, server in ipairs(small.servers) do
      assert.equal("OK", server:cli("ACL", "SETUSER", "few", "reset", "on",
        ">pw", "~*", "&*", "+@all", "-info"))
    end
    local its = fixtures.open({
      url = small.url:gsub("//:secret@", "//few:pw@"),
      sentinel = { password = "other" },
    })
    local held = its:lock "x"
    assert.is_true(held:lock())
    assert.is_true(held:unlock())
  end)

  it("do not hide that the master requires one", function()
    local none, _, detail = opened(small.url:gsub("//:secret@", "//"),
      { password = "other" })
    assert.is_nil(none)
    assert.matches("^NOAUTH", detail)
  end)
end)

describe("The option sentinel", function()
  it("is for redis+sentinel:// only", function()
    local none, code, detail = rlock.open {
      url = "redis://127.0.0.1", sentinel = { password = "x" },
    }
    assert.same({ nil, "usage",
      "bad option sentinel: only for redis+sentinel://" },
      { none, code, detail })
  end)

  it("is checked", function()
    assert.error_matches(function()
      rlock.open { url = "redis+sentinel://s/m", sentinel = { user = "x" } }
    end, "bad option user of sentinel: must be one of password, tls, username")
  end)
end)

describe("the Sentinels of a test", function()
  -- How many Sentinels have seen another master than the one that they name.
  local function wrong()
    local n = 0
    for _, each in ipairs(set.sentinels) do
      if each:cli("SENTINEL", "REPLICAS", set.name)
          :find "role%-reported\nmaster" then
        n = n + 1
      end
    end
    return n
  end

  -- A Sentinel that has would undo a failover of another to that server.
  it("have seen only one master once they are settled #long", function()
    set:settle()
    local master, replica = set:master(), nil
    for _, server in ipairs(set.servers) do
      if server ~= master then replica = server end
    end
    replica:cli("REPLICAOF", "NO", "ONE")
    eventually(function() return wrong() == #set.sentinels end, SOON)
    set:settle()
    assert.equal(0, wrong())
  end)

  it("have failed over, even if they answer only sometimes #long", function()
    set:settle()
    local old = set:master()
    for _, each in ipairs(set.sentinels) do
      local calls = 0
      function each.named(self)
        calls = calls + 1
        if calls == 2 or calls == 3 then return nil end
        return getmetatable(self).__index.named(self)
      end
    end
    set:fail_over()
    local new = set:master()
    for _, each in ipairs(set.sentinels) do each.named = nil end
    assert.is_truthy(new)
    assert.not_equal(old.port, new.port)
  end)
end)
