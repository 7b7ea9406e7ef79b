--- Any fault in a user's policy is reported on one line that names its file and
--- line: by rlockctl script, and by a program that uses it.

local ctl = require "spec.cli.ctl"
local redis = require "spec.tools.redis"

local server = redis.shared()

teardown(ctl.clean)

-- A valid policy, parts of which are replaced by faults.
local GOOD = {
  head = "", name = '"mine"', keys = "function(name) return { name } end",
  acquire = 'return { "held" }', renew = 'return { "held" }',
  release = 'return { "freed" }', parameters = "keys, args", tail = "",
  more = "",
}

local TEXT = [[
local server = {}
$head
function server.acquire($parameters)
  $acquire
end
function server.renew(keys, args)
  $renew
end
function server.release(keys, args)
  $release
end $tail
return {
  name = $name,
  keys = $keys,
  server = server,
  $more
}
]]

local count = 0

-- Writes a policy with these faults, or a whole text, to a file; returns the
-- arguments that let rlockctl find it, and the module.
local function write(faults)
  count = count + 1
  local text = type(faults) == "string" and faults
    or TEXT:gsub("%$(%l+)", setmetatable(faults, { __index = GOOD }))
  local name = "mine" .. count
  ctl.file("faults/" .. name .. ".lua", text)
  return "--lua-path=" .. ctl.folder() .. "/faults", name
end

-- The error in a program that uses such a lock.
local function use(path, name, act)
  return ctl.run { url = server.url, path, "-e", [[
    local rlock = require "rlock"
    local client <close> = assert(rlock.open { timeout = 1 })
    local lock = client:policy(arg[1], arg[1])
    assert(select("#", lock) == 1)
    local results = table.pack((function() ]] .. act .. [[ end)())
    print(results[2], results[3])]], name }
end

local function is_one_line(text, pattern)
  assert.matches(pattern .. "[^\n]*\n$", text)
  assert.equal(1, select(2, text:gsub("\n", "")))
end

describe("a policy without fault", function()
  it("works", function()
    local path, name = write {}
    assert.same({ 0, "nil\tnil\n", "" }, (function(result)
      return { result.status, result.out, result.err }
    end)(use(path, name, "return lock:try_lock()")))
  end)
end)

