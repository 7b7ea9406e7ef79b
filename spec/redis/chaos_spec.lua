--- Random chaos: many tasks of several clients take, hold, nest and release
--- locks of all kinds, multi-locks and red locks included. Tasks are cancelled;
--- connections are broken, muted, delayed and frozen; servers are stopped. Two
--- holders never have valid_for() at once, nothing ends the program, and
--- nothing is left behind.
---
--- RLOCK_SEED repeats a run's choices (but not its timing), RLOCK_CHAOS is its
--- duration in seconds.
--- #long

local eventually = require "spec.tools.eventually"
local host = require "rlock.host.uv"
local nodes = require "spec.tools.servers"
local proxies = require "spec.tools.proxy"
local rlock = require "rlock"
local seed = require "spec.tools.seed"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local seconds = tonumber(os.getenv("RLOCK_CHAOS") or 6 * slow)

local TASKS, NODES = 60, 5
local WATCHDOG, TIMEOUT = 1.2 * slow, 0.25 * slow
local PATIENCE = 60 * slow          -- for a busy machine

-- A group is a client of each server; locks of one client use the first.
local KINDS = {
  "lock", "lock", "mutex", "simple_lock", "spin_lock", "fair_lock",
  "fenced_lock", "read_write_lock", "fair_read_write_lock", "red_lock",
  "red_lock", "red_lock", "multi_lock", "multi_lock",
}
local RED = { [11] = "simple", [12] = "mutex" }
local MEMBERS = { [13] = { 1, 3 }, [14] = { 14, 15 } }

local servers, nets, groups, holders, tokens, entered, problems

-- Makes the lock of this number for a group; returns it and its name.
local function make(group, number, options)
  local kind, name = KINDS[number], "chaos:" .. number
  if kind == "red_lock" then
    return rlock.red_lock(group, name, {
      policy = RED[number], node_timeout = TIMEOUT / 2,
    }), name
  elseif kind ~= "multi_lock" then
    return group[1][kind](group[1], name, options), name
  end
  local one, two = table.unpack(MEMBERS[number])
  local first = KINDS[one] == "lock" and "lock" or "fair_lock"
  return rlock.multi_lock {
    group[1][first](group[1], "chaos:" .. one, options),
    group[2]:mutex("chaos:" .. two, options),
  }, "chaos:" .. one
end

local function chance(percent) return math.random(100) <= percent end

local function between(least, most)
  return least + math.random() * (most - least)
end

