--- The checks and tests that may catch mutants of each file. They run in this
--- order, until one fails; the quick ones first.
---
--- "check ..." is rlockctl check; "simulate ..." is spec/simulate/run.lua with
--- these settings; anything else names a spec, perhaps with a pattern of its
--- tests' names. After "then" come those that a quick run leaves out.
---
--- A quick run has no mutants of files whose list begins with "then".

-- A list of these, and of those in these lists, each once.
local function list(...)
  local all, has = {}, {}
  for _, some in ipairs { ... } do
    for _, words in ipairs(type(some) == "table" and some or { some }) do
      if not has[words] then all[#all + 1], has[words] = words, true end
    end
  end
  return all
end

local status = "cli/commands_spec status %l"
local exclusive = "quorum_spec mutual exclusion"

-- On virtual time, so they take seconds.
local virtual = { "check/grant_spec", "check/counters_spec",
  "check/watchdog_spec", "check/handover_spec", "check/quorum_spec",
  "check/malformed_spec", "check/for_ever_spec" }
local client = list(virtual, "simulate RUNS=8", "answers_spec",
  "own_policies_spec", "reentrant_spec")
local policy = { "check/spoiled_spec", "check/costs_spec" }

-- ZooKeeper's specs, after those on its model.
local function zookeeper(...)
  local all = { "then", "check/zookeeper_requests_spec",
    "check/zookeeper_faults_spec", "check/zookeeper_spec" }
  for _, name in ipairs { ... } do
    all[#all + 1] = name:find "/" and name or "zookeeper/" .. name
  end
  return all
end

return {
  ["lua/rlock/policy/fair.lua"] = list("check/fair_spec",
    "check/heartbeats_spec", policy, "check fair --ops 1",
    "check fair --ticks 1", "fair_spec", status, "then",
    "check fair --clients 3 --ops 1 --ticks 1", "check fair"),
  ["lua/rlock/policy/fair_readwrite.lua"] = list("check/fair_readwrite_spec",
    "check/heartbeats_spec", policy, "check fair_readwrite --ops 1",
    "fair_readwrite_spec", status, "then",
    "check fair_readwrite --ticks 1",
    "check fair_readwrite --clients 3 --ops 1 --ticks 1"),
  ["lua/rlock/policy/fencing.lua"] = list("check fenced --ticks 1",
    policy, "check fenced", "fenced_spec", status),
  ["lua/rlock/policy/barrier.lua"] = { "check/barriers_spec",
    "check/barrier_model_spec", "simulate RUNS=6 COUNTER=double_barrier",
    "barrier_spec" },
  ["lua/rlock/policy/token_key.lua"] = list("check fenced_simple",
    policy, "check fenced_readwrite --ticks 1", "fenced_spec"),
  ["lua/rlock/policy/latch.lua"] = list("check latch", "check/counters_spec",
    policy, "latch_spec", status),
  ["lua/rlock/policy/handover.lua"] = { "check/handover_spec",
    "check reentrant", "check fenced --ops 1", "simulate RUNS=8",
    "handover_spec" },
  ["lua/rlock/policy/liveness.lua"] = { "unit/liveness_spec",
    "check/fair_spec", "check/fair_readwrite_spec", "check fair --ops 1",
    "check fair_readwrite --ops 1", "fair_spec", "then",
    "fair_readwrite_spec" },
  ["lua/rlock/policy/mutex.lua"] = { "check mutex", "mutex_spec", exclusive },
  ["lua/rlock/policy/permits.lua"] = list("check permits --ticks 1",
    "check/counters_spec", policy, "check permits", "permits_spec", status),
  ["lua/rlock/policy/readwrite.lua"] = list("check/readwrite_spec",
    policy, "check readwrite --ticks 1", "check readwrite", "readwrite_spec",
    status),
  ["lua/rlock/policy/reentrant.lua"] = list("check reentrant",
    "check/grant_spec", policy, "reentrant_spec", status, exclusive),
  ["lua/rlock/policy/semaphore.lua"] = list("check semaphore --ticks 1",
    "check/counters_spec", policy, "semaphore_spec", status, "then",
    "check semaphore"),
  ["lua/rlock/policy/shared.lua"] = list("shared_spec",
    "check readwrite --ticks 1", "check permits --ticks 1", "check latch",
    policy, status, "semaphore_spec", "simple_spec", "latch_spec"),
  ["lua/rlock/policy/simple.lua"] = list("check simple", policy, "simple_spec",
    status, exclusive),
  ["lua/rlock/policy/spin.lua"] = { "check spin", "spin_spec", exclusive },
  ["lua/rlock/lock/grant.lua"] = list(client, "fenced_spec", "late_spec",
    "faults_spec", "waiting_spec", "then", "watchdog_spec", "metrics_spec",
    "effects_spec", "cancel_spec", "deadlock_spec", "for_ever_spec"),
  ["lua/rlock/lock/requests.lua"] = list(client, "fenced_spec", "late_spec",
    "faults_spec", "waiting_spec", "then", "watchdog_spec", "metrics_spec",
    "cancel_spec", "readwrite_spec", "for_ever_spec"),
  ["lua/rlock/lock/session.lua"] = { "check/grant_spec", "close_spec",
    "reentrant_spec" },
  ["lua/rlock/lock/posted.lua"] = { "check/quorum_spec",
    "check/malformed_spec", "check/for_ever_spec", "simulate RUNS=8",
    "red_spec", "quorum_spec" },
  ["lua/rlock/lock/holds.lua"] = list("unit/lock_holds_spec", client, "then",
    "multi_spec"),
  ["lua/rlock/lock/turn.lua"] = list(client, "faults_spec", "then",
    "cancel_spec"),
  ["lua/rlock/lock/owner.lua"] = list(client, "then", "deadlock_spec"),
  ["lua/rlock/lock/handle.lua"] = list(client, "waiting_spec", "then",
    "close_spec", "metrics_spec", "options_spec", "effects_spec",
    "cancel_spec", "refusals_spec", "multi_spec", "for_ever_spec"),
  ["lua/rlock/lock/waiting.lua"] = list("check/counters_spec", client,
    "check/deadlock_spec", "waiting_spec", "then", "metrics_spec",
    "cancel_spec", "deadlock_spec", "fair_spec"),
  ["lua/rlock/lock/verdicts.lua"] = list("unit/verdicts_spec", client),
  ["lua/rlock/lock/lock.lua"] = list(client, "check/heartbeats_spec",
    "waiting_spec", "faults_spec", "then", "metrics_spec", "cancel_spec",
    "refusals_spec", "for_ever_spec"),
  ["lua/rlock/lock/heartbeats.lua"] = list("check/heartbeats_spec", client,
    "redis/heartbeats_spec", "then", "fair_spec", "fair_readwrite_spec"),
  ["lua/rlock/lock/watchdog.lua"] = list("check/watchdog_spec", client,
    "check/barriers_spec", "watchdog_spec", "then", "metrics_spec",
    "permits_spec", "failover_spec", "deadlock_spec", "faults_spec"),
  ["lua/rlock/lock/wakeup.lua"] = list("unit/wakeup_spec",
    "check/counters_spec", "check/handover_spec", client, "waiting_spec",
    "then", "handover_spec", "fair_spec", "faults_spec"),
  ["lua/rlock/redis/availability.lua"] = {
    "unit/red_servers_spec", "check/quorum_spec", "check/for_ever_spec",
    "simulate RUNS=8",
    "quorum_spec" },
  ["lua/rlock/redis/backend.lua"] = list("unit/backend_spec",
    "unit/cluster_spec", virtual, "check/replicas_spec", "check/expiry_spec",
    "simulate RUNS=6",
    "own_policies_spec", "then", "options_spec", "host_spec", "fenced_spec",
    "effects_spec", "release_request_spec", "deadlock_spec",
    "replicas_calls_spec", "zookeeper/acl_spec", "zookeeper/nodes_spec",
    "refusals_spec", "replicas_spec", "cluster_spec", "multi_spec"),
  ["lua/rlock/redis/batch.lua"] = {
    "check/watchdog_spec", "check/heartbeats_spec", "check/expiry_spec",
    "check/replicas_spec", "check/malformed_spec", "check/grant_spec",
    "simulate RUNS=6", "simulate RUNS=6 CLUSTER=1", "then", "close_spec",
    "cluster_spec" },
  ["lua/rlock/redis/calls.lua"] = {
    "unit/weak_spec", "check/watchdog_spec", "check/heartbeats_spec",
    "check/expiry_spec",
    "check/malformed_spec", "check/grant_spec", "simulate RUNS=6",
    "simulate RUNS=6 CLUSTER=1" },
  ["lua/rlock/redis/channels.lua"] = {
    "unit/wakeup_spec", "check/counters_spec", "check/handover_spec",
    "check/grant_spec", "simulate RUNS=6", "semaphore_spec",
    "then", "simulate RUNS=6 CLUSTER=1", "release_request_spec",
    "waiting_spec", "cluster_spec" },
  ["lua/rlock/redis/server_identity.lua"] = {
    "unit/red_servers_spec", "unit/weak_spec", "check/quorum_spec",
    "check/malformed_spec", "simulate RUNS=8",
    "quorum_spec" },
  ["lua/rlock/redis/cluster.lua"] = {
    "then", "unit/cluster_spec", "unit/redirection_spec",
    "check/malformed_spec", "simulate RUNS=6 CLUSTER=1", "moves_spec",
    "cluster_spec", "refusals_spec", "tls_spec" },
  ["lua/rlock/redis/command_keys.lua"] = {
    "unit/commands_spec", "unit/cluster_spec", "check/malformed_spec",
    "redis/effects_spec", "then", "cluster_spec" },
  ["lua/rlock/redis/effects.lua"] = { "unit/effects_spec",
    "redis/effects_spec", "redis/replicas_calls_spec", "redis/compute_spec",
    "redis/cluster_spec" },
  ["lua/rlock/lock/deadlock.lua"] = { "check/deadlock_spec",
    "redis/deadlock_spec", "cli/deadlocks_spec", "redis/compute_spec", "then",
    "zookeeper/deadlock_spec" },
  ["lua/rlock/lock/effect.lua"] = { "redis/effects_spec",
    "redis/compute_spec", "redis/cluster_spec" },
  ["lua/rlock/policy/effect.lua"] = { "redis/effects_spec",
    "redis/replicas_calls_spec" },
  ["lua/rlock/lock/release_requests.lua"] = { "redis/release_request_spec",
    "then", "zookeeper/revoker_spec" },
  ["lua/rlock/policy/release_request.lua"] = { "redis/release_request_spec" },
  ["lua/rlock/redis/release_requests.lua"] = { "redis/release_request_spec",
    "redis/replicas_calls_spec", "redis/cluster_spec" },
  ["lua/rlock/zookeeper/revoker.lua"] = { "zookeeper/revoker_spec" },
  ["lua/rlock/redis/errors.lua"] = list("unit/errors_spec",
    "unit/sentinel_spec", "unit/cluster_spec", "unit/remote_spec", virtual,
    "simulate RUNS=6", "then", "errors_spec", "wrong_type_spec", "tls_spec",
    "refusals_spec"),
  ["lua/rlock/redis/evalsha.lua"] = {
    "unit/commands_spec", "check/grant_spec", "check/malformed_spec",
    "simulate RUNS=6", "then", "simulate RUNS=6 SEAL=time", "script_spec" },
  ["lua/rlock/redis/expiry.lua"] = {
    "unit/expiry_spec", "unit/weak_spec", "check/expiry_spec",
    "check/malformed_spec",
    "simulate RUNS=6 SEAL=time", "then", "seal_spec" },
  ["lua/rlock/redis/handshake.lua"] = {
    "unit/commands_spec", "then", "refusals_spec", "sentinel_spec password" },
  ["lua/rlock/redis/node.lua"] = list(
    "then", "unit/node_spec", virtual, "check/replicas_spec",
    "check/seal_spec", "simulate RUNS=6", "simulate RUNS=4 SENTINEL=1",
    "failover_spec", "metrics_spec", "host_spec", "seal_spec", "refusals_spec",
    "faults_spec"),
  ["lua/rlock/redis/remote.lua"] = list(
    "unit/remote_spec", virtual, "check/replicas_spec", "check/expiry_spec",
    "simulate RUNS=6", "simulate RUNS=4 SEAL=time", "errors_spec", "then",
    "wrong_type_spec", "effects_spec", "late_spec", "script_spec",
    "refusals_spec"),
  ["lua/rlock/redis/replicas.lua"] = {
    "then", "check/replicas_spec", "check/malformed_spec",
    "simulate RUNS=6 REPLICAS=1", "replicas_calls_spec", "effects_spec",
    "replicas_spec" },
  ["lua/rlock/redis/seal.lua"] = {
    "unit/seal_spec", "check/seal_spec", "check/malformed_spec",
    "simulate RUNS=6", "then", "seal_spec" },
  ["lua/rlock/redis/sentinel.lua"] = {
    "then", "unit/sentinel_spec", "check/malformed_spec",
    "check/replicas_spec", "simulate RUNS=6 SENTINEL=1", "sentinel_spec" },
  ["lua/rlock/util/singleflight.lua"] = {
    "unit/singleflight_spec", "check/grant_spec", "simulate RUNS=6",
    "unit/cluster_spec" },
  ["lua/rlock/redis/slot.lua"] = {
    "unit/cluster_spec", "then", "cluster_spec" },
  ["lua/rlock/redis/subscriber.lua"] = {
    "then", "unit/subscriber_spec", "unit/wakeup_spec", "check/counters_spec",
    "check/handover_spec", "check/grant_spec", "check/malformed_spec",
    "simulate RUNS=6", "simulate RUNS=4 CLUSTER=1", "waiting_spec",
    "release_request_spec", "cluster_spec" },
  ["lua/rlock/util/authority.lua"] = {
    "unit/url_spec", "unit/zookeeper_spec" },
  ["lua/rlock/redis/url.lua"] = {
    "unit/url_spec", "unit/cluster_spec", "then", "tls_spec", "cluster_spec" },
  ["lua/rlock/recipes/election.lua"] = { "check/election_spec",
    "simulate RUNS=6 KIND=election", "election_spec", "then",
    "zookeeper/election_spec" },
  ["lua/rlock/zookeeper/codec.lua"] = list("then", "unit/zookeeper_spec",
    zookeeper("lock_spec", "nodes_spec", "acl_spec", "commands_spec")),
  ["lua/rlock/zookeeper/url.lua"] = {
    "then", "unit/zookeeper_spec", "unit/url_spec", "zookeeper/lock_spec",
    "zookeeper/nodes_spec" },
  ["lua/rlock/zookeeper/validity.lua"] = list("then", "unit/zookeeper_spec",
    zookeeper("lock_spec")),
  ["lua/rlock/zookeeper/backend.lua"] = list("then", "unit/backend_spec",
    zookeeper("lock_spec", "kinds_spec", "nodes_spec", "acl_spec",
    "ensemble_spec", "commands_spec")),
  ["lua/rlock/zookeeper/batch.lua"] = zookeeper("lock_spec", "counters_spec",
    "loss_spec"),
  ["lua/rlock/zookeeper/channels.lua"] = zookeeper("lock_spec",
    "counters_spec"),
  ["lua/rlock/zookeeper/connection.lua"] = zookeeper("lock_spec", "tls_spec",
    "nodes_spec", "ensemble_spec", "loss_spec"),
  ["lua/rlock/zookeeper/errors.lua"] = list("then",
    "unit/zookeeper_nodes_spec", zookeeper("lock_spec", "tls_spec",
    "nodes_spec", "acl_spec")),
  ["lua/rlock/zookeeper/kinds.lua"] = list("then",
    "unit/zookeeper_nodes_spec", zookeeper("kinds_spec", "lock_spec",
    "counters_spec", "commands_spec")),
  ["lua/rlock/zookeeper/barrier.lua"] = zookeeper("barrier_spec",
    "commands_spec barrier"),
  ["lua/rlock/zookeeper/latch.lua"] = zookeeper("counters_spec",
    "commands_spec latch"),
  ["lua/rlock/zookeeper/limit.lua"] = zookeeper("kinds_spec", "counters_spec",
    "acl_spec"),
  ["lua/rlock/zookeeper/nodes.lua"] = zookeeper("nodes_spec", "kinds_spec",
    "acl_spec", "barrier_spec", "counters_spec"),
  ["lua/rlock/zookeeper/permits.lua"] = zookeeper("counters_spec"),
  ["lua/rlock/zookeeper/place.lua"] = list("then",
    "unit/zookeeper_nodes_spec", zookeeper("lock_spec", "kinds_spec",
    "acl_spec", "counters_spec", "deadlock_spec")),
  ["lua/rlock/zookeeper/queues.lua"] = list("then",
    "unit/zookeeper_nodes_spec", zookeeper("kinds_spec",
    "commands_spec", "election_spec")),
  ["lua/rlock/zookeeper/semaphore.lua"] = zookeeper("kinds_spec",
    "counters_spec"),
  ["lua/rlock/zookeeper/target.lua"] = zookeeper("lock_spec", "kinds_spec",
    "counters_spec", "election_spec", "deadlock_spec"),
  ["lua/rlock/counters/call.lua"] = { "check/counters_spec",
    "check/malformed_spec", "simulate RUNS=6 COUNTER=semaphore",
    "semaphore_spec", "latch_spec", "then", "metrics_spec", "cancel_spec" },
  ["lua/rlock/counters/latch.lua"] = { "check/counters_spec",
    "check/malformed_spec", "simulate RUNS=6 COUNTER=latch", "latch_spec",
    "then", "metrics_spec", "cancel_spec" },
  ["lua/rlock/counters/deduplication.lua"] = { "unit/weak_spec",
    "check/counters_spec",
    "check/barriers_spec", "simulate RUNS=6 COUNTER=semaphore",
    "semaphore_spec", "barrier_spec", "then", "cancel_spec" },
  ["lua/rlock/counters/permits.lua"] = { "check/counters_spec",
    "check/malformed_spec", "check/watchdog_spec", "then",
    "simulate RUNS=6 COUNTER=permits", "permits_spec", "metrics_spec",
    "cancel_spec", "deadlock_spec" },
  ["lua/rlock/counters/semaphore.lua"] = { "check/counters_spec",
    "check/malformed_spec", "simulate RUNS=6 COUNTER=semaphore",
    "semaphore_spec", "then", "metrics_spec", "cancel_spec" },
  ["lua/rlock/several/quorum.lua"] = { "check/quorum_spec",
    "check/for_ever_spec", "check/malformed_spec", "simulate RUNS=8",
    "quorum_spec", "red_spec", "then", "metrics_spec", "quorum_counter_spec" },
  ["lua/rlock/counters/leased.lua"] = { "check/counters_spec",
    "check/barriers_spec", "check/watchdog_spec", "permits_spec",
    "barrier_spec", "then", "deadlock_spec" },
  ["lua/rlock/recipes/barrier.lua"] = { "check/barriers_spec", "barrier_spec",
    "then", "zookeeper/barrier_spec" },
  ["lua/rlock/recipes/double_barrier.lua"] = { "check/barriers_spec",
    "simulate RUNS=6 COUNTER=double_barrier", "barrier_spec", "then",
    "zookeeper/barrier_spec" },
  ["lua/rlock/recipes/member.lua"] = { "check/barriers_spec", "barrier_spec",
    "then", "zookeeper/barrier_spec" },
  ["lua/rlock/policy/compute.lua"] = { "check compute", "compute_spec" },
  ["lua/rlock/recipes/compute.lua"] = { "redis/compute_spec",
    "simulate RUNS=6 COMPUTE=1", "then", "zookeeper/compute_spec" },
  ["lua/rlock/zookeeper/compute.lua"] = { "then",
    "check/zookeeper_requests_spec", "check/zookeeper_faults_spec",
    "simulate RUNS=6 COMPUTE=1 ZOOKEEPER=1", "zookeeper/compute_spec" },
  ["lua/rlock/counters/counter.lua"] = { "check/counters_spec",
    "semaphore_spec", "latch_spec", "permits_spec" },
}
