--- rlockctl status: the kind of lock under a name, its holders and waiters.

local json = require "rlockctl.cli.json"
local lookup = require "rlockctl.cli.lookup"
local text = require "rlockctl.cli.text"

local status = {}

status.usage = [[
rlockctl status NAME [--policy POLICY] [--json]

Shows the lock, semaphore, permits or latch of that name: its holders, with
their counts and remaining leases; its waiters, in order if it is fair; its
fencing token, if it has one; its node, with Sentinel or in a cluster. Lists are
truncated after about 100 entries. It changes nothing.

Some kinds look alike in Redis: mutexes, spin locks, and Redisson's fair locks
without waiters look like reentrant locks, a semaphore without waiters like a
latch. Each member of a multi-lock or red lock is shown as a lock by itself.

A key that may belong to another program is "unknown": a whole number without
waiters and without a request of rlock in the last ten minutes; and a string
that expires, unless it is an id of rlock, or a token like those of redis-py,
redsync and node-redlock. A hash whose owner is no id of rlock or Redisson, as
with the option `owner`, is shown with a warning; `rlockctl break` refuses it.
`--policy KIND`, such as `--policy simple`, says that it is a lock.

On ZooKeeper, the names of the nodes below NAME tell the kind: locks, fair and
fenced locks look the same ("reentrant"), and a semaphore of Curator's without a
SharedCount looks like a mutex while one permit is taken. Holders that rlock did
not make are shown by their address.

  --policy POLICY  use the "peek" of a policy: a built-in kind, or a module of
                   your own on package.path (see --lua-path). Not with zk://
  --json           print one object per line, one for each kind found
  --server         replaced by `rlockctl doctor`

Exit status: 0 held, 3 free, 4 unknown. A semaphore or permits are free while
some are available, a latch when it is open. A number in Redis that may be
either is unknown: with --policy semaphore it is free, with --policy latch held.
]]

status.options = {
  ["--json"] = { "json" }, ["--policy"] = { "policy", "POLICY" },
  ["--server"] = { "server" },
}

local show = text.show

local HELD, FREE, UNKNOWN = 0, 3, 4     -- exit statuses

local verbs = { read = "read by", write = "written by" }

local function title_of(state)
  local line = ("%s is %s"):format(show(state.name), state.state or state.count)
  if state.title then line = line .. ": " .. state.title end
  if state.kind == "unknown" then
    return state.count and ("%s (%.0f)"):format(line, state.count) or line
  end
  if state.state and state.count then line = line .. " at " .. state.count end
  if state.available then
    line = ("%s, %.0f available"):format(line, state.available)
  end
  if state.in_use then line = ("%s, %.0f in use"):format(line, state.in_use) end
  return line
end

-- With the owner id, if `rlockctl break --holder` may need it.
local function shows_id(holder, state)
  return (holder.who or holder.address)
    and (state.in_use or holder.mode == "read")
end

local function holder_of(holder, state)
  local line = ("  %s %s"):format(verbs[holder.mode] or "held by",
    text.who(holder))
  if shows_id(holder, state) then
    line = ("%s, id %s"):format(line, text.bare(holder.owner))
  end
  if holder.count then
    line = ("%s, %.0f time%s"):format(line, holder.count,
      holder.count == 1 and "" or "s")
  elseif holder.ttl then
    line = ("%s for %.1f s more"):format(line, holder.ttl)
  end
  return line
end

local function waiter_of(waiter, i)
  return ("  %d. in line: %s%s%s"):format(i, text.who(waiter),
    waiter.mode and ", to " .. waiter.mode or "",
    waiter.waited and (", for %.1f s"):format(waiter.waited) or "")
end

local function location_of(state)
  if state.master then
    return ("  on %s, the master of %s"):format(state.node, state.master)
  elseif state.slot then
    return ("  in slot %d, on %s"):format(state.slot, state.node)
  end
end

local function end_of(state)
  if state.ttl then
    return ("  for %.1f s more, unless it is renewed"):format(state.ttl)
  elseif state.ends_with == "session" then
    return "  until it is released, or its session ends"
  elseif state.state == "held" and state.holders[1] and not state.in_use then
    return "  without an expiry"
  end
end

local function crowd_of(state)
  if not state.queue and (state.waiters or 0) > 0 then
    return ("  %d client%s waiting for it"):format(state.waiters,
      state.waiters == 1 and " is" or "s are")
  end
end

-- How to read a key of unknown origin.
local function hint_of(state)
  local kinds = state.may_be or {}
  return kinds[1] and "  give --policy " .. table.concat(kinds, " or ")
    .. " if it is one"
end

--- A state in readable form.
---@param state table from lookup.states
---@return table # lines
function status.lines(state)
  local lines = { title_of(state) }
  local function add(line) lines[#lines + 1] = line end
  add(location_of(state))
  for _, holder in ipairs(state.holders) do
    add(holder_of(holder, state))
  end
  add(end_of(state))
  add(state.token and "  token " .. state.token)
  for i, waiter in ipairs(state.queue or {}) do add(waiter_of(waiter, i)) end
  add(crowd_of(state))
  add(state.doubt and "  " .. state.doubt)
  add(hint_of(state))
  return lines
end

--- Prints a state in readable form.
function status.print(state) print(table.concat(status.lines(state), "\n")) end

function status.run(cli, operands, chosen)
  if chosen.server then
    return cli.fault("usage", "status: --server is now rlockctl doctor, with "
      .. "a name rlockctl doctor --name NAME")
  end
  local client, name = lookup.open(cli, "status", operands)
  if not client then return name end
  local states, code, detail = lookup.states(client, name, chosen.policy)
  if not states then return lookup.fault(cli, "status", name, code, detail) end
  for _, state in ipairs(states) do
    if chosen.json then print(json(text.record(state))) end
    if not chosen.json then status.print(state) end
  end
  -- What may be a semaphore or a latch has no state.
  local state = states[1].state or "unknown"
  if state == "unknown" then return UNKNOWN end
  return lookup.is_free(states) and FREE or HELD
end

return status
