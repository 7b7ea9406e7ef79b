--- Runs a function in its own simulation, for specs: one process, one server
--- and a virtual clock. During the run, `require "rlock"` has the functions of
--- the simulated process, even in modules that were loaded before.

local check = require "rlock.util.options"
local entry_point = require "rlock.host.uv.entry_point"
local environment = require "rlockctl.simulate.environment"
local network = require "rlockctl.simulate.network"
local order = require "rlockctl.simulate.order"
local process = require "rlockctl.simulate.process"
local sandbox = require "rlock.script.sandbox"
local sim = require "rlockctl.model.host"
local unwind = require "rlock.host.uv.unwind"

local virtual = {}

local SPAN = 86400                      -- seconds

sandbox.stand_in(order.pairs, "pairs")

local check_options = check.table({
  seed = check.that("a whole number", math.tointeger),
  span = check.duration(0, 1e9),
}, "a table such as { seed = 1 }", "simulate.run")

-- The fields to replace during a run: a list of { table, key, value }.
local function replacements(host, rlock)
  local list = { { _G, "pairs", order.pairs }, { os, "exit", host.exit } }
  local own = { os = {}, math = {} }
  environment.add_time(own, { host = host, began = host.now() })
  environment.add_random(own, { host = host })
  for to, from in next, { [os] = own.os, [math] = own.math,
      [require "rlock"] = rlock } do
    for key, value in next, from do list[#list + 1] = { to, key, value } end
  end
  return list
end

-- Swaps the fields with their replacements. A second call restores them.
local function exchange(list)
  for _, entry in ipairs(list) do
    local to, key = entry[1], entry[2]
    entry[3], to[key] = to[key], entry[3]
  end
end

-- The options of rlock.open. A URL of a cluster or of Sentinels is replaced by
-- that of the one server.
local function one_server(options)
  local url = type(options) == "table" and options.url or options
  if type(url) ~= "string" then return options end
  if url:find "^zks?:" then
    error("simulate.run has no ZooKeeper, only Redis", 3)
  elseif not url:find "^rediss?%+" then
    return options
  end
  local own = { url = "redis://redis" }
  for key, value in next, type(options) == "table" and options or own do
    if key ~= "url" and key ~= "sentinel" then own[key] = value end
  end
  return own
end

local function new_module(host)
  local rlock, close_all = entry_point(host)
  local open = rlock.open
  function rlock.open(options) return open(one_server(options)) end
  return rlock, close_all
end

local function new(options)
  local universe = sim.new(options.seed or 1)
  process.end_loops(universe, options.span or SPAN)
  local its = network.new(universe)
  local server = its:server "redis"
  its:lead_to(server)
  local host = universe:host { name = "spec" }
  process.adapt(host)
  return { universe = universe, server = server, host = host,
    span = options.span or SPAN }
end

-- The error that the run raises, or nil.
local function failure(self)
  local results = self.results
  if results and not results[1] and not unwind.is(results[2]) then
    return results[2]
  end
  return self.message
    or self.status and ("the program has called os.exit(%d)"):format(
      self.status)
    or not self.is_closed and ("the program has not ended after %g s of "
      .. "virtual time"):format(self.span)
    or self.host.faults[1]
end

-- Runs the program until its tasks have ended and its clients are closed.
local function play(self, close_all, fn, ...)
  local host, universe = self.host, self.universe
  host.start(function(is_done, status, message)
    self.status, self.message = not is_done and status, message
    host.daemon(function()
      close_all()
      self.is_closed, universe.is_over = true, true
    end)
  end, function(...)
    self.results = table.pack(pcall(fn, ...))
    if not self.results[1] then error(self.results[2], 0) end
  end, ...)
  universe:run(self.span)
end

local is_running = false

--- The implementation of simulate.run, which makes a tail call to it.
function virtual.run(fn, options)
  if type(fn) ~= "function" then
    error("bad argument fn of simulate.run: must be a function", 2)
  elseif is_running then
    error("simulate.run: this is a simulation already", 2)
  end
  local self = new(check_options(options))
  local rlock, close_all = new_module(self.host)
  local list = replacements(self.host, rlock)
  local function stop(seconds) self.server:freeze(seconds) end
  is_running = true
  exchange(list)
  local ok, message = pcall(play, self, close_all, fn, { stop = stop })
  exchange(list)
  is_running = false
  if not ok then error(message, 0) end
  message = failure(self)
  if message ~= nil then error(message, 0) end
  return table.unpack(self.results, 2, self.results.n)
end

return virtual
