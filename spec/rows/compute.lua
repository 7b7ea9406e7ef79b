--- What client:compute does on each back end, for the specs of both:
---  { what, function (open, name, most) }
--- `open` opens one more client; `name` is new; a value has at most `most`
--- bytes.

local assert = require "luassert"
local eventually = require "spec.tools.eventually"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local PATIENCE = 20 * slow
local LONG = { ttl = 600 }

-- A function to compute: it counts its calls in `calls`, waits until `go` is
-- set, and returns what `result` returns.
local function slow_function(result)
  local self = { calls = 0, go = rlock.event() }
  function self.fn(hold)
    self.calls = self.calls + 1
    self.go:wait(PATIENCE)
    return result(self.calls, hold)
  end
  return self
end

-- Starts a task that computes, and waits until it does.
local function start(client, name, options, slowly)
  local before = slowly.calls
  local started = task.start(function()
    return client:compute(name, options, slowly.fn)
  end)
  eventually(function() return slowly.calls > before end, PATIENCE)
  return started
end

local function never() error "computed, although there is a value" end

-- How many tasks of a client wait for the one that leads.
local function followers(client, key)
  local count = 0
  for its_key, flight in pairs(client.session.flights or {}) do
    if its_key:find(key, 1, true) then
      for _ in pairs(flight.waiting) do count = count + 1 end
    end
  end
  return count
end

-- Does a task of this client wait for the lock?
local function waits(client)
  for _, channel in pairs(client.session.wakeup.channels) do
    if channel.first then return channel.is_live end
  end
end

-- Starts `n` tasks of another client, and waits until all wait.
local function start_waiting(client, n, name, options, fn)
  local all = {}
  for i = 1, n do
    all[i] = task.start(function()
      return client:compute(name, options, fn)
    end)
  end
  eventually(function()
    return waits(client) and followers(client, name) == n - 1
  end, PATIENCE)
  return all
end

local rows = {}

