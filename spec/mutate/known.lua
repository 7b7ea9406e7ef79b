--- Accepted survivors: for each file, the function, the line
--  and the changed line as `make mutate` prints them, and the reason. Those
--  with `equal` are equivalent to the original.

local INSTANT = "matters in one instant, which a real clock hardly hits"

return {
  ["lua/rlock/policy/fair.lua"] = {
    { "file", "local MAX_PROBED = 500 -- waiters, by one request",
      "local MAX_PROBED = 1000 -- waiters, by one request",
      "how much one request does is a matter of taste" },
    { "file", "local SECOND, START = 1024, 512",
      "local SECOND, START = 1024, 1024",
      "only older versions of rlock set the bit; no test has one of them" },
  },
  ["lua/rlock/policy/fair_readwrite.lua"] = {
    { "parse", "return tonumber(time or 0), tonumber(place or 0)",
      "return tonumber(time or 0), tonumber(place or 1)",
      "without a time, the place is not used, or a start, long ago as 0 is",
      equal = true },
    { "release", "if last <= time or is_writer(who) then", "if true then",
      "a needless hint for readers, who may enter already" },
    { "first_alive", "while gone < MAX_EVICTED do",
      "while gone <= MAX_EVICTED do",
      "how much one request does is a matter of taste" },
  },
  ["lua/rlock/policy/liveness.lua"] = {
    { "liveness.left", "elseif last < start then", "elseif last <= start then",
      "the larger of two equal numbers is either", equal = true },
  },
  ["lua/rlock/policy/permits.lua"] = {
    { "recognise", "and shared.is_number(keys[1], args[1]) and 4",
      "and shared.is_number(keys[1], args[1]) and 5",
      "ranks are compared, and this is the highest", equal = true },
  },
  ["lua/rlock/policy/readwrite.lua"] = {
    { "examine", "for i = time, time + math.min(n, MAX_EXAMINED) - 1 do",
      "for i = time, time + math.min(n, MAX_EXAMINED) - 2 do",
      "one reader less is examined, another one each time" },
    { "read.release",
      'redis.call("set", hold_key(keys, owner, want), "1", "px", lease)',
      'redis.call("set", hold_key(keys, owner, want), "2", "px", lease)',
      "nobody reads the value, only whether the key is there", equal = true },
  },
  ["lua/rlock/policy/semaphore.lua"] = {
    { "server.undo",
      "if last and tonumber(last) >= tonumber(number) then return "
      .. '{ "freed" } end',
      "if last and tonumber(last) > tonumber(number) then return "
      .. '{ "freed" } end',
      "its own number is not what it undoes; the slot is set again",
      equal = true },
  },
  ["lua/rlock/policy/shared.lua"] = {
    { "shared.whole", "if n and n % 1 == 0 then return n end",
      "if n and n % 2 == 0 then return n end",
      "INCRBY 0 returns the same number, later", equal = true },
  },
  ["lua/rlock/policy/simple.lua"] = {
    { "recognise", 'and redis.call("pttl", lock) >= 0 and 1',
      'and redis.call("pttl", lock) >= 0 and 2',
      "no other kind recognises a string with such an expiry", equal = true },
    { "prolong", 'if redis.call("pttl", lock) < tonumber(lease) then',
      'if redis.call("pttl", lock) <= tonumber(lease) then',
      "sets the expiry that the key has already", equal = true },
  },
  ["lua/rlock/watchdog.lua"] = {
    { "sweep", "if grant.valid_until <= now and grant:is_abandoned() then",
      "if grant.valid_until < now and grant:is_abandoned() then", INSTANT },
    { "report_losses", "if alarm.valid_until <= now then",
      "if alarm.valid_until < now then", INSTANT },
    { "next_check",
      "if restates(grant) and deadline < grant.valid_until then return "
      .. "deadline end",
      "if restates(grant) or deadline < grant.valid_until then return "
      .. "deadline end",
      "an alarm that finds nothing to do" },
    { "run", "self.wake_deadline = 0", "self.wake_deadline = 1",
      "no deadline is before either", equal = true },
  },
  ["lua/rlock/lock.lua"] = {
    { "lock:take", "if wait > 0 and session.wakeup.count > 0 and "
      .. "session.wakeup:is_live(granted:channel()) then", "if true then",
      "joins the waiters before it is known to be necessary" },
  },
  ["lua/rlock/wakeup.lua"] = {
    { "wakeup:leave",
      "if waiter.is_woken and not got_it then wake_one(channel) end",
      "if true then wake_one(channel) end",
      "a needless wake: the other retries, and waits on" },
  },
}
