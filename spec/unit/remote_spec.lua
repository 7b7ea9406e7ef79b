--- What is sent for an operation, without a server.

local remote = require "rlock.remote"

describe("the script of an operation", function()
  local function load_from(reply)
    local node = {
      host = { now = function() return 0 end }, options = { timeout = 1 },
      flights = { join = function(_, _, _, fn, ...) return fn(...) end },
      shas = {}, seals = { mode = "kill" },
      call = function() return reply, 0 end,
    }
    local op = { text = "return 1" }
    local sha, code = remote.sha(node, op, 1)
    return sha, code, node.shas[op]
  end

  it("is known by what the server called it", function()
    assert.same({ "abc", 0, "abc" }, { load_from("abc") })
  end)

  it("is not known when the server answers something else", function()
    for _, reply in ipairs { true, 1, {}, false } do
      assert.same({ nil, "redis" }, { load_from(reply) })
    end
  end)
end)
