--- Malformed replies of operations, and what programs are told about them.

local fixtures = require "spec.tools.fixtures"
local policy = require "rlock.policy"
local redis = require "spec.tools.redis"
local script = require "rlock.script"

local server = redis.shared()

describe("a malformed reply", function()
  local client

  before_each(function() client = fixtures.open { url = server.url } end)
  after_each(fixtures.close)

  local wrong = {
    function() return 5 end,
    function() return "text" end,
    function() return false end,
    function() return {} end,
    function() return { "what" } end,
    function() return { { "held" } } end,
  }
  local without_number = {
    function() return { "held" } end,
    function() return { "held", "x" } end,
    function() return { "free", {} } end,
    function() return { "busy", "1" } end,
  }

  -- Calls fn while the server gives wrong replies to op.
  local function refuses(kind, op, answers, fn)
    local ops = policy.load(kind).ops
    local right = ops[op]
    for _, answer in ipairs(answers) do
      ops[op] = script.compile(kind, op, answer)
      local ok, result, code, detail = pcall(fn)
      ops[op] = right
      assert.is_true(ok, result)
      assert.is_nil(result)
      assert.equal("redis", code)
      assert.matches('^policy "' .. kind .. '": .*answers_spec.lua:%d+: ' .. op
        .. ": answered [^\n]+; it must answer { [^\n]+$", detail)
    end
  end

  it("to a semaphore is reported", function()
    local semaphore = client:semaphore "answers:semaphore"
    semaphore:set(5)
    local function told(op, answers, fn)
      refuses("semaphore", op, answers, fn)
    end
    for _, answers in ipairs { wrong, without_number } do
      told("acquire", answers, function() return semaphore:acquire(1) end)
      told("acquire", answers, function() return semaphore:try_acquire(1) end)
      told("drain", answers, function() return semaphore:drain() end)
      told("count", answers, function() return semaphore:available() end)
    end
    told("release", wrong, function() return semaphore:release(1) end)
    told("release", wrong, function() return semaphore:add(1) end)
    told("set", wrong, function() return semaphore:set(1) end)
  end)

  it("to permits is reported", function()
    local permits = client:permits "answers:permits"
    permits:set(5)
    local id = assert(permits:acquire())
    local function told(op, answers, fn) refuses("permits", op, answers, fn) end
    for _, answers in ipairs { wrong, without_number } do
      told("acquire", answers, function() return permits:acquire() end)
      told("acquire", answers, function() return permits:try_acquire() end)
      told("count", answers, function() return permits:available() end)
      told("count", answers, function() return permits:acquired() end)
    end
    told("renew", wrong, function() return permits:renew(id, 1) end)
    told("set", wrong, function() return permits:set(1) end)
    told("release", wrong, function() return permits:release(id) end)
  end)

  it("to a latch is reported", function()
    local latch = client:latch "answers:latch"
    local function told(op, answers, fn) refuses("latch", op, answers, fn) end
    for _, answers in ipairs { wrong, without_number } do
      told("count_down", answers, function() return latch:count_down() end)
      told("count", answers, function() return latch:count() end)
      told("count", answers, function() return latch:wait { wait = 1 } end)
    end
    told("set", wrong, function() return latch:set(1) end)
    told("delete", wrong, function() return latch:delete() end)
  end)

  it("to a lock's peek is reported", function()
    local lock = client:lock "answers:lock"
    refuses("reentrant", "peek", {
      function() return { "held", 1, 0, {}, 5 } end,
      function() return { "held", 1, 0, "x" } end,
      function() return { "held" } end,
    }, function() return lock:peek() end)
  end)

  it("of a fraction of a millisecond, which Redis cuts to 0, makes no hot loop",
    function()
      local half = client:policy("spec.tools.half", "answers:half")
      assert.equal("timeout", select(2, half:lock { wait = 0.3, lease = 1 }))
      local asked = client:call("GET", "answers:half")
      assert.is_true(tonumber(asked) <= 40, asked .. " times")
    end)
end)

describe("an error of the server", function()
  it("has no control characters, also inside an array", function()
    local client = fixtures.open { url = server.url }
    finally(fixtures.close)
    local function told(text)
      return client:call("EVAL", text, 0)
    end
    local _, code, detail = told "return { err = 'ERR a\\27[2Jb\\127' }"
    assert.equal("redis", code)
    assert.equal("ERR a?[2Jb?", detail)
    assert.same({ { err = "ERR a?b" } },
      told "return { { err = 'ERR a\\27b' } }")
  end)
end)
