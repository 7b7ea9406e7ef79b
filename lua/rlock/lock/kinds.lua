--- The built-in kinds, on every back end. The client makes a factory of each.
--- Fields of a kind:
---   name     of its policy in policy/
---   title    for people
---   factory  the client's method
---   fenced   of its policy with fencing tokens; default: fenced_<name>
---   pair     whether it is a pair, a read lock and a write lock
---   driver   the module of a counter, which is no lock
return {
  { name = "fair", title = "fair lock", factory = "fair_lock" },
  { name = "fair_readwrite", title = "fair read/write lock",
    factory = "fair_read_write_lock", pair = true },
  { name = "fenced", title = "fenced lock", factory = "fenced_lock",
    fenced = "fenced" },
  { name = "latch", title = "latch", factory = "latch",
    driver = "counters.latch" },
  { name = "mutex", title = "mutex", factory = "mutex" },
  { name = "permits", title = "permits", factory = "permits",
    driver = "counters.permits" },
  { name = "readwrite", title = "read/write lock",
    factory = "read_write_lock", pair = true },
  { name = "reentrant", title = "reentrant lock", factory = "lock",
    fenced = "fenced" },
  { name = "semaphore", title = "semaphore", factory = "semaphore",
    driver = "counters.semaphore" },
  { name = "simple", title = "simple lock", factory = "simple_lock" },
  { name = "spin", title = "spin lock", factory = "spin_lock" },
}
