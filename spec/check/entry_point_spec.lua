--- The public modules of two hosts in one process: they share nothing.

local entry_point = require "rlock.host.uv.entry_point"
local stage = require "spec.simulate.stage"

-- A test: fn(stage, the hosts, their modules, functions that close their
-- clients).
local function between_two(name, fn)
  it(name, function()
    stage.play(function(self)
      local hosts = { self.host, self:add_host "client2" }
      local modules, closers = {}, {}
      for i, host in ipairs(hosts) do
        modules[i], closers[i] = entry_point(host)
      end
      fn(self, hosts, modules, closers)
    end)
  end)
end

-- Runs fn(...) as a task of a host. Returns its results.
local function within(self, host, fn, ...)
  local task = host.spawn(fn, ...)
  while not task.over do self.sleep(0.1) end
  return table.unpack(task.results, 1, task.results.n)
end

local URL = "redis://redis1"

describe("the modules of two hosts", function()
  between_two("have their own defaults", function(self, hosts, modules)
    modules[1].default_url = URL
    modules[2].default_url = "redis://nobody"
    assert.is_truthy(within(self, hosts[1], modules[1].open))
    local _, code, detail = within(self, hosts[2], modules[2].open)
    assert.equal("connect", code)
    assert.matches("nobody", detail)
  end)

  between_two("close and count only their own clients", function(self, hosts,
      modules, closers)
    local clients = {}
    for i, host in ipairs(hosts) do
      clients[i] = assert(within(self, host, modules[i].open, URL))
      for _ = 1, i do
        assert(within(self, host, function()
          return clients[i]:lock("name"):with(function() return true end)
        end))
      end
    end
    within(self, hosts[1], closers[1])
    assert.is_true(clients[1].session.is_closed)
    assert.is_false(clients[2].session.is_closed)
    for i, module in ipairs(modules) do
      assert.matches(("rlock_acquired_total{kind=\"reentrant\"} %d\n")
        :format(i), module.metrics())
    end
  end)

  between_two("close clients in the order in which they were opened", function(
      self, hosts, modules, closers)
    local clients, order = {}, {}
    for i = 1, 5 do
      clients[i] = assert(within(self, hosts[1], modules[1].open, URL))
      clients[i].session.close = function() order[#order + 1] = i end
    end
    within(self, hosts[1], closers[1])
    assert.same({ 1, 2, 3, 4, 5 }, order)
    assert.equal(5, #clients)
  end)

  between_two("run commands and the local server by their hosts", function(self,
      hosts, modules)
    hosts[1].start_local = function(host, options)
      assert.equal(hosts[1], host)
      options.host, options.port, options.is_local = "redis1", 6379, nil
      return options
    end
    hosts[1].exec = function(words) return #words end
    assert.is_truthy(within(self, hosts[1], modules[1].open, "local:"))
    assert.equal(2, modules[1].exec { "a", "b" })
  end)
end)

describe("a local server that dies while a client connects", function()
  between_two("is started again, once", function(self, hosts, modules)
    for i, host in ipairs(hosts) do
      local starts = 0
      function host.start_local(_, options)
        starts = starts + 1
        options.host, options.port = starts > i and "redis1" or "nobody", 6379
        return options
      end
      local client, code = within(self, host, modules[i].open, "local:")
      assert.same({ 2, i == 1, i == 2 and "connect" or nil },
        { starts, client ~= nil, code })
    end
  end)
end)
