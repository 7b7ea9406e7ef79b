--- kazoo's Lock and ours, in rlockctl and in nginx, on one ZooKeeper. kazoo
--- sees our nodes with its `extra_lock_patterns`.

local against = require "spec.interop.against"
local ensembles = require "spec.interop.ensembles"
local locks = require "spec.interop.locks"

local set = ensembles()
local busted = {
  describe = describe, it = it, setup = setup, teardown = teardown,
}

against(busted, "kazoo", 0, {
  { "lock", { locks.contend, locks.excluded, locks.woken, locks.ours_killed,
    locks.theirs_killed } },
}, set, "a ZooKeeper")

against(busted, "kazoo", 0, {
  { "lock", { locks.excluded, locks.woken } },
}, setmetatable({ ours = "nginx" }, { __index = set }),
  "a ZooKeeper with nginx")
