--- Faults that simulated clients must show, for spec/check/simulate_spec:
---   what it is, the module, its text, the faulty text, the sort of the fault
---   that is reported, options of world.simulate[, how many runs to try]
--- Without a module the client has no fault, but seals no connections. Options
--- make the fault likely: it is found in one run of a few.

local function calm(only)
  local all = { calm = true }
  for name, value in pairs(only or {}) do all[name] = value end
  return { only = all }
end

-- A calm run with a crowd that waits for this kind.
local function crowd(kind, seal)
  local options = calm { crowd = kind, clients = 1, tasks = 1, pause = 1 }
  options.seal = seal
  return options
end

local LATE = { "late", "reset", "slow" }

-- Clients of one server that fails over, and refuses connections.
local disagreeing = { sentinel = true, servers = 1, clients = 4, tasks = 1,
  kind = "lock", style = "plain", owner = "none", pause = 0.3, every = 0.6,
  faults = { "failover", "refuse" } }

local rows = {}

-- Steps of clocks end leases, but delay no waiter.
rows.stepping = { calm = true, every = 1,
  faults = { "cancel", "server's clock", "server's clock, forward", "slow" } }

-- A cycle lasts long enough for a late request to find the next one.
rows.latches = { counter = "latch", servers = 1, clients = 2, pause = 0.3,
  every = 1, faults = { "late", "slow" } }

-- Nothing but a double barrier, of two to four members.
rows.barriers = { counter = "double_barrier", servers = 1 }
local two_members = { counter = "double_barrier", servers = 1, clients = 2,
  tasks = 1 }

--- Without sealing.
rows.unsealed = {
  { "a named owner whose late release frees its next hold", nil, nil, nil,
    "two holders", { only = { kind = "lock", owner = "task", style = "plain",
      servers = 1, faults = LATE } } },
  { "a late partial release that shortens a lease", nil, nil, nil,
    "two holders", { only = { kind = "spin_lock", owner = "task",
      style = "nested", servers = 1, leases = 0.7, faults = LATE } } },
  { "a late acquire that nobody knows of", nil, nil, nil, "orphan", { only = {
    kind = "lock", owner = "none", style = "plain", servers = 1 } } },
  { "a late acquire of a permit that nobody knows of", nil, nil, nil, "orphan",
    { only = { counter = "permits", servers = 1, every = 0.15,
      faults = { "late", "reset", "half-open", "slow" } } } },
  { "a late count_down or delete that hits the next latch", nil, nil, nil,
    "counted twice", { only = rows.latches } },
}
for _, row in ipairs(rows.unsealed) do row[6].seal = "off" end

