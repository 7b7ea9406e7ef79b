--- The locks of a system, for the commands: a store for Redis and one for
--- ZooKeeper. Its functions; failures are nil, code, detail:
---   names(client, options)          the names of locks: see scan.names; and
---                                   whether there are more, and what `at`
---                                   needs, perhaps with `gap` or `failed`:
---                                   why some may be missing
---   at(client, name, known)         the states of a name, see inspect.at;
---                                   `known` is from `names`, or nil
---   by(client, name, which)         its states by the peek of a policy
---   complete(client, states, known) adds the nodes of named states and the
---                                   identities of their holders
---   locks(client, state, name, which)        its locks, or nil: a list with
---                                            break_lock(token), and the first
---                                            with request_release(reason)
---   free(client, state, name, which, owner)  releases the holds of one holder
---   waiter(client, name, which, deadline)    waits until a lock may be free:
---                                            pause(state), leave()
---   waits(client)                   the waits that clients announce, see
---                                   wait_graph.lua; and code, detail if some
---                                   may be missing
---   audit(audit)                    audits its servers for rlockctl doctor:
---                                   `client`, `name`, `policy`, `lease` in
---                                   seconds; adds a report for each server
---                                   by audit:add(...), see report.new
--- `name` is a lock's, `which` a policy or nil.

local stores = {}

--- The store of a client.
---@param client table
---@return table
function stores.of(client)
  return require("rlockctl.cli.stores."
    .. client.session.options.backend.name)
end

return stores
