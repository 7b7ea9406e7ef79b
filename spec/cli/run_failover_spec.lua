--- rlockctl run while Sentinel fails over to another server.
--- #long

local alive = require "spec.tools.alive"
local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local sentinel = require "spec.tools.sentinel"
local slow = require "spec.tools.slow"

local set

setup(function() set = sentinel.start { replicas = 1, sentinels = 1,
  quorum = 1 } end)
teardown(function()
  set:stop()
  ctl.clean()
end)

local function start(words)
  local running = ctl.start { "run", "run:failover", "--ttl",
    ("%gs"):format(6 * slow), "-c", words, url = set.url,
    limit = 40 * slow }
  running:says("in")
  return running
end

local function is_everywhere()
  for _, server in ipairs(set.servers) do
    if server:cli("EXISTS", "run:failover") ~= "1" then return false end
  end
  return true
end

describe("rlockctl run", function()
  it("goes on after a failover, if the new server has the lock", function()
    local path = ctl.folder() .. "/end"
    local running = start(("echo in; while [ ! -e %s ]; do sleep 0.01; done")
      :format(path))
    eventually(is_everywhere, 10 * slow, "the replica has the lock")
    set:fail_over()
    eventually(function()
      return running:err():find("at risk", 1, true)
    end, 10 * slow, "it notices")
    ctl.file("end", "")
    local result = running:wait()
    assert.equal(0, result.status, result.err)
    assert.equal("0", set:master():cli("EXISTS", "run:failover"))
  end)

  it("stops the command if the new server lacks the lock", function()
    set:settle()
    set:cut(set:master())
    local running = start "echo in $$; exec sleep 60"
    local pid = running:out():match("in (%d+)")
    set:fail_over()
    local result = running:wait()
    assert.equal(203, result.status, result.err)
    assert.is_false(alive(tonumber(pid)))
  end)
end)
