--- rlockctl check: the classic faults of locks are found, each with a short
--- trace that can be replayed; and nothing is found in locks that are right.

local ctl = require "spec.cli.ctl"
local plant = require "spec.tools.plant"

local function check(...)
  return ctl.run { "check", "--lua-path", ".", limit = 280, ... }
end

teardown(ctl.clean)

-- The steps of a printed trace, in words: the second column of its table.
local function steps_of(output)
  local steps, width = {}, nil
  for line in output:gmatch("[^\n]+") do
    width = width or line:match("^%s+()step") and line:find("answer", 1, true)
    local number, rest = line:match("^%s*(%d+)%s+()")
    if width and number then
      steps[#steps + 1] = line:sub(rest, width - 1):match("^(.-)%s*$")
    end
  end
  return steps
end

local function write(lines)
  local path = ctl.folder() .. "/trace"
  local file = assert(io.open(path, "w"))
  file:write(table.concat(lines, "\n"), "\n")
  file:close()
  return path
end

local FAULTS = {
  { "release_of_others", 'B holds nothing, but release returns "freed"' },
  { "no_expiry", "the key lock has no expiry" },
  { "counted_twice", "run twice, acquire leaves other keys than run once" },
  { "lease_shortened", "A may rely on its hold for 2s, but the server frees "
    .. "it earlier, after acquire with a shorter lease" },
  { "queue_for_ever", "the key lock:%a+ has no expiry" },
  { "dead_head", "stuck: A is the only waiter, but does not get it within "
    .. "7.0 s" },
  { "token_of_the_clock", "its token does not grow" },
  { "foreign_key", "release uses the key last owner, which is not among "
    .. "those of `keys`" },
  { "malformed", 'answered { "busy" }; it must answer' },
  { "wrong_type", "wrong_type.acquire fails: WRONGTYPE Operation against a "
    .. "key" },
  { "late_renewal", 'B holds nothing, but renew returns "held"' },
  { "full_server", "a server over its maxmemory refuses renew at %./spec/"
    .. "fixtures/full_server%.lua:6; begin it with a write that needs no "
    .. "memory" },
  { "order_of_fields", "its valid hold is reported lost" },
  { "queue_by_clock", "[AB] gets it, but [BC] has waited longer",
    { "--clients", "3", "--ops", "1", "--ticks", "0", "--faults", "lost" } },
  { "queue_by_clock", "A gets it, but B has waited longer",
    { "--faults", "lost" } },
  -- Redisson's behaviour. Both locks count what they are asked for, instead of
  -- what is wanted, so a retry counts twice.
  { "redisson_fair", "run twice, acquire leaves other keys than run once" },
  { "redisson_readwrite",
    "run twice, acquire leaves other keys than run once" },
  -- Whoever renews, or enters again, can shorten a lease.
  { "redisson_fair", "A may rely on its hold for 2s, but the server frees it "
    .. "earlier, after renew with a shorter lease", { "--faults", "crash" } },
  -- A hold that has been lost is entered again as if it were still there.
  { "redisson_readwrite", 'B holds nothing, but re%-enter returns "held"',
    { "--faults", "crash" } },
  -- A dead waiter blocks the free lock for five minutes; one whose deadline is
  -- evicted blocks it forever, though it would have waited for three seconds.
  { "redisson_fair_mended", "stuck: A is the only waiter" },
  { "redisson_fair_mended", "stuck: A is the only waiter", { "--faults",
    "crash,evict", "--ops", "1", "--option", "wait=3000" } },
  -- A renewal does not bring back the key of an inner hold that has ended, and
  -- the next release takes the lock for free.
  { "redisson_readwrite_mended", "A may rely on its hold for 2s, but the "
    .. "server frees it earlier", { "--faults", "crash" } },
}

describe("rlockctl check finds", function()
  for _, case in ipairs(FAULTS) do
    local name, fault = "spec.fixtures." .. case[1], case[2]
    local options = case[3] or {}
    local title = case[1] .. " " .. table.concat(options, " ")
    local function search(...)
      local words = table.move(options, 1, #options, 2, { name })
      return check(table.unpack(table.move({ ... }, 1, select("#", ...),
        #words + 1, words)))
    end

    it(title .. ", and its trace can be replayed", function()
      local found = search()
      assert.same({ 1, "" }, { found.status, found.err })
      assert.matches("^" .. case[1] .. ": [%d ]+ states, [%d ]+ steps, %d "
        .. "clients x %d operations, stopped: .*" .. fault, found.out)
      assert.matches('\npolicy "' .. case[1] .. '[%a.]*": %./spec/fixtures/'
        .. "[%w_]+%.lua:%d+: %w+\n$", found.out)
      local steps = steps_of(found.out)
      assert.is_true(#steps >= 1 and #steps <= 10, found.out)
      local replayed = search("--trace", write(steps))
      assert.equal(1, replayed.status)
      assert.same(steps, steps_of(replayed.out))
      assert.equal(found.out:match("stopped: ([^\n]+)"),
        replayed.out:match("stopped: ([^\n]+)"))
    end)

    it(title .. " without symmetry as well", function()
      local result = search("--no-symmetry")
      assert.equal(1, result.status)
      assert.matches(fault, result.out:match("stopped: ([^\n]+)"))
    end)
  end
end)

describe("rlockctl check finds nothing in", function()
  local function is_right(...)
    local result = check("--limit", "270", ...)
    assert.same({ 0, "" }, { result.status, result.err }, result.out)
    assert.matches("operations, complete: no fault found\n$", result.out)
  end

  for _, name in ipairs { "spec.fixtures.good", "spec.fixtures.good_queue",
      "examples.priority" } do
    it(name, function()
      is_right(name)
      is_right(name, "--no-symmetry", "--ops", "1")
    end)
  end

  it("examples.per_tenant, whatever its limit", function()
    is_right("examples.per_tenant", "--option", "limit=1")
    is_right("examples.per_tenant", "--option", "limit=2", "--clients", "3",
      "--ticks", "2")
  end)

  it("the policy of the README", function()
    local text = assert(io.open("lua/rlock/policy/README.md")):read("a")
    assert(os.execute("mkdir -p " .. ctl.folder() .. "/my"))
    local file = assert(io.open(ctl.folder() .. "/my/few.lua", "w"))
    file:write(text:match("```lua\n(%-%- my/few.lua\n.-)```"))
    file:close()
    is_right("my.few", "--lua-path", ctl.folder(), "--option", "most=1")
    is_right("my.few", "--lua-path", ctl.folder(), "--option", "most=2",
      "--clients", "3", "--ticks", "2")
    ctl.file("my/pair.lua", text:match("```lua\n(%-%- my/pair.lua\n.-)```"))
    is_right("my.pair", "--lua-path", ctl.folder())
  end)
end)

describe("rlockctl check", function()
  for kind, case in pairs {
    mutex = { 'A holds nothing, but renew returns "held"', "A acquire 2s",
      "A release", "late 1 (acquire A 2000 1)" },
    fair = { "A holds it 2 times, but peek reports 1", "A acquire 2s",
      "A acquire 2s", "late 1 (acquire A 2000 1 0 publish)" },
    permits = { "count returns 2 instead of 3", "A set 3",
      "late 1 (set 2 publish)" },
    latch = { "count returns 0 instead of 2", "A delete", "A set 2",
      "late 2 (delete publish)" },
    semaphore = { "count returns 0 instead of 1", "A drain", "B acquire 1",
      "A release 1", "late 3 (acquire 1 600000 1 publish)" },
  } do
    it("finds what late copies do to an unsealed " .. kind, function()
      local result = check(kind, "--faults", "late,lost")
      assert.same({ 1, "" }, { result.status, result.err })
      assert.equal(case[1], result.out:match("stopped: ([^\n]+)"))
      assert.same({ table.unpack(case, 2) }, steps_of(result.out))
      assert.matches("\n   probe %l+ [^\n]*%l+ ", result.out)
      assert.matches('\npolicy "' .. kind .. '": ', result.out)
    end)
  end

  for what, case in pairs {
    ["a release frees the next hold"] = { "frees it earlier", "A acquire 2s",
      "A release", "A acquire 2s", "late 2 (release A 2000 0 publish)" },
    ["a release of one hold shortens a lease"] = { "frees it earlier",
      "A acquire 1s", "A acquire 1s", "A release", "A release",
      "A acquire 2s", "late 3 (release A 1000 1 publish)" },
  } do
    it("replays that a late copy of " .. what, function()
      local result = check("reentrant", "--faults", "late,lost", "--trace",
        write { table.unpack(case, 2) })
      assert.same({ 1, "" }, { result.status, result.err }, result.out)
      assert.matches(case[1], result.out)
    end)
  end

  it("forgives holds of a server that loses keys, or whose clock jumps",
    function()
      for _, fault in ipairs { "evict", "expire", "jump", "break" } do
        for _, name in ipairs { "mutex", "spec.fixtures.good_queue" } do
          local result = check(name, "--ops", "1", "--ticks", "1",
            "--limit", "270", "--faults", "lost,twice,crash," .. fault)
          assert.same({ 0, "" }, { result.status, result.err }, result.out)
        end
      end
    end)

  for _, kind in ipairs { "semaphore", "permits", "latch" } do
    it("takes what is left of a " .. kind .. " for right", function()
      for _, fault in ipairs { "evict", "jump" } do
        local result = check(kind, "--ops", "1", "--ticks", "1", "--limit",
          "200", "--faults", "lost,twice,crash," .. fault)
        assert.same({ 0, "" }, { result.status, result.err }, result.out)
      end
    end)
  end

  it("replays lost keys and jumps of the clock", function()
    local result = check("mutex", "--trace", write {
      "acquire A dropped", "retry A", "retry A", "acquire A", "evict lock",
      "B acquire 1s",
      "jump +1s", "B release", "A release", "A acquire", "jump -2s", "+1s",
      "expire lock",
    })
    assert.same({ 0, "" }, { result.status, result.err }, result.out)
    assert.matches("11 +jump %-2s +holds 2s +%- +lock {A=1} 4s\n", result.out)
  end)

  it("lets each hold have its own lease", function()
    local result = check("reentrant", "--leases", "1s,3s", "--limit", "600")
    assert.same({ 0, "" }, { result.status, result.err }, result.out)
  end)

  it("walks at random through the rest", function()
    local result = check("fair", "--clients", "3", "--limit", "0.4s", "--seed",
      "5")
    assert.same({ 3, "" }, { result.status, result.err })
    assert.matches("incomplete at depth %d+, then [%d ]+ random walks "
      .. "%(seed 5%): no fault found\nto explore all: ", result.out)
  end)

  it("reports its progress", function()
    local result = check("readwrite", "--limit", "0.2")
    assert.same({ 3, "" }, { result.status, result.err })
    assert.matches("incomplete at depth %d+: no fault found\nto explore all: a "
      .. "longer %-%-limit, or fewer %-%-clients, %-%-ops or %-%-ticks; "
      .. "%-%-seed N [^\n]+\n$", result.out)
  end)

  -- A policy that calls a command.
  local function calling(call)
    ctl.file("my/calls.lua", ([[
      local server = {}
      local function load(key)
        return redis.%s
      end
      function server.acquire(keys, args)
        if load(keys[1]) then return { "busy", -1 } end
        return { "held" }
      end
      function server.release() return { "lost" } end
      return { name = "calls", server = server,
        keys = function(name) return { name } end }]]):format(call))
    return check("my.calls", "--lua-path", ctl.folder())
  end

  it("names a misspelt command, or one that the model lacks, with its place",
    function()
      local result = calling 'call("GETT", key)'
      assert.same({ 1, "" }, { result.status, result.err })
      assert.matches("stopped: calls.acquire fails: ERR Unknown Redis command "
        .. "called from script: GETT %([^ ]*my/calls.lua:3%)\n", result.out)
      result = calling 'call("geoadd", key, 1, 1, "x")'
      assert.same({ 206, "" }, { result.status, result.out })
      assert.matches("the model of Redis has no command GEOADD "
        .. "%([^ ]*my/calls.lua:3%); Redis has it\n$", result.err)
      assert.matches("no redis.sha1hex %([^ ]*my/calls.lua:3%)\n$",
        calling 'sha1hex(key)'.err)
      assert.matches("calls.acquire fails: ", calling 'log(1)'.out)
    end)

  for call, message in pairs {
    ['call([[gett]], key)'] = "script: GETT",
    ['call("ge\\116t", key)'] = "script: GETT",
    ['call("ge" .. "tt", (key:gsub("x", "y")))'] = "script: GETT",
    ['call("get", key, "x")'] = "ERR Wrong number of args [^\n]*",
    ['call("hget", key)'] = "ERR Wrong number of args [^\n]*",
    ['call("get", {})'] = "[^\n]* must be strings or integers",
    ['call("set", key, 1) and redis.call("hget", key, "x")'] =
      "WRONGTYPE [^\n]*",
  } do
    it("names the line of redis." .. call, function()
      assert.matches("calls.acquire fails: [^\n]*" .. message
        .. " %([^ ]*my/calls.lua:3%)\n", calling(call).out)
    end)
  end

  it("names the line of a call whose error a script catches", function()
    ctl.file("my/catches.lua", [[
      local server = {}
      local function key_of(keys)
        return keys[1]
      end
      function server.acquire(keys, args)
        local reply = redis.pcall([=[gett]=],
          key_of(keys))
        local text = reply.err
        return reply
      end
      function server.release() return { "lost" } end
      return { name = "catches", server = server,
        keys = function(name) return { name } end }]])
    assert.matches("script: GETT %([^ ]*my/catches.lua:6%)\n",
      check("my.catches", "--lua-path", ctl.folder()).out)
  end)

  it("shows the call that proves a fault", function()
    local result = check("spec.fixtures.release_of_others")
    assert.matches("\n   probe release B 2000 0 publish +freed +%-\npolicy ",
      result.out)
    result = check("spec.fixtures.lease_shortened")
    assert.matches("\n   probe acquire A 1 2 +held +lock {A=2} 0.001s\n"
      .. "   probe %+1.999s renew A 1 2 +lost +%-\npolicy ", result.out)
    result = check("spec.fixtures.counted_twice")
    assert.matches("\n   probe acquire A 2000 1 +held +lock {A=2} 2s\npolicy ",
      result.out)
    assert.matches("\n   probe %+%d[%d.]+s acquire A [^\n]+ busy 500 ",
      check("spec.fixtures.dead_head").out)
    assert.is_nil(check("spec.fixtures.no_expiry").out:find "probe")
    assert.matches('"probes":%[{"answer":"freed","call":"release B 2000 0 '
      .. 'publish","keys":%[%],"where":"policy ',
      check("spec.fixtures.release_of_others", "--json").out)
  end)

  -- What is wrong, kind, file, text, faulty text, rows with "probe"; options.
  for number, case in ipairs {
    { "a lease that an acquire shortens", "permits", "permits",
      "if tonumber(score) < ends then redis.call(\"zadd\", leases, ends, id) "
        .. "end\n  return", 'redis.call("zadd", leases, ends, id)\n  return',
      { "acquire A0 1 1 publish +held 1 ", "%+1.999s count +free 2 0 " } },
    { "a repeat that takes another permit", "permits", "permits",
      'prolong(leases, id, ends)\n    return { "held", left }',
      "prolong(leases, id, ends)", { "acquire A0 2000 1 publish +held 0 " } },
    { "a lost wake", "permits", "permits",
      "if more > 0 and left > 0 then tell(args[2], channel, left) end", "",
      { "acquire Z0 2000 1 publish +held 0 " } },
    { "a count without a number", "latch", "latch",
      'if n > 0 then return { "held", n }', 'if n > 0 then return { "held" }',
      { "count +error " } },
    { "a lost wake that no call shows", "barrier", "barrier",
      'tell(publish, state .. CHANNEL, "0")\nend', "end", {} },
    { "a break with an older token", "fenced", "fencing",
      'tonumber(standing_token(keys) or "") ~= tonumber(token)',
      "not standing_token(keys)",
      { "break_ 1699999999999999 hand over +freed " },
      { "--faults", "crash,lost,twice,break" } },
  } do
    it("shows the calls that reveal " .. case[1], function()
      local folder = plant.folder("shown" .. number, "rlock/policy/" .. case[3]
        .. ".lua", case[4], case[5])
      local result = check(case[2], "--lua-path", folder,
        table.unpack(case[7] or {}))
      assert.same({ 1, "" }, { result.status, result.err })
      local rows = {}
      for row in result.out:gmatch("\n   probe ([^\n]+)") do
        rows[#rows + 1] = row
      end
      assert.equal(#case[6], #rows, result.out)
      for i, pattern in ipairs(case[6]) do
        assert.matches("^" .. pattern, rows[i])
      end
    end)
  end

  it("gives each client options of its own", function()
    local function with(...)
      local words = { "spec.fixtures.intent" }
      for _, option in ipairs { ... } do
        table.move({ "--option", option }, 1, 2, #words + 1, words)
      end
      return check(table.unpack(words))
    end
    for _, modes in ipairs { { "S", "X" }, { "S", "IX" }, { "IX", "IX" } } do
      local result = with("A:mode=" .. modes[1], "B:mode=" .. modes[2])
      assert.same({ 0, "" }, { result.status, result.err }, result.out)
    end
    local skipped = "three clients were not searched, because options of single"
    assert.matches("\n" .. skipped, with("A:mode=S", "B:mode=X").out)
    assert.is_nil(with("mode=S").out:find(skipped, 1, true))
    local result = with("mode=S", "B:mode=IX", "wrong=true")
    assert.equal(1, result.status)
    assert.matches("stopped: A and B hold it at the same time\n", result.out)
    assert.equal(0, with("mode=S", "wrong=true").status)
    assert.matches("there is no client C", with("C:mode=S").err)
    assert.matches("the clients of latch have no options",
      check("latch", "--option", "A:n=1").err)
    result = check("examples.priority", "--option", "B:priority=7", "--trace",
      write { "A acquire", "B acquire wait", "A release", "B acquire wait" })
    assert.same({ 0, "" }, { result.status, result.err })
  end)

  it("says what `late` assumes, with a fault and without", function()
    local NOTE = "late: this assumes that lost connections are not sealed"
    assert.matches("\n" .. NOTE, check("mutex", "--faults", "late,lost").out)
    local rest = { "mutex", "--faults", "late", "--ops=1", "--clients=1",
      "--ticks=0", "--trace", write { "A acquire" } }
    assert.matches("no fault found\n.*\n" .. NOTE,
      check(table.unpack(rest)).out)
    table.insert(rest, "--json")
    assert.matches('"notes":%[[^%]]*"' .. NOTE, check(table.unpack(rest)).out)
  end)

  it("prints JSON", function()
    assert.equal('{"complete":true,"policy":"good","states":1152,'
      .. '"steps":4647}\n', check("spec.fixtures.good", "--json").out)
    assert.matches('^{"complete":false,"fault":"its token does not grow",'
      .. '"policy":"token_of_the_clock","states":%d+,"steps":%d+,"trace":%['
      .. '{"answer":"held 1700000000000","beliefs":%["holds 2s","%-"%],'
      .. '"keys":%["lock {owner=A token=1700000000000} 2s"%],'
      .. '"step":"A acquire 2s","where":"policy [^}]+"},',
      check("spec.fixtures.token_of_the_clock", "--json").out)
  end)

  it("replays a trace without a fault", function()
    local result = check("reentrant", "--trace", write {
      "A acquire 2s", "A acquire 1s lost", "A retry", "B acquire", "+1.5s",
      "A renew", "A release", "A release", "B acquire", "A die",
    })
    assert.same({ 0, "" }, { result.status, result.err })
    assert.matches("10 +A die +dead +holds 2s +lock {B=1} 2s\n$",
      (result.out:gsub("\npolicy[^\n]+", "")))
  end)

  for _, case in ipairs {
    { "no policy", {}, "check: give one policy" },
    { "two policies", { "fair", "mutex" }, "check: give one policy" },
    { "an unknown policy", { "no.such" }, 'policy "no.such": there is no' },
    { "a path", { "./my/fcfs.lua" }, "there is no such module on package.path; "
      .. "a module has a name such as my.fcfs, not a path" },
    { "an absolute path", { "/my/fcfs.lua" }, "there is no such module on "
      .. "package.path; give the name of a module, not a path\n" },
    { "an unknown fault", { "fair", "--faults", "crash,flood" },
      "--faults has no flood, only break, crash, evict, expire, jump, late, "
        .. "lost and twice" },
    { "many clients", { "fair", "--clients", "6" },
      "--clients must be a number from 1 to 5" },
    { "no number", { "fair", "--ticks", "many" },
      "--ticks must be a number from 0 to 1000" },
    { "four leases", { "fair", "--leases", "1,2,3,4" },
      "--leases must be one to three numbers of seconds" },
    { "a bad lease", { "fair", "--leases", "1,x" }, "--leases must be a" },
    { "an option without a value", { "fair", "--option", "x" },
      "--option must be K=V" },
    { "a trace that is missing", { "fair", "--trace", "/no/trace" },
      "--trace: /no/trace: No such file" },
    { "an unknown option", { "fair", "--flood" }, "unknown option --flood" },
  } do
    it("refuses " .. case[1], function()
      local result = check(table.unpack(case[2]))
      assert.same({ 206, "" }, { result.status, result.out })
      assert.matches("^rlockctl: [^\n]+\n$", result.err)
      assert.is_truthy(result.err:find(case[3], 1, true), result.err)
    end)
  end

  for step, problem in pairs {
    ["A jump"] = 'unknown step "jump": say acquire, release',
    ["Z acquire"] = "unknown client Z: there are A, B, see --clients",
    ["acquire Z"] = "unknown client Z: there are A, B",
    ["z release"] = "unknown client z: there are A, B",
    ["fly away"] = 'unknown step "fly away": say A acquire',
    ["A acquire soon"] = "unknown word soon",
    ["A retry"] = "A has nothing to retry",
    ["A leave"] = "policy good has no leave",
    ["break"] = "policy good cannot break it",
    ["late 1"] = "late needs the number of an old request",
    ["jump 1s"] = "say jump +1s or jump -1s",
    ["A release dropped"] = "only an acquire can be dropped",
  } do
    it("refuses the step " .. step, function()
      local result = check("spec.fixtures.good", "--trace", write { step })
      assert.same({ 206, "" }, { result.status, result.out })
      assert.is_truthy(result.err:find(problem, 1, true), result.err)
    end)
  end

  it("refuses steps that a barrier does not have", function()
    local result = check("barrier", "--trace", write { "jump -1s" })
    assert.same({ 206, "" }, { result.status, result.out })
    assert.matches(": jump %-1s: a barrier has no jump: say ", result.err)
  end)

  for step, problem in pairs {
    ["A acquire"] = "A has a request without a reply: say retry",
    ["A give up now"] = "A has a request without a reply",
  } do
    it("refuses the step " .. step .. " after a lost reply", function()
      local result = check("spec.fixtures.good", "--trace",
        write { "A acquire lost", step })
      assert.equal(206, result.status)
      assert.is_truthy(result.err:find(problem, 1, true), result.err)
    end)
  end

  it("refuses the steps of the dead", function()
    local result = check("spec.fixtures.good", "--trace",
      write { "A die", "A acquire" })
    assert.matches("A is dead", result.err)
  end)
end)
