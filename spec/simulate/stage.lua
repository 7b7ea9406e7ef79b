--- A stage for specs: simulated clients and servers, without faults or delays
--- except those that the spec makes. Time is virtual, so a spec runs at once,
--- and can state to the millisecond what is sent when.
---
---   stage.play(function(self)
---     local lock = self:client():lock "name"
---     assert(lock:lock())
---     self.sleep(20)
---     assert.same({ "0.000 acquire 30000 1", "10.000 renew 30000 1",
---       "20.000 renew 30000 1" }, self:calls())
---   end)

local batched = require "rlockctl.simulate.batched"
local client = require "rlock.client"
local network = require "rlockctl.simulate.network"
local server = require "rlockctl.simulate.server"
local sim = require "rlockctl.model.host"

local stage = {}
stage.__index = stage

local SEED = 1
local MOST = 300                        -- seconds of virtual time

-- Records the operations of policies among the commands.
local function record(self, its, words)
  local text = its.scripts[words[2]] or ""
  local name = text:match("^%-%- rlock (%S+)") or "unknown"
  local parts = batched.is(text) and batched.parts_of(words)
    or { { args = { table.unpack(words, 4 + tonumber(words[3])) } } }
  self.requests = self.requests + 1
  for _, part in ipairs(parts) do
    self.recorded[#self.recorded + 1] = {
      at = self.universe.now, operation = name:match("[%a_]+$"),
      args = part.args,
    }
  end
end

--- Adds a server.
---@param name string
function stage:add_server(name)
  local its = self.network:server(name)
  function its.execute(_, link, words)
    if words[1] == "EVALSHA" then record(self, its, words) end
    return server.execute(its, link, words)
  end
  for _, host in ipairs(self.hosts) do
    self.network:route(host, its).delay = 0
  end
  return its
end

--- Adds a process.
function stage:add_host(name)
  local host = self.universe:host { name = name }
  self.hosts[#self.hosts + 1] = host
  for _, its in ipairs(self.network.servers) do
    self.network:route(host, its).delay = 0
  end
  return host
end

--- Opens a client of the first server.
---@param given? table options of rlock.open
---@param its? table another server
---@param host? table another process; then with `lazy`
function stage:client(given, its, host)
  local options = assert(client.complete(given or {},
    "redis://" .. (its or self.server).name))
  return assert(client.open(host or self.host, options))
end

--- The way to the first server; see network.lua.
function stage:route() return self.network:route(self.host, self.server) end

--- Calls fn(...). The first server executes the next EVALSHA, but its reply is
--- lost. 10 ms later, the server closes the connection.
---@return any # what fn returns
function stage:lose_reply(fn, ...)
  local execute = self.server.execute
  function self.server.execute(its, link, words)
    if words[1] == "EVALSHA" then
      self.server.execute = execute
      link:half_open(0.01)
    end
    return execute(its, link, words)
  end
  return fn(...)
end

--- The operations sent to servers since the last call of this, each as a text:
--- time, operation, arguments without the owner. One request may have that of
--- many owners; `requests` counts these.
---@param operation? string only these
function stage:calls(operation)
  local texts = {}
  for _, call in ipairs(self.recorded) do
    if not operation or call.operation == operation then
      texts[#texts + 1] = ("%.3f %s %s"):format(call.at - self.began,
        call.operation, table.concat(call.args, " ", 2))
    end
  end
  self.recorded = {}
  return texts
end

--- What fn returned, after how long it took.
---@return number # seconds
---@return any # its results
function stage:timed(fn, ...)
  local began = self.now()
  local results = table.pack(fn(...))
  return self.now() - began, table.unpack(results, 1, results.n)
end

--- What the clients have logged since the last call of this.
function stage:logged()
  local log = self.log
  self.log = {}
  return log
end

local function new()
  local universe = sim.new(SEED)
  local self = setmetatable({
    universe = universe, network = network.new(universe), recorded = {},
    requests = 0, log = {}, began = 0, hosts = {},
  }, stage)
  function universe.on_log(_, _, text) self.log[#self.log + 1] = text end
  self.server = self:add_server "redis1"
  self.host = self:add_host "client1"
  self.now, self.sleep, self.spawn =
    self.host.now, self.host.sleep, self.host.spawn
  return self
end

--- Makes a kind of test: (name, fn, options of the client). It runs
--- fn(stage, client, session).
---@param it function of busted
---@return function
function stage.tests(it)
  return function(name, fn, options)
    it(name, function()
      stage.play(function(self)
        local its = self:client(options)
        fn(self, its, its.session)
      end)
    end)
  end
end

--- Runs fn(stage) as a task of the first process.
function stage.play(fn)
  local self, ok, why = new(), nil, nil
  self.host.spawn(function() ok, why = pcall(fn, self) end)
  while ok == nil and self.universe.now < MOST do
    self.universe:run(self.universe.now + 1)
  end
  if not ok then error(why or "the task does not end", 0) end
  assert(not self.host.faults[1], self.host.faults[1])
end

return stage
