--- What is sent for an operation, without a server.

local redis_node = require "rlock.redis.node"
local remote = require "rlock.redis.remote"

describe("a server that is busy", function()
  local function told(detail, suspect)
    local node = { seals = { mode = "kill" }, unanswered = suspect }
    return select(2, remote.classify(node, { name = "few.acquire", lines = {} },
      "redis", detail, "a name"))
  end

  it("is reported with the command that ends the script", function()
    assert.equal("BUSY a script runs too long on the server; few.acquire did "
      .. "not run; to end it: redis-cli function kill", told("BUSY Redis is "
      .. "busy running a script. You can only call FUNCTION KILL or SHUTDOWN"))
  end)

  it("is reported by its own message if nothing can end that", function()
    assert.equal("BUSY Redis is busy running a module command (few.acquire)",
      told("BUSY Redis is busy running a module command"))
  end)
end)

describe("a redirection", function()
  local function classified(options)
    local node = { seals = { mode = "kill" }, options = options }
    local class, detail = remote.classify(node,
      { name = "few.acquire", lines = {} }, "redis", "MOVED 1 there:1", "name")
    return class.code, detail
  end

  it("of one server says which URL to use", function()
    local code, detail = classified {}
    assert.equal("refused", code)
    assert.matches("redis+cluster://", detail, 1, true)
  end)

  it("of a cluster goes on until the time is over", function()
    assert.same({ "timeout", 'MOVED 1 there:1 for "name": the nodes of the '
      .. "cluster keep redirecting it" }, { classified { seeds = {} } })
  end)
end)

describe("the script of an operation", function()
  local function load_from(reply)
    local node = {
      host = { now = function() return 0 end }, options = { timeout = 1 },
      singleflight = { join = function(_, _, _, fn, ...) return fn(...) end },
      shas = {}, seals = { mode = "kill" }, load = redis_node.load,
      call = function() return reply, nil, nil, 0 end,
    }
    local op = { text = "return 1" }
    local sha, code = remote.sha(node, op, 1)
    return sha, code, node.shas[op]
  end

  it("is known by what the server called it", function()
    assert.same({ "abc", nil, "abc" }, { load_from("abc") })
  end)

  it("is not known when the server answers something else", function()
    for _, reply in ipairs { true, 1, {}, false } do
      assert.same({ nil, "redis" }, { load_from(reply) })
    end
  end)
end)
