--- What is tested against Redisson: kinds of locks and others, and for each a
--- list of scenarios.

local commands = require "spec.interop.commands"
local counts = require "spec.interop.counts"
local fair = require "spec.interop.fair"
local locks = require "spec.interop.locks"
local multi = require "spec.interop.multi"
local quorum = require "spec.interop.quorum"
local readwrite = require "spec.interop.readwrite"
local simple = require "spec.interop.simple"

local exclusive = {
  locks.contend, locks.excluded, locks.woken, locks.leases_seen,
  locks.expires, locks.entered_again, locks.forced, commands.shown,
  commands.woken,
}

local function more(...)
  local list = table.move(exclusive, 1, #exclusive, 1, {})
  for _, scenario in ipairs { ... } do list[#list + 1] = scenario end
  return list
end

return {
  { "lock", more(locks.ours_killed, locks.theirs_killed) },
  { "fenced", more(locks.ours_killed, locks.theirs_killed) },
  { "mutex", { locks.contend, locks.excluded, locks.woken, locks.forced } },
  { "spin", { locks.contend, locks.excluded, locks.leases_seen,
    locks.expires, locks.entered_again, commands.shown } },
  { "fair", more(fair.in_order, fair.gives_up, fair.ours_killed,
    fair.theirs_killed, fair.theirs_dead_in_line, fair.ours_dead_in_line) },
  { "write", more(locks.ours_killed, locks.theirs_killed) },
  -- Redisson takes these without tokens.
  { "fenced_mutex", { locks.contend, locks.excluded, locks.woken } },
  { "fenced_fair", { locks.contend, locks.excluded, fair.in_order,
    fair.gives_up } },
  { "fenced_write", { locks.contend, locks.excluded, locks.woken } },
  { "read/write", {
    readwrite.mixed, readwrite.shared, readwrite.entered_again,
    readwrite.readers_woken, readwrite.forced, readwrite.downgraded,
    readwrite.downgrade_told, readwrite.leases_kept, readwrite.ours_killed,
    readwrite.theirs_killed, readwrite.leased_beside_killed,
    commands.readers_shown,
  } },
  { "semaphore", counts.semaphore },
  { "permits", counts.permits },
  { "latch", counts.latch },
  { "multi", multi },
  { "red", simple.watched },
  { "red", quorum.reentrant },
}
