--- The words of commands that rlock sends: of the handshake, of EVALSHA, and
--- the positions of the keys in a user's command.

local command_keys = require "rlock.redis.command_keys"
local evalsha = require "rlock.redis.evalsha"
local handshake = require "rlock.redis.handshake"

local unpack = table.unpack or unpack

local function text_of(commands)
  local list = {}
  for i, words in ipairs(commands) do list[i] = table.concat(words, " ") end
  return table.concat(list, ", ")
end

describe("the handshake", function()
  it("has the login, the database and the name", function()
    for options, expected in pairs {
      [{}] = "",
      [{ db = 0 }] = "",
      [{ db = 3 }] = "SELECT 3, ",
      [{ password = "p" }] = "AUTH p, ",
      [{ username = "u", password = "p", db = 1 }] = "AUTH u p, SELECT 1, ",
      [{ username = "u" }] = "AUTH u , ",
    } do
      options.connection_name = "its-name"
      assert.equal(expected .. "CLIENT SETNAME its-name",
        text_of(handshake(options)))
    end
    assert.equal("CLIENT SETNAME other", text_of(handshake { name = "other" }))
  end)
end)

describe("EVALSHA", function()
  local function words(...)
    local list = {}
    local n = evalsha(list, "sha", ...)
    assert.equal(#list, n)
    return table.concat(list, " ")
  end

  it("has the keys and the arguments, and their number", function()
    assert.equal("EVALSHA sha 1 k", words { "k" })
    assert.equal("EVALSHA sha 2 k l a b c d",
      words({ "k", "l" }, "a", "b", "c", "d"))
    assert.equal("EVALSHA sha 1 k a", words({ "k" }, "a"))
    assert.equal("EVALSHA sha 1 k a b", words({ "k" }, "a", "b"))
    assert.equal("EVALSHA sha 1 k a b c", words({ "k" }, "a", "b", "c"))
    assert.equal("EVALSHA sha 1 k a x y",
      words({ "k" }, "a", nil, nil, nil, { "x", "y" }))
  end)

  it("has up to 99 keys", function()
    local keys = {}
    for i = 1, 99 do keys[i] = "k" .. i end
    assert.match("^EVALSHA sha 99 k1 .* k99 a$", words(keys, "a"))
  end)
end)

describe("the keys of a command", function()
  -- A server that answers COMMAND INFO and COMMAND GETKEYS with these; counts
  -- its commands.
  local function server(info, keys)
    local its = { asked = {} }
    function its.any() return its end
    function its.call(_, _, words, n)
      assert.equal(#words, n)
      its.asked[#its.asked + 1] = table.concat(words, " ")
      local reply = words[2] == "INFO" and info or keys
      if type(reply) == "string" then return nil, reply:match "^(%S+) (.*)$" end
      return reply
    end
    return its
  end

  local function about(first, last, step, flags, subcommands)
    return { { "name", 2, flags or {}, first, last, step, {}, {}, {},
      subcommands } }
  end

  local function keys_of(its, ...)
    local words = { ... }
    local keys, code, detail = command_keys.of(its, 1, words, #words)
    return keys and table.concat(keys, " "), code, detail
  end

  it("are where COMMAND INFO says", function()
    for expected, row in pairs {
      a = { about(1, 1, 1), "GET", "a" },
      ["a c"] = { about(1, -1, 2), "MSET", "a", 1, "c", 2 },
      ["a b 3"] = { about(1, -1, 1), "DEL", "a", "b", 3 },
      ["b c"] = { about(2, -2, 1), "BLPOP", "a", "b", "c", 0 },
      [""] = { about(0, 0, 0), "PING", "a" },
      ["b"] = { about(2, 5, 1), "X", "a", "b" },
    } do
      local its = server(row[1])
      assert.equal(expected, keys_of(its, unpack(row, 2)))
      assert.same({ "COMMAND INFO " .. row[2] }, its.asked)
    end
    assert.equal("", keys_of(server(about(1, 1, 0)), "GET", "a"))
    assert.equal("", keys_of(server(about(1, 0, 1)), "GET", "a"))
  end)

  it("are cached for each command, in any letter case", function()
    local its = server(about(1, 1, 1))
    assert.equal("a", keys_of(its, "get", "a"))
    assert.equal("b", keys_of(its, "GET", "b"))
    assert.same({ "COMMAND INFO GET" }, its.asked)
  end)

  it("are requested each time if their positions vary", function()
    for _, info in ipairs {
      about(1, 1, 1, { "write", "movablekeys" }),
      about(0, 0, 0, {}, { { "sub" } }),
      about(1, 1.5, 1), about(1, 2^20, 1), about(-2^20, 1, 1),
      about("1", 1, 1), { "?" }, { false },
    } do
      local its = server(info, { "x", "y" })
      for _ = 1, 2 do assert.equal("x y", keys_of(its, "EVAL", "s", 1)) end
      assert.equal("COMMAND GETKEYS EVAL s 1", its.asked[#its.asked])
    end
    local its = server(about(1, 2^20 - 1, 1), { "x" })
    assert.equal("a b", keys_of(its, "DEL", "a", "b"))
  end)

  it("are none if the server does not name them", function()
    local its = server("redis ERR unknown", "redis ERR no keys")
    assert.equal("", keys_of(its, "X", "a"))
    assert.equal("", keys_of(its, "X", "a"))
    assert.same({ "COMMAND INFO X", "COMMAND GETKEYS X a",
      "COMMAND GETKEYS X a" }, its.asked)
    assert.equal("a", keys_of(server(about(1, 1, 1, "?")), "GET", "a"))
    assert.equal("x", keys_of(server({}, { "x", 5 }), "GET", "a"))
  end)

  it("are not cached for an unknown command, or after an error", function()
    for _, info in ipairs { "redis LOADING it", {} } do
      local its = server(info, { "x" })
      for _ = 1, 2 do assert.equal("x", keys_of(its, "GET", "a")) end
      assert.equal(4, #its.asked)
    end
  end)

  it("are not known without a reply", function()
    assert.same({ nil, "timeout", "late" },
      { keys_of(server "timeout late", "GET", "a") })
    assert.same({ nil, "closed", "gone" },
      { keys_of(server(about(1, 1, 1, { "movablekeys" }), "closed gone"),
        "EVAL", "a") })
  end)
end)