rows.planted = {
  -- delays
  { "renewals that come too late to be retried", "rlock.lock.watchdog",
    "period = session.lease / 3", "period = session.lease * 0.9",
    "late renewal", calm() },
  { "a lock lost among those that are renewed with it", "rlock.redis.calls",
    "for i = 2, #reply do list[i - 1] = reply[i] end", "", "not told",
    { seconds = 15, only = { servers = 1,
      faults = { "restart, empty", "evict" } } } },
  { "a place in a queue that is not given up", "rlock.lock.grant",
    "leave = requests.leave,", "leave = function() end,", "delayed",
    calm { kind = "fair_lock" } },
  { "a wake that a waiter who gives up does not pass on", "rlock.lock.wakeup",
    "if waiter.is_set or waiter.is_woken and not got_it\n"
      .. "      or was_first and waiter.is_woken == false then\n"
      .. "    wake_one(channel)\n  end", "",
    "delayed", calm() },
  { "a clock's offset that is used after requests have expired",
    "rlock.redis.remote", 'if what == "clock" then expiry.invalidate(node) end',
    "", "delayed", { seal = "time", only = rows.stepping } },

  { "a counter's wakes that reach nobody", "rlock.counters.call",
    "waiting.join(self.session, self.channel, self.wakes)",
    'waiting.join(self.session, self.channel .. "x", self.wakes)', "delayed",
    crowd "permits" },
  { "permits left over that are not passed on", "rlock.counters.call",
    "if self.left then wakeup:pass(self.channel, self.left) end", "",
    "delayed", crowd "semaphore" },
  { "readers that are woken one by one", "rlock.lock.wakeup",
    "    wake_sharers(channel)\n  else", "    wake_one(channel)\n  else",
    "delayed", crowd "read_write_lock" },
  { "a downgrade without a message", "rlock.policy.readwrite",
    'redis.call("unlink", lock, index)\n  end\n'
      .. '  tell(publish, keys[2], WRITER_GONE)',
    'redis.call("unlink", lock, index)\n'
      .. '    tell(publish, keys[2], WRITER_GONE)\n  end', "delayed",
    crowd "read_write_lock" },
  { "a fair downgrade without a message", "rlock.policy.fair_readwrite",
    "if last <= time or is_writer(who) then", "if last <= time then", "delayed",
    crowd "fair_read_write_lock" },
  { "a latch that wakes one", "rlock.policy.latch", 'return "all"',
    'return "one"', "delayed", crowd "latch" },
  { "a cancelled request that only reads, and delays others",
    "rlock.redis.expiry", "{ refresh = true, count = true, peek = true }",
    "{ refresh = true }", "delayed", crowd("latch", "time") },
  { "permits that are kept for three leases", "rlock.policy.permits",
    "local ends = time + args[2]", "local ends = time + args[2] * 3", "kept",
    { only = { counter = "permits", servers = 1 } } },
  { "a token that two holders get", "rlock.policy.fencing",
    "math.max(time[1] * 1000000 + time[2], last + 1))", "math.max(last, 1))",
    "token", { only = { kind = "mutex", servers = 1 } } },
  { "a lease that is always two seconds",
    "rlock.policy.reentrant", 'redis.call("pexpire", lock, lease)\n'
      .. '  end\n  if client', 'redis.call("pexpire", lock, 2000)\n'
      .. '  end\n  if client', "kept",
    { only = { calm = true, kind = "lock", leases = 0.7 } } },

  { "a confirmation that may take longer than the wait",
    "rlock.redis.replicas", "local limit = request.deadline -",
    "local limit = request.deadline + self.wanted.ms / 1000 -", "overdue",
    { only = { replicas = true, servers = 1, kind = "lock" } } },

  -- replies
  { "a release that is answered with a loss", "rlock.policy.reentrant",
    'tell(publish, keys[2], UNLOCKED)\n  return "freed"',
    'tell(publish, keys[2], UNLOCKED)\n  return "lost"',
    "not unlocked",
    calm { kind = "lock" } },
  { "a majority of half of the servers", "rlock.several.quorum",
    "floor(#members / 2) + 1", "floor((#members + 1) / 2)", "two holders",
    calm { servers = 2 } },
  { "a server that counts at once, although it forgot its grants",
    "rlock.redis.server_identity", "server.forgot = started",
    "server.forgot = nil", "two holders",
    { only = { kind = "red", servers = 3, clients = 4, tasks = 1, pause = 0.3,
      every = 0.5, faults = { "restart, empty" } } }, 24 },

  { "an effect without a check of its hold", "rlock.policy.effect",
    'if held[1] ~= "held" or (tonumber(held[3]) or 0) < 1 then',
    "if held == nil then", "late effect",
    { only = { kind = "lock", style = "hold", servers = 1, clients = 4,
      leases = 1, pause = 0.2,
      faults = { "late", "requests delayed", "slow" } } } },

  -- elections
  { "a leader that does not look at the time", "rlock.recipes.election",
    "if left_of(term) > 0 then return true end", "if term then return true end",
    "two leaders", { only = { kind = "election", servers = 1,
      faults = { "stall" } } } },
  { "a leader that steps down at the end of its hold",
    "rlock.recipes.election", "min(MARGIN * valid, MOST)", "0", "changed",
    { only = { kind = "election", servers = 1, every = 1,
      faults = { "partition" } } } },
  -- computations
  { "a computation without a lock that others know", "rlock.recipes.compute",
    "lock.new(self.client, policy, self.key)",
    "lock.new(self.client, policy, self.key .. self.session.id)",
    "two computations", { only = { compute = true, calm = true } } },
  { "a computation that does not look again under the lock",
    "rlock.recipes.compute",
    "  local results = results_of(self, state)\n"
      .. "  if results then return results end\n  local value",
    "  local results\n  local value", "computed again",
    { only = { compute = true, calm = true } } },
  { "a value that is written without a guard", "rlock.recipes.compute",
    "  return hold:transaction(function(t)",
    "  return (function(fn)\n    fn { call = function(_, ...)\n"
      .. "      return self.client:call(...)\n    end }\n    return true\n"
      .. "  end)(function(t)", "old value", { only = { compute = true,
      servers = 1, faults = { "stall", "requests delayed", "late" } } } },

  -- leaks
  { "an owner that a client remembers after its last request",
    "rlock.lock.requests", "      record.undone[name] = nil\n", "", "leaked",
    { seconds = 6, only = { calm = true, kind = "lock", every = 0.05,
      faults = { "cancel" } } } },
  { "a listener for release requests that outlives its hold",
    "rlock.lock.release_requests",
    "  for _, stop_one in ipairs(listener.stops) do stop_one() end\n", "",
    "leaked", { seconds = 3, only = { calm = true, kind = "lock",
      style = "hold" } } },
  { "a channel that is dropped without UNSUBSCRIBE", "rlock.redis.subscriber",
    "channel.is_live, channel.is_leaving = false, true\n"
      .. "        send_unsubscribe(self, channel, self.opposites)\n",
    "drop(self, channel)\n", "subscribed", calm() },
  { "a channel that stays subscribed where its slot was",
    "rlock.redis.subscriber",
    "    send_unsubscribe(self, channel, list)\n  end\n  drop(self, channel)",
    "  end\n  drop(self, channel)", "subscribed",
    { only = { cluster = true, clients = 2, tasks = 6, pause = 0.1,
      faults = { "move" } } } },
  { "a channel that a client remembers after UNSUBSCRIBE", "rlock.lock.wakeup",
    "  self.channels[channel.name] = nil\n", "", "leaked", calm() },
  { "a posted request that stays in flight after an error",
    "rlock.lock.posted", "      go_on(self, carrier, reply, code, detail)\n"
      .. "    end)\n", "      go_on(self, carrier, reply, code, detail)\n"
      .. "    end)\n    return\n", "leaked" },
  { "a term of an election that its client does not forget",
    "rlock.recipes.election", "self.session.closing[term.over] = nil", "",
    "leaked", { only = { kind = "election" } } },
  { "a subscriber that outlives its client", "rlock.redis.subscriber",
    "if self.connection then self.connection:close() end\n"
      .. "  self.connection = nil\nend", "self.connection = nil\nend", "left",
    calm() },

  -- counts
  { "a drain that is executed twice", "rlock.policy.semaphore",
    'if is_done(slot, number) then\n    return { "held", tonumber('
      .. 'redis.call("get", drained) or 0) }\n  end', "", "miscounted",
    { only = { counter = "semaphore", servers = 1, clients = 4, drains = 0.6,
      pause = 0.1, every = 0.3, faults = { "deaf", "replies delayed" } } },
    60 },

  -- barriers
  { "a double barrier that opens for one member less", "rlock.policy.barrier",
    'redis.call("zcard", members) >= tonumber(n)',
    'redis.call("zcard", members) >= n - 1', "opened early",
    { only = two_members } },
  { "a late request that enters again", "rlock.policy.barrier",
    "if not is_done(slot, number) then\n    if round.n and",
    'if not redis.call("zscore", members, id) then\n    if round.n and',
    "opened early", { seal = "off", only = { counter = "double_barrier",
      servers = 1, clients = 2, tasks = 2, pause = 0.3, every = 1,
      faults = LATE } } },
  { "a round that ends when one member has left", "rlock.policy.barrier",
    'redis.call("exists", members) == 0 then\n      finish(',
    "true then\n      finish(", "ended early", { only = rows.barriers } },

  -- connections and replicas
  { "a Sentinel's older answer that is believed", "rlock.redis.sentinel",
    "if its < own then return false end", "", "older master",
    { only = disagreeing } },
  { "a hold without its end", "rlock.redis.backend",
    "(drift or 0.001)) - margin", "(drift or 0.001)) * 1.1", "believed",
    calm() },
  { "a connection that is used before its predecessor is sealed",
    "rlock.redis.seal", 'or self.mode ~= "kill" then return end',
    "or true then return end", "unsealed",
    { seal = "kill", only = { servers = 1 } } },
  { "an operation that no replica has confirmed", "rlock.redis.remote",
    "= not load_replicas().unconfirmed[op.op]", "= false", "believed",
    { only = { replicas = true } } },
  { "a reader that also writes, though servers fail over",
    "rlock.policy.readwrite", 'return { "refused", UPGRADE }',
    'redis.call("hset", lock, "mode", "write", field, want)\n'
      .. '    return "held"', "upgraded",
    { only = { replicas = true, kind = "read_write_lock", style = "both" } } },
}