local function row(title, fn) rows[#rows + 1] = { title, fn } end

row("is called once; all others get its value", function(open, name)
  local one, two, slowly = open(), open(), slow_function(function()
    return "a value"
  end)
  local first = start(one, name, LONG, slowly)
  local second = start_waiting(two, 5, name, LONG, never)
  slowly.go:set()
  assert.same({ "a value", "computed" }, { first:join(PATIENCE) })
  for _, waiting in ipairs(second) do
    assert.same({ "a value", "cached" }, { waiting:join(PATIENCE) })
  end
  assert.same({ "a value", "cached" }, { one:compute(name, LONG, never) })
  assert.same({ "a value", "cached" }, { open():compute(name, LONG, never) })
  assert.equal(1, slowly.calls)
  local told = one:stats().kinds.compute
  assert.same({ 1, 1, 0 }, { told.computed, told.cached, told.stale })
  told = two:stats()
  assert.same({ 0, 5, 0 }, { told.computed, told.cached, told.stale })
end)

row("may return any bytes, up to the longest value", function(open, name, most)
  local bytes = {}
  for i = 0, 255 do bytes[i + 1] = string.char(i) end
  local all = table.concat(bytes)
  local long = all:rep(most / 256)
  local client, other = open(), open()
  for i, value in ipairs { "", "\n", all, long } do
    local its = name .. "/" .. i
    assert.equal(value, (client:compute(its, LONG, function()
      return value
    end)))
    local found, how = other:compute(its, LONG, never)
    assert.equal("cached", how)
    assert.is_true(found == value)
  end
  local value, code, detail = client:compute(name, LONG, function()
    return long .. "x"
  end)
  assert.same({ nil, "usage" }, { value, code })
  assert.matches(("a %d bytes long string; .* at most %d bytes"):format(
    most + 1, most), detail)
end)

row("is called again when the value has expired", function(open, name)
  local client, made = open(), 0
  local function fn()
    made = made + 1
    return ("value %d"):format(made)
  end
  local options = { ttl = 0.5 }
  assert.equal("value 1", (client:compute(name, options, fn)))
  eventually(function()
    return client:compute(name, options, fn) == "value 2"
  end, PATIENCE)
  assert.equal(2, made)
end)

row("serves the old value while one computes", function(open, name)
  local one, two, slowly = open(), open(), slow_function(function()
    return "new"
  end)
  local options = { ttl = 0.2, stale = 600 }
  assert(one:compute(name, options, function() return "old" end))
  local computing
  eventually(function()
    computing = computing or task.start(function()
      return one:compute(name, options, slowly.fn)
    end)
    if slowly.calls == 0 and computing.is_over then computing = nil end
    return slowly.calls == 1
  end, PATIENCE)
  for _ = 1, 3 do
    assert.same({ "old", "stale" }, { one:compute(name, options, never) })
    assert.same({ "old", "stale" }, { two:compute(name, options, never) })
  end
  assert.equal(3, two:stats().stale)
  slowly.go:set()
  assert.same({ "new", "computed" }, { computing:join(PATIENCE) })
end)

row("fails for its caller alone, and another one tries", function(open, name)
  local one, two = open(), open()
  local slowly = slow_function(function() return nil, "no\nconnection" end)
  local first = start(one, name, LONG, slowly)
  local made = 0
  local all = start_waiting(two, 3, name, LONG, function()
    made = made + 1
    return "the second"
  end)
  slowly.go:set()
  assert.same({ nil, "failed", "no?connection" }, { first:join(PATIENCE) })
  for _, waiting in ipairs(all) do
    assert.equal("the second", (waiting:join(PATIENCE)))
  end
  assert.equal(1, made)
end)

row("fails with an error that has no text", function(open, name)
  local bad = setmetatable({}, { __tostring = function() error "no" end })
  local value, code, detail =
    open():compute(name, LONG, function() error(bad) end)
  assert.same({ nil, "failed", "an error whose __tostring raises" },
    { value, code, detail })
end)

row("fails for all that wait, when it has failed twice", function(open, name)
  local one, two, three, made = open(), open(), open(), 0
  local slowly = slow_function(function() error("no 1", 0) end)
  local first = start(one, name, LONG, slowly)
  local function fn()
    made = made + 1
    error(("no %d %s"):format(made + 1, ("x"):rep(2000)), 0)
  end
  local all = start_waiting(two, 3, name, LONG, fn)
  for _, each in ipairs(start_waiting(three, 3, name, LONG, fn)) do
    all[#all + 1] = each
  end
  slowly.go:set()
  assert.same({ nil, "failed", "no 1" }, { first:join(PATIENCE) })
  for _, waiting in ipairs(all) do
    local value, code, detail = waiting:join(PATIENCE)
    assert.same({ nil, "failed" }, { value, code })
    assert.matches("^no 2 x+$", detail)
    assert.equal(1000, #detail)
  end
  assert.equal(1, made)
  -- Those that come later compute again, and may fail twice as well.
  for i = 3, 5 do
    local _, _, detail = two:compute(name, LONG, fn)
    assert.matches("^no " .. i, detail)
  end
  assert.equal("at last", (one:compute(name, LONG, function()
    return "at last"
  end)))
  assert.equal("at last", (two:compute(name, LONG, never)))
end)

row("must return a string, or nil and why", function(open, name)
  local client = open()
  for _, case in ipairs { { "a nil", function() end },
      { "a number", function() return 5 end },
      { "a table", function() return {} end },
      { "a boolean", function() return false, "why" end } } do
    local value, code, detail = client:compute(name, LONG, case[2])
    assert.same({ nil, "usage" }, { value, code })
    assert.matches("^client:compute: fn returned " .. case[1]
      .. "; it must return a string of at most %d+ bytes, or nil and why",
      detail)
  end
end)

row("is not interrupted by `wait`, which bounds the others", function(open,
    name)
  local one, two, slowly = open(), open(), slow_function(function()
    return "late"
  end)
  local first = start(one, name, { ttl = 600, wait = 0 }, slowly)
  for _, client in ipairs { one, two } do
    for _, wait in ipairs { 0.05, rlock.deadline(0.05) } do
      local value, code = client:compute(name, { ttl = 600, wait = wait },
        never)
      assert.same({ nil, "timeout" }, { value, code })
    end
  end
  for _, client in ipairs { one, two } do
    assert.equal("busy", select(2, client:compute(name,
      { ttl = 600, wait = 0 }, never)))
  end
  slowly.go:set()
  assert.same({ "late", "computed" }, { first:join(PATIENCE) })
end)

row("is called by the next one if its task is cancelled", function(open, name)
  local one, two = open(), open()
  local slowly = slow_function(function() return "none" end)
  local first = start(one, name, LONG, slowly)
  local same, made = start_waiting(two, 2, name, LONG, function()
    return "the next"
  end), 0
  local mine = task.start(function()
    return one:compute(name, LONG, function()
      made = made + 1
      return "the next"
    end)
  end)
  eventually(function() return followers(one, name) == 1 end, PATIENCE)
  first:cancel()
  for _, waiting in ipairs { same[1], same[2], mine } do
    assert.equal("the next", (waiting:join(PATIENCE)))
  end
end)

row("cannot compute its own name, but others", function(open, name)
  local client = open()
  local value, code, detail = client:compute(name, LONG, function()
    local inner = assert(client:compute(name .. "/inner", LONG, function()
      return "inner"
    end))
    assert(client:lock(name):lock { wait = 0 })
    assert(client:lock(name):unlock())
    local none, its_code = client:compute(name, LONG, never)
    return inner .. tostring(none) .. its_code
  end)
  assert.same({ "innernilrefused", "computed" }, { value, code, detail })
end)

for _, other in ipairs { "one client", "two clients" } do
  row("is a deadlock if two compute inside each other, of " .. other,
    function(open, name)
      local names, clients = { name .. "a", name .. "b" }, { open() }
      clients[2] = other == "one client" and clients[1] or open()
      local jobs, begun, codes = {}, 0, {}
      for i, client in ipairs(clients) do
        jobs[i] = task.start(function()
          return client:compute(names[i], LONG, function()
            begun = begun + 1
            eventually(function() return begun == 2 end, PATIENCE)
            local value, code, detail = client:compute(names[3 - i], LONG,
              function() return "inner" end)
            codes[#codes + 1] = value or code .. " " .. detail
            return value, code
          end)
        end)
      end
      local values = { jobs[1]:join(PATIENCE) or jobs[2]:join(PATIENCE) }
      assert.same({ "inner" }, values)
      assert.matches("^deadlock %S+ waits for compute lock .*, which %S+ "
        .. "holds; .* holds$", codes[1])
      assert.same({ "inner" }, { table.unpack(codes, 2) })
    end)
end

row("does not overwrite a newer value once its hold is lost", function(open,
    name)
  local one, two = open(), open()
  local slowly = slow_function(function() return "late" end)
  local hold
  local first = task.start(function()
    return one:compute(name, LONG, function(its)
      hold = its
      return slowly.fn()
    end)
  end)
  eventually(function() return hold end, PATIENCE)
  hold.lock:break_lock()
  assert.same({ "newer", "computed" }, { two:compute(name, LONG, function()
    return "newer"
  end) })
  slowly.go:set()
  local value, how, detail = first:join(PATIENCE)
  assert.same({ "late", "computed" }, { value, how })
  assert.matches("^not stored: lost: ", detail)
  assert.equal("newer", (one:compute(name, LONG, never)))
end)

row("has arguments that are checked", function(open, name)
  local client = open()
  for _, case in ipairs {
    { "bad ttl: is missing", { name, {}, never } },
    { "bad ttl: is missing", { name, nil, never } },
    { "bad ttl: 0.01: must be at least 0.1 s",
      { name, { ttl = 0.01 }, never } },
    { "bad stale: %-1: must not be negative",
      { name, { ttl = 1, stale = -1 }, never } },
    { 'bad wait: "x": must be a number',
      { name, { ttl = 1, wait = "x" }, never } },
    { "bad option tll of client:compute: must be one of stale, ttl, wait",
      { name, { tll = 1 }, never } },
    { "bad argument fn of client:compute: must be a function",
      { name, { ttl = 1 } } },
    { "bad name: must be a string", { nil, { ttl = 1 }, never } },
  } do
    local ok, message = pcall(client.compute, client, case[2][1], case[2][2],
      case[2][3])
    assert.is_false(ok, case[1])
    assert.matches(case[1], message)
    ok, message = pcall(function()
      client:compute(case[2][1], case[2][2], case[2][3])
    end)
    assert.is_false(ok)
    assert.matches("^[^:]*spec/rows/compute.lua:%d+: " .. case[1], message)
  end
  assert.equal("timeout", select(2, client:compute(name,
    { ttl = 1, wait = rlock.deadline(0) }, never)))
end)

return rows