-- No two owners certainly hold the lock at once, unless both read.
local function look(name, own)
  local mine = own:valid_for()
  if mine == 0 then return end
  for other, what in pairs(holders[name]) do
    if other ~= own and other:valid_for() > 0
        and not (what == "reads" and holders[name][own] == "reads") then
      problems[#problems + 1] = ("%s: valid for %.3f s and for %.3f s")
        :format(name, mine, other:valid_for())
    end
  end
end

-- Tokens increase from holder to holder.
local function look_at_token(name, token)
  if not token then return end
  if token <= (tokens[name] or 0) then
    problems[#problems + 1] = ("%s: token %s after %s"):format(name, token,
      tokens[name])
  end
  tokens[name] = token
end

local function work(name, own)
  for _ = 1, math.random(0, 5) do
    look(name, own)
    rlock.sleep(between(0, 0.03 * slow))
  end
  look(name, own)
end

local function options_at_random()
  local options = {}
  if chance(80) then options.wait = between(0, 1.5 * slow) end
  if chance(40) then options.lease = between(0.02, 0.6) * slow end
  return options
end

-- A nested hold of the same task.
local function nest(lock, name, own)
  local inner <close> = lock:hold { wait = between(0, 0.3), lease = chance(50)
    and between(0.01, 0.5) * slow or nil }
  if inner then work(name, own) end
end

-- Picks a lock of any kind; returns its name, the lock, and reads or writes.
local function choose(i)
  local which = math.random(#groups)
  local lock, name = make(groups[which], math.random(#KINDS), chance(30)
    and { owner = ("owner %d of client %d"):format(i, which) } or nil)
  if not lock.read_lock then return name, lock, "writes" end
  if chance(70) then return name, lock:read_lock(), "reads" end
  return name, lock:write_lock(), "writes"
end

local function take_one(i)
  local name, lock, what = choose(i)
  local own <close> = lock:hold(options_at_random())
  if not own then return end
  entered = entered + 1
  -- Once the release has started, another owner may get the lock.
  local _ <close> = setmetatable({}, { __close = function()
    holders[name][own] = nil
  end })
  holders[name][own] = what
  look_at_token(name, own.token and own:token())
  work(name, own)
  if chance(30) then nest(lock, name, own) end
  if chance(20) then
    holders[name][own] = nil
    task.run(function() own:unlock() end)
  end
end

-- One of the tasks: takes locks until the end, or until enough were taken; may
-- be cancelled and start again.
local function be_busy(i, deadline)
  while rlock.now() < deadline
      or entered <= TASKS and rlock.now() < deadline + PATIENCE do
    local one = task.start(take_one, i)
    if chance(10) then
      rlock.sleep(between(0, 0.2 * slow))
      one.task:cancel()
    end
    local ok, message = pcall(one.join, one, 60 * slow)
    if not ok and not host.is_unwind(message) then error(message, 0) end
  end
end

local function net() return nets[math.random(#nets)] end

local function ask(...)
  return servers:ask(servers[math.random(NODES)], ...)
end

local faults = {
  function() net():mute(1, "chaos") end,
  function() net():mute(math.random(3), "chaos") end,
  function() net():cut(1, "chaos") end,
  function() net():cut(math.random(5), "") end,
  function() net():hold(between(0, 0.8 * slow), "chaos") end,
  function() net():drop_messages(math.random(5), "") end,
  function() net():kill() end,
  function()
    local frozen = net()
    frozen:freeze()
    rlock.sleep(between(0, 0.6 * slow))
    frozen:thaw()
  end,
  function() ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") end,
  function() ask("CLIENT", "KILL", "TYPE", "pubsub") end,
  function() ask("SCRIPT", "FLUSH") end,
  function()
    ask("CLIENT", "PAUSE", ("%.0f"):format(between(0, 300 * slow)), "ALL")
  end,
  function() ask("DEBUG", "SLEEP", ("%.3f"):format(between(0, 0.4 * slow))) end,
  function()
    local first, number = math.random(NODES), math.random(NODES)
    for i = first, number do servers:pause(i) end
    rlock.sleep(between(0, 0.5 * slow))
    for i = first, number do servers:resume(i) end
  end,
  -- Red locks ignore a restarted server for a while; no other lock uses it.
  function() servers:restart(NODES) end,
}

local function make_trouble(deadline)
  while rlock.now() < deadline do
    faults[math.random(#faults)]()
    rlock.sleep(between(0, 0.3 * slow))
  end
  for _, each in ipairs(nets) do each:reset() end
end

describe("under random faults", function()
  before_each(function()
    math.randomseed(seed)
    servers, nets, groups = nodes.start(NODES), {}, { {}, {}, {} }
    for i, behind in ipairs { 1, 1, 2 } do
      nets[i] = proxies.start(servers[behind])
    end
    local ways = { { nets[1], nets[3] }, { nets[2] }, {} }
    for which, group in ipairs(groups) do
      for i = 1, NODES do
        group[i] = assert(rlock.open {
          url = (ways[which][i] or servers[i]).url, watchdog = WATCHDOG,
          timeout = TIMEOUT,
        })
      end
    end
    holders, tokens, entered, problems = {}, {}, 0, {}
    for i = 1, #KINDS do holders["chaos:" .. i] = {} end
  end)

  -- This group can take every lock; in a queue, behind all abandoned waiters.
  local function each_in_turn(group)
    for i, kind in ipairs(KINDS) do
      local lock = make(group, i)
      if lock.write_lock then lock = lock:write_lock() end
      local ok, code, detail = lock:lock { wait = 100 * slow }
      assert(ok, ("%s: %s: %s"):format(kind, code, detail))
      assert.is_true(lock:unlock())
    end
  end

  local function close_all()
    for _, group in ipairs(groups) do
      for _, client in ipairs(group) do client:close() end
    end
  end

  after_each(function()
    close_all()
    for _, each in ipairs(nets) do each:stop() end
    servers:stop()
  end)

  it("two never hold the same lock, and in the end it is free (seed " .. seed
    .. ")", function()
      for _, group in ipairs(groups) do each_in_turn(group) end
      local deadline = rlock.now() + seconds
      local trouble = task.start(make_trouble, deadline)
      task.many(TASKS, function(i) be_busy(i, deadline) end,
        seconds + 2 * PATIENCE)
      trouble:join()
      assert.same({}, problems)
      assert.is_true(entered > TASKS, entered .. " holds only")
      each_in_turn(groups[1])
      for i = 1, #KINDS + 1 do
        eventually(function() return servers:count("chaos:" .. i) == 0 end,
          3 * WATCHDOG + 10 * slow, "nobody keeps chaos:" .. i)
      end
      close_all()
      eventually(function()
        for _, server in ipairs(servers) do
          local listening = servers:ask(server, "CLIENT", "LIST", "TYPE",
            "pubsub")
          if listening ~= "" then return false end
        end
        return true
      end, 10 * slow, "nobody listens")
    end)
end)
