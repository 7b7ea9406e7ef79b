--- No reply of a server may raise an error, and no detail has a control
--- character: replies are mutated at random, with fixed seeds, while all code
--- that parses replies runs on a virtual clock.

local client_of = require "rlock.client"
local duration = require "rlock.util.duration"
local doctor = require "rlockctl.doctor.redis"
local inspect = require "rlockctl.cli.inspect"
local kinds = require "rlock.lock.kinds"
local listing = require "rlockctl.cli.listing"
local model = require "rlockctl.cli.bounded_model"
local multi = require "rlock.several.multi"
local quorum = require "rlock.several.quorum"
local report = require "rlockctl.doctor.report"
local real = require "rlockctl.cli.real_server"
local scan = require "rlockctl.cli.scan"
local server = require "rlockctl.simulate.server"
local sim = require "rlockctl.model.host"
local stage = require "spec.simulate.stage"
local status = require "rlockctl.cli.status"
local text = require "rlockctl.cli.text"

local ROUNDS = 40                        -- of each test
local SHARES = { 0.03, 0.1, 0.4 }        -- of the replies that are mutated

local random, share

local function one_of(list) return list[1 + math.floor(random() * #list)] end

-- replies ---------------------------------------------------------------------

local EVIL = "\0\27[2J\r\n\127evil"
local DIGITS = { "0", "-1", "6379.5", "1e999", "nan", "0x10", "99999999",
  "9223372036854775808", "99999999999999999999999", "" }
local SCALARS = {
  false, 0.0, -1.0, 2.0, -5.0, 2.0^40, 9007199254740992.0, EVIL, "held", "busy",
  "lost", "freed", "refused", "mode", "holders", "state", "queue", "none",
  ("x"):rep(300), "?", table.unpack(DIGITS),
}
local ERRORS = {
  EVIL, "", "ERR", "ERR " .. EVIL, "MOVED 1 :99999", "MOVED 99999999 redis1:1",
  "MOVED 99999999999999999999 redis1:6379", "MOVED x y", "MOVED",
  "ASK 1 a\0b:6379", "ASK 1 redis1:-5", "ASK 1 " .. ("h"):rep(300) .. ":6379",
  "NOSCRIPT", "BUSY" .. EVIL, "EXPIRED", "NOAUTH" .. EVIL, "WRONGTYPE", "OOM",
  "READONLY " .. EVIL, "LOADING", "CLUSTERDOWN", "TRYAGAIN", "NOPERM " .. EVIL,
  "ERR user_script:1: " .. EVIL, "ERR unknown command " .. EVIL,
}

local value

local function list(depth)
  local items = {}
  for i = 1, math.floor(random() * 5) do items[i] = value(depth + 1) end
  return items
end

function value(depth)
  if depth < 3 and random() < 0.3 then return list(depth) end
  return one_of(SCALARS)
end

-- A text with other numbers.
local function renumbered(reply)
  return (reply:gsub("%d+", function()
    return random() < 0.3 and one_of(DIGITS) or nil
  end))
end

-- A copy of a reply with something else in one place.
local function mutated(reply, depth)
  if type(reply) == "string" and reply:find "\n" and random() < 0.8 then
    return renumbered(reply)
  end
  if type(reply) ~= "table" or random() < 0.3 or reply.ok or reply.err then
    return value(depth)
  end
  local copy, n = table.move(reply, 1, #reply, 1, {}), #reply
  local i = 1 + math.floor(random() * (n + 1))
  if random() < 0.2 and n > 0 then
    table.remove(copy, math.min(i, n))
  else
    copy[i] = mutated(copy[i], depth + 1)
  end
  return copy
end

local function spoilt(reply)
  if random() < 0.25 then
    return { err = (one_of(ERRORS):gsub("%c", "?")) }    -- as hosts read it
  end
  return mutated(reply, 0)
end

-- the world -------------------------------------------------------------------

local MASTER = { "name", "m", "config-epoch", "1", "num-other-sentinels", "1" }

local SLOTS = { { 0.0, 16383.0, { "redis1", 6379.0, "id", {} } } }

-- What the model of a server does not have.
local more = {
  ["CLUSTER SLOTS"] = SLOTS,
  ["COMMAND INFO"] = { { "get", 2.0, { "readonly" }, 1.0, 1.0, 1.0 } },
  ["COMMAND GETKEYS"] = { "key" },
  ["CLIENT LIST"] = "id=1 name=rlock,a,b,1,c,d\n",
  ["SENTINEL GET-MASTER-ADDR-BY-NAME"] = { "redis1", "6379" },
  ["SENTINEL MASTER"] = MASTER,
  ["SENTINEL MASTERS"] = { MASTER },
  ["SENTINEL SENTINELS"] = { { "ip", "redis1", "port", "26379" } },
  ["SENTINEL REPLICAS"] = { { "ip", "redis1", "port", "6380" } },
  ["SENTINEL CKQUORUM"] = "OK 3 usable Sentinels",
  ["CONFIG GET"] = { "parameter", "5" },
  ["CLUSTER INFO"] = "cluster_state:ok\r\ncluster_slots_ok:16384\r\n"
    .. "cluster_size:3\r\n",
  INFO = "# Server\r\nredis_version:7.0.1\r\nrole:master\r\nrun_id:a1\r\n"
    .. "connected_slaves:1\r\nslave0:ip=x,port=7,state=online,lag=0\r\n"
    .. "min_slaves_good_slaves:1\r\nlatest_fork_usec:1\r\nmaxmemory:9\r\n"
    .. "used_memory:9\r\nmaxmemory_policy:noeviction\r\naof_enabled:0\r\n"
    .. "connected_clients:7\r\nmaxclients:8\r\n",
  ["PUBSUB CHANNELS"] = { "redisson_sc:{s}" },
  ["PUBSUB NUMSUB"] = { "channel", 1.0 },
  SCAN = { "0", { "key", "lock" } },
  HSCAN = { "0", { "a:1", "1" } },
  TIME = { "1700000000", "5" },
  WAIT = 1.0,
}

local function answer(its, link, words)
  local reply = more[words[1]:upper()]
    or more[(words[1] .. " " .. tostring(words[2])):upper()]
  if reply ~= nil then return reply end
  local ok
  ok, reply = pcall(server.execute, its, link, words)
  if not ok then return { err = "ERR unknown command" } end
  return reply
end

-- Spoils replies from now on; returns a function that ends that.
local function spoil(self)
  for _, its in ipairs(self.network.servers) do
    function its.execute(_, link, words)
      local reply = answer(its, link, words)
      if reply == nil or random() > share then return reply end
      return spoilt(reply)
    end
    local deliver = its.deliver
    function its.deliver(_, channel, payload, is_sharded)
      if random() < share then payload = value(0) end
      return deliver(its, channel, payload, is_sharded)
    end
  end
  return function()
    for _, its in ipairs(self.network.servers) do its.execute = answer end
  end
end

local function assert_clean(where, ...)
  for i = 1, select("#", ...) do
    local item = select(i, ...)
    if type(item) == "string" and item:find "%c" then
      error(("%s: a control character in %q"):format(where, item), 0)
    end
  end
end

-- A call must return nil, code, detail if it fails. A cancellation or an error
-- of use would be a fault.
local function try(where, fn, ...)
  local results = table.pack(xpcall(fn, debug.traceback, ...))
  if not results[1] then error(where .. ": " .. tostring(results[2]), 0) end
  if results[2] == nil and results.n > 1 then
    assert_clean(where, results[3], results[4])
  end
  return table.unpack(results, 2, results.n)
end

-- A host raises an error for an address that it cannot connect to.
local function check_places(self)
  local connect = self.universe.connect
  function self.universe.connect(host, options)
    local port = math.type(options.port)
    assert(port == "integer" and options.port > 0 and options.port < 65536)
    assert(#options.host < 256 and not options.host:find "%c")
    return connect(host, options)
  end
end

-- Runs fn(stage, round) on many stages, with a fault if a task raises, and
-- checks the log.
local function rounds(name, fn)
  it(name, function()
    for round = 1, ROUNDS do
      random, share = sim.stream(round, name), SHARES[round % #SHARES + 1]
      stage.play(function(self)
        check_places(self)
        fn(self, round)
        for _, line in ipairs(self:logged()) do assert_clean("log", line) end
      end)
    end
  end)
end

local LOCKS = { "lock", "fair_lock", "mutex", "fenced_lock", "simple_lock",
  "spin_lock" }
local QUESTIONS = { "is_locked", "is_held", "hold_count", "ttl", "peek",
  "break_lock", "token", "unlock" }

local function use_lock(where, lock)
  try(where, lock.try_lock, lock)
  try(where, lock.lock, lock, { wait = 0.5, lease = one_of { 1, 30 } })
  for _, question in ipairs(QUESTIONS) do
    if question ~= "token" or random() < 0.5 then
      try(where .. ":" .. question, lock[question], lock)
    end
  end
end

local function use_counters(client)
  local permits, semaphore, latch =
    client:permits "p", client:semaphore "s", client:latch "l"
  for _, calls in ipairs {
    { permits, { "peek" }, { "peek" }, { "peek" }, { "peek" }, { "set", 2 },
      { "try_acquire" }, { "available" }, { "acquired" } },
    { semaphore, { "set", 2 }, { "try_acquire", 1 }, { "release", 1 },
      { "add", 1 }, { "drain" }, { "available" }, { "peek" } },
    { latch, { "set", 1 }, { "count_down" }, { "count" }, { "peek" },
      { "wait", { wait = 0.1 } }, { "delete" } },
  } do
    local object = calls[1]
    for i = 2, #calls do
      local name = calls[i][1]
      try(name, object[name], object, calls[i][2])
    end
  end
end

local function use_recipes(client, sleep)
  local barrier, double = client:barrier "barrier",
    client:double_barrier("double", 1)
  local election = client:election "election"
  local function compute(options)
    try("compute", client.compute, client, "c", options, function()
      return one_of { "a", nil }, EVIL
    end)
  end
  for _ = 1, 3 do
    compute { ttl = 0.1, wait = 0.5 }
    compute { ttl = 0.1, wait = 0, stale = 5 }
    for _, name in ipairs { "set", "remove", "peek" } do
      try("barrier:" .. name, barrier[name], barrier)
    end
    try("barrier:wait", barrier.wait, barrier, { wait = 0.1 })
    try("enter", double.enter, double, { wait = 0.5 })
    try("leave", double.leave, double, { wait = 0.1 })
    try("campaign", election.campaign, election, { wait = 0.5 })
    try("leader", election.leader, election)
    try("candidates", election.candidates, election)
    try("resign", election.resign, election)
    sleep(0.2)
  end
end

-- Steps of the model of `rlockctl try`.
local OF_LOCKS = { "A acquire 60s", "B acquire 60s wait", "+0.1s", "A release" }
local STEPS = {
  fair = OF_LOCKS, readwrite = OF_LOCKS, fenced = OF_LOCKS,
  semaphore = { "A acquire 2", "B acquire 1 lost", "B retry", "A drain" },
}

local REPLICAS = { [0] = 1, [2] = "all", [4] = "majority" }

describe("a malformed reply", function()
  rounds("to a lock of any kind raises nothing", function(self)
    local client = self:client { timeout = 1, watchdog = 3 }
    local stop = spoil(self)
    for _, factory in ipairs(LOCKS) do
      use_lock(factory, client[factory](client, "a"))
    end
    for _, factory in ipairs { "read_write_lock", "fair_read_write_lock" } do
      local pair = client[factory](client, "b")
      use_lock(factory, pair:read_lock())
      use_lock(factory, pair:write_lock())
    end
    self.sleep(5)
    stop()
    try("close", client.close, client)
  end)

  rounds("to a counter raises nothing", function(self)
    local client = self:client { timeout = 1, watchdog = 3 }
    local permits = client:permits "p"
    assert(permits:set(2))
    assert(permits:acquire())
    spoil(self)
    use_counters(client)
    try("stats", client.stats, client)
    self.sleep(5)
  end)

  rounds("to a recipe raises nothing", function(self)
    local client = self:client { timeout = 1, watchdog = 3 }
    spoil(self)
    use_recipes(client, self.sleep)
    self.sleep(5)
  end)

  rounds("or message to a holder raises nothing", function(self)
    local lock = self:client({ timeout = 1 }):fair_lock "a"
    local theirs = self:client({ timeout = 1 }):fair_lock "a"
    assert(lock:lock())
    assert(lock:on_release_request(function(_, reason)
      assert_clean("reason", reason)
    end))
    self.sleep(1)
    spoil(self)
    for _ = 1, 5 do
      try("request_release", theirs.request_release, theirs, "why")
    end
    self.spawn(try, "lock", theirs.lock, theirs, { wait = 2 })
    self.sleep(1)
    try("unlock", lock.unlock, lock)
    self.sleep(5)
  end)

  rounds("to requests with replicas or a deadline raises nothing",
    function(self, round)
      local client = self:client { timeout = 1, watchdog = 3,
        replicas = REPLICAS[round % 6],
        seal = round % 2 == 1 and "time" or nil }
      spoil(self)
      for i = 1, 3 do use_lock("lock", client:lock("a" .. i)) end
    end)

  rounds("to several locks raises nothing", function(self)
    local clients, members = {}, {}
    for i = 1, 3 do
      local its = i > 1 and self:add_server("redis" .. i) or nil
      clients[i] = self:client({ timeout = 1, watchdog = 3 }, its)
      members[i] = clients[i]:lock "a"
    end
    spoil(self)
    for _, lock in ipairs { multi.new(members), quorum.new(clients, "b") } do
      try("try_lock", lock.try_lock, lock)
      try("is_held", lock.is_held, lock)
      try("unlock", lock.unlock, lock)
    end
    self.sleep(5)
  end)

  for _, url in ipairs {
    "redis+cluster://redis1:6379", "redis+sentinel://redis1:26379/m",
  } do
    rounds("to a client of " .. url:match "^[%a+]+" .. " raises nothing",
      function(self)
        spoil(self)
        local client = assert(client_of.open(self.host, assert(
          client_of.complete({ timeout = 1, watchdog = 3, lazy = true }, url))))
        for i = 1, 2 do use_lock("lock", client:lock("a" .. i)) end
        try("call", client.call, client, "GET", "key")
        try("call", client.call, client, "OBJECT", "ENCODING", "key")
        self.sleep(3)
        client:close()
      end)
  end

  -- As fn, but returns nil, detail for a failure that it raises.
  local function failing(fn)
    local function results(ok, first, ...)
      if ok then return first, ... end
      local _, detail = real.failure(first)
      if not detail then error(first, 0) end
      return nil, detail
    end
    return function(...) return results(pcall(fn, ...)) end
  end

  rounds("to a comparison with the model raises no error of Lua", function(self,
      round)
    local client = self:client { timeout = 1 }
    local name = one_of { "fair", "readwrite", "fenced", "semaphore" }
    local tried = model.of(name, {}, "rlock_check_" .. round)
    local fill = {
      { "SET", "text", "a" }, { "RPUSH", "list", "a", "b" },
      { "HSET", "hash", "a", "1" }, { "ZADD", "zset", "1", "a" },
      { "SADD", "set", "a" },
    }
    for _, words in ipairs(fill) do
      words[2] = tried.lock_name .. words[2]
      assert(client:call(table.unpack(words)))
    end
    spoil(self)
    local rlock = package.loaded.rlock
    package.loaded.rlock = {
      open = function() return client end, sleep = self.sleep,
    }
    finally(function() package.loaded.rlock = rlock end)
    local its, fault = try("open", failing(real.open), tried, "a url")
    assert_clean("open", fault)
    for _, line in ipairs(its and STEPS[name] or {}) do
      local step = assert(tried:read(its.state, line))
      local row, problem = try(line, failing(real.step), its, step)
      assert_clean(line, problem)
      if not row then break end          -- the state lacks this step
    end
    if its then try("close", its.close) end
  end)

  rounds("to rlockctl's commands raises nothing", function(self)
    local client = self:client { timeout = 1 }
    local other = self:client()
    local pair = other:fair_read_write_lock "pair"
    assert(other:lock("lock"):lock())
    assert(pair:write_lock():lock())
    self.spawn(function() pair:read_lock():lock { wait = 5 } end)
    self.sleep(0.1)
    spoil(self)
    for name in ("lock key s pair"):gmatch "%a+" do
      local states = try("inspect", inspect.at, client, name)
      if states then
        try("complete", listing.complete, client, name, states)
        for _, state in ipairs(states) do
          for _, line in ipairs(try("lines", status.lines, state)) do
            assert_clean("status", line)
          end
          try("holders", text.holders, state)
          try("record", text.record, state)
        end
      end
    end
    try("by", inspect.by, client, "lock", "semaphore")
    local names = try("names", scan.names, client, { all = true }) or {}
    for _, name in ipairs(names) do assert.is_string(name) end
  end)

  it("of peek has no field in place of another one", function()
    stage.play(function(self)
      local client, lock = self:client(), self:client():fair_lock "x"
      assert(lock:lock())
      function self.server.execute(its, link, words)
        if words[1] ~= "EVALSHA" then return answer(its, link, words) end
        return { "held", -1.0, 0.0, {}, { "ttl", EVIL, "available", {},
          "in_use", EVIL, "queue", { "q" } } }
      end
      assert.is_nil(assert(lock:peek()).ttl)
      local state = assert(inspect.by(client, "x", "fair"))[1]
      assert.same({ "q" }, { state.queue[1].owner })
      assert.equal("nobody", text.holders(state))
      for _, line in ipairs(status.lines(state)) do
        assert_clean("status", line)
      end
    end)
  end)

  for _, url in ipairs { "redis://redis1", "redis+cluster://redis1",
      "redis+sentinel://redis1:26379/m" } do
    rounds("to rlockctl doctor of " .. url:match "^[%a+]+" .. " raises nothing",
      function(self)
        local rlock = package.loaded.rlock
        package.loaded.rlock = { spawn = self.host.spawn }
        finally(function() package.loaded.rlock = rlock end)
        spoil(self)
        local client = assert(client_of.open(self.host, assert(
          client_of.complete({ timeout = 1, watchdog = 3, lazy = true }, url))))
        local audit = report.audit { client = client, lease = 30, name = "a" }
        try("audit", doctor.audit, audit)
        assert.truthy(audit.reports[1])
        for _, its in ipairs(audit.reports) do
          assert.is_true(its.is_done)
          for _, line in ipairs(its:lines(false)) do
            assert_clean("doctor", line)
          end
          its:record()
        end
        client:close()
      end)
  end
end)

-- names -----------------------------------------------------------------------

-- Asserts that a call fails, with a clean detail.
local function fails(what, ...)
  local ok, code, detail = ...
  assert(not ok and code, what .. " succeeds")
  assert_clean(what, detail)
end

local function refuse_lock(what, lock, other)
  fails(what, lock:unlock())
  assert.is_true(lock:lock { wait = 0 })
  fails(what, other:lock { wait = 0 })
  fails(what, other:lock { wait = 1 })
  fails(what, other:try_lock())
  fails(what, other:hold { wait = 0 })
  assert_clean(what, tostring(lock))
end

local refuse = {}

function refuse.semaphore(semaphore)
  assert.is_true(semaphore:set(0))
  fails("semaphore", semaphore:acquire { wait = 1 })
  fails("semaphore", semaphore:try_acquire())
end

function refuse.permits(permits, self)
  assert.is_true(permits:set(1))
  local id = assert(permits:acquire())
  fails("permits", permits:acquire { wait = 1 })
  fails("permits", permits:try_acquire())
  self.server.redis.entries = {}
  self.sleep(40)                       -- its loss is logged
  fails("permits", permits:release(id))
end

function refuse.latch(latch)
  assert.is_true(latch:set(1))
  fails("latch", latch:wait { wait = 1 })
end

describe("a name with control characters", function()
  local function on_stage(what, fn)
    it("is shown without them by " .. what, function()
      stage.play(function(self)
        fn(self, self:client { timeout = 1, on_event = function() end })
        local logged = self:logged()
        for _, line in ipairs(logged) do assert_clean("log", line) end
      end)
    end)
  end

  for _, kind in ipairs(kinds) do
    on_stage(kind.name, function(self, client)
      local its = client[kind.factory](client, EVIL)
      if refuse[kind.name] then return refuse[kind.name](its, self) end
      local theirs = self:client()
      theirs = theirs[kind.factory](theirs, EVIL)
      if kind.pair then
        refuse_lock(kind.name, its:read_lock(), theirs:write_lock())
        its, theirs = its:write_lock(), theirs:read_lock()
        self.server.redis.entries = {}
        self.sleep(40)
      end
      refuse_lock(kind.name, its, theirs)
      self.server.redis.entries = {}
      self.sleep(40)                   -- its loss is logged
    end)
  end

  on_stage("several locks", function(self, client)
    local other = self:add_server "redis2"
    local clients = { client, self:client({}, other) }
    local holder = self:client():lock(EVIL)
    assert.is_true(holder:lock())
    local red = quorum.new(clients, EVIL)
    fails("red", red:unlock())
    fails("red", red:lock { wait = 1 })
    local both = multi.new { client:lock(EVIL), clients[2]:lock(EVIL) }
    fails("multi", both:unlock())
    fails("multi", both:lock { wait = 1 })
    assert_clean("several", tostring(red), tostring(both))
  end)

  on_stage("what goes on in the background", function(self, client)
    local semaphore = client:semaphore(EVIL)
    assert.is_true(semaphore:set(1))
    self.server:freeze(60)
    fails("semaphore", semaphore:try_acquire())
    self.sleep(70)                     -- undoing it is given up
    local errors = { pcall(client.lock, client, EVIL, { replicas = 1 }) }
    client:lock(EVIL .. 2, { replicas = 1 })
    errors[3] = select(2, pcall(client.lock, client, EVIL .. 2))
    errors[4] = select(2, pcall(duration.check, EVIL, "wait"))
    for i = 2, 4 do assert_clean("error", errors[i]) end
  end)
end)

-- what other programs store --------------------------------------------------

describe("a text that another program has stored", function()
  it("is shown without control characters", function()
    stage.play(function(self)
      local client = self:client { timeout = 1 }
      for _, words in ipairs {
        { "HSET", "rlock_barrier:{b}", "round", 5, "n", EVIL, "lost", 0 },
        { "ZADD", "b", "9999999999999", "x" },
        { "SET", "s", " 5 \n\r" }, { "SET", "l", " 5 \n\r" },
      } do
        for i, word in ipairs(words) do words[i] = tostring(word) end
        assert(client:call(table.unpack(words)))
      end
      local barrier = client:barrier "b"
      fails("enter", client:double_barrier("b", 2):enter { wait = 1 })
      fails("set", barrier:set())
      fails("wait", barrier:wait { wait = 1 })
      fails("remove", barrier:remove())
      fails("semaphore:set", client:semaphore("s"):set(1))
      fails("latch:set", client:latch("l"):set(1))
    end)
  end)
end)
