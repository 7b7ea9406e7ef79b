--- Lines that simulated runs never, or rarely, reach. For each file of
--  the client: lists of lines, as "function: text", each with a reason.
--  "function: *" stands for all lines of a function. See coverage.lua.

local MISUSE = "raised for wrong arguments; spec/redis/refusals_spec.lua"
local NGINX = "only on a host that ends tasks at any moment; spec/openresty"
local END = "at the end of a program; spec/redis/close_spec.lua, spec/cli"
local MALFORMED = "replies that built-in policies never give; "
  .. "spec/redis/own_policies_spec.lua"
local RARE = "reached in few runs only"
local SEVERAL = "in a cluster, behind Sentinels or with replicas, which these "
  .. "runs lack; spec/redis/cluster_spec.lua, sentinel_spec.lua, "
  .. "replicas_spec.lua"

return {
  lock = {
    { "no call here has a deadline; spec/redis/cancel_spec.lua",
      [[take: return not_held(self, granted, "timeout", PASSED)]] },
    { "the policies here have all operations",
      [[run: return nil, "usage", ("policy %q has no server.%s, needed here")]],
      "run: :format(self.site.policy.name, name)" },
    { MALFORMED, "break_lock: if not verdict then return nil, value, fault end",
      [[peek: if not told then return nil, "redis", fault end]] },
    { RARE, "break_lock: *", "token: *" },
  },
  grant = {
    { "the policies here have all operations",
      [[may_enter: return nil, "usage", self:show() .. ]]
        .. [[": its policy has no server.renew; "]],
      [[may_enter: .. "give a lease, such as { lease = 10 }"]] },
    { MALFORMED,
      "interpret: verdict, value, detail = verdicts.wrong(op, reply)",
      "interpret: settle(self, lease or session.lease)",
      "interpret: return nil, value, detail",
      "send_release: if want == 0 then forget(self) end",
      "send_release: return verdicts.wrong(site.policy.ops.release, reply)" },
    { NGINX, "give_up: *", "accepted: ok, code, detail = nil, \"closed\", "
      .. "\"the task has ended\"" },
    { "a task unlocks what it holds, once: spec/redis/reentrant_spec.lua",
      "last_of: return holds[#holds]",
      [[send_release: return nil, "not_held", ]]
        .. [["this task does not hold the lock"]],
      "when_lost: return false" },
    { "the closing bracket of a table, with no instruction on some paths",
      "extra_of: }" },
    { RARE, [[interpret: elseif verdict == "refused" then]],
      [[interpret: return nil, "refused", value]],
      "wait_for_turn: self:pass_turn()                    "
        .. "-- the turn came as the wait ended",
      [[wait_for_turn: return nil, code or "timeout", ]]
        .. [[unwind or "no time left"]], [[interpret: return "busy", 0]],
      "release_later: *", "background: *",
      "release: local is_ours, code, detail = wait_for_turn(self, deadline)",
      "release: if not is_ours then",
      "release: if hold then release_later(self, hold) end",
      "release: return nil, code, detail",
      "when_lost: session.host.spawn(fn, object, self.lost_because)",
      "when_lost: return true" },
  },
  watchdog = {
    { MALFORMED, "answered: local _, _, why = "
      .. "verdicts.wrong(grant.lock.site.policy.ops.renew, reply)",
      "answered: not_renewed(self, grant, why, self.host.now())" },
    { "four batches of 256 renewals are in flight: "
      .. "spec/redis/watchdog_spec.lua",
      "report_losses: *", "run: deadline = report_losses(self, now)" },
    { END, "retire: *" },
    { SEVERAL, "renew_elsewhere: *", "daemon: *",
      "handle_reply: self.session.node:redirect(detail, batch.node)",
      "handle_reply: renew_elsewhere(self, batch, grant)",
      "collect: retry_at(self, grant, now)", "has_routes: *" },
    { RARE, "answered: self:lose(grant, why)",
      "collect: grant.deadline = grant.valid_until",
      "collect: self.alarms:push(grant)",
      "observe: self.change:set()                   -- schedules a sweep" },
  },
  wakeup = {
    { END, "wind_down: *" },
    { SEVERAL, "is_echo: *", "moved: *", "reconnect: *", "rehome: *" },
    { RARE, "wake_sharers: *", "pass: other = other.next" },
  },
  ["several/joint"] = {
    { MISUSE, "check_list: *", [[function: error(("%s has no %s: ]]
      .. [[ask its members"):format(self:show(), name), 2)]] },
    { "the policies here have all operations",
      [[count: return nil, "usage", ("policy %q has no server.peek, ]]
        .. [[needed here")]], "count: :format(site.policy.name)" },
    { NGINX, "take: self:release_parts(hold)",
      [[take: return nil, "closed", "the task has ended"]] },
    { "a task unlocks its hold() by the object: spec/redis/multi_spec.lua",
      "release: local holds = self.joint.held[self.party]",
      "release: for i = #holds, 1, -1 do",
      "release: if not holds[i].object then return holds[i]:release() end" },
    { RARE, "lose: self.host.spawn(callback.fn, callback.object, reason)",
      "when_lost: self.joint.host.spawn(fn, object, self.lost_because)",
      "when_lost: return true" },
  },
  ["several/multi"] = {
    { MISUSE, "is_same: *", "place_once: *",
      [[ordered: error(("bad member %d of multi_lock: must be a lock of a ]]
        .. [[client"):format(]], "ordered: i), level + 1)" },
    { RARE, [[request_all: return nil, "busy", self:show() .. ]]
        .. [[": the lease ended before all were held"]],
      "wait_on: return nil, code, detail",
      "wait_on: ok, problem, unwind = jitter(self, try)",
      [[wait_on: code = "timeout"]], "is_held: *", "state_of: *",
      "release_parts: *", "when_lost: *", "show: *" },
  },
  ["several/quorum"] = {
    { MISUSE, "unsound: *", "check_clients: *" },
    { "no run gives this option: spec/redis/quorum_spec.lua", "that: *" },
    { RARE, "may_enter: *", "without_part: dead[#dead + 1] = part",
      [[release_parts: return nil, "lost", "its lease has ended"]],
      "release_parts: return true", [[is_held: return nil, "quorum", ]]
        .. "round:explain()" },
  },
  ["several/round"] = { { RARE, [[outcome: code = "refused"]] } },
  ["several/server_identity"] = {
    { "each server of a red lock is another: spec/redis/quorum_spec.lua",
      "bond: *", "clash: *" },
    { RARE, "note: server.forgot = now" },
  },
  ["redis/errors"] = {
    { SEVERAL, "ERR ^WAIT cannot be used", "replicas" },
  },
}
