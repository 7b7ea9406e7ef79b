--- Branches that simulated runs never, or rarely, reach. For each file of the
--- client: lists of branches, as branches.lua names them, each with a reason.
--- "function: *" stands for all branches of a function. See coverage.lua.

local MISUSE = "raised for wrong arguments; spec/redis/refusals_spec.lua"
local NGINX = "only on a host that ends tasks at any moment; spec/openresty"
local END = "at the end of a program; spec/redis/close_spec.lua, spec/cli"
local REFUSED = "on a host that refuses tasks, as nginx does, or for an error "
  .. "in rlock; spec/openresty/timers_spec.lua"
local MALFORMED = "replies that built-in policies never give; "
  .. "spec/redis/own_policies_spec.lua"
local EXEC = "by rlock.exec only; spec/cli/exec_call_spec.lua, "
  .. "spec/check/grant_spec.lua"
local ONCE = "a task unlocks what it holds, once: "
  .. "spec/redis/reentrant_spec.lua"
local ZOOKEEPER = "on ZooKeeper only; spec/zookeeper"
local RARE = "reached in few runs only"
local SEVERAL = "in a cluster, behind Sentinels or with replicas, which these "
  .. "runs lack; spec/redis/cluster_spec.lua, sentinel_spec.lua, "
  .. "replicas_spec.lua"