describe("a fault of a policy is reported when it is loaded:", function()
  local cases = {
    { "a file that is no Lua", "local x = 3\nlocal y = = 4\n",
      ":2: unexpected symbol near '='" },
    { "a file that raises", "local x\nreturn x.y\n",
      ":2: attempt to index a nil value" },
    { "a module that is not there", "return require 'no.such.module'\n",
      ":1: module 'no.such.module' not found" },
    { "a file that returns nothing", "local x = 3\n",
      ": the module must return a table, the policy" },
    { "a file that returns something else", "return 7\n",
      ": the module must return a table, the policy" },
    { "no acquire", { tail = "server.acquire = nil" },
      ":14: server.acquire is missing" },
    { "no release", { tail = "server.release = nil" },
      ":14: server.release is missing" },
    { "no name", { name = "nil" }, ":14: name is missing: a string" },
    { "keys that are no function", { keys = '{ "x" }' },
      ":%d+: keys must be a function, is a table" },
    { "a field that nobody knows", { more = "chanel = type" },
      ":14: a policy has no field chanel, only allows, channel, .*, wakes" },
    { "a field of another type", { more = 'poll = "1"' },
      ":14: poll must be a number, is a string" },
    { "an operation that nobody asks for", {
      head = "server.leeve = function() end" },
      ":14: server.leeve is not an operation; a lock has acquire, .*, "
      .. "leave, peek, refresh, release, renew" },
    { "an operation that is no function", { head = "server.peek = 7" },
      ":14: server.peek must be a function written in Lua, is a number" },
    { "an operation that is not written in Lua",
      { head = "server.peek = type" },
      ":14: server.peek must be a function written in Lua, is a C function" },
    { "a table as an upvalue", { head = "local t = {}", acquire = "return t" },
      ':4: acquire: upvalue "t" is a table that is not a required module; ' },
    { "a file as an upvalue", { head = "local f = io.stdout",
      acquire = "return f" }, ':4: acquire: upvalue "f" is a userdata; only ' },
    { "an upvalue that changes", { head = "local n = 0",
      acquire = "n = n + 1" },
      ':4: acquire: upvalue "n" is assigned at line 4; only what' },
    { "a number that Redis cannot count to", { head = "local n = 1 << 60",
      acquire = "return { n }" },
      ':4: acquire: upvalue "n" is beyond 2^53, which Redis cannot count to' },
    { "a name that nobody knows", { acquire = "return { hled }" },
      ':4: acquire: reads the global "hled", which Redis does not have' },
    { "rlock itself", { acquire = "return { rlock.now() }" },
      ':4: acquire: reads the global "rlock", which Redis does not have; '
        .. "there is no rlock inside Redis" },
    { "rlock as an upvalue", { head = 'local rlock = require "rlock"',
      acquire = "return { rlock.now() }" },
      ':4: acquire: uses "rlock.now"; there is no rlock inside Redis' },
    { "what only this Lua has", { acquire = "return { os.time() }" },
      ':4: acquire: reads the global "os", .*; redis.call%("time"%) returns' },
    { "an assignment to a global", { release = "n = 1" },
      ':10: release: assigns the global "n"; make it a local' },
    { "syntax that Redis lacks", { release = "return { 7 // 2 }" },
      ":10: release: Redis' Lua 5.1 does not have the operator //" },
    { "an operation that calls itself", {
      acquire = "return server.acquire(keys, args)" },
      ':4: acquire: upvalue "server" is a table that is not a required' },
    { "functions that call each other", {
      head = "local g local function f() return g() end g = function()\n"
      .. "return f() end", acquire = "return f()" },
      ":3: g %(shipped with acquire%): g and f call each other, which" },
    { "a variable number of parameters", { parameters = "..." },
      ":3: acquire: must take %(keys, args%) and nothing else" },
    { "a third parameter", { parameters = "keys, args, more" },
      ":3: acquire: must take %(keys, args%) and nothing else" },
  }

  for _, case in ipairs(cases) do
    it(case[1], function()
      local path, name = write(case[2])
      local result = ctl.run { path, "script", name, url = server.url }
      assert.same({ 206, "" }, { result.status, result.out })
      is_one_line(result.err, '^rlockctl: script: policy "%w+": '
        .. "/%S+/" .. name .. "%.lua" .. case[3])
      result = use(path, name, "return 1")
      assert.same({ 1, "" }, { result.status, result.out })
      assert.is_truthy(result.err:find("\nstack traceback:", 1, true))
      assert.is_truthy(result.err:match("^[^\n]*\n"):find(
        'policy "' .. (type(case[2]) == "string" and name or ""), 1, true))
    end)
  end
end)

