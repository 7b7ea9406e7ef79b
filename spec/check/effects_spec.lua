--- Commands that run only while holds last: the script (policy/effect.lua) on
--- the model of Redis, and what the client does (lock/effect.lua), on a virtual
--- clock.

local effect = require "rlock.policy.effect"
local multi = require "rlock.several.multi"
local policies = require "rlock.policy"
local redis = require "rlockctl.model.redis"
local script = require "rlock.script"
local stage = require "spec.simulate.stage"

local on_stage = stage.tests(it)

local LOST = { "lost" }

local model, policy

local function call(...) return model:call { ... } end

-- Runs the script with the locks' keys, and these arguments.
local function run(names, ...)
  local keys, args = {}, { ... }
  for name in names:gmatch "%S+" do
    for _, key in ipairs(policy.keys(name)) do keys[#keys + 1] = key end
  end
  for i, word in ipairs(args) do args[i] = tostring(word) end
  local op = script.compile(policy.name, "call",
    effect.guarded(policy.server.peek))
  return model:eval(op.text, keys, args)
end

local function hold(name, owner)
  local args = { owner, "1000", "1" }
  local reply = model:eval(policy.ops.acquire.text, policy.keys(name), args)
  assert.equal("held", reply)
end

-- Makes a command of scripts fail.
local function fail(name, text)
  local find = redis.find
  function model.find(words)
    if words[1] ~= name then return find(words) end
    return function() error({ err = text }, 0) end
  end
end

describe("the script that guards commands", function()
  before_each(function()
    model, policy = redis.new(), policies.load "reentrant"
  end)

  it("runs them in order while the lock is held", function()
    hold("a", "A")
    assert.same({ "done", { { ok = "OK" }, 8, "8" } }, run("a", "A", 1, 2,
      3, "set", "x", 7, 2, "incr", "x", 2, "get", "x"))
    assert.same({ "done", {} }, run("a", "A", 1, 2))
  end)

  it("changes nothing for others, or for a reservation", function()
    assert.same(LOST, run("a", "A", 1, 2, 3, "set", "x", 1))
    hold("a", "A")
    assert.same(LOST, run("a", "B", 1, 2, 3, "set", "x", 1))
    call("hset", "a", "A", "0")
    assert.same(LOST, run("a", "A", 1, 2, 3, "set", "x", 1))
    assert.is_nil(model:entry "x")
  end)

  it("changes nothing if the kind does not count the holds", function()
    local op = script.compile("own", "call", effect.guarded(function()
      return { "held", 5 }
    end))
    assert.same(LOST, model:eval(op.text, { "a" }, { "A", "1", "1",
      "2", "incr", "x" }))
  end)

  it("checks each hold, with its keys and its owner", function()
    hold("a", "A")
    hold("b", "B")
    assert.same({ "done", { 1, 2 } }, run("a b", "A", 2, 2, "B",
      2, "incr", "x", 2, "incr", "x"))
    for _, other in ipairs { "A", "C" } do
      assert.same(LOST, run("a b", "A", 2, 2, other, 2, "incr", "x"))
    end
    assert.same(LOST, run("a c", "A", 2, 2, "A", 2, "incr", "x"))
    assert.equal("2", call("get", "x"))
  end)

  it("checks each of three holds", function()
    policy = policies.load(require("rlock.policy.readwrite").write)
    for _, name in ipairs { "a", "b", "c" } do hold(name, "A") end
    local width = #policy.keys "a"
    assert.same({ "done", { 1 } }, run("a b c", "A", 3, width, "A", "A",
      2, "incr", "x"))
    for _, name in ipairs { "a", "b", "c" } do
      call("del", policy.keys(name)[1])
      assert.same(LOST, run("a b c", "A", 3, width, "A", "A", 2, "incr", "x"))
      hold(name, "A")
    end
    assert.equal("1", call("get", "x"))
  end)

  it("stops at the first failure", function()
    hold("a", "A")
    call("set", "x", "text")
    local reply = run("a", "A", 1, 2, 3, "set", "y", 1, 2, "incr", "x",
      3, "set", "y", 2)
    assert.same({ "failed", 2 }, { reply[1], reply[2] })
    assert.match("not an integer", reply[3])
    assert.equal("1", call("get", "y"))
    reply = run("a", "A", 1, 2, 2, "incr", "x")
    assert.same({ "failed", 1 }, { reply[1], reply[2] })
  end)

  it("replies a replica's refusal as it is, unless something was changed",
    function()
      local why = "READONLY You can't write against a read only replica."
      hold("a", "A")
      fail("set", "-" .. why)
      assert.same({ err = why }, run("a", "A", 1, 2, 3, "set", "x", 1))
      assert.same({ "failed", 2, "-" .. why }, run("a", "A", 1, 2,
        2, "incr", "y", 3, "set", "x", 1))
      fail("set", "NOPERM")
      assert.same({ "failed", 1, "NOPERM" }, run("a", "A", 1, 2,
        3, "set", "x", 1))
    end)
end)

describe("commands of a holder", function()
  on_stage("are executed, and their replies returned", function(_, client)
    local lock = client:lock "lock"
    assert.equal("not_held", select(2, lock:call("SET", "x", 1)))
    assert.is_true(lock:lock())
    assert.equal("OK", lock:call("SET", "x", 1))
    assert.same({ 3, false }, lock:transaction(function(t)
      t:call("INCRBY", "x", 2)
      t:call("GET", "none")
    end))
    assert.same({}, lock:transaction(function() end))
    assert.is_true(lock:unlock())
    assert.equal("not_held", select(2, lock:call("SET", "x", 1)))
    assert.equal("3", client:call("GET", "x"))
  end)

  on_stage("must be words, else the caller's line is told",
    function(_, client)
      local lock = client:lock "lock"
      assert.is_true(lock:lock())
      local line = debug.getinfo(1, "l").currentline + 2
      local ok, why = pcall(lock.transaction, lock, function(t)
        t:call("SET", "x", {})
      end)
      assert.is_false(ok)
      assert.match("effects_spec.lua:" .. line .. ": bad argument #3 of "
        .. "transaction:call: must be a string or a number, is a table$", why)
    end)

  on_stage("that find the hold lost make the client look at it alone",
    function(self, client)
      local lock, other = client:lock "lock", client:lock "other"
      assert.is_true(lock:lock() and other:lock())
      self.sleep(1)
      self:calls()
      client:call("DEL", "lock")
      assert.equal("lost", select(2, lock:call("SET", "x", 1)))
      self.sleep(0.1)
      assert.equal(1, #self:calls "renew")
      assert.equal("lost", lock:state())
      assert.equal("held", other:state())
      assert.is_false(client:call("GET", "x"))
    end)

  on_stage("find no hold if another task unlocks at that moment",
    function(self, client)
      local lock, code = client:lock("lock", { owner = "job" }), nil
      assert.is_true(lock:lock() and lock:unlock() and lock:lock())
      assert.equal(1, lock:call("INCR", "x"))
      self:route().delay = 0.01
      self.spawn(function() lock:unlock() end)
      self.spawn(function() code = select(2, lock:call("INCR", "x")) end)
      self.sleep(1)
      assert.equal("lost", code)
    end)

  on_stage("of a multi-lock are guarded by all of its locks",
    function(self, client)
      local both = multi.new { client:lock "a", client:lock "b" }
      assert.is_true(both:lock())
      assert.equal(1, both:call("INCR", "x"))
      client:call("DEL", "b")
      assert.equal("lost", select(2, both:call("INCR", "x")))
      self.sleep(0.1)
      assert.equal("lost", both:state())
      assert.equal("1", client:call("GET", "x"))
    end)

  on_stage("are refused by a server that has none", function(_, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    lock.record.target.effect = false
    local ok, code, detail = lock:call("INCR", "x")
    assert.same({ nil, "usage" }, { ok, code })
    assert.match('"lock".*: its server runs no commands under a lock$', detail)
  end)
end)
