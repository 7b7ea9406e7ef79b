--- The built-in kinds: facts of their policies that are needed before these
--  are loaded. Written by `make lists`.
return {
  { name = "fair", factory = "fair_lock" },
  { name = "fair_readwrite", factory = "fair_read_write_lock", pair = true },
  { name = "fenced", factory = "fenced_lock" },
  { name = "latch", factory = "latch", driver = "counters.latch" },
  { name = "mutex", factory = "mutex" },
  { name = "permits", factory = "permits", driver = "counters.permits" },
  { name = "readwrite", factory = "read_write_lock", pair = true },
  { name = "reentrant", factory = "lock" },
  { name = "semaphore", factory = "semaphore", driver = "counters.semaphore" },
  { name = "simple", factory = "simple_lock" },
  { name = "spin", factory = "spin_lock" },
}
