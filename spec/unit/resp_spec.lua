--- RESP2 in nginx: encodes requests, and decodes replies that arrive in pieces
--- of any size.

local resp = require "resty.rlock.host.resp"

-- A source that gives a text in pieces of n bytes, and then says why it ends.
local function source(text, n, why)
  local at = 1
  return {
    receiveany = function(_, most)
      if at > #text then return nil, why or "closed" end
      local piece = text:sub(at, at + math.min(n, most) - 1)
      at = at + #piece
      return piece
    end,
  }
end

describe("A request", function()
  it("is an array of bulk strings", function()
    assert.equal("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
      resp.request({ "GET", "k" }, 2))
    assert.equal("*1\r\n$4\r\nPING\r\n", resp.request({ "PING", "not me" }, 1))
    assert.equal("*2\r\n$1\r\nx\r\n$0\r\n\r\n", resp.request({ "x", "" }, 2))
  end)

  it("may be long, and have long words", function()
    local words = {}
    for i = 1, 300 do words[i] = "x" end
    words[300] = ("y"):rep(1000)
    local text = resp.request(words, 300)
    assert.equal("*300\r\n$1\r\nx\r\n", text:sub(1, 13))
    assert.equal("$1000\r\n" .. ("y"):rep(1000) .. "\r\n", text:sub(-1009))
  end)

  it("has numbers in full", function()
    for number, text in pairs {
      [0] = "0", [-1] = "-1", [1e15] = "1000000000000000", [0.25] = "0.25",
      [9007199254740991] = "9007199254740991", [3.0] = "3",
      [123456789012345] = "123456789012345",
    } do
      assert.equal(("*1\r\n$%d\r\n%s\r\n"):format(#text, text),
        resp.request({ number }, 1))
    end
  end)
end)

describe("A reply", function()
  local function read(text, n)
    local reader = resp.reader(source(text, n or 4096))
    local reply, code, detail = reader:read()
    return reply, code, detail, reader
  end

  it("is parsed in pieces of any size", function()
    local long = ("z"):rep(5000)
    local text = "*5\r\n$4\r\nheld\r\n:-7\r\n*0\r\n$-1\r\n"
      .. "*2\r\n+OK\r\n$5000\r\n" .. long .. "\r\n"
    for _, n in ipairs { 1, 2, 3, 7, 13, 4096, 10000 } do
      local reply, _, _, reader = read(text, n)
      assert.same({ "held", -7, {}, false, { "OK", long } }, reply)
      assert.is_true(reader:is_done())
    end
  end)

  it("may be nothing, empty, or binary", function()
    assert.is_false((read "$-1\r\n"))
    assert.is_false((read "*-1\r\n"))
    assert.equal("", (read "$0\r\n\r\n"))
    assert.equal("", (read "+\r\n"))
    assert.equal("\r\n\0\255", (read("$4\r\n\r\n\0\255\r\n", 1)))
  end)

  it("may be an error, also inside an array", function()
    local reply, code, detail = read "-ERR no\r\n"
    assert.is_nil(reply)
    assert.equal("redis", code)
    assert.equal("ERR no", detail)
    assert.same({ { err = "ERR no" }, "x" }, (read "*2\r\n-ERR no\r\n+x\r\n"))
  end)

  it("has no control characters if it is an error", function()
    local text = "-ERR a\0b\27[2J\nc\r\n*1\r\n-x\ty\r\n"
    local reader = resp.reader(source(text, 3))
    assert.same({ nil, "redis", "ERR a?b?[2J?c" }, { reader:read() })
    assert.same({ { err = "x?y" } }, (reader:read()))
  end)

  it("is read one after the other", function()
    for _, n in ipairs { 1, 5, 100 } do
      local reader = resp.reader(source(":1\r\n$1\r\n2\r\n+3\r\n", n))
      assert.equal(1, (reader:read()))
      assert.equal("2", (reader:read()))
      assert.equal("3", (reader:read()))
      local reply, code, detail = reader:read()
      assert.is_nil(reply)
      assert.equal("closed", code)
      assert.equal("closed", detail)
    end
  end)

  it("is read as long as that may go on, which is asked from the second piece",
    function()
      local asked = 0
      local function goes_on()
        asked = asked + 1
        if asked == 3 then return nil, "timeout" end
        return true
      end
      local reader = resp.reader(source("$6\r\nabcdef\r\n", 3), goes_on)
      local reply, code, detail = reader:read()
      assert.is_nil(reply)
      assert.equal("closed", code)
      assert.equal("timeout", detail)
      assert.equal(3, asked)
      reader = resp.reader(source(":1\r\n", 9), error)
      assert.equal(1, (reader:read()))
    end)

  it("that is cut off is rejected", function()
    for _, text in ipairs { "", "*", "*2\r\n:1\r\n", "$5\r\nabc", ":12\r" } do
      local reply, code = read(text)
      assert.is_nil(reply)
      assert.equal("closed", code)
    end
  end)

  it("that is malformed is rejected", function()
    for _, text in ipairs {
      "HTTP/1.1 400 Bad Request\r\n", ":x\r\n", "*1\r\n?\r\n", "\r\n", "$\r\n",
      ":nan\r\n", ":inf\r\n", ":1e3\r\n", ": 1\r\n", "$1.5\r\nx\r\n",
      "$0x3\r\nabc\r\n", "*0x1\r\n:1\r\n", "$-2\r\n", "*-7\r\n",
      "$1\r\nabcd\r\n", "*1\r\n$0\r\nx\r\n",
    } do
      local reply, code, detail = read(text)
      assert.is_nil(reply)
      assert.equal("closed", code)
      assert.matches("RESP2", detail)
    end
    local _, code, detail = read(("*1\r\n"):rep(100) .. ":1\r\n")
    assert.equal("closed", code)
    assert.matches("nested too deep", detail)
  end)

  it("that is announced as too long is rejected", function()
    for _, text in ipairs {
      "*2147483647\r\n", "*1048577\r\n:1\r\n", "*1\r\n*99999999999\r\n",
      "$2147483647\r\n", "$536870913\r\nx", "+" .. ("x"):rep(1100000),
    } do
      local reply, code, detail = read(text)
      assert.is_nil(reply)
      assert.equal("closed", code)
      assert.matches("^protocol error: .* too long$", detail)
    end
    assert.equal(-5, (read ":-5\r\n"))
    assert.equal(5, (read ":+5\r\n"))
  end)

  it("may be followed by more data", function()
    local _, _, _, reader = read "+OK\r\n+OK\r\n"
    assert.is_false(reader:is_done())
  end)
end)
