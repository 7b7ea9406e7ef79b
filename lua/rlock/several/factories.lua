--- What both entry points offer besides clients: locks made of several locks,
--- and deadlines. Their modules are loaded on first use. Nothing here is a tail
--- call, which would hide the line of the program from an error message.

--- What both entry points have.
---@class rlock.entry_point
---@field deadline fun(seconds: number): rlock.deadline
---@field multi_lock fun(locks: rlock.lock[]): rlock.multi_lock
---@field red_lock fun(servers: rlock.client[], name: string,
---   options?: rlock.red_lock_options): rlock.red_lock

---@param rlock rlock.entry_point gets the functions
---@param now fun(): number of the host
return function(rlock, now)
  --- A deadline to pass as `wait` to several calls. A call after it returns
  --- nil, "timeout" without sending a request.
  ---@param seconds number from now
  ---@return rlock.deadline
  function rlock.deadline(seconds)
    return (require("rlock.util.deadline").new(now, seconds))
  end

  --- Several locks as one: all or none are held, see multi.lua.
  ---@param locks rlock.lock[] of any kinds and clients
  ---@param options? nil it has none
  ---@return rlock.multi_lock
  function rlock.multi_lock(locks, options)
    return (require("rlock.several.multi").new(locks, options))
  end

  --- A lock on a majority of independent Redis servers, see quorum.lua.
  ---@param servers rlock.client[] one for each server
  ---@param name string
  ---@param options? rlock.red_lock_options
  ---@return any
  function rlock.red_lock(servers, name, options)
    return (require("rlock.several.quorum").new(servers, name, options))
  end
end
