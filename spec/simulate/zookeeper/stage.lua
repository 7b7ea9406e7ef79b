--- A stage for specs: clients of a simulated ZooKeeper, without faults except
--- those that the spec makes. Time is virtual.
---
---   stage.play(1, function(self)
---     local lock = self.open():lock "a"
---     assert(lock:lock())
---     assert.same({ "0.00 sync /", ... }, self.requests())
---   end)

local client = require "rlock.client"
local codec = require "rlock.zookeeper.codec"
local network = require "rlockctl.simulate.network"
local oracle = require "spec.simulate.oracle"
local scene = require "spec.simulate.zookeeper.scene"
local sim = require "rlockctl.model.host"

local stage = {}

local SECONDS = 60                      -- of virtual time

-- recording -------------------------------------------------------------------

local ops, NAMES = codec.ops, {}
for name, op in pairs(ops) do NAMES[op] = name end

local WITH_VERSION = { [ops.delete] = true, [ops.check] = true }

-- A request as text. A node's name is reduced to its mark and its number.
local function show(op, its)
  local words = { NAMES[op] }
  if op == ops.multi then
    local parts, part, is_last = {}, its:int(), its:bool()
    while not is_last do
      its:int()
      parts[#parts + 1] = show(part, its)
      part, is_last = its:int(), its:bool()
    end
    return "multi " .. table.concat(parts, " and ")
  end
  words[2] = op ~= ops.close and its:text() or nil
  if op == ops.create2 or op == ops.create_container or op == ops.set then
    its:text()                          -- the data
  end
  if op == ops.create2 or op == ops.create_container then
    for _ = 1, its:int() do its:int() its:text() its:text() end
    words[3] = ("%d"):format(its:int())
  elseif WITH_VERSION[op] or op == ops.set then
    local version = its:int()
    words[3] = version ~= -1 and ("%d"):format(version) or nil
  elseif op ~= ops.sync and its:bool() then
    words[3] = "watch"
  end
  return (table.concat(words, " "):gsub("_c_[%x-]+%-", "")
    :gsub(("%d"):rep(10), function(digits) return ("%d"):format(digits) end))
end

-- Records what clients request from now on.
local function record(self, ensemble)
  local on_request, list, began = ensemble.on_request, {}, 0
  function ensemble.on_request(server, item)
    if item.link then
      list[#list + 1] = ("%.2f %s%s"):format(self.universe.now - began,
        show(item.op, codec.reader(item.body or "")),
        item.err ~= 0 and " = " .. item.err or "")
    end
    return on_request(server, item)
  end
  local on_session, seen = ensemble.on_session, {}
  function ensemble.on_session(server, link, session, timeout)
    list[#list + 1] = ("%.2f session of %d ms, %s"):format(
      self.universe.now - began, timeout, seen[session] and "again" or "new")
    seen[session] = true
    return on_session(server, link, session, timeout)
  end
  function self.requests()
    local texts = list
    list, began = {}, self.universe.now
    return texts
  end
end

-- playing ---------------------------------------------------------------------

local function options_of(fields)
  local all = { watchdog = 2, timeout = 0.5, connect_timeout = 0.5,
    lazy = true }
  for name, value in pairs(fields or {}) do all[name] = value end
  return all
end

--- Runs fn(self) as a task of a client's process. Fields of self: `universe`,
--- `ensemble`, `network`, `host`; open([options[, host]]) opens a client;
--- add_host(name) adds a process; requests() returns the requests since its
--- last call, as texts: seconds since then, the request, and its error; `log`,
--- a list of texts.
---@param servers integer
---@param fn function
function stage.play(servers, fn)
  local universe = sim.new(1)
  local own = network.new(universe)
  local its = scene.new({ network = own, universe = universe,
    only = { servers = servers, tick = 0.5 }, servers = {}, things = {},
    processes = {}, by_key = {}, oracle = oracle.new(universe),
  }, function() return 0.9 end)
  local self, ok, why =
    { ensemble = its.ensemble, network = own, universe = universe, log = {} }
  record(self, its.ensemble)
  function universe.on_log(_, _, text) self.log[#self.log + 1] = text end
  function self.open(fields, host)
    host = host or self.host
    its:connect(host)
    return assert(client.open(host, assert(client.complete(options_of(fields),
      its:url()))))
  end
  function self.add_host(name) return universe:host { name = name } end
  self.host = self.add_host "client"
  self.host.spawn(function() ok, why = pcall(fn, self) end)
  universe:run(SECONDS)
  if not ok then error(why or "the task does not end", 0) end
end

return stage