return {
  ["lock/lock"] = {
    { "no call here has a deadline; spec/redis/cancel_spec.lua",
      "lock:take: if 2" },
    { "fewer tasks wait here; spec/check/gate_spec.lua", "lock:take: if 1",
      "begin: *", "take_at_gate: *" },
    { "the policies here have all operations", "run: if 1" },
    { MALFORMED, "lock:state_for: after if 1" },
    { ZOOKEEPER, "lock:write: *" },
    { RARE, "lock:break_lock: *", "lock:token: *" },
  },
  ["lock/grant"] = {
    { EXEC, "grant:abandon: *" },
    { NGINX, "grant:admit: *", "grant:give_up: *", "grant:recycle: if 3" },
    { ONCE, "grant:when_lost: if 1" },
    { RARE, "grant:when_lost: elseif 1", "grant:when_lost: after if 2" },
  },
  ["lock/holds"] = {
    { ONCE, "last_of: after for 1", "holds.remove: after for 1" },
    { RARE, "holds.leave_to_lease: *" },
    { NGINX, "holds.end_all: *" },
  },
  ["lock/posted"] = {
    { MALFORMED, "freed: if 1" },
    { NGINX, "posted:release: elseif 1", "posted:release: function 1" },
    { "the client is closed meanwhile", "held: if 1",
      "posted:replied: if 3" },
    { RARE, "confirm: *", "posted:set: if 2",
      "posted:set: elseif 1", "posted:release: if 1" },
  },
  ["lock/requests"] = {
    { "the policies here have all operations",
      "requests.may_enter: elseif 2" },
    { MALFORMED, "interpret: after if 1", "interpret: after if 2",
      "requests.released: after if 2", "requests.released: after if 3" },
    { NGINX, "requests.accepted: if 1", "died: *", "died_acquiring: *",
      "survived: *", "requests.acquire: if 6", "requests.release: if 4" },
    { "no task here has more than 16 holds", "count_text: *" },
    { "a policy's `extra` raises an error: spec/cli/policy_faults_spec.lua",
      "extra_of: after if 1" },
    { ONCE, "requests.removed: if 2" },
    { "the client is closed meanwhile", "send_acquire: if 3" },
    { RARE, "interpret: if 2", "requests.entered: if 1", "release_later: *",
      "requests.release: if 1", "requests.release: if 2",
      "requests.release: after if 3", "left_to_lease: *" },
  },
  ["lock/turn"] = {
    { RARE, "turn.wait: after if 2" },
  },
  ["lock/watchdog"] = {
    { "a member of a barrier; spec/redis/barrier_spec.lua",
      "sender.answered: elseif 1" },
    { MALFORMED, "sender.answered: else 1" },
    { "four batches of 256 renewals are in flight: "
      .. "spec/redis/watchdog_spec.lua",
      "report_losses: *", "run: else 1" },
    { END, "watchdog:retire: *" },
    { NGINX, "recover: *" },
    { REFUSED, "crash: *" },
    { SEVERAL, "take: elseif 2" },
    { RARE, "take: else 1", "watchdog:observe: elseif 1",
      "watchdog:ground: after if 1" },
  },
  ["lock/heartbeats"] = {
    { "the line's task ends while there are waiters: an error, or the client "
      .. "is closed", "serve: while 1" },
    { REFUSED, "run: if 2" },
  },
  ["lock/wakeup"] = {
    { RARE, "wake_sharers: *", "wakeup:pass: while 1" },
  },
  ["several/joint"] = {
    { MISUSE, "joint.check_list: *", "file: function 1" },
    { EXEC, "Hold:abandon: *" },
    { ZOOKEEPER, "joint:write: *" },
    { NGINX, "joint:take: if 3" },
    { "a task unlocks its hold() by the object: spec/redis/multi_spec.lua",
      "Hold:release: if 1", "Hold:release: for 1" },
    { RARE, "joint.lose: for 1", "Hold:when_lost: if 1",
      "Hold:when_lost: after if 1" },
  },
  ["several/multi"] = {
    { MISUSE, "add_address: *", "multi.new: if 1", "ordered: if 1" },
    { RARE, "request_all: after if 2", "multi:pause: else 1",
      "multi:pause: elseif 1", "multi:is_held: *",
      "multi:state_of: *", "multi:release_parts: *", "multi:show: *" },
  },
  ["several/part"] = {
    { RARE, "part:accept: if 1" },
  },
  ["several/quorum"] = {
    { MISUSE, "check_policy: after if 1", "check_clients: *",
      "refuse_tokens: *" },
    { RARE, "quorum:may_take: *", "without_part: else 1",
      "quorum:release_parts: elseif 2", "quorum:release_parts: if 4",
      "quorum:release_parts: elseif 3", "quorum:is_held: after if 3" },
  },
  ["several/round"] = {
    { RARE, "round:outcome: if 2" },
  },
  ["redis/backend"] = {
    { MISUSE, "backend.complete: *", "Target:check: after if 1" },
    { "users' policies with tokens: spec/redis/fenced_spec.lua",
      "backend.fenced: *" },
    { END, "backend:rest: *" },
    { "only clusters use names in braces; spec/check/handover_spec.lua",
      "backend:bind: if 1" },
    { "by programs only: spec/redis/host_spec.lua", "backend:call: *",
      "is_unfit: *", "is_interrupt: *", "may_connect: *", "backend:connect: *",
      "backend.get: *" },
    { SEVERAL, "Target:route: after if 1", "Target:identity: after if 1",
      "follow_slots: *", "attend: *" },
    { "no task here holds a lock while it waits long for another one; "
      .. "spec/check/deadlock_spec.lua", "Target:announce: *" },
  },
  ["redis/batch"] = {
    { REFUSED, "send_alone: *", "abort: *" },
    { SEVERAL, "handle_failure: if 2" },
    { "the server refuses a script: spec/check/watchdog_spec.lua",
      "prepare: if 1" },
  },
  ["redis/channels"] = {
    { END, "channels:wind_down: *" },
    { SEVERAL, "is_echo: *", "channels:reconnect: *", "channels:follow: *",
      "channels:rehome: *", "handle: after if 1" },
  },
  ["redis/server_identity"] = {
    { "each server of a red lock is another: spec/redis/quorum_spec.lua",
      "bond: *", "server_identity.clash: after if 1",
      "server_identity.clash: after if 2" },
    { RARE, "note: if 3" },
  },
  ["redis/errors"] = {
    { SEVERAL, "ERR ^WAIT cannot be used", "replicas" },
    { "a key has a value of another type: spec/redis/shared_spec.lua",
      "ERR ^value is not an integer" },
  },
}
