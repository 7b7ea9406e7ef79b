--- The checks and tests that may catch mutants of each file. They run in this
--- order, until one fails; the quick ones first.
---
--- "check ..." is rlockctl check; "simulate ..." is spec/simulate/run.lua with
--- these settings; anything else names a spec, perhaps with a pattern of its
--- tests' names. After "then" come those that a quick run leaves out.
---
--- A quick run has no mutants of files whose list begins with "then".

local client = { "simulate RUNS=8", "reentrant_spec", "answers_spec",
  "own_policies_spec" }
local status = "cli/commands_spec status %l"
local exclusive = "quorum_spec mutual exclusion"

-- The client's specs, after one of the simulated host.
local function with(first, ...)
  local list = table.move(client, 1, #client, 2, { first })
  for _, words in ipairs { ... } do list[#list + 1] = words end
  return list
end

return {
  ["lua/rlock/policy/fair.lua"] = { "check/fair_spec",
    "check/heartbeats_spec", "check fair --ops 1",
    "check fair --ticks 1", "fair_spec", status, "then",
    "check fair --clients 3 --ops 1 --ticks 1", "check fair" },
  ["lua/rlock/policy/fair_readwrite.lua"] = { "check/fair_readwrite_spec",
    "check/heartbeats_spec", "check fair_readwrite --ops 1",
    "fair_readwrite_spec", status, "then",
    "check fair_readwrite --ticks 1",
    "check fair_readwrite --clients 3 --ops 1 --ticks 1" },
  ["lua/rlock/policy/fencing.lua"] = { "check fenced --ticks 1",
    "check fenced", "fenced_spec", status },
  ["lua/rlock/policy/barrier.lua"] = { "check/barrier_model_spec",
    "simulate RUNS=6 COUNTER=double_barrier", "barrier_spec" },
  ["lua/rlock/policy/token_key.lua"] = { "check fenced_simple",
    "check fenced_readwrite --ticks 1", "fenced_spec" },
  ["lua/rlock/policy/latch.lua"] = { "check latch", "latch_spec", status },
  ["lua/rlock/policy/handover.lua"] = { "check/handover_spec",
    "check reentrant", "check fenced --ops 1", "simulate RUNS=8" },
  ["lua/rlock/policy/liveness.lua"] = { "unit/liveness_spec",
    "check fair --ops 1", "check fair_readwrite --ops 1", "check/fair_spec",
    "fair_spec", "then", "fair_readwrite_spec" },
  ["lua/rlock/policy/mutex.lua"] = { "check mutex", "mutex_spec", exclusive },
  ["lua/rlock/policy/permits.lua"] = { "check permits --ticks 1",
    "check permits", "permits_spec", status },
  ["lua/rlock/policy/readwrite.lua"] = { "check/readwrite_spec",
    "check readwrite --ticks 1", "check readwrite", "readwrite_spec", status },
  ["lua/rlock/policy/reentrant.lua"] = { "check reentrant",
    "reentrant_spec", status, exclusive },
  ["lua/rlock/policy/semaphore.lua"] = { "check semaphore --ticks 1",
    "semaphore_spec", status, "then", "check semaphore" },
  ["lua/rlock/policy/shared.lua"] = { "shared_spec",
    "check readwrite --ticks 1", "check permits --ticks 1", "check latch",
    status, "semaphore_spec", "simple_spec", "latch_spec" },
  ["lua/rlock/policy/simple.lua"] = { "check simple", "simple_spec", status,
    exclusive },
  ["lua/rlock/policy/spin.lua"] = { "check spin", "spin_spec", exclusive },
  ["lua/rlock/lock/grant.lua"] = with("check/grant_spec", "fenced_spec",
    "late_spec", "faults_spec", "waiting_spec", "then", "watchdog_spec",
    "for_ever_spec"),
  ["lua/rlock/lock/requests.lua"] = with("check/grant_spec", "fenced_spec",
    "late_spec", "faults_spec", "waiting_spec", "then", "watchdog_spec",
    "for_ever_spec"),
  ["lua/rlock/lock/session.lua"] = { "check/grant_spec", "close_spec",
    "reentrant_spec" },
  ["lua/rlock/lock/posted.lua"] = { "check/quorum_spec", "simulate RUNS=8",
    "quorum_spec" },
  ["lua/rlock/lock/holds.lua"] = with("check/grant_spec",
    "check/watchdog_spec"),
  ["lua/rlock/lock/turn.lua"] = with("check/grant_spec", "faults_spec"),
  ["lua/rlock/lock/owner.lua"] = with("check/grant_spec"),
  ["lua/rlock/lock/handle.lua"] = with("check/grant_spec", "waiting_spec",
    "then", "refusals_spec", "for_ever_spec"),
  ["lua/rlock/lock/waiting.lua"] = with("check/counters_spec",
    "waiting_spec", "then", "fair_spec"),
  ["lua/rlock/lock/verdicts.lua"] = with("unit/verdicts_spec"),
  ["lua/rlock/lock/lock.lua"] = with("check/grant_spec", "waiting_spec",
    "faults_spec", "then", "refusals_spec", "for_ever_spec"),
  ["lua/rlock/lock/heartbeats.lua"] = with("check/heartbeats_spec",
    "redis/heartbeats_spec", "then", "fair_spec", "fair_readwrite_spec"),
  ["lua/rlock/lock/watchdog.lua"] = with("check/watchdog_spec",
    "watchdog_spec", "then",
    "permits_spec", "faults_spec"),
  ["lua/rlock/lock/wakeup.lua"] = with("unit/wakeup_spec",
    "check/counters_spec", "waiting_spec", "then", "fair_spec", "faults_spec"),
  ["lua/rlock/redis/availability.lua"] = {
    "check/quorum_spec", "quorum_spec" },
  ["lua/rlock/redis/backend.lua"] = {
    "check/grant_spec", "unit/cluster_spec", "simulate RUNS=6", "then",
    "replicas_spec", "cluster_spec", "multi_spec", "refusals_spec" },
  ["lua/rlock/redis/batch.lua"] = {
    "check/watchdog_spec", "check/expiry_spec", "then", "close_spec",
    "cluster_spec" },
  ["lua/rlock/redis/calls.lua"] = {
    "check/watchdog_spec", "check/expiry_spec" },
  ["lua/rlock/redis/channels.lua"] = {
    "unit/wakeup_spec", "then", "simulate RUNS=4 CLUSTER=1" },
  ["lua/rlock/redis/server_identity.lua"] = {
    "check/quorum_spec", "quorum_spec" },
  ["lua/rlock/redis/cluster.lua"] = {
    "then", "unit/cluster_spec", "unit/redirection_spec",
    "simulate RUNS=6 CLUSTER=1", "moves_spec", "cluster_spec" },
  ["lua/rlock/redis/command_keys.lua"] = {
    "unit/cluster_spec", "redis/effects_spec" },
  ["lua/rlock/redis/effects.lua"] = { "redis/effects_spec",
    "redis/cluster_spec" },
  ["lua/rlock/lock/deadlock.lua"] = { "check/deadlock_spec",
    "redis/deadlock_spec" },
  ["lua/rlock/lock/effect.lua"] = { "redis/effects_spec" },
  ["lua/rlock/policy/effect.lua"] = { "redis/effects_spec" },
  ["lua/rlock/lock/release_requests.lua"] = { "redis/release_request_spec" },
  ["lua/rlock/policy/release_request.lua"] = { "redis/release_request_spec" },
  ["lua/rlock/redis/release_requests.lua"] = { "redis/release_request_spec" },
  ["lua/rlock/zookeeper/revoker.lua"] = { "zookeeper/revoker_spec" },
  ["lua/rlock/redis/errors.lua"] = {
    "unit/errors_spec", "simulate RUNS=6", "then", "errors_spec" },
  ["lua/rlock/redis/evalsha.lua"] = {
    "simulate RUNS=6", "then", "simulate RUNS=6 SEAL=time", "script_spec" },
  ["lua/rlock/redis/expiry.lua"] = {
    "unit/expiry_spec", "check/expiry_spec", "simulate RUNS=6 SEAL=time",
    "then", "seal_spec" },
  ["lua/rlock/redis/handshake.lua"] = {
    "then", "reentrant_spec", "sentinel_spec password" },
  ["lua/rlock/redis/node.lua"] = {
    "then", "unit/node_spec", "simulate RUNS=6", "simulate RUNS=4 SENTINEL=1",
    "faults_spec" },
  ["lua/rlock/redis/remote.lua"] = {
    "unit/remote_spec", "check/grant_spec", "simulate RUNS=6",
    "simulate RUNS=4 SEAL=time", "errors_spec", "then", "late_spec",
    "script_spec" },
  ["lua/rlock/redis/replicas.lua"] = {
    "then", "check/replicas_spec", "simulate RUNS=6 REPLICAS=1",
    "replicas_spec" },
  ["lua/rlock/redis/seal.lua"] = {
    "unit/seal_spec", "check/seal_spec", "simulate RUNS=6", "then",
    "seal_spec" },
  ["lua/rlock/redis/sentinel.lua"] = {
    "then", "unit/sentinel_spec", "simulate RUNS=6 SENTINEL=1",
    "sentinel_spec" },
  ["lua/rlock/util/singleflight.lua"] = {
    "unit/singleflight_spec", "simulate RUNS=6", "unit/cluster_spec" },
  ["lua/rlock/redis/slot.lua"] = {
    "unit/cluster_spec", "then", "cluster_spec" },
  ["lua/rlock/redis/subscriber.lua"] = {
    "then", "unit/subscriber_spec", "unit/wakeup_spec", "simulate RUNS=6",
    "simulate RUNS=4 CLUSTER=1" },
  ["lua/rlock/util/authority.lua"] = {
    "unit/url_spec" },
  ["lua/rlock/redis/url.lua"] = {
    "unit/url_spec" },
  ["lua/rlock/recipes/election.lua"] = { "check/election_spec",
    "election_spec" },
  ["lua/rlock/zookeeper/codec.lua"] = {
    "then", "unit/zookeeper_spec", "zookeeper/lock_spec" },
  ["lua/rlock/zookeeper/url.lua"] = {
    "then", "unit/zookeeper_spec", "zookeeper/lock_spec" },
  ["lua/rlock/zookeeper/validity.lua"] = {
    "then", "unit/zookeeper_spec", "zookeeper/lock_spec" },
  ["lua/rlock/zookeeper/backend.lua"] = {
    "then", "zookeeper/lock_spec", "zookeeper/kinds_spec",
    "zookeeper/ensemble_spec" },
  ["lua/rlock/zookeeper/batch.lua"] = {
    "then", "zookeeper/lock_spec" },
  ["lua/rlock/zookeeper/channels.lua"] = {
    "then", "zookeeper/lock_spec" },
  ["lua/rlock/zookeeper/connection.lua"] = {
    "then", "zookeeper/lock_spec",
    "zookeeper/tls_spec", "zookeeper/ensemble_spec" },
  ["lua/rlock/zookeeper/errors.lua"] = {
    "then", "zookeeper/lock_spec",
    "zookeeper/tls_spec" },
  ["lua/rlock/zookeeper/kinds.lua"] = {
    "then", "zookeeper/kinds_spec" },
  ["lua/rlock/zookeeper/barrier.lua"] = {
    "then", "zookeeper/barrier_spec" },
  ["lua/rlock/zookeeper/latch.lua"] = {
    "then", "zookeeper/counters_spec" },
  ["lua/rlock/zookeeper/limit.lua"] = {
    "then", "zookeeper/counters_spec", "zookeeper/kinds_spec" },
  ["lua/rlock/zookeeper/nodes.lua"] = {
    "then", "zookeeper/nodes_spec", "zookeeper/kinds_spec",
    "zookeeper/acl_spec" },
  ["lua/rlock/zookeeper/permits.lua"] = {
    "then", "zookeeper/counters_spec" },
  ["lua/rlock/zookeeper/place.lua"] = {
    "then", "zookeeper/lock_spec", "zookeeper/kinds_spec" },
  ["lua/rlock/zookeeper/queues.lua"] = {
    "then", "zookeeper/kinds_spec", "zookeeper/commands_spec" },
  ["lua/rlock/zookeeper/semaphore.lua"] = {
    "then", "zookeeper/kinds_spec" },
  ["lua/rlock/zookeeper/target.lua"] = {
    "then", "zookeeper/lock_spec", "zookeeper/kinds_spec" },
  ["lua/rlock/counters/call.lua"] = {
    "then", "check/counters_spec", "simulate RUNS=6 COUNTER=semaphore",
    "semaphore_spec", "latch_spec" },
  ["lua/rlock/counters/latch.lua"] = { "check/counters_spec",
    "simulate RUNS=6 COUNTER=latch", "latch_spec" },
  ["lua/rlock/counters/deduplication.lua"] = { "check/counters_spec",
    "simulate RUNS=6 COUNTER=semaphore", "semaphore_spec", "then",
    "counter_spec" },
  ["lua/rlock/counters/permits.lua"] = { "check/counters_spec", "then",
    "simulate RUNS=6 COUNTER=permits", "permits_spec" },
  ["lua/rlock/counters/semaphore.lua"] = { "check/counters_spec",
    "simulate RUNS=6 COUNTER=semaphore", "semaphore_spec" },
  ["lua/rlock/several/quorum.lua"] = { "check/quorum_spec", "simulate RUNS=8",
    "quorum_spec", "red_spec", "then", "quorum_counter_spec" },
  ["lua/rlock/counters/leased.lua"] = { "permits_spec", "barrier_spec" },
  ["lua/rlock/recipes/barrier.lua"] = { "check/barriers_spec", "barrier_spec" },
  ["lua/rlock/recipes/double_barrier.lua"] = { "check/barriers_spec",
    "simulate RUNS=6 COUNTER=double_barrier", "barrier_spec" },
  ["lua/rlock/recipes/member.lua"] = { "check/barriers_spec", "barrier_spec" },
  ["lua/rlock/policy/compute.lua"] = { "check compute", "compute_spec" },
  ["lua/rlock/recipes/compute.lua"] = { "redis/compute_spec" },
  ["lua/rlock/zookeeper/compute.lua"] = { "then", "zookeeper/compute_spec" },
  ["lua/rlock/counters/counter.lua"] = { "semaphore_spec", "latch_spec" },
}
