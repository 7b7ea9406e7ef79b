--- rlockctl run: exit statuses, options, what the command gets and what is
--- printed. For signals, losses and terminals see the specs beside this one.

local ctl = require "spec.cli.ctl"
local errors = require "rlock.redis.errors"
local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local host = require "rlock.host.uv"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local server = redis.shared()
local SECRET = "sesame"

local function start(options)
  options.url = options.url or server.url
  return ctl.start { "run", url = options.url, env = options.env,
    stdin = options.stdin, limit = options.limit, table.unpack(options) }
end

local function run(options) return start(options):wait() end

local function output(options)
  local result = run(options)
  assert.same({ 0, 0, "" }, { result.status, result.signal, result.err })
  return result.out
end

local function exists(name) return server:cli("EXISTS", name) == "1" end

-- Holds a lock while fn runs.
local function while_held(name, fn)
  task.run(function()
    local client <close> = assert(rlock.open(server.url))
    assert(client:lock(name):lock())
    fn(client)
  end)
end

teardown(ctl.clean)

describe("the status of rlockctl run", function()
  it("is the command's own, also those that rlockctl uses itself", function()
    for _, status in ipairs { 0, 1, 126, 127, 199, 200, 203, 207, 255 } do
      local result = run { "run:s", "-c", "exit " .. status }
      assert.same({ status, 0, "", "" },
        { result.status, result.signal, result.out, result.err })
    end
    assert.is_false(exists("run:s"))
  end)

  it("is 128 + N if signal N ended the command", function()
    for _, signal in ipairs { 1, 2, 3, 6, 9, 10, 13, 14, 15 } do
      local result = run { "run:s", "-c", "kill -" .. signal .. " $$" }
      assert.same({ 128 + signal, "" }, { result.status, result.err })
    end
  end)

  it("is 127 if there is no command, 126 if it cannot be executed", function()
    local err = ctl.fault(127, { "run", "run:s", "--", "no-such-command",
      url = server.url })
    assert.matches("no%-such%-command: no such file or directory", err)
    err = ctl.fault(126, { "run", "run:s", "--", "/etc", url = server.url })
    assert.matches("/etc: permission denied", err)
    assert.is_false(exists("run:s"))
  end)

  it("is 200 at once with -n, 201 after -w; -E replaces both", function()
    while_held("run:busy", function()
      for words, status in pairs {
        [{ "-n" }] = 200, [{ "-w", "900ms" }] = 201, [{ "-w0" }] = 200,
        [{ "-n", "-E", "7" }] = 7, [{ "-w.9", "-E0" }] = 0,
      } do
        local options = { "run:busy", "-c", "echo ran", table.unpack(words) }
        local result = run(options)
        assert.same({ status, "" }, { result.status, result.out })
      end
    end)
  end)

  it("is 202 if the server is unreachable or does not answer", function()
    for url, text in pairs {
      ["unix:///nowhere"] = "no such file",
      ["redis://:" .. SECRET .. "@127.0.0.1:1"] = "refused",
    } do
      local result = run { "run:s", "-c", "echo ran", url = url }
      assert.same({ 202, "" }, { result.status, result.out })
      assert.matches("^rlockctl: run: [^\n]*" .. text .. "[^\n]*\n$",
        result.err)
      assert.is_nil(result.err:find(SECRET, 1, true))
    end
  end)

  -- Starts it with a server that accepts connections and does not answer.
  local function late(frozen, ...)
    return start { "run:s", "-c", "echo ran", url = frozen.url, "--url",
      frozen.url, ... }
  end

  it("is 202 in time, over TCP and TLS, with Sentinel and in a cluster",
    function()
      local frozen, all = redis.start { port = true }, {}
      frozen:pause()
      finally(function()
        frozen:resume()
        frozen:stop()
      end)
      local since = host.now()
      for _, form in ipairs { "redis://%s", "rediss://%s",
          "redis+sentinel://%s/m", "rediss+sentinel://%s/m",
          "redis+cluster://%s", "rediss+cluster://%s" } do
        local url = form:format("127.0.0.1:" .. frozen.port)
        for word, seconds in pairs { ["-w.2"] = 1, ["-n"] = 2 } do
          all[late({ url = url }, word)] = ("%gs%s"):format(seconds,
            form:find "^rediss" and errors.use_plain or "")
        end
      end
      -- Longer than a silent connection is kept.
      all[ctl.start { "wait", "run:s", "-w3.5",
        url = "redis://127.0.0.1:" .. frozen.port }] = "3.5s"
      for running, rest in pairs(all) do
        local result = running:wait()
        assert.same({ 202, "" }, { result.status, result.out })
        assert.equal(rest .. "\n", result.err:match("^rlockctl: %l+: no answer "
          .. "from redis%S+ within (.*)$"))
      end
      assert.is_true(host.now() - since < 15 * slow)
    end)

  it("is 202 in time if the server does not answer", function()
    local frozen = redis.start()
    frozen:pause()
    local since = host.now()
    local all = { late(frozen, "-w.1"), late(frozen, "-n"),
      ctl.start { "wait", "run:s", "-w.1", url = frozen.url } }
    for i, seconds in ipairs { 1, 2, 1 } do
      local result = all[i]:wait()
      assert.same({ 202, "" }, { result.status, result.out })
      assert.matches(("^rlockctl: %%l+: no answer from unix:%%S+ within %gs\n$")
        :format(seconds), result.err)
    end
    assert.is_true(host.now() - since < 20 * slow)
    frozen:resume()
    frozen:stop()
  end)

  it("is 201 in time if the server stops answering", function()
    local frozen = redis.start()
    local client = assert(rlock.open(frozen.url))
    assert(client:lock("run:s"):lock())
    local waiter = late(frozen, "-w3")
    eventually(function()                   -- the last request is answered
      return client:call("ZCARD",
        "redisson_lock__channel:{run:s}:waiters") > 0
    end)
    local since = host.now()
    frozen:pause()
    local result = waiter:wait()
    assert.is_true(host.now() - since < 20 * slow)
    frozen:resume()
    client:close()
    frozen:stop()
    assert.same({ 201, "" }, { result.status, result.out })
    -- The pause may come while a request is in flight.
    local is_told = result.err:match '"run:s": not free in time\n$'
      or result.err:match "no reply within %d+ ms"
    assert.is_truthy(is_told, result.err)
  end)

  it("is in time with -q, too: it waits for no reply afterwards", function()
    local frozen, ended = redis.start(), {}
    local client = assert(rlock.open(frozen.url))
    for _, name in ipairs { "loud", "quiet" } do
      assert(client:lock(name):lock { lease = 3600 })
    end
    local loud = start { "loud", "-w4", "-c", "", url = frozen.url }
    local quiet = start { "quiet", "-w4", "-q", "-c", "", url = frozen.url }
    for _, name in ipairs { "loud", "quiet" } do
      eventually(function()
        return client:call("ZCARD",
          "redisson_lock__channel:{" .. name .. "}:waiters") > 0
      end)
    end
    frozen:pause()
    for name, running in pairs { loud = loud, quiet = quiet } do
      host.daemon(function()
        ended[name] = running:wait().status == 201 and host.now()
      end)
    end
    eventually(function() return ended.loud ~= nil and ended.quiet ~= nil end,
      20 * slow)
    frozen:resume()
    client:close()
    frozen:stop()
    -- One that waits for a reply ends 3 s later.
    assert.is_true(ended.quiet < ended.loud + 1.5 * slow)
  end)

  it("is the command's own if its lock is not released in time", function()
    local frozen = redis.start()
    local running = start { "run:t", "-w1", "-c",
      "echo in; until [ -e " .. ctl.folder() .. "/go ]; do sleep 0.01; done",
      url = frozen.url }
    running:says("in")
    frozen:pause()
    local since = host.now()
    ctl.file("go", "")
    local result = running:wait()
    assert.is_true(host.now() - since < 20 * slow)
    frozen:resume()
    frozen:stop()
    assert.equal(0, result.status)
    assert.matches("the lease ends it", result.err)
  end)

  it("is 204 if the command succeeded but the lock was lost", function()
    for status, expected in pairs { [0] = 204, [3] = 3 } do
      local result = run { "run:s", "--on-lost", "ignore", "-c",
        ("redis-cli -s %s DEL run:s >/dev/null; exit %d"):format(server.socket,
          status) }
      assert.same({ expected, "" }, { result.status, result.out })
      assert.matches('rlockctl: run: "run:s": [^\n]+\n$', result.err)
    end
  end)

  it("is 206 for a usage error, which says what is wrong", function()
    for text, words in pairs {
      ["which command%?"] = { "x" },
      ["put %-%- before the command: run x %-%- true"] = { "x", "true" },
      ["put %-%- before the command: run x %-%- ls"] = { "x", "ls", "-l" },
      ["one NAME"] = { "x", "y", "-c", "z" },
      ["the command is empty"] = { "x", "--", "" },
      ["one NAME .*before"] = { "--", "true" },
      ["a name is empty"] = { "x,,y", "--", "true" },
      ["%-%-no%-wait and %-%-wait exclude"] = { "x", "-n", "-w1", "--", "y" },
      ["%-%-shared and %-%-exclusive"] = { "x", "-s", "-x", "--", "true" },
      ["%-%-wait must be a duration"] = { "x", "-w", "1y", "--", "true" },
      ["%-%-ttl must be .* at least"] = { "x", "--ttl", "1ms", "--", "true" },
      ["at most half of %-%-ttl"] =
        { "x", "--ttl=2", "--kill-after=1500ms", "--", "true" },
      ["%-%-on%-lost must be"] = { "x", "--on-lost", "signal:NO", "-c", "y" },
      ["%-c STRING replaces"] = { "x", "-c", "true", "--", "true" },
      ["%-%-permits needs"] = { "x", "--permits", "2", "--", "true" },
      ["%-%-permits must be .* 1 to 3"] =
        { "x", "--limit=3", "--permits=4", "--", "true" },
      ["%-%-limit takes one name"] = { "x,y", "--limit=3", "--", "true" },
      ["%-%-fenced takes one name"] = { "x,y", "--fenced", "--", "true" },
      ["%-%-fenced and %-%-shared exclude"] =
        { "x", "--fenced", "-s", "--", "true" },
      ["%-%-status%-fd 77 is not open"] = { "x", "--status-fd=77", "-c", "y" },
    } do
      table.insert(words, 1, "run")
      words.url = server.url
      assert.matches("^rlockctl: run: [^\n]*" .. text, ctl.fault(206, words))
    end
  end)

  it("is 208 if a login or a permission is refused, in all commands", function()
    local guarded = redis.start { users = { "bare on >" .. SECRET .. " +ping",
      "mute on >" .. SECRET .. " allcommands ~other" } }
    finally(function() guarded:stop() end)
    for login, text in pairs { [":wrong"] = "ERR AUTH", ["no:x"] = "WRONGPASS",
        ["bare:" .. SECRET] = "NOPERM", ["mute:" .. SECRET] = "NOPERM" } do
      for _, words in ipairs { { "run", "x", "-n", "--", "true" },
          { "run", "x", "--limit=2", "--", "true" }, { "wait", "x" },
          { "status", "x" }, { "break", "x", "--force" }, { "ls" },
          { "ls", "--names" }, { "top", "--once", "--interval=0.1" } } do
        -- `mute` may scan, and there is no key that it may not read.
        local is_seen = login:find "^mute" and words[1]:find "^[lt]"
        words.url = ("unix://%s@%s"):format(login, guarded.socket)
        local result = ctl.run(words)
        assert.equal(is_seen and 0 or 208, result.status, words[1])
        assert.matches(is_seen and "^$" or "rlockctl: [^\n]*" .. text
          .. "[^\n]*\n$", result.err)
        assert.is_true(is_seen ~= nil or result.out == "")
      end
    end
  end)

  it("is 208 if a command or a channel is refused inside a script", function()
    local all = " on >" .. SECRET .. " allkeys allcommands "
    local guarded = redis.start { users = {
      "few" .. all .. "allchannels -pttl -time", "mute" .. all } }
    finally(function() guarded:stop() end)
    local owner = ("01234567-0123-0123-0123-%012d:1"):format(1)
    guarded:cli("HSET", "x", owner, "1")
    guarded:cli("PEXPIRE", "x", "3600000")
    for user, commands in pairs {
      few = { { "run", "x", "-n", "--", "true" }, { "status", "x" }, { "ls" },
        { "run", "y", "--limit=2", "--", "true" }, { "wait", "x" },
        { "top", "--once", "--interval=0.1" }, { "revoke", "x" } },
      mute = { { "run", "y", "--limit=2", "--", "true" }, { "revoke", "x" } },
    } do
      for _, words in ipairs(commands) do
        words.url = ("unix://%s:%s@%s"):format(user, SECRET, guarded.socket)
        local result = ctl.run(words)
        assert.equal(208, result.status, user .. " " .. words[1])
        assert.is_truthy(result.err:find "The user executing the script can't "
          or result.err:find "ACL failure in script: ", result.err)
      end
    end
  end)

  it("is 207 if --hold-at-most has passed, and it is stopped", function()
    local result = run { "run:s", "--hold-at-most", "300ms", "-c",
      "trap 'echo bye; exit 0' TERM; echo hi; while :; do sleep 0.01; done" }
    assert.same({ 207, "hi\nbye\n" }, { result.status, result.out })
    assert.matches('"run:s" was held for 0.3s', result.err)
    assert.is_false(exists("run:s"))
  end)

  it("is 207 not before that, and KILL comes --kill-after later", function()
    local since = host.now()
    local running = start { "run:s", "--hold-at-most", "600ms", "--kill-after",
      "300ms", "-c", "trap 'echo told' TERM; while :; do sleep 0.01; done" }
    running:says("told")
    assert.is_true(host.now() - since >= 0.6)
    local result = running:wait()
    assert.is_true(host.now() - since >= 0.9)
    assert.same({ 207, "told\n" }, { result.status, result.out })
  end)
end)