-- Runs with ZooKeeper.
local function zookeeper(only, seconds)
  local all = { zookeeper = true }
  for name, value in pairs(only or {}) do all[name] = value end
  return { only = all, seconds = seconds }
end

local LOST = { "cut", "deaf", "half-open", "replies delayed", "reset",
  "server cut off", "server freezes", "server lags", "slow" }

-- Clients that keep locks, and ask for nothing else.
local keeping = { servers = 3, tick = 1, tasks = 0, clients = 2, every = 1.5,
  faults = { "server cut off", "stall" } }

rows.zookeeper = {
  { "a validity that pings prolong", "rlock.zookeeper.connection",
    "return self:post(codec.ops.sync, codec.text(root), function(call)\n",
    "return self:post(codec.ops.ping, nil, function(call)\n"
      .. "    self.validity:begin(call.sent, self.timeout, true)\n",
    "believed", zookeeper(keeping) },
  { "a validity beyond the time-out", "rlock.zookeeper.validity",
    "local KEPT = 9 / 10 ", "local KEPT = 5 / 2 ", "believed",
    zookeeper(keeping) },
  { "a validity that a deposed leader prolongs", "rlock.zookeeper.validity",
    "self.ends = min(self.heard, self.confirmed) +",
    "self.confirmed = math.huge\n  self.ends = self.heard +", "believed",
    zookeeper { servers = 3, tick = 1, tasks = 0, clients = 2, every = 4,
      faults = { "leader deposed" } } },
  { "a lost reply to a create that is not looked up", "rlock.zookeeper.place",
    "  self.is_in_doubt = true\n  local call", "  local call", "left",
    zookeeper { kind = "lock", faults = LOST } },
  { "waiters that watch the first node", "rlock.zookeeper.place",
    "number < mine and number > last then",
    "number < mine and (last < 0 or number < last) then", "herd",
    zookeeper { kind = "lock" } },
  { "a node that is left after a timed-out wait", "rlock.zookeeper.target",
    "  local was_there, code, detail = self:drop(entry, deadline)\n"
      .. "  if was_there == nil then return nil, code, detail, true end\n"
      .. '  return { "left" }', '  self:forget(entry)\n  return { "left" }',
    "left", zookeeper { kind = "lock", servers = 1 } },
  { "a node that is not deleted after an answer that was too late",
    "rlock.zookeeper.backend",
    "  if self.connection.is_ready then clean(self, now) end\n", "", "leaked",
    zookeeper { kind = "mutex", servers = 3 } },
  { "a latch that counts a request twice", "rlock.zookeeper.latch",
    "return now.count - 1, now.set", "return now.count - 2, now.set",
    "counted twice", zookeeper { counter = "latch" } },
  { "permits beyond their number", "rlock.zookeeper.target",
    "entry.place.most = most", "entry.place.most = most + 1",
    "too many permits", zookeeper { counter = "permits" } },
  { "a double barrier that opens for one member less",
    "rlock.zookeeper.barrier", "#names >= n then", "#names >= n - 1 then",
    "opened early", zookeeper(two_members) },
  { "a round that ends while members are inside", "rlock.zookeeper.barrier",
    'is_inside = is_inside or mark == "+"', "", "ended early",
    zookeeper(rows.barriers) },
  { "a leader that does not look at the time", "rlock.recipes.election",
    "if left_of(term) > 0 then return true end", "if term then return true end",
    "believed", zookeeper { kind = "election", faults = { "stall" } } },
  { "one channel for both sides of a read/write lock",
    "rlock.zookeeper.target", "self.path, self.policy.name, owner",
    'self.path, "", owner', "delayed",
    zookeeper { kind = "read_write_lock", servers = 3, style = "plain" } },
}

return rows
