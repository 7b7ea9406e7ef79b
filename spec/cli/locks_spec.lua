--- The commands ls, break and wait, and the identity of holders. The server has
--- no other keys, so the result of ls is known.

local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"
local sorted = require "rlock.util.sorted"
local task = require "spec.tools.task"
local terminal = require "spec.tools.terminal"

local on_terminal = terminal.only(it, pending)

local SOON = 20 * slow
local WAKE = 2.4                        -- less than a waiter's shortest poll
local OWNER = "01234567-89ab-cdef-0123-456789abcdef:"    -- and a number

local server

local function output(...) return ctl.output { url = server.url, ... } end

local function fault(status, ...)
  return ctl.fault(status, { url = server.url, ... })
end

-- A program that holds one lock of each kind, and prints those it loses.
local HOLDER = [[
local rlock = require "rlock"
local slow = tonumber(os.getenv "RLOCK_SLOW") or 1
local client = assert(rlock.open { watchdog = 2 * slow })
local function take(kind, lock)
  assert(lock:lock())
  lock:on_lost(function() print("lost " .. kind) end)
end
io.stdout:setvbuf "line"
take("reentrant", client:lock "k:reentrant")
take("mutex", client:mutex "k:mutex")
take("spin", client:spin_lock "k:spin")
take("simple", client:simple_lock "k:simple")
take("fair", client:fair_lock "k:fair")
take("fenced", client:fenced_lock "k:fenced")
take("reader", client:read_write_lock("k:reader"):read_lock())
take("writer", client:read_write_lock("k:writer"):write_lock())
take("fair reader", client:fair_read_write_lock("k:fair reader"):read_lock())
take("fair writer", client:fair_read_write_lock("k:fair writer"):write_lock())
assert(client:permits("k:permits"):set(2))
assert(client:permits("k:permits"):acquire())
assert(client:semaphore("k:semaphore"):set(3))
assert(client:latch("k:latch"):set(2))
print "holds"
rlock.sleep(3600)]]

-- What each is called in the list.
local KINDS = {
  ["k:reentrant"] = "reentrant", ["k:mutex"] = "reentrant",
  ["k:spin"] = "reentrant", ["k:simple"] = "simple",
  ["k:fair"] = "fair", ["k:fenced"] = "fenced",
  ["k:reader"] = "readwrite", ["k:writer"] = "readwrite",
  ["k:fair reader"] = "fair_readwrite", ["k:fair writer"] = "fair_readwrite",
}

-- Starts a program that says "holds".
local function hold(code, name, options)
  local words = { ctl.file(name or "holder.lua", code), url = server.url }
  for key, value in pairs(options or {}) do words[key] = value end
  local holder = ctl.start(words)
  holder:says "holds"
  return holder
end

local HOST = shell.run "uname -n":match "%S+"

local function shown(holder, program)
  return ("%s: %s (pid %d)"):format(HOST, program or "holder.lua", holder.pid)
end

-- The lines of `ls`: name -> the rest of the line.
local function listed(...)
  local rows = {}
  for line in output("ls", ...):gmatch "[^\n]+" do
    local name, rest = line:match "^(.-)  +(.*)$"
    if name ~= "NAME" then rows[name] = rest end
  end
  return rows
end

setup(function() server = redis.start { port = true } end)
before_each(function() server:cli "FLUSHALL" end)
teardown(function()
  server:stop()
  ctl.clean()
end)

