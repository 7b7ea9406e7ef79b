--- The server's time for our requests, by its own statistics. The server must
--- be private: they are reset.

local server_time = {}

-- The statistics since the last reset: our requests, the commands inside them,
-- and microseconds.
local function read_stats(client)
  local text = assert(client:call("INFO", "commandstats"))
  local requests, commands, usec = 0, 0, 0
  for name, calls, time in text:gmatch(
      "cmdstat_([^:]+):calls=(%d+),usec=(%d+)") do
    if name == "evalsha" then
      requests, usec = tonumber(calls), tonumber(time)
    elseif name ~= "info" and name ~= "config|resetstat" then
      commands = commands + tonumber(calls)
    end
  end
  return requests, commands, usec
end

--- Measures fn(1) to fn(times), after fn(0) has loaded the scripts.
---@param client table
---@param times integer
---@param fn function
---@param batches? integer default: 10
---@return table # per call of fn: requests, commands inside them, and usec in
---  the fastest batch, the one with the least contention for the processor
function server_time.of(client, times, fn, batches)
  local cost, each = { requests = 0, commands = 0, usec = math.huge },
    math.max(times // (batches or 10), 1)
  fn(0)
  for first = 1, times, each do
    local last = math.min(first + each - 1, times)
    assert(client:call("CONFIG", "RESETSTAT"))
    for i = first, last do fn(i) end
    local requests, commands, usec = read_stats(client)
    cost.requests = cost.requests + requests / times
    cost.commands = cost.commands + commands / times
    cost.usec = math.min(cost.usec, usec / (last - first + 1))
  end
  return cost
end

return server_time
