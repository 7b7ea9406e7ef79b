--- Does the server's cost of an operation grow with the number of holders or
--- waiters? Commands inside a request, and microseconds, beside 10, 100, 1 000
--- and 10 000 others. Prints a table.
---
---   rlockctl crowd.lua [SIZE...]              the server is RLOCK_URL
---
--- The server must be private: statistics and data are reset.

local rlock = require "rlock"
local server_time = require "spec.bench.server_time"
local states = require "spec.tools.states"

local SIZES = {}
for i, word in ipairs(arg[1] and arg or { 10, 100, 1000, 10000 }) do
  SIZES[i] = math.tointeger(tonumber(word))
end
local ROUNDS = 300
local TURNS = 60                       -- handovers per measurement
local SETTLE = 1                       -- seconds until all waiters are waiting
local LEASE = "600000"

-- Commands that Redisson 4.7 needs beside n others, where they grow: 20 009 and
-- 27 ms in the first row with 10 000 readers.
local redisson = {
  ["read_lock give back"] = "11 + 2n",
  ["fair_lock come and leave"] = "8-10, then n",
  ["fair_lock hand over, come again"] = "10, 10 + n, 8-10",
}

local client = assert(rlock.open())
local rows, row_of = {}, {}

-- Puts a cost into the row's next column.
local function note(kind, operation, cost, times)
  local id = kind .. " " .. operation
  local row = row_of[id]
  if not row then
    row = { kind = kind, operation = operation }
    row_of[id], rows[#rows + 1] = row, row
  end
  row[#row + 1] = ("%.1f %8.2f"):format(cost.commands / times,
    cost.usec / times)
end

-- The cost of one call of fn.
local function measure(kind, operation, fn)
  note(kind, operation, server_time.of(client, ROUNDS, fn), 1)
end

local function clear() assert(client:call("FLUSHDB")) end

-- Runs the operations of a policy on one lock; asserts each verdict.
local function playing(definition)
  local ops = states.of(client, definition)
  return function(expected, op, ...)
    local reply, code, detail = ops.ask("crowd", op, ...)
    local verdict = reply and reply[1] or code
    if verdict ~= expected then
      error(("%s: %s %s"):format(op, verdict, detail or ""), 2)
    end
  end
end

-- Many readers; a writer tries to lock.
local function readers(size, kind, policies, waits)
  local read, write = playing(policies.read), playing(policies.write)
  for i = 1, size do
    read("held", "acquire", "reader " .. i, LEASE, "1", waits, "publish")
  end
  local function one(i) return "one more " .. i end
  measure(kind, "take", function(i)
    read("held", "acquire", one(i), LEASE, "1", waits, "publish")
  end)
  measure(kind, "enter again", function(i)
    read("held", "acquire", one(i), LEASE, "2", waits, "publish")
  end)
  measure(kind, "give one back", function(i)
    read("kept", "release", one(i), LEASE, "1", "publish")
  end)
  measure(kind, "renew", function(i)
    read("held", "renew", one(i), "700000", "1")
  end)
  measure(kind, "a writer tries", function()
    write("busy", "acquire", "writer", LEASE, "1", "0", "publish")
  end)
  measure(kind, "give back", function(i)
    read("freed", "release", one(i), "1", "0", "publish")
  end)
  clear()
end

local function permits(size)
  local ask = playing "permits"
  ask("held", "set", ("%d"):format(size + ROUNDS + 1), "publish")
  for i = 1, size do
    ask("held", "acquire", "permit " .. i, LEASE, "1", "publish")
  end
  local function one(i) return "one more " .. i end
  measure("permits", "take", function(i)
    ask("held", "acquire", one(i), LEASE, "1", "publish")
  end)
  measure("permits", "take, none left", function()
    ask("busy", "acquire", "too many", LEASE, "1", "publish")
  end)
  measure("permits", "renew", function(i)
    ask("held", "renew", one(i), "700000", "1")
  end)
  measure("permits", "give back", function(i)
    ask("freed", "release", one(i), "1", "0", "publish")
  end)
  clear()
end

-- A queue of waiters in Redis. The first retries now and then, which shows that
-- it is alive; `command` lists the queue.
local function line(size, kind, definition, waits, command, key)
  local ask = playing(definition)
  local function asks(expected, owner, how)
    ask(expected, "acquire", owner, LEASE, "1", how or waits, "publish")
  end
  asks("held", "holder")
  for i = 1, size do
    asks("busy", "waiter " .. i)
    if i % 50 == 0 then asks("busy", "waiter 1") end
  end
  local function beside(operation, fn)
    asks("busy", "waiter 1")
    measure(kind, operation, fn)
  end
  beside("try", function() asks("busy", "tries", "0") end)
  beside("come and leave", function(i)
    asks("busy", "one more " .. i)
    ask("left", "leave", "one more " .. i, "publish")
  end)
  beside("the first asks", function() asks("busy", "waiter 1") end)
  beside("the last asks", function() asks("busy", "waiter " .. size) end)
  beside("128 heartbeats", function(i)
    local owners = {}
    for k = 1, 128 do owners[k] = "waiter " .. (128 * i + k) % size + 1 end
    ask("busy", "refresh", "publish", table.unpack(owners))
  end)
  -- The first waiter gets the lock and queues again. The next one has shown
  -- that it is alive.
  local order = assert(client:call(command, key, 0, -1))
  for i, who in ipairs(order) do order[i] = who:gsub("^w:", "") end
  table.insert(order, 1, "holder")
  asks("busy", order[2])
  measure(kind, "hand over, come again", function(i)
    ask("freed", "release", order[i + 1], "1", "0", "publish")
    asks("held", order[i + 2])
    asks("busy", order[i + 3])
    order[#order + 1] = "again " .. i
    asks("busy", order[#order])
  end)
  clear()
end

-- Subscribed waiters: the cost of a handover, which is to lock, to unlock, and
-- to wait again.
local function tasks(size, kind, make)
  local own, turns, enough, go = assert(rlock.open()), 0, nil, nil
  local take, give = make(own)
  assert(take())
  for i = 1, size do
    rlock.spawn(function()
      while take() do
        turns = turns + 1
        if turns % TURNS == 0 then
          go = rlock.event()
          enough:set()
          go:wait()
        end
        if not give() then return end
      end
    end)
    if i % 100 == 0 then rlock.sleep(0.01) end
  end
  rlock.sleep(SETTLE)
  local function go_round(i)
    if i == 0 then return end
    enough = rlock.event()
    if go then go:set() else assert(give()) end
    enough:wait()
  end
  note(kind, "from hand to hand", server_time.of(client, 5, go_round), TURNS)
  own:close()
  go:set()
  clear()
end

local function lock(own)
  local its = own:lock("crowd")
  return function() return its:lock() end, function() return its:unlock() end
end

local function writer(own)
  local its = own:read_write_lock("crowd"):write_lock()
  return function() return its:lock() end, function() return its:unlock() end
end

local function one_permit(own)
  local its = own:semaphore("crowd")
  assert(its:set(1))
  return function() return its:acquire() end,
    function() return its:release() end
end

local fair_readwrite = require "rlock.policy.fair_readwrite"
local readwrite = require "rlock.policy.readwrite"
for _, size in ipairs(SIZES) do
  readers(size, "read_lock", readwrite, "0")
  readers(size, "fair read_lock", fair_readwrite, "1")
  permits(size)
  tasks(size, "lock", lock)
  tasks(size, "write_lock", writer)
  tasks(size, "semaphore", one_permit)
  line(size, "fair_lock", "fair", "-1", "LRANGE", "redisson_lock_queue:{crowd}")
  line(size, "fair write_lock", fair_readwrite.write, "1", "ZRANGE",
    "rlock_frw_queue:{crowd}")
end
client:close()

local function print_row(title, cells, last)
  print(("%-38s%s   %s"):format(title,
    ("  %14s"):rep(#cells):format(table.unpack(cells)), last or ""))
end

print_row("commands and us of the server, beside", SIZES, "Redisson's commands")
for _, row in ipairs(rows) do
  print_row(("%-16s %-21s"):format(row.kind, row.operation), row,
    redisson[row.kind .. " " .. row.operation])
end
