--- rlockctl doctor on Redis: each check finds its fault, and says nothing about
--- a good server. No password is ever printed.

local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local fixtures = require "spec.tools.fixtures"
local redis = require "spec.tools.redis"
local report = require "rlockctl.doctor.report"
local rlock = require "rlock"
local rules = require "rlockctl.doctor.redis_rules"
local sentinel = require "spec.tools.sentinel"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"
local terminal = require "spec.tools.terminal"
local zookeeper_rules = require "rlockctl.doctor.zookeeper_rules"

local on_terminal = terminal.only(it, pending)

local GOOD = { "--appendonly", "yes", "--appendfsync", "always" }
local NOTHING = { "version", "role", "eviction", "memory", "persistence",
  "disk", "fork", "replicas", "timeout", "keepalive", "buffers", "connections",
  "clock", "latency", "scripts", "permissions", "sealing", "locks", "keys" }

local good

setup(function() good = redis.start { args = GOOD, port = true } end)
teardown(function()
  good:stop()
  ctl.clean()
end)
after_each(fixtures.close)

-- Runs it, and asserts this status. Joins what it wraps.
local function doctor(status, url, ...)
  local result = ctl.run { url = url, "doctor", ... }
  assert.same({ status, 0, "" }, { result.status, result.signal, result.err })
  return (result.out:gsub("\n      ", " "))
end

-- The level, and the text, of a check in an output.
local function finding(out, check)
  local level, what = out:match("\n  (%l+): " .. check .. ": ([^\n]*)")
  if level then return level, what end
  local list = out:match "\n  ok: ([^\n]*)" or ""
  return (", " .. list .. ","):find(", " .. check .. ",", 1, true)
    and "ok" or nil
end

-- All that is "ok".
local function fine(out) return out:match "\n  ok: ([^\n]*)\n$" end

-- Sets parameters of a server until the end of the test.
local function set(server, ...)
  local words = { ... }
  for i = 1, #words, 2 do
    local old = server:cli("CONFIG", "GET", words[i]):match "\n(.*)$" or ""
    assert.equal("OK", server:cli("CONFIG", "SET", words[i], words[i + 1]))
    finally(function() server:cli("CONFIG", "SET", words[i], old) end)
  end
end