describe("a fault of a policy is reported when it is used:", function()
  local TRY, WAIT = "return lock:try_lock()", "return lock:lock { wait = 5 }"
  local UNLOCK = "assert(lock:lock()) return lock:unlock()"

  local acquire = 'policy "mine": %S+:3: acquire: answered '
  local release = 'policy "mine": %S+:9: release: answered '

  -- A helper that captures n functions.
  local function captures(n)
    local lines = {}
    for i = 1, n do
      lines[i] = ("local function x%d() return %d end"):format(i, i)
    end
    lines[n + 1] = "local function sum(...) return x1()"
    for i = 2, n do lines[n + i] = ("+ x%d()"):format(i) end
    return { head = table.concat(lines, "\n") .. " end",
      acquire = "return { sum() }" }
  end

  -- Title, faults, action, error.
  for _, case in ipairs {
    { "no verdict", { acquire = "" }, TRY, acquire .. "nothing; it must" },
    { "a wrong verdict", { acquire = 'return { "hold" }' }, TRY,
      acquire .. '{ "hold" }; it must answer "held", ' },
    { "a verdict that is a number", { acquire = "return { 42 }" }, TRY,
      acquire .. "{ 42 }; it must" },
    { "a verdict that is a table", { acquire = 'return { { "held" } }' }, TRY,
      acquire .. '{ { "held" } }; it must' },
    { "a verdict of another operation", { acquire = 'return "freed"' }, TRY,
      acquire .. '"freed"; it must' },
    { "lost, by who had nothing", { acquire = 'return { "lost" }' }, TRY,
      acquire .. '{ "lost" }; it must' },
    { "busy, but for how long", { acquire = 'return { "busy" }' }, TRY,
      acquire .. '{ "busy" }; it must answer .*{ "busy", milliseconds }' },
    { "a text where a number is due", { acquire = 'return { "busy", "soon" }' },
      WAIT, acquire .. '{ "busy", "soon" }; it must' },
    { "a table where a number is due", { acquire = 'return { "busy", {} }' },
      WAIT, acquire .. '{ "busy", {} }; it must' },
    { "a table where a token is due", { acquire = 'return { "held", { 1 } }' },
      TRY, acquire .. '{ "held", { 1 } }; it must' },
    { "refused, but why", { acquire = 'return { "refused" }' }, TRY,
      acquire .. '{ "refused" }; it must answer .*{ "refused", "why" }' },
    { "very much", {
      acquire = "local t = {} for i = 1, 9000 do t[i] = 1 end return t" }, TRY,
      acquire .. '{ 1, 1, 1, 1, ... }; it must' },
    { "a release that holds", { release = 'return { "held" }' }, UNLOCK,
      release .. '{ "held" }; it must answer "freed" when no hold' },
    { "a release that keeps what nobody wants",
      { release = 'return { "kept" }' }, UNLOCK,
      release .. '{ "kept" }; it must' },
    { "a peek that tells nothing", {
      head = "server.peek = function() return { 'held' } end" },
      "return lock:is_locked()",
      'policy "mine": %S+:2: peek: answered { "held" }; it must answer { ' },
    { "no peek", {}, "return lock:ttl()",
      'usage\tpolicy "mine" has no server.peek, needed here' },
    { "no break_", {}, "return lock:break_lock()",
      'usage\tpolicy "mine" has no server.break_, needed here' },
    { "a runtime error", { acquire = "local x return x.y" }, TRY,
      "redis\tERR /%S+:4: attempt to index local 'x' %(a nil value%)" },
    { "a runtime error in a helper",
      { head = "local function f(x) return x + {} end", acquire = "f(1)" }, TRY,
      "redis\tERR /%S+:2: attempt to perform arithmetic on a table value" },
    { "an error of its own", { acquire = 'error "mine"' }, TRY,
      "redis\tERR /%S+:4: mine" },
    { "an error that it returns", {
      acquire = 'return redis.error_reply("QUOTA is over")' }, TRY,
      'redis\tQUOTA is over %(policy "mine": /%S+:3: acquire%)' },
    { "an error when it releases", { release = 'error "mine"' }, UNLOCK,
      "redis\tERR /%S+:10: mine; the lease ends it" },
    { "a table for a command", { acquire = 'redis.call("set", keys[1], {})' },
      TRY, "redis\tERR .*arguments must be strings or integers %(/%S+:4%)" },
    { "a command that there is not", { acquire = 'redis.call("fly")' }, TRY,
      "redis\tERR Unknown .*ommand.* %(?/%S+:4%)?" },
    { "more than Redis' Lua can keep in one function", captures(100), TRY,
      "redis\tERR Error compiling script .*: /%S+:%d+: function at line %d+ "
      .. "has more than 60 upvalues" },
  } do
    it(case[1], function()
      local path, name = write(case[2])
      local result = use(path, name, case[3])
      assert.same({ 0, "" }, { result.status, result.err })
      is_one_line(result.out, case[4])
    end)
  end

  -- Faults in functions that run in the client: raised.
  for _, case in ipairs {
    { "keys that are no list", { keys = "function(name) return name end" },
      'policy "mine": %S+:14: keys must return a list of 1 to 8 strings' },
    { "keys that are none", { keys = "function() return {} end" },
      'policy "mine": %S+:14: keys must return a list of 1 to 8 strings' },
    { "keys with a hole", { keys = "function(name) return { nil, name } end" },
      'policy "mine": %S+:14: keys must return a list of 1 to 8 strings' },
    { "keys that raise", { keys = "function(name) return name.x.y end" },
      "%S+:14: attempt to index a nil value" },
    { "a channel that is none", { more = "channel = function() end" },
      'policy "mine": %S+:16: channel must return a string', "busy" },
    { "rubbish from extra", { more = "extra = function() return 7 end" },
      'policy "mine": %S+:16: extra must return a list of strings and' },
    { "a table from extra", { more = "extra = function() return { {} } end" },
      'policy "mine": %S+:16: extra must return a list of strings and' },
    { "an extra that raises", { more = "extra = function() error 'x' end" },
      "%S+:16: x" },
  } do
    it(case[1], function()
      if case[4] then case[2].acquire = 'return { "busy", 100 }' end
      local path, name = write(case[2])
      local result = use(path, name, WAIT)
      assert.same({ 1, "" }, { result.status, result.out })
      assert.matches("^rlockctl: " .. case[3] .. "[^\n]*\nstack traceback:",
        result.err)
    end)
  end

  it("a fault of extra leaves no lock", function()
    local path, name = write {
      more = "extra = function(r) if r.wait_ms == 0 then error 'x' end end",
    }
    local result = use(path, name,
      "pcall(lock.try_lock, lock) return nil, lock:lock { wait = 5 }")
    assert.equal("true\tnil\n", result.out)
  end)

  it("no renew, but with a lease it works", function()
    local path, name = write { tail = "server.renew = nil" }
    is_one_line(use(path, name, TRY).out,
      "usage\tmine lock \"%w+\": its policy has no server.renew; give a "
      .. "lease, such as { lease = 10 }")
    assert.equal("true\tnil\n", use(path, name,
      "return nil, lock:try_lock { lease = 60 }").out)
  end)

  it("a renewal without a verdict, until the lease is over", function()
    local path, name = write { renew = 'return { "kept" }' }
    local result = ctl.run { url = server.url, path, "-e", [[
      local rlock = require "rlock"
      local client <close> = assert(rlock.open { watchdog = 0.3 })
      local lock, lost = client:policy(arg[1], arg[1]), rlock.event()
      assert(lock:lock())
      lock:on_lost(function(_, reason)
        print(reason)
        lost:set()
      end)
      lost:wait(10)]], name }
    is_one_line(result.out, "not renewed in time: policy \"mine\": %S+:6: "
      .. 'renew: answered { "kept" }; it must answer "held" or "lost"')
    assert.matches("is at risk, valid for", result.err)
  end)
end)

