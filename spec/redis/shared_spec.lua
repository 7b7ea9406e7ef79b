--- The functions that policies share (policy/shared.lua), in a policy of ours.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local servers = require "spec.tools.redis"
local shared = require "rlock.policy.shared"
local states = require "spec.tools.states"

local is_done, now, tell, whole =
  shared.is_done, shared.now, shared.tell, shared.whole
local server = servers.shared()
-- luacheck: read_globals redis
local commands = {}                     -- runs inside Redis

function commands.tell(keys, args)
  tell(args[1], keys[1], args[2])
  return { "told" }
end

function commands.now() return { "now", now() } end

function commands.whole(keys) return { tostring(whole(keys[1])) } end

function commands.whole_of(keys)
  local value = redis.call("mget", keys[1])[1]
  return { tostring(whole(keys[1], value)) }
end

function commands.is_done(keys, args)
  return { is_done(keys[1], args[1]) and "yes" or "no" }
end

describe("rlock.policy.shared", function()
  local client, ops, name

  before_each(function()
    client, name = fixtures.open(server.url), fixtures.name "shared"
    ops = states.of(client, {
      name = "shared", server = commands, keys = function(of) return { of } end,
      needs = { tell = {}, now = {}, whole = {}, whole_of = {}, is_done = {} },
    })
  end)

  after_each(fixtures.close)

  it("publishes once, by the given command", function()
    local heard = fixtures.listen(server, { name })
    for _, publish in ipairs { "publish", "spublish", "both", "publish" } do
      ops.ask(name, "tell", publish, publish)
    end
    eventually(function() return heard[3] end)
    assert.same({ "publish", "both", "publish" }, heard)
  end)

  it("returns the server's time in milliseconds", function()
    local before = client:call("TIME")
    local time = ops.ask(name, "now")[2]
    local after = client:call("TIME")
    assert.is_true(time >= before[1] * 1000 + before[2] // 1000)
    assert.is_true(time <= after[1] * 1000 + after[2] // 1000)
  end)

  it("reads whole numbers, and nothing else", function()
    for _, row in ipairs {
      { nil, "0" }, { "0", "0" }, { "5", "5" }, { "-3", "-3" },
      { "2147483647", "2147483647" },
    } do
      if row[1] then client:call("SET", name, row[1]) end
      for _, op in ipairs { "whole", "whole_of" } do
        assert.same({ row[2] }, ops.ask(name, op))
      end
    end
    for _, odd in ipairs { "1.5", "no number", "" } do
      client:call("SET", name, odd)
      for _, op in ipairs { "whole", "whole_of" } do
        local reply, code, detail = ops.ask(name, op)
        assert.same({ nil, "redis" }, { reply, code })
        assert.matches("not an integer", detail)
      end
    end
    client:call("DEL", name)
    client:call("HSET", name, "a", "b")
    for _, op in ipairs { "whole", "whole_of" } do
      local _, _, detail = ops.ask(name, op)
      assert.matches("WRONGTYPE", detail)
    end
  end)

  it("knows whether this or a later request was applied", function()
    ops.play(name, "is_done 1 no")
    client:call("SET", name, "10")
    ops.play(name, [[
      is_done 9  yes
      is_done 10 yes
      is_done 11 no
    ]])
  end)
end)