describe("rlockctl doctor", function()
  it("finds nothing on a good server", function()
    local out = doctor(0, good.url)
    assert.matches("^[^\n]+: %l+ [%d.]+, primary\n  ok: ", out)
    assert.equal(table.concat(NOTHING, ", "), fine(out))
    assert.is_nil(out:find("\27", 1, true))
  end)

  it("audits the URLs that are its operands", function()
    local other = fixtures.server { args = GOOD }
    local out = doctor(0, "redis://127.0.0.1:1", good.url, other.url)
    assert.equal(2, select(2, out:gsub(", primary\n", "")))
    assert.truthy(out:find(other.socket .. ": ", 1, true))
  end)

  -- What to set; the check; its level; what it says; the lease.
  local CASES = {
    { { "maxmemory-policy", "allkeys-lru" }, "eviction", "note",
      "maxmemory-policy is allkeys-lru, and maxmemory is not set" },
    { { "maxmemory", "1gb", "maxmemory-policy", "volatile-ttl" }, "eviction",
      "fault", "maxmemory-policy is volatile-ttl, and maxmemory is 1 GB" },
    { { "maxmemory", "2mb" }, "memory", "warning", "of 2 MB are in use" },
    { { "appendonly", "no" }, "persistence", "warning",
      "there is no append-only file" },
    { { "appendonly", "no", "save", "60 1" }, "persistence", "warning",
      "only snapshots (save 60 1)" },
    { { "appendfsync", "everysec" }, "persistence", "note", "the last 1 s" },
    { { "appendfsync", "no" }, "persistence", "warning", "the last 30 s" },
    { { "appendfsync", "no" }, "persistence", "ok", nil, "29s" },
    { { "timeout", "10" }, "timeout", "warning", "timeout is 10 s" },
    { { "timeout", "100" }, "timeout", "note", "timeout is 100 s" },
    { { "timeout", "10" }, "timeout", "note", "timeout is 10 s", "15s" },
    { { "tcp-keepalive", "0" }, "keepalive", "note", "tcp-keepalive is 0" },
    { { "client-output-buffer-limit", "pubsub 1000 0 0" }, "buffers", "warning",
      "pubsub is 1000 0 0" },
    { { "client-output-buffer-limit", "pubsub 0 0 0" }, "buffers", "note",
      "pubsub is 0 0 0" },
  }

  it("compares the configuration with what locks need", function()
    local STATUS = { ok = 0, note = 0, warning = 1, fault = 2 }
    for _, case in ipairs(CASES) do
      local words, check, level, what, lease = table.unpack(case)
      local old = {}
      for i = 1, #words, 2 do
        old[i] = good:cli("CONFIG", "GET", words[i]):match "\n(.*)$" or ""
        assert.equal("OK", good:cli("CONFIG", "SET", words[i], words[i + 1]))
      end
      local out = doctor(STATUS[level], good.url, "--lease", lease or "30s")
      for i = 1, #words, 2 do good:cli("CONFIG", "SET", words[i], old[i]) end
      local its, text = finding(out, check)
      assert.equal(level, its, check .. ":\n" .. out)
      if what then assert.matches(what, text, 1, true) end
      if what then assert.matches("\n    mend: redis%-cli %-s ", out) end
    end
    assert.equal(table.concat(NOTHING, ", "), fine(doctor(0, good.url)))
  end)

  it("mends what it finds by the command that it prints", function()
    set(good, "maxmemory", "1gb", "maxmemory-policy", "allkeys-random",
      "timeout", "5")
    local out = doctor(2, good.url)
    for line in out:gmatch "\n    mend: redis%-cli ([^\n]+)" do
      assert.equal("OK\n", shell.run("redis-cli " .. line) .. "\n")
    end
    assert.equal(table.concat(NOTHING, ", "), fine(doctor(0, good.url)))
  end)

  it("finds a full disk", function()
    local server = fixtures.server { args = { "--save", "60 1" } }
    shell.run(("mkdir %s/dump.rdb"):format(server.folder))
    server:cli("SET", "x", 1)
    server:cli("BGSAVE")
    eventually(function()
      return server:info "rdb_last_bgsave_status" == "err"
    end, 10 * slow)
    assert.equal("fault", finding(doctor(2, server.url), "disk"))
    assert.matches("MISCONF", server:cli("SET", "x", 2))
  end)

  it("finds few connections left", function()
    local server = fixtures.server { args = { "--maxclients", "20" } }
    for _ = 1, 18 do fixtures.open(server.url) end
    local level, what = finding(doctor(1, server.url), "connections")
    assert.equal("warning", level)
    assert.matches("^%d+ of 20 connections", what)
  end)

  it("finds locks without an end, and foreign keys", function()
    local uuid = "12345678-1234-1234-1234-123456789abc:1"
    good:cli("HSET", "endless", uuid, 1)
    good:cli("SET", "rlock_frw_counts:{x}", "no hash")
    good:cli("SET", "rlock_request:{x}:permits", "2")
    finally(function()
      good:cli("DEL", "endless", "rlock_frw_counts:{x}",
        "rlock_request:{x}:permits")
    end)
    local out = doctor(1, good.url)
    assert.matches("\n  warning: locks: 1 locks without an end: endless\n", out)
    assert.matches("warning: keys: 1 keys have names of rlock's keys, but "
      .. "other types: rlock_frw_counts:{x}\n", out)
  end)

  it("prints JSON", function()
    local out = doctor(0, good.url, "--json")
    assert.matches('^{"findings":%[{"check":"version","level":"ok","what":'
      .. '"[%d.]+"},.*%],"level":"ok","role":"primary","server":"%l+",'
      .. '"version":"[%d.]+","where":"[^"]+"}\n$', out)
    set(good, "timeout", "5")
    assert.matches('{"findings":[{"check":"timeout","level":"warning","mend":'
      .. '"redis-cli -s ' .. good.socket .. ' config set timeout 0","what":'
      .. '"timeout is 5 s","why":"', doctor(1, good.url, "--json"), 1, true)
  end)
end)

