--- What both entry points offer besides clients: locks made of several locks,
--  and deadlines. Their modules are loaded on first use. Nothing here is a tail
--  call, which would hide the line of the program from an error message.

--- @tparam table rlock gets the functions
-- @tparam function now of the host
return function(rlock, now)
  --- A deadline to pass as `wait` to several calls. A call after it returns
  --  nil, "timeout" without sending a request.
  -- @tparam number seconds from now
  -- @return the deadline; `deadline:left()`: seconds until then, or 0
  function rlock.deadline(seconds)
    return (require("rlock.util.deadline").new(now, seconds))
  end

  --- Several locks as one: all or none are held, see multi.lua.
  -- @tparam table locks an array of locks, of any kinds and clients
  -- @return a lock
  function rlock.multi_lock(locks)
    return (require("rlock.several.multi").new(locks))
  end

  --- A lock on a majority of independent Redis servers, see quorum.lua.
  -- @tparam table servers an array of clients, one for each server
  -- @tparam string name
  -- @tparam[opt] table options policy = "reentrant" | "simple", drift = 0.01,
  --   node_timeout = 0.05
  -- @return a lock
  function rlock.red_lock(servers, name, options)
    return (require("rlock.several.quorum").new(servers, name, options))
  end
end