describe("rlockctl ls", function()
  it("lists nothing if there is nothing", function()
    assert.equal("", output "ls")
    assert.equal("", output("ls", "--json", "--all"))
  end)

  -- What `ls` prints on a terminal.
  local function shown_by(...)
    local words = shell.words { ctl.binary, "--url", server.url, "ls", ... }
    return ctl.run { program = "script", "-qec", words, "/dev/null" }.out
  end

  on_terminal("leaves out the middle of long names on a terminal", function()
    local client = assert(rlock.open(server.url))
    local name, umlauts = "a" .. ("x"):rep(100) .. "z", ("ä"):rep(51)
    for _, its in ipairs { "short", name, umlauts } do
      assert(client:lock(its):lock())
    end
    local table_ = shown_by()
    assert.matches("\na" .. ("x"):rep(23) .. "%.%.%." .. ("x"):rep(22)
      .. "z  reentrant", table_)
    assert.matches("\nshort" .. (" "):rep(47) .. "reentrant", table_)
    assert.matches("\n" .. ("ä"):rep(24) .. "%.%.%." .. ("ä"):rep(23)
      .. "  reentrant", table_)
    for _, text in ipairs { output "ls", shown_by "--json" } do
      assert.truthy(text:find(name, 1, true), text)
    end
    client:close()
  end)

  on_terminal("says so on a terminal if there is nothing", function()
    assert.equal("no locks\r\n", shown_by())
    server:cli("SET", "number", 3)
    assert.equal("no locks; 1 whole number may be semaphores or latches: see "
      .. "--all\r\n", shown_by())
    assert.equal("", shown_by "--json")
    assert.equal("", output "ls")
  end)

  it("shows no waiter a while after the last one got the lock", function()
    local client <close> = assert(rlock.open(server.url))
    local one = client:lock("x", { owner = "one" })
    local other = client:lock("x", { owner = "other" })
    assert(one:lock())
    local waiter = task.start(function() return other:lock() end)
    eventually(function() return listed "x"["x"]:find " 1 " end, SOON)
    assert(one:unlock() and waiter:join(SOON))
    -- A client listens for 2 s after its last wait.
    eventually(function() return listed "x"["x"]:find "s +0 " end, 6 * slow)
  end)

  it("lists locks of every kind, and who holds them", function()
    local holder = hold(HOLDER)
    local rows = listed()
    for name, kind in pairs(KINDS) do
      local row = rows[name] or "missing: " .. name
      assert.equal(kind, row:match "^%S+")
      assert.is_truthy(row:find(shown(holder), 1, true), row)
      assert.matches("^%S+ +%d%.%ds ", row)
      rows[name] = nil
    end
    local permit = rows["k:permits"]
    assert.matches("^permits .* 1 available; ", permit)
    assert.is_truthy(permit:find(shown(holder), 1, true), permit)
    rows["k:permits"] = nil
    for name, count in pairs { ["k:semaphore"] = 3, ["k:latch"] = 2 } do
      assert.matches("^semaphore or latch  %-  +0  +%-  +at " .. count .. "$",
        rows[name])
      rows[name] = nil
    end
    assert.same({}, rows)
    server:cli("SET", "k:latitude", 48)
    assert.same({ "k:latch" }, sorted(listed "k:la*"))
    assert.matches("^unknown .* at 48$",
      listed("--all", "k:la*")["k:latitude"])
    assert.same({ "k:latch", "k:latitude", "k:semaphore", "k:simple" },
      sorted(listed("--all", "k:[ls][aei]*")))
    local top = output("top", "--once", "--interval=0.1")
    assert.matches("k:semaphore +semaphore or latch ", top)
    assert.matches("k:fair +fair ", top)
    assert.is_nil(top:find("latitude", 1, true))
    holder:kill(9)
  end)

  it("has an object on each line with --json", function()
    local holder = hold [[
      local client = require("rlock").open { name = "bill" }
      client:fenced_lock("ledger"):lock { lease = 60 }
      print "holds" require("rlock").sleep(3600)]]
    local line = output("ls", "--json")
    assert.matches('^{"holders":%[{"count":1,"owner":"[%x-]+:1",'
      .. '"who":{"host":"[^"]+","id":"[%x-]+","name":"bill","pid":'
      .. holder.pid .. ',"program":"holder.lua"}}%],"kind":"fenced",'
      .. '"name":"ledger","state":"held","token":%d+,"ttl_ms":%d+,'
      .. '"waiters":0}\n$', line)
    assert.is_truthy(output("status", "ledger"):find(
      ("held by %s: holder.lua bill (pid %d), 1 time\n"):format(HOST,
        holder.pid), 1, true))
    holder:kill(9)
  end)

  it("counts waiters, and lists a free lock that has some", function()
    local client <close> = assert(rlock.open(server.url))
    assert(client:lock("w:lock"):lock())
    assert(client:fair_lock("w:fair"):lock())
    local tasks = {}
    for _, name in ipairs { "w:lock", "w:fair", "w:fair" } do
      tasks[#tasks + 1] = task.start(function()
        local method = name == "w:fair" and "fair_lock" or "lock"
        client[method](client, name):lock()
      end)
    end
    eventually(function()
      local rows = listed()
      return rows["w:fair"]:find "^fair +%S+ +2 "
        and rows["w:lock"]:find "^reentrant +%S+ +1 "
    end, SOON, "two and one")
    for _, each in ipairs(tasks) do each:cancel(5) end
    client:fair_lock("w:fair"):unlock()
    server:cli("RPUSH", "redisson_lock_queue:{left}", "somebody")
    assert.matches("^fair +- +1 +- +nobody$", listed()["left"])
  end)

  it("lists a semaphore and a latch with waiters", function()
    local client <close> = assert(rlock.open(server.url))
    local semaphore, latch = client:semaphore "w:{s}", client:latch "w:l"
    assert(latch:set(2))
    local one = task.start(function() semaphore:acquire(4) end)
    local other = task.start(function() latch:wait() end)
    eventually(function()
      return (listed "w:*"["w:l"] or ""):find "^latch +%- +1 +%- +at 2$"
    end, SOON)
    one:cancel(5)
    other:cancel(5)
    assert.equal("", output("ls", "x:*"))
  end)

  it("lists permits of which none is in use", function()
    local client <close> = assert(rlock.open(server.url))
    local function assert_known(name)
      assert.matches("^permits +%- +0 +%- +2 available$", listed()[name])
      assert.equal(('"%s" is free: permits, 2 available, 0 in use\n'):format(
        name), ctl.output { url = server.url, ends = 3, "status", name })
    end
    for name, proof in pairs { p = "rlock_request:{p}:permits",
        ["a{b}"] = "rlock_request:a{b}:permits" } do
      local permits = client:permits(name)
      assert(permits:set(2))
      assert_known(name)
      local ids = { assert(permits:acquire()), assert(permits:acquire()) }
      server:cli("DEL", proof)
      assert(permits:release(ids[1]) and permits:release(ids[2]))
      assert_known(name)
      local left = tonumber(server:cli("PTTL", proof))
      assert.is_true(left > 0 and left <= 600000)
    end
    output("run", "r", "--limit=2", "--", "true")
    assert_known "r"
    assert.matches("r +permits ", output("top", "--once", "--interval=0.1"))
  end)

  it("lists only names that match a pattern", function()
    local client <close> = assert(rlock.open(server.url))
    for _, name in ipairs { "one", "two", "[x]", "a{b}", "o*e", "} {" } do
      assert(client:lock(name):lock())
      assert(client:fair_read_write_lock("f" .. name):read_lock():lock())
    end
    assert.same({ "fone", "one" }, sorted(listed "*one"))
    assert.same({ "fo*e", "o*e" }, sorted(listed "*o\\*e"))
    assert.same({ "f[x]", "ftwo", "two" }, sorted(listed "[ft][w[t]*"))
    assert.same({ "[x]", "f[x]" }, sorted(listed "*[[]x[^a]"))
    assert.same({ "a{b}", "fa{b}", "f} {", "} {" }, sorted(listed "*{*"))
    assert.equal("", output("ls", "nothing"))
  end)

  it("lists names as they are with --names, but no control characters",
    function()
      local client <close> = assert(rlock.open(server.url))
      for _, name in ipairs { 'a"b', "a\\b", "a b", "ä", "\n", "\27[2J", "\255",
          "\194\155m" } do
        assert(client:lock(name):lock())
      end
      assert.equal('a b\na"b\na\\b\nä\n', output("ls", "--names"))
    end)

  it("lists no other keys", function()
    for _, words in ipairs {
      { "HSET", "counters", "hits", 3, "misses", 4 },
      { "HSET", "one", "hits", 3 }, { "HSET", "user", "name", "Bob" },
      { "SET", "session", "some text", "PX", 60000 }, { "SET", "number", 3 },
      { "SET", "page", ("x"):rep(100), "PX", 60000 },
      { "ZADD", "scores", 1, "a" }, { "RPUSH", "list", "a" },
      { "SADD", "set", "a" }, { "ZADD", "x:timeout", 1, "a" },
      { "XADD", "stream", "*", "a", "b" },
    } do
      server:cli(table.unpack(words))
    end
    local client <close> = assert(rlock.open(server.url))
    local fenced = client:fenced_lock "left"
    assert(fenced:lock())
    assert(fenced:unlock())
    assert.same({}, listed())
    assert.same({ "number" }, sorted(listed "--all"))
  end)

  it("lists what has a key of another type", function()
    server:cli("SET", "redisson_lock_queue:{odd}", "text")
    server:cli("HSET", "odd", "a:1", "1")
    assert.matches("^NAME .*\nodd +unknown ", output "ls")
    assert.matches('"type":"mixed"', output("ls", "--json"), 1, true)
    assert.equal(4, ctl.run { url = server.url, "status", "odd" }.status)
    server:cli("DEL", "redisson_lock_queue:{odd}", "odd")
  end)

  it("lists pathological keys #long", function()
    local client <close> = assert(rlock.open(server.url))
    local owner = "01234567-89ab-cdef-0123-456789abcdef:1"
    local values = { ["c\194\155m"] = "1", ["c\255\155m"] = "2",
      big = ("9"):rep(20), ["h" .. ("x"):rep(500)] = ("9"):rep(400) }
    for name, count in pairs(values) do
      client:call("HSET", name, owner, count)
      client:call("PEXPIRE", name, 60000)
    end
    local text = output("ls")
    assert.is_nil(text:find("\155", 1, true))
    assert.matches("c\\194\\155m +reentrant", text)
    assert.matches(" x100000000000000000000\n", text)
    assert.is_true(#text:match "\nbig( +)reentrant" < 100)
    assert.matches("1:1, 100000000000000000000 times", (output("status",
      "big"):gsub("89abcdef", "1")))
    assert.matches('"count":null', output("ls", "--json"))
  end)

  it("stops at a limit, and says so", function()
    local client <close> = assert(rlock.open(server.url))
    for i = 1, 5 do assert(client:lock("l:" .. i):lock()) end
    local result = ctl.run { url = server.url, "ls", "--limit=3", "--json" }
    assert.equal(3, select(2, result.out:gsub("\n", "")))
    assert.equal("rlockctl: ls: there are more than 3; give a pattern or "
      .. "--limit\n", result.err)
    assert.equal(5, select(2, output("ls", "--limit", "5", "--json")
      :gsub("\n", "")))
    for _, limit in ipairs { "0", "x", "1.5", "-1" } do
      assert.matches("ls: %-%-limit must be",
        fault(206, "ls", "--limit", limit))
    end
    assert.matches("one pattern at most", fault(206, "ls", "a", "b"))
  end)

  it("blocks no server that has many other keys #long", function()
    server:cli("EVAL", [[
      for i = 1, 50000 do
        redis.call("hset", "hash:" .. i, "field", "value")
        redis.call("set", "text:" .. i, "value " .. i)
      end]], 0)
    local client <close> = assert(rlock.open(server.url))
    assert(client:lock("needle"):lock())
    server:cli("CONFIG", "RESETSTAT")
    assert.same({ "needle" }, sorted(listed()))
    local stats = server:cli("INFO", "commandstats")
    assert.is_nil(stats:find("cmdstat_keys:", 1, true))
    assert(tonumber(stats:match "cmdstat_scan:calls=(%d+)") >= 100)
    assert(tonumber(stats:match "cmdstat_evalsha:calls=(%d+)") < 50)
    assert(tonumber(stats:match "cmdstat_getrange:calls=(%d+)") <= 50001)
  end)

  it("ends with 202 without a server", function()
    ctl.fault(202, { url = "redis://127.0.0.1:1", "ls" })
  end)
end)

describe("who holds a lock", function()
  local RULES = assert(files.read("rocks/README.md")
    :match("acl setuser app on '>secret' (.-)\n\n")):gsub("[\\'%s]+", " ")
  local HOLD = [[
    local client = assert(require("rlock").open(%s))
    assert(client:lock("held"):lock { lease = 60 })
    print "holds" require("rlock").sleep(3600)]]

  it("is its UUID where CLIENT LIST is refused", function()
    server:cli("ACL", "SETUSER", "app", "on", ">secret",
      table.unpack((function()
        local words = {}
        for word in RULES:gmatch "%S+" do words[#words + 1] = word end
        return words
      end)()))
    local holder = hold(HOLD:format "")
    local url = ("redis://app:secret@127.0.0.1:%d"):format(server.port)
    for _, command in ipairs { "ls", "status" } do
      local text = ctl.output { url = url, command, "held" }
      assert.matches("%x+%-%x+%-[%x-]+:1", text)
      assert.is_nil(text:find("holder.lua", 1, true))
    end
    holder:kill(9)
  end)

  it("is its UUID with identity = false", function()
    local holder = hold(HOLD:format '{ identity = false, name = "me" }')
    assert.matches("held by [%x-]+:1, 1 time\n", output("status", "held"))
    assert.matches(" name=me ", server:cli("CLIENT", "LIST"))
    assert.is_nil(server:cli("CLIENT", "LIST"):find(
      (",%d,holder.lua"):format(holder.pid), 1, true))
    holder:kill(9)
  end)

  it("is its UUID when it is gone", function()
    local holder = hold(HOLD:format "")
    holder:kill(9)
    holder:wait()
    eventually(function()
      return output("status", "held"):find "held by [%x-]+:1, 1 time\n"
    end, SOON)
  end)

  it("is shown whatever its names contain", function()
    local name = "in, voice 50%.lua"
    local code =
      HOLD:format [[{ name = "b\xFCro \27[31m,=%s\n" .. ("x"):rep(100) }]]
    local holder = hold(code, name)
    local text = output("status", "held")
    local start = ("held by %s: %s b"):format(HOST, name)
    assert.is_truthy(text:find(start, 1, true), text)
    assert.is_nil(text:find("\27", 1, true))
    assert.matches("ro \\27%[31m,=%%s\\nx+ ", text)
    assert.matches('"program":"in, voice 50%%.lua"',
      output("status", "held", "--json"))
    assert.matches(" name=rlock,[%x-]+,[^, ]+,%d+,"
      .. "in%%2C%%20voice%%2050%%25.lua,b%%FCro%%20%%1B%%5B31m%%2C%%3D%%25s%%0A"
      .. "x+ ", server:cli("CLIENT", "LIST"))
    holder:kill(9)
  end)

  it("is shortened if another client's name is very long", function()
    local owner = ("x"):rep(100000) .. ":1"
    server:cli("HSET", "held", owner, "1")
    server:cli("PEXPIRE", "held", "30000")
    for _, command in ipairs { "status", "ls" } do
      local text = output(command, "held")
      assert.matches("x%.%.%.x+:1", text)
      assert(#text < 1000, command)
    end
    assert.is_truthy(output("status", "held", "--json"):find(owner, 1, true))
  end)

  it("has no arguments of the program, which may be secret", function()
    local holder = ctl.start { url = server.url, "-e",
      HOLD:format "" .. " -- hunter2", "hunter2" }
    holder:says "holds"
    assert.is_nil(server:cli("CLIENT", "LIST"):find("hunter2", 1, true))
    assert.is_truthy(output("status", "held"):find(
      ("%s: -e (pid %d)"):format(HOST, holder.pid), 1, true))
    holder:kill(9)
  end)

  it("is asked once for all locks", function()
    local client <close> = assert(rlock.open(server.url))
    for i = 1, 5 do assert(client:lock("l:" .. i):lock()) end
    server:cli("CONFIG", "RESETSTAT")
    output "ls"
    local stats = server:cli("INFO", "commandstats")
    assert.equal("1", stats:match "cmdstat_client|list:calls=(%d+)")
    -- Each script is sent once.
    assert(tonumber(stats:match "cmdstat_script|load:calls=(%d+)") <= 2)
  end)

  it("writes no key", function()
    local client <close> = assert(rlock.open(server.url))
    assert(client:lock("held"):lock())
    output("status", "held")
    output "ls"
    assert.equal("held", server:cli("KEYS", "*"))
  end)
end)

describe("rlockctl revoke", function()
  local HEEDS = [[
    local client = assert(require("rlock").open())
    local kind, side = arg[1], arg[2]
    local lock = client[kind](client, "asked")
    if side then lock = lock[side](lock) end
    local hold = assert(lock:hold())
    hold:on_release_request(function(_, reason)
      print("asked: " .. reason)
      hold:unlock()
    end)
    io.stdout:setvbuf "line"
    print "holds" require("rlock").sleep(3600)]]

  -- Asks until the holder's subscription stands.
  local function asked(...)
    local words = { "revoke", "asked", ... }
    return eventually(function()
      local result = ctl.run { url = server.url, table.unpack(words) }
      return result.status ~= 1 and result
    end, SOON)
  end

  it("asks the holder of a lock of any kind", function()
    for _, kind in ipairs { "lock", "mutex", "fair_lock", "fenced_lock",
        "simple_lock", "spin_lock", "read_write_lock read_lock",
        "read_write_lock write_lock", "fair_read_write_lock read_lock" } do
      local words = { "-e", HEEDS, url = server.url }
      for word in kind:gmatch "%S+" do words[#words + 1] = word end
      local holder = ctl.start(words)
      holder:says "holds"
      local result = asked("--reason", "version 7\nis ready")
      local text = shown(holder, "-e")
      assert.equal("", result.err)
      assert.equal(0, result.status, kind)
      assert.equal('"asked" is held by ', result.out:sub(1, 19))
      assert.truthy(result.out:find(text, 1, true), result.out)
      assert.matches(": 1 asked to release it\n$", result.out)
      holder:says "asked: version 7?is ready\n"
      output("wait", "asked", "-w", tostring(SOON))
      holder:kill(9)
    end
  end)

  it("ends with 1 if no holder can be asked, with 3 for a free lock", function()
    local client <close> = assert(rlock.open(server.url))
    assert.equal('"asked" is free\n', ctl.output { url = server.url, ends = 3,
      "revoke", "asked" })
    assert(client:lock("asked"):lock())
    assert.equal('rlockctl: revoke: "asked": no holder of reentrant lock '
      .. '"asked" has a callback for release requests\n',
      fault(1, "revoke", "asked"))
    assert(client:permits("p"):set(1))
    assert(client:permits("p"):acquire())
    assert.matches("there is no holder to ask", fault(1, "revoke", "p"))
    server:cli("SADD", "set", "a")
    assert.matches("the key is a set", fault(1, "revoke", "set"))
    assert.matches("at most 256 bytes",
      fault(206, "revoke", "asked", "--reason", ("x"):rep(257)))
    assert.matches("the name of one lock", fault(206, "revoke"))
    ctl.fault(202, { url = "redis://127.0.0.1:1", "revoke", "x" })
  end)

  it("asks the holder of a user's kind", function()
    local path = ctl.file("mine.lua", [[
      local own = {}
      for name, value in pairs(require "rlock.policy.reentrant") do
        own[name] = value
      end
      own.name = "mine"
      own.keys = function(name) return { "mine:" .. name, "wake:" .. name } end
      return own]])
    local holder = ctl.start { url = server.url, "-e", [[
      local client = assert(require("rlock").open())
      local lock = client:policy(dofile(arg[1]), "asked")
      local hold = assert(lock:hold())
      hold:on_release_request(function() print "asked" end)
      io.stdout:setvbuf "line"
      print "holds" require("rlock").sleep(3600)]], path }
    holder:says "holds"
    assert.equal(0, asked("--lua-path", ctl.folder(), "--policy",
      "mine").status)
    holder:says "asked"
    holder:kill(9)
  end)
end)

describe("rlockctl break", function()
  local FREED = {
    ["k:reentrant"] = "lock", ["k:mutex"] = "mutex", ["k:fair"] = "fair_lock",
    ["k:fenced"] = "fenced_lock", ["k:simple"] = "simple_lock",
  }

  it("frees a lock of any kind, and its holder finds it lost", function()
    local holder = hold(HOLDER)
    for name in pairs(KINDS) do
      assert.is_truthy(output("status", name):find(" by " .. shown(holder), 1,
        true))
      assert.equal(('"%s" is broken: it was held by %s\n'):format(name,
        shown(holder)), output("break", "--force", name))
      assert.equal(3, ctl.run { url = server.url, "status", name }.status)
    end
    for name in pairs(KINDS) do holder:says("lost " .. name:sub(3) .. "\n") end
    holder:kill(9)
  end)

  it("wakes the next waiter", function()
    local client <close> = assert(rlock.open(server.url))
    for name, factory in pairs(FREED) do
      assert(client[factory](client, name):lock())
      local waiter = task.start(function()
        local lock = client[factory](client, name)
        return lock:lock { wait = SOON }
      end)
      eventually(function()
        local row = listed(name)[name]
        return factory == "simple_lock" or not row:find "^%S+ +%S+ +0 "
      end, SOON, "a waiter of " .. name)
      local before = rlock.now()
      output("break", name, "--force")
      assert.is_true((waiter:join(SOON)))
      assert(rlock.now() - before < WAKE * slow)
    end
  end)

  it("breaks only the hold with that token", function()
    local client <close> = assert(rlock.open(server.url))
    local lock = client:fenced_lock "fenced"
    local _, token = assert(lock:lock())
    assert.equal('rlockctl: break: "fenced": the hold with that token is '
      .. "over\n", fault(1, "break", "fenced", "--force", "--token",
        ("%d"):format(token - 1)))
    assert.matches("the hold with that token is over",
      fault(1, "break", "fenced", "--force", "--token", "x"))
    assert.is_true(lock:is_locked())
    assert.matches('^"fenced" is broken',
      output("break", "fenced", "--force", "--token",
        ("%d"):format(token)))
    assert.is_false(lock:is_locked())
    assert(client:lock("plain"):lock())
    assert.matches("this lock has no tokens",
      fault(1, "break", "plain", "--force", "--token", "1"))
    local simple = client:simple_lock("simple", { owner = "me" })
    assert(simple:lock())
    assert.matches("another owner holds it",
      fault(1, "break", "simple", "--force", "--policy", "simple", "--token",
        "you"))
    output("break", "simple", "--force", "--policy=simple", "--token", "me")
    assert.is_false(simple:is_locked())
  end)

  it("ends with 3 for a free lock", function()
    assert.equal('"free" is free\n', ctl.output { url = server.url, ends = 3,
      "break", "free", "--force" })
  end)

  it("refuses counters, other keys and bad usage", function()
    local client <close> = assert(rlock.open(server.url))
    assert(client:permits("p"):set(1))
    assert(client:permits("p"):acquire())
    assert.matches("name a holder with %-%-holder",
      fault(1, "break", "p", "--force"))
    assert(client:latch("l"):set(1))
    assert.matches("semaphore or latch: there is no holder",
      fault(1, "break", "l", "--force"))
    server:cli("SET", "n", 3)
    assert.matches("a whole number, .*: give %-%-policy",
      fault(1, "break", "n", "--force"))
    server:cli("SADD", "set", "a")
    assert.matches("the key is a set", fault(1, "break", "set", "--force"))
    assert.matches("without a terminal, give %-%-force",
      fault(206, "break", "p"))
    assert.matches("the name of one lock", fault(206, "break", "--force"))
    assert.matches("the name of one lock", fault(206, "break"))
    ctl.fault(202, { url = "redis://127.0.0.1:1", "break", "x", "--force" })
  end)

  -- The ids under a name, by its JSON.
  local function ids_of(name)
    local line = ctl.run { url = server.url, "status", "--json", name }.out
    local ids = {}
    for id in line:gmatch '"owner":"([^"]+)"' do ids[#ids + 1] = id end
    return ids
  end

  it("frees one permit, and its holder finds it lost", function()
    local holder = hold [[
      local client = assert(require("rlock").open { watchdog = 1 })
      local permits = client:permits "p"
      assert(permits:set(3))
      for _ = 1, 2 do
        local id = assert(permits:acquire())
        permits:on_lost(id, function() print("lost " .. id) end)
      end
      print "holds" require("rlock").sleep(3600)]]
    local one, other = table.unpack(ids_of "p")
    local text = ctl.output { url = server.url, ends = 3, "status", "p" }
    assert.is_truthy(text:find(("held by %s, id %s for "):format(
      shown(holder), one), 1, true), text)
    assert.equal(('"p" is freed from %s\n'):format(shown(holder)),
      output("break", "p", "--holder", one, "--force"))
    holder:says("lost " .. one)
    assert.same({ other }, ids_of "p")
    assert.equal("2", server:cli("GET", "p"))
    for _, id in ipairs { one, "x", ("0"):rep(32), other .. "0" } do
      assert.matches('break: "p": there is no such holder',
        fault(1, "break", "p", "--holder", id, "--force"))
    end
    holder:kill(9)
  end)

  it("frees one reader, or the holder of a lock", function()
    local client <close> = assert(rlock.open(server.url))
    for _, kind in ipairs { "read_write_lock", "fair_read_write_lock" } do
      local function side(owner, which)
        local pair = client[kind](client, kind, { owner = owner })
        return pair[which](pair)
      end
      local a, b = side(OWNER .. "1", "read_lock"),
        side(OWNER .. "2", "read_lock")
      assert(a:lock() and b:lock() and b:lock())
      assert.equal(('"%s" is freed from %s2\n'):format(kind, OWNER),
        output("break", kind, "--holder", OWNER .. "2", "--force"))
      assert.same({ OWNER .. "1" }, ids_of(kind))
      assert.matches("no such holder",
        fault(1, "break", kind, "--holder", "b", "--force"))
      assert(a:unlock())
      local writer = side("w", "write_lock")
      assert(writer:lock())
      output("break", kind, "--holder", "w", "--force", "--policy",
        kind == "read_write_lock" and "readwrite" or "fair_readwrite")
      assert.is_false(writer:is_locked())
    end
    for _, kind in ipairs { "lock", "fair_lock", "simple_lock" } do
      local lock = client[kind](client, kind, { owner = OWNER .. "1" })
      assert(lock:lock())
      assert.matches("no such holder",
        fault(1, "break", kind, "--holder", "b", "--force"))
      assert.is_true(lock:is_locked())
      output("break", kind, "--holder=" .. OWNER .. "1", "--force")
      assert.is_false(lock:is_locked())
    end
    assert(client:semaphore("s"):set(1))
    assert.matches("there is no holder",
      fault(1, "break", "s", "--holder", "a", "--force"))
    assert.matches("not both",
      fault(206, "break", "s", "--holder", "a", "--token=1", "--force"))
  end)

  it("breaks what may belong to another program only with --policy",
    function()
      for _, words in ipairs {
        { "SET", "cache", "hello", "simple" },
        { "HSET", "cache", "home", 5, "reentrant" },
        { "HSET", "cache", "mode", "read", "pages", 5, "readwrite" },
      } do
        server:cli("DEL", "cache")
        local policy = table.remove(words)
        server:cli(table.unpack(words))
        server:cli("PEXPIRE", "cache", 60000)
        assert.matches(": give %-%-policy\n", fault(1, "break", "cache",
          "--force"))
        assert.equal("1", server:cli("EXISTS", "cache"))
        output("break", "cache", "--force", "--policy", policy)
        assert.equal("0", server:cli("EXISTS", "cache"))
      end
    end)

  it("breaks a lock of a user's policy", function()
    ctl.file("own/mine.lua", [[
      local reentrant = require "rlock.policy.reentrant"
      local mine = {}
      for key, value in pairs(reentrant) do mine[key] = value end
      mine.name = "mine"
      return mine]])
    server:cli("HSET", "x", "a", 1)
    assert.equal('"x" is broken: it was held by a\n', output(
      "--lua-path=" .. ctl.folder() .. "/own", "break", "x", "--force",
      "--policy", "mine"))
    assert.equal("0", server:cli("EXISTS", "x"))
  end)

  -- Runs `break NAME` on a terminal, and types the answer.
  local function asked(name, answer)
    local typed = ctl.file("answer", answer)
    local words = shell.words { ctl.binary, "--url", server.url, "break", name }
    return ctl.run { program = "sh", url = server.url, "-c",
      ('script -qec %s /dev/null < "%s"'):format(shell.quote(words), typed) }
  end

  on_terminal("shows the holder on a terminal, and asks", function()
    local holder = hold [[
      local client = assert(require("rlock").open())
      assert(client:lock("held"):lock())
      print "holds" require("rlock").sleep(3600)]]
    for _, answer in ipairs { "n\n", "\n", "\4", "yep\n" } do
      local result = asked("held", answer)
      assert.equal(1, result.status)
      assert.matches("held by " .. shown(holder):gsub("%p", "%%%0")
        .. ", 1 time.*Break it%? %[y/N%] .*not broken", result.out)
      assert.equal("1", server:cli("EXISTS", "held"))
    end
    local result = asked("held", "y\n")
    assert.same({ 0, "0" }, { result.status, server:cli("EXISTS", "held") })
    assert.matches('"held" is broken', result.out)
    holder:kill(9)
  end)

  on_terminal("does not break another hold than the one that it showed",
    function()
    server:cli("HSET", "held", OWNER .. "1", 1)
    server:cli("PEXPIRE", "held", 60000)
    local typed = ctl.folder() .. "/slow"
    assert(os.execute("mkfifo '" .. typed .. "'"))
    local words = shell.words { ctl.binary, "--url", server.url, "break",
      "held" }
    local asks = ctl.start { program = "sh", url = server.url, "-c",
      ("script -qefc %s /dev/null < '%s'"):format(shell.quote(words), typed) }
    local answer = assert(io.open(typed, "w"))
    asks:says "[y/N]"
    server:cli("DEL", "held")
    server:cli("HSET", "held", "b", 1)
    server:cli("PEXPIRE", "held", 60000)
    answer:write "y\n"
    answer:close()
    local result = asks:wait()
    assert.equal(1, result.status)
    assert.matches("it has changed hands", result.out)
    assert.equal("1", server:cli("HEXISTS", "held", "b"))
  end)
end)

describe("rlockctl wait", function()
  local client

  setup(function() client = assert(rlock.open(server.url)) end)
  teardown(function() client:close() end)

  local function start(...)
    return ctl.start { url = server.url, "wait", ... }
  end

  -- Starts to wait; returns when it listens on the channel.
  local function listening(channel, ...)
    local waiter = start(...)
    eventually(function()
      return server:cli("PUBSUB", "NUMSUB", channel):match "%d+$" ~= "0"
    end, SOON, "it listens on " .. channel)
    assert.is_nil(waiter.process.status)
    return waiter
  end

  -- Asserts that it ends soon: sooner than by polling.
  local function assert_ends(waiter)
    local before = rlock.now()
    local result = waiter:wait()
    assert.same({ 0, "", "" }, { result.status, result.out, result.err })
    assert(rlock.now() - before < WAKE * slow)
  end

  it("ends at once if it is free", function()
    assert.equal("", output("wait", "free"))
  end)

  it("ends when a lock is released, and does not take it", function()
    for factory, prefix in pairs {
      lock = "redisson_lock__channel", fenced_lock = "redisson_lock__channel",
    } do
      local lock = client[factory](client, "x")
      assert(lock:lock())
      local waiter = listening(prefix .. ":{x}", "x")
      assert(lock:unlock())
      assert_ends(waiter)
      assert.is_false(lock:is_locked())
    end
  end)

  it("ends when the last reader or the writer has left", function()
    local pair = client:read_write_lock "rw"
    for _, side in ipairs { "read_lock", "write_lock" } do
      local lock = pair[side](pair)
      assert(lock:lock())
      local waiter = listening("redisson_rwlock:{rw}", "rw")
      assert(lock:unlock())
      assert_ends(waiter)
    end
  end)

  it("ends when a lock is released that wakes only its waiters", function()
    local sides = client:fair_read_write_lock "fair rw"
    for name, lock in pairs { simple = client:simple_lock "simple",
        fair = client:fair_lock "fair", ["fair rw"] = sides:write_lock() } do
      assert(lock:lock())
      local waiter = start(name)
      eventually(function()
        return server:cli("CLIENT", "LIST"):find(
          (",%d,rlockctl,"):format(waiter.pid), 1, true)
      end, SOON)
      assert(lock:unlock())
      assert_ends(waiter)
    end
  end)

  it("ends when the lease ends", function()
    server:cli("HSET", "x", "a", 1)
    server:cli("PEXPIRE", "x", 300)
    assert_ends(start "x")
  end)

  it("waits for a semaphore, for permits and for a latch", function()
    local semaphore, permits = client:semaphore "s", client:permits "p"
    assert(semaphore:set(1) and permits:set(1))
    assert(semaphore:acquire())
    local id = assert(permits:acquire())
    local latch = client:latch "l"
    assert(latch:set(1))
    local waiters = {
      listening("redisson_sc:{s}", "s", "--policy", "semaphore"),
      listening("redisson_sc:{p}", "p"),
      listening("redisson_countdownlatch__channel__{l}", "l", "--policy=latch"),
    }
    assert(semaphore:release() and permits:release(id) and latch:count_down())
    for _, waiter in ipairs(waiters) do assert_ends(waiter) end
    server:cli("SET", "n", 0)
    assert.matches("which may be a semaphore, a latch or permits: give "
      .. "%-%-policy", fault(206, "wait", "n"))
    assert(client:latch("l"):set(1))
    assert.matches("it is a semaphore or a latch: give %-%-policy",
      fault(206, "wait", "l"))
  end)

  it("ends with 201 after its limit", function()
    server:cli("HSET", "x", "a", 1)
    server:cli("PEXPIRE", "x", 60000)
    for _, limit in ipairs { "100ms", "0.1", "0.1s", "0" } do
      local result
      eventually(function()
        result = ctl.run { url = server.url, "wait", "x", "-w", limit }
        -- 202: on a busy machine, no answer within the least time for one
        return result.status ~= 202
      end, 20 * slow, "the server answers within a second")
      assert.same({ 201, "", "" }, { result.status, result.out, result.err })
    end
    for _, limit in ipairs { "x", "1d", "-1", "", "1s2" } do
      assert.matches("wait must be a duration",
        fault(206, "wait", "x", "--wait=" .. limit))
    end
  end)

  it("ends with other statuses for other reasons", function()
    assert.matches("the name of one lock", fault(206, "wait"))
    ctl.fault(202, { url = "redis://127.0.0.1:1", "wait", "x" })
    server:cli("SADD", "set", "a")
    assert.matches("the key is a set", fault(1, "wait", "set"))
    server:cli("HSET", "x", "a", 1)
    server:cli("PEXPIRE", "x", 60000)
    local waiter = listening("redisson_lock__channel:{x}", "x")
    waiter:kill(2)
    assert.equal(130, waiter:wait().status)
  end)
end)
