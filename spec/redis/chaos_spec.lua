--- Everything at once, at random: many tasks of several clients take, hold,
--- nest and give back locks, are cancelled and have their connections broken,
--- muted, delayed and frozen. Whatever happens, two of them never have
--- valid_for() at once, nothing ends the program, and nothing is left behind.
--
--  RLOCK_SEED repeats a run's choices (though not its timing), RLOCK_CHAOS is
--  how many seconds it lasts.

local host = require "rlock.host.uv"
local proxies = require "spec.support.proxy"
local redis = require "spec.support.redis"
local rlock = require "rlock"
local task = require "spec.support.task"
local eventually = require "spec.support.wait" (host)

local slow = tonumber(os.getenv("RLOCK_SLOW") or 1)
local seconds = tonumber(os.getenv("RLOCK_CHAOS") or 6 * slow)
local seed = tonumber(os.getenv("RLOCK_SEED") or os.time())

local TASKS = 60
local KINDS = {
  "lock", "lock", "mutex", "simple_lock", "spin_lock", "fair_lock",
  "fenced_lock", "read_write_lock", "fair_read_write_lock",
}
local WATCHDOG, TIMEOUT = 1.2 * slow, 0.25 * slow

local server, control, nets, clients, holders, tokens, entered, problems

local function ask(...)
  local reply, code, detail = control:call(20000, ...)
  assert(code == nil, detail)
  return reply
end

local function chance(percent) return math.random(100) <= percent end

local function between(least, most)
  return least + math.random() * (most - least)
end

-- Nobody else may hold the lock for certain, unless both only read.
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

-- A later holder has a greater token.
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

-- A hold within a hold, of the same task.
local function nest(lock, name, own)
  local inner <close> = lock:hold { wait = between(0, 0.3), lease = chance(50)
    and between(0.01, 0.5) * slow or nil }
  if inner then work(name, own) end
end

-- A lock of any kind, and what its holder does.
local function choose(i)
  local which, kind = math.random(#clients), math.random(#KINDS)
  local name = "chaos:" .. kind
  local lock = clients[which][KINDS[kind]](clients[which], name, chance(30)
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
  -- From the moment of asking for the release, another may get it.
  local _ <close> = setmetatable({}, { __close = function()
    holders[name][own] = nil
  end })
  holders[name][own] = what
  look_at_token(name, own:token())
  work(name, own)
  if chance(30) then nest(lock, name, own) end
  if chance(20) then
    holders[name][own] = nil
    task.run(function() own:unlock() end)
  end
end

-- One of the tasks: takes locks until the end; may be cancelled and begin anew.
local function be_busy(i, until_)
  while rlock.now() < until_ do
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
    server:pause()
    rlock.sleep(between(0, 0.5 * slow))
    server:resume()
  end,
}

local function make_trouble(until_)
  while rlock.now() < until_ do
    faults[math.random(#faults)]()
    rlock.sleep(between(0, 0.3 * slow))
  end
  for _, each in ipairs(nets) do each:reset() end
end

describe("whatever goes wrong", function()
  before_each(function()
    math.randomseed(seed)
    server = redis.start()
    control = assert(host.connect {
      path = server.socket, timeout = 5000, silent = 0,
    })
    nets, clients = { proxies.start(server), proxies.start(server) }, {}
    for _, url in ipairs { nets[1].url, nets[2].url, server.url } do
      clients[#clients + 1] = assert(rlock.open {
        url = url, watchdog = WATCHDOG, timeout = TIMEOUT,
      })
    end
    holders, tokens, entered, problems = {}, {}, 0, {}
    for i = 1, #KINDS do holders["chaos:" .. i] = {} end
  end)

  after_each(function()
    for _, client in ipairs(clients) do client:close() end
    for _, each in ipairs(nets) do each:stop() end
    control:close()
    server:stop()
  end)

  it("two never hold the same lock, and in the end it is free (seed " .. seed
    .. ")", function()
      local until_ = rlock.now() + seconds
      local trouble = task.start(make_trouble, until_)
      task.many(TASKS, function(i) be_busy(i, until_) end, seconds + 60 * slow)
      trouble:join()
      assert.same({}, problems)
      assert.is_true(entered > TASKS, entered .. " holds only")
      for i, kind in ipairs(KINDS) do
        local lock = clients[1][kind](clients[1], "chaos:" .. i)
        if lock.write_lock then lock = lock:write_lock() end
        local ok, code, detail = lock:lock { wait = 20 * slow }
        assert(ok, ("%s: %s: %s"):format(kind, code, detail))
        assert.is_true(lock:unlock())
      end
      for _, client in ipairs(clients) do client:close() end
      for i in ipairs(KINDS) do
        eventually(function() return ask("EXISTS", "chaos:" .. i) == 0 end,
          3 * WATCHDOG + 3 * slow, "every lock is free")
      end
      eventually(function()
        return ask("CLIENT", "LIST", "TYPE", "pubsub") == ""
      end)
    end)
end)