describe("rlockctl run", function()
  it("passes the arguments on, and --help is its own only before --", function()
    assert.equal("[-v] [--help] [] [a b]\n", output { "run:a", "--", "printf",
      "[%s] [%s] [%s] [%s]\n", "-v", "--help", "", "a b" })
    assert.matches("^rlockctl run NAME", ctl.output { "run", "--help" })
    assert.equal(ctl.output { "run", "--help" }, ctl.output { "help", "run" })
  end)

  it("tells the command what it holds", function()
    local text = output { "run:a,run%b", "--ttl", "2m", "--", "env" }
    assert.matches("\nRLOCK_NAME=run:a,run%%b\n", "\n" .. text)
    assert.matches("\nRLOCK_TTL_MS=120000\n", "\n" .. text)
    assert.matches("\nRLOCK_HELD=run%%25b:run%%3Aa\n", "\n" .. text)
    assert.matches("\nRLOCK_OWNER=%x+%-[%x-]+:%d+\n", "\n" .. text)
    assert.matches("\nRLOCK_URL=unix:", "\n" .. text)
    assert.is_nil(text:find("RLOCK_TOKEN", 1, true))
    local first = output { "run:f", "--fenced", "-c", "echo $RLOCK_TOKEN" }
    local second = output { "run:f", "--fenced", "-c", "echo $RLOCK_TOKEN" }
    assert.is_true(tonumber(first) < tonumber(second))
  end)

  it("tells a command of each exclusive kind its token", function()
    for i, options in ipairs { "--fair", "-x", "-x --fair",
        "--policy simple" } do
      local last = 0
      for _ = 1, 2 do
        local words = { "run:token" .. i, "--fenced" }
        for word in options:gmatch "%S+" do words[#words + 1] = word end
        words[#words + 1], words[#words + 2] = "-c", "echo $RLOCK_TOKEN"
        local token = tonumber(output(words))
        assert.is_true(token and token > last, options)
        last = token
      end
    end
  end)

  it("hands over standard input, unless --no-stdin", function()
    assert.equal("some\n", output { "run:a", "--", "cat", stdin = "some\n" })
    assert.equal("", output { "run:a", "--no-stdin", "--", "cat",
      stdin = "some\n" })
    local result = ctl.run { program = "sh", "-c",
      '"$0" run run:a -- cat <&- && echo ok', ctl.binary, url = server.url }
    assert.same({ 0, "ok\n", "" }, { result.status, result.out, result.err })
  end)

  it("hands over other descriptors, but not the one of --status-fd", function()
    local result = ctl.run { program = "bash", "-c", [[
      "$0" run run:a --status-fd 9 -c 'cat <&5; echo >&9' \
        5<<<five 9>/dev/null]],
      ctl.binary, url = server.url }
    assert.equal("five\n", result.out)
    assert.matches("9: Bad file descriptor", result.err)
  end)

  it("passes 100 MB through a pipe", function()
    local result = ctl.run { program = "sh", "-c", [[
      head -c 104857600 /dev/zero | "$0" run run:a -- cat | wc -c]],
      ctl.binary, url = server.url }
    assert.same({ 0, "104857600\n", "" },
      { result.status, result.out, result.err })
  end)

  it("leaves the command SIGPIPE as it was", function()
    local result = ctl.run { program = "bash", "-c", [[
      set -o pipefail
      "$0" run run:a -- yes | head -1]], ctl.binary, url = server.url }
    assert.same({ 141, "y\n", "" }, { result.status, result.out, result.err })
  end)

  it("excludes others, but readers only writers", function()
    local function second(first, ...)
      local outer = start { "run:k", first, "-c", "echo in; sleep 20" }
      outer:says("in")
      local result = run { "run:k", "-n", "-c", "echo ran", ... }
      outer:kill(15)
      assert.equal(143, outer:wait().status)
      return result.status
    end
    assert.equal(0, second("-s", "-s"))
    assert.equal(200, second("-s", "-x"))
    assert.equal(200, second("-x", "-s"))
    assert.equal(200, second("--fair", "--fair"))
    assert.equal(0, second("--limit=2", "--limit=2"))
    assert.equal(200, second("--limit=1", "--limit=1"))
    assert.equal(200, second("--limit=2", "--limit=2", "--permits=2"))
    assert.equal(206, second("--limit=2", "--limit=3"))
    local result = run { "run:k", "--limit=3", "--permits=3", "--", "true" }
    assert.same({ 0, 'rlockctl: run: "run:k" had a limit of 2: it is 3 now\n' },
      { result.status, result.err })
    assert.equal("", run({ "run:k", "--limit=3", "--", "true" }).err)
    assert.equal("", run({ "run:k", "--limit=4", "-q", "--", "true" }).err)
    assert.equal("", run({ "run:new", "--limit=4", "--", "true" }).err)
  end)

  it("uses a side of a user's pair", function()
    local function side(which, ...)
      return { "run:pair", "--policy", "rlock.policy.readwrite", which, ... }
    end
    local reader = start(side("-s", "-c", "echo in; sleep 20"))
    reader:says "in"
    assert.equal("ran\n", output(side("-s", "-n", "-c", "echo ran")))
    assert.matches('"run:pair" is held', ctl.fault(200, { "run",
      url = server.url, table.unpack(side("-x", "-n", "-c", "echo ran")) }))
    reader:kill(15)
    assert.equal(143, reader:wait().status)
    assert.equal("ran\n", output(side("-x", "-n", "-c", "echo ran")))
  end)

  it("uses a user's policy", function()
    local function own(...)
      return { "run:own", "--lua-path", ".", "--policy", "spec.fixtures.good",
        ... }
    end
    assert.equal("string\n", output(own("-c",
      ("redis-cli -s %s TYPE run:own"):format(server.socket))))
    local holder = start(own("-c", "echo in; sleep 20"))
    holder:says("in")
    assert.matches('good lock "run:own" is held', ctl.fault(200, { "run",
      url = server.url, table.unpack(own("-n", "-c", "echo ran")) }))
    holder:kill(15)
    assert.equal(143, holder:wait().status)
    assert.is_false(exists("run:own"))
    ctl.file("brief.lua", [[return { name = "brief",
      keys = function(name) return { name } end,
      server = { acquire = function() return "held" end,
        release = function() return "lost" end } }]])
    for text, words in pairs {
      ["run: policy \"no%.such\": there is no such"] = { "no.such" },
      ["run: policy \"permits\" is not a lock"] = { "permits" },
      ["%-%-policy and %-%-fair exclude"] = { "spec.fixtures.good", "--fair" },
      ["intent.lua:%d+: extra must return a list"] =
        { "spec.fixtures.intent", "--option", "A:mode=S" },
      ["policy \"rlock.policy.readwrite\": it is a pair"] =
        { "rlock.policy.readwrite" },
      ["run: spec.fixtures.good is no pair"] = { "spec.fixtures.good", "-s" },
      ["run: policy brief has no renew"] = { "brief" },
    } do
      assert.matches(text, ctl.fault(206, { "run", "x", "-c", "echo ran",
        url = server.url, "--lua-path", ".", "--lua-path", ctl.folder(),
        "--policy", table.unpack(words) }))
    end
  end)

  it("passes options to a user's policy", function()
    local function own(...)
      return { "run:tenant", "--lua-path", ".", "--policy",
        "examples.per_tenant", ... }
    end
    local holder = start(own("--option", "limit=1", "-c", "echo in; sleep 20"))
    holder:says("in")
    local words = own("-n", "-c", "echo ran", "--option")
    words[#words + 1] = "limit=2"
    assert.equal("ran\n", output(words))
    words[#words] = "limit=1"
    assert.equal(200, run(words).status)
    words[#words] = "limit"
    assert.matches("%-%-option must be K=V", run(words).err)
    assert.matches("%-%-option needs %-%-policy", run({ "x", "--option=a=1",
      "--", "true" }).err)
    holder:kill(15)
    assert.equal(143, holder:wait().status)
  end)

  it("takes several names all or none", function()
    while_held("run:2", function()
      local waiter = start { "run:1,run:2", "-c", "echo ran" }
      eventually(function()
        return server:cli("PUBSUB", "CHANNELS", "*run:2*") ~= ""
      end)
      eventually(function() return not exists("run:1") end)   -- it retries once
      waiter:kill(15)
      assert.equal(205, waiter:wait().status)
    end)
    assert.equal("held\n", output { "run:1,run:2", "-c",
      ctl.binary .. " status run:1 | grep -o held | head -1" })
  end)

  it("prints only on standard error, with -v the wait", function()
    local result = run { "run:a", "-v", "-c", "echo ran" }
    assert.equal("ran\n", result.out)
    assert.matches('rlockctl: run: acquired "run:a" after %d+%.%d+ s\n',
      result.err)
  end)

  -- What a run with these words says of a busy lock.
  local function told(words)
    local result = run { "-c", "echo ran", table.unpack(words) }
    assert.equal("", result.out)
    return result.err
  end

  it("names the holder of a busy lock", function()
    local HELD = '^rlockctl: run: reentrant lock "run:busy" is held by [^\n]+ '
      .. "%(pid %d+%) for %d+%.%d s more, unless it is renewed\n$"
    while_held("run:busy", function()
      for _, words in ipairs { { "run:busy", "-n" }, { "run:busy", "-w.3" },
          { "run:a,run:busy", "-n" } } do
        assert.matches(HELD, told(words))
      end
    end)
  end)

  it("names the holder of a busy lock of each kind", function()
    local function by(holder)
      return (" held by %%S+: sh %%(pid %d%%)"):format(holder.pid)
    end
    for words, expected in pairs {
      [{ "-x", "-s" }] = "readwrite lock %s is%s %%(writes%%)",
      [{ "-s", "-x" }] = "readwrite lock %s is%s %%(reads%%)",
      [{ "-x", "-x" }] = "readwrite lock %s is%s %%(writes%%)",
      [{ "-x", "--fenced" }] = "readwrite lock %s is%s %%(writes%%)",
      [{ "--fenced", "-x" }] = "fenced lock %s is%s",
      [{ "-x --fair", "-s --fair" }] =
        "fair_readwrite lock %s is%s %%(writes%%)",
      [{ "-s --fair", "-x --fair" }] =
        "fair_readwrite lock %s is%s %%(reads%%)",
      [{ "--fair", "--fair" }] = "fair lock %s is%s",
      [{ "--limit=1", "--limit=1" }] = "permits %s are%s",
      [{ "--limit=3", "--limit=3 --permits=3" }] =
        "%s has 2 of 3 permits left; the others are%s",
    } do
      local options, name = {}, ("run:" .. words[1] .. words[2]):gsub(" ", "")
      for i = 1, 2 do
        options[i] = { name, i == 2 and "-n" or "-v" }
        for word in words[i]:gmatch "%S+" do table.insert(options[i], word) end
      end
      local holder = start { "-c", "echo in; sleep 90",
        table.unpack(options[1]) }
      holder:says "in"
      local pattern = "^rlockctl: run: " .. expected:format('"run:%S+"',
        by(holder)) .. ", renewed until released\n$"
      -- It says less if the server takes long to tell who that is.
      local err
      pcall(eventually, function()
        err = told(options[2])
        return err:match(pattern)
      end, 40)
      assert.matches(pattern, err)
      holder:kill(15)
      holder:wait()
    end
  end)

  it("sees that another program renews a busy lock", function()
    local client <close> = assert(rlock.open { url = server.url,
      watchdog = 0.6 * slow })
    assert(client:lock("run:busy"):lock())
    assert.matches(" for %d%.%d s more, unless it is renewed\n$",
      told { "run:busy", "-n" })
    eventually(function()
      return told { "run:busy", "-w", ("%gs"):format(2 * slow) }
        :match "%(pid %d+%), renewed until released\n$"
    end, 40 * slow, "a renewal is seen")
    assert(client:lock("run:busy"):unlock())
  end)

  it("prints only faults with -q or -E 0, no busy lock", function()
    while_held("run:busy", function()
      for words, status in pairs { [{ "-nz" }] = 206, [{ "-nq" }] = 200,
          [{ "-nE0" }] = 0, [{ "-n", "-q" }] = 200,
          [{ "-w.3", "-q" }] = 201, [{ "-n", "-E", "0" }] = 0,
          [{ "-w.3", "-E0" }] = 0 } do
        local result = run { "run:busy", "-c", "echo ran",
          table.unpack(words) }
        assert.same({ status, "" }, { result.status, result.out })
        assert.equal(status == 206, result.err ~= "")
      end
      local result = run { "run:busy", "-n", "-E0", "-v", "-c", "echo ran" }
      assert.same({ 0, true }, { result.status,
        result.err:find("is held by", 1, true) ~= nil })
    end)
    for _, words in ipairs { { "-E0" }, { "-q" } } do
      local fault = ctl.fault(202, { "run", "run:s", "-n", "-c", "echo ran",
        url = "unix:///nowhere", table.unpack(words) })
      assert.matches("no such file", fault)
    end
  end)

  it("refuses a --status-fd of its own", function()
    for fd = 3, 9 do
      local result = ctl.run { program = "sh", "-c", [[
        exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-
        "$0" run run:j --status-fd "$1" -c 'echo ran']], ctl.binary,
        tostring(fd), url = server.url }
      assert.same({ 206, "" }, { result.status, result.out }, fd)
      assert.matches(("--status-fd %d is not open"):format(fd), result.err, 1,
        true)
    end
  end)

  it("writes JSON lines to --status-fd", function()
    local path = ctl.file("status", "")
    local function events(...)
      local result = ctl.run { program = "sh", "-c",
        '"$0" run run:j --status-fd 3 "$@" 3>' .. path, ctl.binary,
        url = server.url, ... }
      local list = {}
      for line in files.read(path):gmatch("[^\n]+") do
        list[#list + 1] = line:match('"event":"([%l_]+)"')
        assert.matches('^{.*"name":"run:j".*}$', line)
      end
      return table.concat(list, " "), result.status, files.read(path)
    end
    local list, status, text = events("-c", "exit 200")
    assert.same({ "acquired child_exit released", 200 }, { list, status })
    assert.matches('"status":200}\n', text)
    list, status, text = events("--ttl=300ms", "-c", "sleep 0.3; kill -9 $$")
    assert.same({ 137, true }, { status, list:find(
      "^acquired renewed .*child_exit .*released$") ~= nil }, list)
    assert.matches('"signal":9,"status":137}\n', text)
    while_held("run:j", function()
      list, status = events("-n", "--", "true")
      assert.same({ "", 200 }, { list, status })
      assert.equal("waiting", (events("-w", 0.5 * slow .. "s",
        "--", "true")))
    end)
    list, status = events("--on-lost=ignore", "-c", ("redis-cli -s %s DEL run:j"
      .. " >/dev/null; sleep 0.1"):format(server.socket), "--ttl=200ms")
    assert.equal(204, status)
    assert.matches("^acquired .*lost child_exit released$", list)
  end)

  it("is not held up by a reader of --status-fd that does not read", function()
    local result = ctl.run { program = "bash", "-c", [[
      mkfifo "$1"; exec 4<>"$1"; head -c 65536 /dev/zero >&4
      "$0" run run:j --status-fd 4 -- echo ran]], ctl.binary,
      ctl.folder() .. "/fifo", url = server.url }
    assert.same({ 0, "ran\n" }, { result.status, result.out })
  end)

  it("shows no password: not in arguments, messages or environment", function()
    local guarded = redis.start { password = SECRET }
    local result = run { "run:a", "-v", "--url", guarded.url, "-c",
      [[rlockctl=$(cut -d" " -f4 /proc/$PPID/stat)
        cat /proc/$$/cmdline /proc/$PPID/cmdline /proc/$rlockctl/cmdline
        echo; env; exit 3]], url = server.url }
    guarded:stop()
    assert.equal(3, result.status)
    assert.matches("%-%-url.*%-%-url.*%-c", result.out)
    assert.is_nil((result.out .. result.err):find(SECRET, 1, true))
    assert.matches("%sRLOCK_URL=unix:///", result.out)
  end)

  it("runs one at a time, of sixty", function()
    local path = ctl.file("counter", "0\n")
    local all, n = {}, 60
    local script = ([[
      read -r n <%s; [ -e %s.in ] && echo two; : >%s.in
      rm %s.in; echo $((n + 1)) >%s]]):gsub("%%s", path)
    for i = 1, n do
      all[i] = start { "run:many", limit = 60, "-c", script }
    end
    for i = 1, n do
      local result = all[i]:wait()
      assert.same({ 0, "", "" }, { result.status, result.out, result.err })
    end
    assert.equal(n .. "\n", files.read(path))
    assert.is_false(exists("run:many"))
  end)
end)

describe("rlockctl run inside of another", function()
  local SHOW = [[ -c 'echo $RLOCK_HELD']]

  local function inside(outer, inner)
    local words = { "-c", "exec " .. ctl.binary .. " run " .. inner }
    table.move(words, 1, 2, #outer + 1, outer)
    return run(outer)
  end

  it("neither takes nor releases what is held, but takes the rest", function()
    local result = inside({ "n1" }, "-n n1" .. SHOW)
    assert.same({ 0, "n1\n", "" }, { result.status, result.out, result.err })
    result = inside({ "n1,n2" }, "-n n3,n2" .. SHOW)
    assert.same({ 0, "n1:n2:n3\n" }, { result.status, result.out })
    result = run { "n1", "-c", ([[%s run n1 -- true && %s status n1]]):format(
      ctl.binary, ctl.binary) }
    assert.matches('^"n1" is held', result.out)
  end)

  it("is refused a lock that is held otherwise, or was lost", function()
    local result = inside({ "n1" }, "-x n1 -- true")
    assert.equal(203, result.status, result.err)
    assert.matches('the outer run does not hold "n1" with these options',
      result.err)
    assert.equal(203, inside({ "n1", "-s" }, "-x n1 -- true").status)
    assert.equal(0, inside({ "n1", "-x" }, "-s n1 -- true").status)
    assert.equal(0, inside({ "n1", "-s" }, "-s n1 -- true").status)
    assert.equal(0,
      inside({ "n9", "--limit=2" }, "--limit=2 n9 -- true").status)
    result = run { "n1", "--on-lost=ignore", "-c", ([[
      redis-cli -s %s DEL n1 >/dev/null; %s run n1 -- true]]):format(
      server.socket, ctl.binary) }
    assert.equal(203, result.status)
  end)

  it("knows what is held on several servers", function()
    local other = redis.start()
    local result = inside({ "n1" }, ("--url %s n1 -- %s run --url %s -n n1 %s")
      :format(other.url, ctl.binary, server.url, SHOW))
    other:stop()
    assert.same({ 0, "n1:n1\n", "" }, { result.status, result.out, result.err })
  end)

  it("takes a lock of that name on another server", function()
    local other = redis.start()
    local result = inside({ "n1" }, "--url " .. other.url .. " n1 -c '"
      .. "redis-cli -s " .. other.socket .. " EXISTS n1'")
    other:stop()
    assert.same({ 0, "1\n", "" }, { result.status, result.out, result.err })
  end)
end)