describe("a policy that never ends", function()
  local slow_server

  before_each(function()
    slow_server = redis.start { args = { "--lua-time-limit", "100" } }
  end)
  after_each(function()
    slow_server:cli("SCRIPT", "KILL")
    slow_server:stop()
  end)

  it("costs whoever asks no more than their time, and is named with what to "
      .. "do about it", function()
    local path, name = write { acquire = "while true do end" }
    local result = ctl.run { url = slow_server.url, path, "-e", [[
      local rlock = require "rlock"
      local client <close> = assert(rlock.open { timeout = 0.5 })
      local lock, began = client:policy(arg[1], "x"), rlock.now()
      print(select(2, lock:try_lock()))
      print(select(2, client:lock("y"):lock { wait = 1 }))
      local other <close> = assert(rlock.open { timeout = 0.5 })
      print(select(2, other:lock("y"):try_lock()))
      assert(other:call("SCRIPT", "KILL"))
      assert(client:lock("y"):lock { wait = 5 })
      assert(rlock.now() - began < 10)]], name }
    assert.equal(0, result.status, result.err)
    assert.matches("^timeout\t%S+: no reply within %d+ ms %(mine.acquire%); if "
      .. "the server answers BUSY, its script runs too long: redis%-cli script "
      .. "kill\n"
      .. "redis\tBUSY a script runs too long on the server, probably "
      .. "mine.acquire, which this client sent; reentrant.acquire did not "
      .. "run; to end it: redis%-cli script kill\n"
      .. "redis\tBUSY a script runs too long on the server; "
      .. "reentrant.acquire did not run; to end it: redis%-cli script kill\n$",
      result.out)
  end)
end)