describe("rlockctl doctor and permissions", function()
  local RULES = assert(files.read("rocks/README.md")
    :match("acl setuser app on '>secret' (.-)\n\n")):gsub("[\\'%s]+", " ")
  local guarded

  setup(function()
    guarded = redis.start { port = true, args = GOOD, users = {
      "app on >secret " .. RULES,
      "old on >secret " .. RULES .. " -client|kill",
      "mute on >secret " .. RULES .. " -subscribe -info -hdel -script|load",
      "managed on >secret " .. RULES .. " -info",
      "judge on >secret " .. RULES .. " +config|get",
      "keys on >secret " .. RULES .. " resetkeys ~none resetchannels &none",
    } }
  end)
  teardown(function() guarded:stop() end)

  local function url_of(user)
    return ("redis://%s:secret@127.0.0.1:%d"):format(user, guarded.port)
  end

  local function words_of(text)
    local words = {}
    for word in text:gmatch "%S+" do words[#words + 1] = word end
    return words
  end

  local function look(status, user, ...)
    local out = doctor(status, url_of(user), ...)
    assert.is_nil(out:find("secret", 1, true))
    return out
  end

  it("permits what the README does; what it may not ask is unknown", function()
    local out = look(0, "app")
    assert.equal("ok", (finding(out, "permissions")))
    assert.equal("ok", (finding(out, "sealing")))
    assert.matches("unknown: persistence, timeout, keepalive, buffers "
      .. "%(CONFIG is not permitted%)", out)
    assert.equal("ok", finding(look(0, "keys"), "permissions"))
    assert.equal(table.concat(NOTHING, ", "), fine(look(0, "judge")))
  end)

  it("calls what a managed server forbids unknown", function()
    local out = look(0, "managed")
    assert.matches("^[^\n]+: redis\n", out)
    assert.matches("\n  unknown: version, role, eviction, .*"
      .. "%(INFO is not permitted%)\n", out)
    assert.equal("note", finding(out, "sealing"))
  end)

  it("says what is not permitted, and how to permit it", function()
    local out = look(0, "old")
    assert.equal("note", finding(out, "permissions"))
    assert.matches("mend: redis%-cli acl setuser old '%+client|kill'\n", out)
    assert.matches("sealing: lost connections are sealed by time %(NOPERM", out)
    out = look(2, "mute")
    assert.same({ "fault",
      "the user may not use: script|load, hdel, info, subscribe" },
      { finding(out, "permissions") })
    assert.matches("mend: redis%-cli acl setuser mute '%+script|load' %+hdel "
      .. "%+info %+subscribe\n", out)
    assert.matches("\n  unknown: latency %(SCRIPT LOAD is not permitted%)", out)
  end)

  it("leaves nothing there, and kills no other client", function()
    local other = assert(rlock.open(url_of "app"))
    local id = other:call("CLIENT", "ID")
    local keys = guarded:cli("DBSIZE")
    look(0, "app")
    assert.equal(id, other:call("CLIENT", "ID"))
    assert.equal(keys, guarded:cli("DBSIZE"))
    other:close()
  end)

  -- Runs a command line that `doctor` prints.
  local function permit(text)
    local line = text:match "\n    mend: redis%-cli (acl [^\n]+)\n"
    shell.run(("redis-cli -p %d %s"):format(guarded.port, line))
  end

  it("tries the keys and channels of a name", function()
    guarded:cli("ACL", "SETUSER", "some", "reset", "on", ">secret",
      table.unpack(words_of(RULES .. " resetkeys ~some:* resetchannels "
        .. "&redisson_lock__channel:* -zcard")))
    finally(function() guarded:cli("ACL", "DELUSER", "some") end)
    local function missing(name, ...)
      local out = look(2, "some", "--name", name, ...)
      return out:gsub("\n +", " "), out
    end
    assert.matches("the user may not use: zcard, key *{some:1}* (for reentrant)"
      .. " ", (missing("some:1", "--policy", "reentrant")), 1, true)
    assert.matches("zcard, key *{some:1}* (for semaphore), channel *{some:1}* "
      .. "(for semaphore) ", (missing("some:1", "--policy=semaphore")), 1, true)
    for _, name in ipairs { "other", "a'{b} *", "some:1" } do
      local _, out = missing(name)
      permit(out)
      assert.equal("ok", finding(look(0, "some", "--name", name),
        "permissions"))
      guarded:cli("ACL", "SETUSER", "some", "-zcard")
    end
    assert.equal(0, ctl.run { url = url_of "app", "doctor",
      "--name", "x" }.status)
    assert.equal("0", guarded:cli "DBSIZE")
  end)

  it("tries to write the key of a token", function()
    guarded:cli("ACL", "SETUSER", "some", "reset", "on", ">secret", "~name",
      "&*", "+@all", "%R~redisson_lock_token:{name}:simple")
    finally(function() guarded:cli("ACL", "DELUSER", "some") end)
    local words = { "some", "--name", "name", "--policy", "simple" }
    look(0, table.unpack(words))
    words[5] = "fenced_simple"
    guarded:cli("ACL", "SETUSER", "some", "~redisson_lock_token:{name}")
    assert.matches("key *{name}* (for fenced_simple)",
      look(2, table.unpack(words)), 1, true)
  end)

  it("needs no more of the README's user than locks of every kind do",
      function()
    local result = ctl.run { url = url_of "app", "-e", [[
      local rlock = require "rlock"
      local client <close> = assert(rlock.open())
      local function exclude(lock)
        assert(lock:lock())
        local waiter = rlock.spawn(function()
          assert(lock:lock { wait = 20 })
          assert(lock:unlock())
        end)
        for _ = 1, 5 do assert(lock:is_held()) end     -- the waiter has asked
        assert(lock:unlock())
        waiter:join()
      end
      for _, kind in ipairs { "lock", "simple_lock", "spin_lock", "fair_lock",
          "fenced_lock", "mutex" } do
        exclude(client[kind](client, kind))
        assert(client[kind](client, kind):is_locked() == false)
        assert(client[kind](client, kind):break_lock() == false)
      end
      for _, kind in ipairs { "read_write_lock", "fair_read_write_lock" } do
        local pair = client[kind](client, kind)
        exclude(pair:read_lock())
        exclude(pair:write_lock())
      end
      local semaphore = client:semaphore "semaphore"
      assert(semaphore:set(1) and semaphore:acquire() and semaphore:release())
      assert(semaphore:drain() == 1)
      local permits = client:permits "permits"
      assert(permits:set(1))
      local id = assert(permits:acquire { lease = 9 })
      assert(permits:renew(id, 10) and permits:release(id))
      local latch = client:latch "latch"
      assert(latch:set(1) and latch:count_down() and latch:wait())
      print "all"]] }
    assert.same({ "all\n", "", 0 },
      { result.out, result.err, result.status })
  end)
end)

describe("rlockctl doctor of a bad server", function()
  it("says that it is a replica", function()
    local server = fixtures.server { port = true, args = GOOD }
    server:cli("REPLICAOF", "127.0.0.1", "1")
    for _, serves in ipairs { "yes", "no" } do
      server:cli("CONFIG", "SET", "replica-serve-stale-data", serves)
      local out = doctor(2, server.url)
      assert.same({ "fault", "it is a replica" }, { finding(out, "role") })
      assert.matches("\n    mend: connect to its primary: "
        .. "redis://127.0.0.1:1\n", out)
    end
  end)

  it("says what it can if INFO is no text", function()
    local proxy = fixtures.proxy(good)
    proxy:pretend(1000, "INFO")
    local out = doctor(0, proxy.url)
    assert.matches("unknown: version, role", out)
    assert.matches("by time .INFO does not identify", (out:gsub("\n +", " ")))
  end)

  it("ends in time if it hangs, and names it among others", function()
    local hung = fixtures.server { port = true, args = GOOD }
    hung:pause()
    finally(function() hung:resume() end)
    assert.matches("no connection in time",
      ctl.fault(202, { "doctor", url = hung.url }))
    assert.matches("doctor: [^\n]+: no answer within 0.5 s\n",
      ctl.fault(202, { "doctor", "-w", "500ms", url = hung.url }))
    local out = doctor(2, nil, hung.url, good.url)
    assert.equal("fault", finding(out, "reach"))
    assert.matches(", primary\n  ok: version, ", out)
  end)

  on_terminal("uses colours on a terminal, and says what it waits for",
      function()
    local hung = fixtures.server { args = GOOD }
    hung:pause()
    finally(function() hung:resume() end)
    local path = ctl.folder() .. "/screen"
    local screen = terminal.open(("read x; %s doctor %s %s"):format(
      shell.quote(ctl.binary), hung.url, good.url), { folder = ctl.folder() })
    finally(function() screen:close() end)
    screen:record(path)
    screen:press "Enter"
    screen:shows "doctor: waiting for "
    screen:shows "ended 2"
    assert.truthy(files.read(path):find("  \27[1;31mfault\27[", 1, true))
  end)

  it("has a clear error for what is wrong", function()
    for _, case in ipairs {
      { "redis://127.0.0.1:1", 202, "connection refused" },
      { "redis://127.0.0.1:x", 206, "port must be a number" },
      { ("redis://app:wrong@127.0.0.1:%d"):format(good.port), 208,
        "WRONGPASS" },
    } do
      local err = ctl.fault(case[2], { "doctor", case[1] })
      assert.matches(case[3], err)
      assert.is_nil(err:find(":wrong", 1, true))
    end
    for _, words in ipairs { { "--lease", "0" }, { "-w", "no" },
        { "--policy", "fair" }, { "--name=x", "--policy", "no.such" },
        { "nonsense" } } do
      ctl.fault(206, { url = good.url, "doctor", table.unpack(words) })
    end
    assert.matches("--server is now rlockctl doctor",
      ctl.fault(206, { url = good.url, "status", "--server" }))
  end)
end)

describe("rlockctl doctor of several servers", function()
  it("finds servers that a red lock must not count as several", function()
    local other, replica = redis.start { args = GOOD },
      redis.start { port = true }
    finally(function()
      other:stop()
      replica:stop()
    end)
    local function levels(...)
      local list = {}
      for line in ctl.run({ "doctor", "--json", ... }).out:gmatch "[^\n]+" do
        list[#list + 1] = line:match '"check":"independence","level":"(%a+)"'
          or "none"
      end
      return list
    end
    assert.same({ "none" }, levels(good.url))
    assert.same({ "none", "note", "warning" },
      levels(good.url, other.url, "redis://127.0.0.1:" .. good.port))
    replica:cli("REPLICAOF", "127.0.0.1", good.port)
    eventually(function()
      return replica:info "master_replid" == good:info "master_replid"
    end, 30 * slow)
    assert.same({ "none", "warning" }, levels(good.url, replica.url))
  end)

  it("audits a master, its replicas and the Sentinels", function()
    local set_ = sentinel.start { replicas = 2, args = GOOD,
      password = "sesame", down_after = 900 }
    finally(function() set_:stop() end)
    local out
    eventually(function()               -- the Sentinels know each other
      out = doctor(1, set_.url)
      return select(2, out:gsub("ok: master, sentinels, ", "")) == 3
    end, 30 * slow)
    assert.is_nil(out:find("sesame", 1, true))
    assert.matches("^mymaster %(Sentinel [^\n]+%): sentinel\n"
      .. "  ok: clocks, locks, keys\n", out)
    local function count(text)
      return select(2, out:gsub(text, ""))
    end
    assert.equal(3, count ", Sentinel\n")
    assert.equal(2, count ", replica\n")
    assert.equal(1, count ", primary\n")
    assert.equal(1, count "warning: isolation: min%-replicas%-to%-write is 0\n")
    assert.equal(3, count "warning: sentinel%-timer: down%-after")

    set_:master():cli("CONFIG", "SET", "min-replicas-to-write", 1)
    for _, each in ipairs(set_.sentinels) do
      each:cli("SENTINEL", "SET", "mymaster", "down-after-milliseconds", 5000,
        "failover-timeout", 60000)
    end
    out = doctor(0, set_.url)
    assert.matches("ok: master, sentinels, sentinel%-timer, failover", out)
    out = doctor(1, set_.url, "--lease", "6s")
    assert.equal(3, count "down%-after%-milliseconds is 5 s\n")
    assert.equal(3, count ": it is lost\n")

    for _, server in ipairs(set_.servers) do
      if server ~= set_:master() then server:pause() end
    end
    set_.sentinels[3]:pause()
    out = doctor(1, set_.url)
    assert.equal(3, count "warning: reach: ")
    set_.sentinels[2]:pause()
    eventually(function()
      return set_.sentinels[1]:cli("SENTINEL", "CKQUORUM", "mymaster")
        :find "^NOQUORUM"
    end, 20 * slow)
    assert.matches("fault: sentinels: NOQUORUM", doctor(2, set_.url))
  end)

  it("audits the nodes of a cluster", function()
    local cluster = fixtures.cluster { args = GOOD, replicas = 1 }
    local function run(status, ...)
      return doctor(status, cluster.url, ...)
    end
    eventually(function()
      return select(2, cluster.nodes[1]:cli("CLUSTER", "SLOTS")
        :gsub("127.0.0.1", "")) == 4
    end, 20 * slow, "the replica is known")
    local out = run(1)
    local function count(text) return select(2, out:gsub(text, "")) end
    assert.matches("^[^\n]+: cluster\n  ok: clocks, locks, keys\n", out)
    assert.equal(4, count "\n127.0.0.1:%d+: %l+ [%d.]+, ")
    assert.equal(1, count ", replica\n")
    assert.equal(2, count "warning: replicas: it has no replica\n")
    assert.equal(3, count "warning: isolation: ")
    assert.equal(4, count "cluster%-size, cluster%-timer, coverage, stale%-")

    for _, node in ipairs(cluster.nodes) do
      node:cli("CONFIG", "SET", "cluster-require-full-coverage", "yes")
      node:cli("CONFIG", "SET", "cluster-allow-reads-when-down", "yes")
      node:cli("ACL", "SETUSER", "default", "-asking", "-command|info")
    end
    out = run(2)
    assert.equal(4, count "note: coverage: ")
    assert.equal(4, count "note: stale%-reads: ")
    assert.equal(4, count "may not use: asking, command|info\n")
    out = run(2, "--lease", "3s")
    assert.equal(4, count "warning: cluster%-timer: cluster%-node%-timeout ")

    cluster.nodes[2]:pause()
    finally(function() cluster.nodes[2]:resume() end)
    out = run(2)
    assert.equal(1, count "fault: reach: ")
    eventually(function()
      return cluster.nodes[1]:cli("CLUSTER", "INFO"):find "cluster_state:fail"
    end, 20 * slow)
    assert.matches("fault: cluster%-state: cluster_state is fail, and %d+ of",
      run(2))
  end)
end)

-- What a server of these tests cannot show.
describe("the rules of rlockctl doctor", function()
  local function judge(list, facts)
    facts.lease, facts.cli = facts.lease or 30, "redis-cli"
    facts.place, facts.name = facts.place or "server", "mymaster"
    local its = report.new("x", "redis")
    its:apply(list, report.facts(facts))
    local found = {}
    for _, each in ipairs(its.findings) do
      found[each.check] = each.level
      assert.equal(each.level == "ok" or each.level == "unknown",
        each.mend == nil, each.check)
    end
    return found
  end

  local function info(fields, more)
    local facts = more or {}
    facts.INFO, facts.CONFIG = fields, facts.CONFIG or {}
    return judge(rules.server, facts)
  end

  it("know the versions", function()
    assert.equal("fault", info({ redis_version = "6.0.5" }).version)
    assert.equal("fault", info({ redis_version = "5.0.14" }).version)
    assert.equal("ok", info({ redis_version = "6.0.16" }).version)
    assert.equal("ok", info({ redis_version = "7.2.4" }).version)
    assert.equal("note", info({ redis_version = "6.2.1" },
      { place = "cluster" }).version)
    assert.equal("ok", info({ redis_version = "7.2.4",
      valkey_version = "8.0.1" }, { place = "cluster" }).version)
    assert.equal("unknown", info({}).version)
  end)

  it("compare pauses and clocks with the lease", function()
    local function fork(usec, lease)
      return info({ latest_fork_usec = usec }, { lease = lease }).fork
    end
    assert.equal("ok", fork("2900000"))
    assert.equal("warning", fork("3000000"))
    assert.equal("warning", fork("290000", 2))
    local function scripts(longest, usec)
      local found = info({}, { SCRIPTS = { median = 0.1, longest = longest },
        COMMANDSTATS = { cmdstat_evalsha = "calls=3,usec=9,usec_per_call="
          .. usec } })
      return found.latency, found.scripts
    end
    assert.same({ "ok", "ok" }, { scripts(2.9, "9999.00") })
    assert.same({ "warning", "warning" }, { scripts(3, "10000.50") })
    local function clock(ahead, err)
      return info({}, { CLOCK = { ahead = ahead, error = err } }).clock
    end
    assert.equal("ok", clock(0.4, 0))
    assert.equal("ok", clock(1, 0.6))
    assert.equal("note", clock(-1, 0.1))
    assert.equal("warning", clock(3.2, 0.1))
    assert.equal("warning", clock(-3600, 0.1))
  end)

  it("compare the clocks of several servers", function()
    local function clocks(a, b)
      local facts = {}
      for i, ahead in ipairs { a, b } do
        facts[i] = { server_clock = { ahead = ahead, error = 0.05 },
          report = { version = "7.0." .. i } }
      end
      return judge(rules.set, { facts = facts })
    end
    assert.same({ clocks = "ok", versions = "note" }, clocks(5, 7))
    assert.equal("warning", clocks(5, 8.2).clocks)
    assert.equal("fault", clocks(25, 9).clocks)
  end)

  it("know replicas that lag, and the bounds of a primary that is cut off",
      function()
    local function primary(slave, good_, wanted, lag)
      return info({ role = "master", connected_slaves = slave and "1" or "0",
        slave0 = slave, min_slaves_good_slaves = good_ }, { CONFIG = {
          ["min-replicas-to-write"] = wanted,
          ["min-replicas-max-lag"] = lag } })
    end
    local ONLINE = "ip=::1,port=7,state=online,offset=1,lag="
    assert.equal("ok", primary(nil).replicas)
    assert.is_nil(primary(nil).isolation)
    assert.equal("ok", primary(ONLINE .. "1").replicas)
    assert.equal("note", primary(ONLINE .. "1").isolation)
    assert.equal("warning", primary(ONLINE .. "11").replicas)
    assert.equal("warning",
      primary("ip=::1,port=7,state=wait_bgsave,offset=1,lag=1").replicas)
    assert.equal("ok", primary(ONLINE .. "1", "1", "1", "10").isolation)
    assert.equal("fault", primary(ONLINE .. "1", "0", "1", "10").isolation)
    assert.equal("note", primary(ONLINE .. "1", "1", "1", "30").isolation)
    assert.equal("warning", info({ role = "slave",
      master_link_status = "down" }, { place = "cluster" }).role)
  end)

  it("know the timers of Sentinel and of a cluster", function()
    local function timers(down, timeout, others)
      return judge(rules.sentinel, { QUORUM = { "OK 3 usable Sentinels" },
        SENTINEL = { flags = "master", ["failover-timeout"] = timeout,
          ["down-after-milliseconds"] = down,
          ["num-other-sentinels"] = others or "2" } })
    end
    assert.same({ master = "ok", sentinels = "ok", ["sentinel-timer"] = "ok",
      ["failover-timeout"] = "ok" }, timers("5000", "180000"))
    assert.equal("warning", timers("30000", "180000")["sentinel-timer"])
    assert.equal("warning", timers("900", "180000")["sentinel-timer"])
    assert.equal("warning", timers("9000", "8000")["failover-timeout"])
    assert.equal("note", timers("5000", "200000")["failover-timeout"])
    assert.equal("warning", timers("5000", "180000", "1").sentinels)
    assert.equal("fault", judge(rules.sentinel, { QUORUM = {},
      SENTINEL = { flags = "s_down,master" } }).master)
    assert.equal("unknown", judge(rules.sentinel, { QUORUM = {},
      SENTINEL = "no" }).master)
    local function cluster(fields, config)
      return judge(rules.cluster, { CLUSTER = fields, CONFIG = config or {} })
    end
    assert.equal("warning", cluster { cluster_size = "2" }["cluster-size"])
    assert.equal("ok", cluster({}, { ["cluster-node-timeout"] = "15000" })
      ["cluster-timer"])
    assert.equal("warning", cluster({}, { ["cluster-node-timeout"] = "20000" })
      ["cluster-timer"])
  end)

  local function zookeeper(srvr, mntr, voters)
    return judge(zookeeper_rules.server, { SRVR = srvr, MNTR = mntr or {},
      CONF = {}, JUTE = { fits = "yes" }, session_ms = 10000,
      voters = voters or 0 })
  end

  it("know what a server of ZooKeeper says", function()
    assert.equal("fault", zookeeper({}).serving)
    assert.equal("fault", zookeeper({ Mode = "read-only" }).serving)
    assert.equal("ok", zookeeper({ Mode = "observer" }).serving)
    for version, level in pairs { ["3.4.14"] = "fault", ["3.5.0"] = "ok",
        ["3.10.1"] = "ok", ["4.0"] = "ok", ["x"] = "unknown" } do
      assert.equal(level, zookeeper({ version = version }).version)
    end
    local function latency(text)
      return zookeeper({ ["Latency min/avg/max"] = text }).latency
    end
    assert.equal("ok", latency "0/199.9/5000")
    assert.equal("warning", latency "0/200.0/5000")
    assert.equal("unknown", latency "0/1.2.3/5")
    local function fsync(p99, times)
      return zookeeper({}, { zk_avg_fsynctime = "1.5", zk_p99_fsynctime = p99,
        zk_fsync_threshold_exceed_count = times }).fsync
    end
    assert.equal("ok", fsync(nil, nil))
    assert.equal("ok", fsync("499", "0"))
    assert.equal("warning", fsync("500", "0"))
    assert.equal("warning", fsync("1", "1"))
    local function followers(synced)
      return zookeeper({ Mode = "leader" }, { zk_synced_followers = synced }, 3)
        .followers
    end
    assert.equal("ok", followers "2")
    assert.equal("warning", followers "1")
  end)

  it("know an ensemble", function()
    local function quorum(members, ...)
      local facts = {}
      for i, mode in ipairs { ... } do
        facts[i] = { SRVR = mode ~= "" and { Mode = mode } or {} }
      end
      return judge(zookeeper_rules.ensemble, { hosts = facts, facts = facts,
        members = members }).quorum
    end
    assert.equal("ok", quorum(3, "leader", "follower", "follower"))
    assert.equal("ok", quorum(3, "follower"))
    assert.equal("note", quorum(0, "standalone"))
    assert.equal("note", quorum(2, "leader", "follower"))
    assert.equal("warning", quorum(3, "leader", "follower", ""))
    assert.equal("fault", quorum(3, "", "read-only", ""))
    assert.equal("fault", quorum(3, "leader", "leader", "follower"))
    assert.equal("fault", quorum(0, "standalone", "standalone"))
    local function sync(ms)
      return judge(zookeeper_rules.session, { session_ms = 10000, sync_ms = ms,
        refused = {}, path = "/",
        client = { session = { options = {} } } }).sync
    end
    assert.equal("ok", sync(999))
    assert.equal("warning", sync(1000))
  end)
end)
