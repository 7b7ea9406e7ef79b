--- ZooKeeper's messages, addresses, and the bound of a session, without a
--- server.

local codec = require "rlock.zookeeper.codec"
local seed = require "spec.tools.seed"
local url = require "rlock.zookeeper.url"
local validity = require "rlock.zookeeper.validity"

local function bytes(hex)
  return (hex:gsub("%s", ""):gsub("..", function(pair)
    return string.char(tonumber(pair, 16))
  end))
end

describe("a message to ZooKeeper", function()
  it("has big-endian integers with a sign", function()
    assert.equal(bytes "00000000", codec.int(0))
    assert.equal(bytes "ffffffff", codec.int(-1))
    assert.equal(bytes "fffffff5", codec.int(codec.ops.close))
    assert.equal(bytes "01020304", codec.int(16909060))
    assert.equal(bytes "7fffffff", codec.int(2147483647))
  end)

  it("has texts with their length", function()
    assert.equal(bytes "00000002 2f61", codec.text "/a")
    assert.equal(bytes "00000000", codec.text "")
    assert.equal(bytes "ffffffff", codec.text(nil))
  end)

  it("is what Curator's client sends", function()
    assert.equal(bytes [[00000000 0000000000000005 00007530
      0000000000000000 00000002 6162 00]], codec.hello { id = codec.NO_ID,
      password = "ab", timeout = 30000, seen = bytes "0000000000000005" })
    assert.equal(bytes [[00000007 0000000f 00000002 2f61 00000001 78
      00000001 0000001f 00000005 776f726c64 00000006 616e796f6e65 00000003]],
      codec.request(7, codec.ops.create2,
        codec.create("/a", "x", codec.flags.sequential)))
    assert.equal(bytes "00000001 00000002 00000002 2f61 ffffffff",
      codec.request(1, codec.ops.delete, codec.versioned "/a"))
    assert.equal(bytes "00000002 2f61 01", codec.read("/a", true))
    assert.equal(bytes [[0000000d 00 ffffffff 00000002 2f61 ffffffff
      ffffffff 01 ffffffff]],
      codec.multi { { codec.ops.check, codec.versioned "/a" } })
  end)
end)

describe("a message from ZooKeeper", function()
  it("is read value by value", function()
    local its = codec.reader(bytes [[ffffffff 0000000100000002 01
      00000001 78 ffffffff 00000002 00000001 61 00000000]])
    assert.equal(-1, its:int())
    assert.equal(bytes "0000000100000002", its:id())
    assert.is_true(its:bool())
    assert.equal("x", its:text())
    assert.is_nil(its:text())
    assert.same({ "a", "" }, its:texts())
    assert.is_false(its.is_bad)
  end)

  it("has an access control list", function()
    local anyone, mine = "00000005 776f726c64 00000006 616e796f6e65",
      "00000006 646967657374 00000004 6d653a78"
    for list, is_open in pairs {
      ["00000001 0000001f" .. anyone] = true,
      ["00000001 00000007" .. anyone] = false,
      ["00000001 0000001f" .. mine] = false,
      ["00000002 0000001f" .. mine .. "00000008" .. anyone] = true,
      ["00000002 0000001f" .. mine] = true,             -- cut off
      ["00000000"] = false, [""] = true, ["7fffffff"] = true,
    } do
      assert.equal(is_open, codec.reader(bytes(list)):is_open(), list)
    end
  end)

  it("has a stat", function()
    local its = codec.reader(bytes([[0000000000000009 0000000000000001
      0000000000000001 0000000000000001 00000007 00000000 00000000
      00000000000000aa 00000000 00000003 0000000000000001]]) .. "!")
    local stat = its:stat()
    assert.equal(9, codec.number(stat.created))
    assert.equal(7, stat.version)
    assert.equal(bytes "00000000000000aa", stat.owner)
    assert.equal(3, stat.children)
    assert.equal(69, its.at)
  end)

  it("tells the session", function()
    local session = codec.welcome(bytes
      "00000000 00002710 0000000000000009 00000001 70 01")
    assert.same({ timeout = 10000, id = bytes "0000000000000009",
      password = "p", is_read_only = true }, session)
    assert.is_false(codec.welcome(bytes
      "00000000 00002710 0000000000000009 00000001 70").is_read_only)
    assert.is_nil(codec.welcome "")
    assert.is_nil(codec.welcome(bytes "00000000 ffffffff 0000000000000000"))
  end)

  it("shows the errors of a multi, whose head has none", function()
    assert.same({ 0, 0 }, codec.results(codec.reader(
      bytes "0000000d 00 00000000 00000005 00 00000000" .. ("\0"):rep(68)
      .. bytes "ffffffff 01 ffffffff")))
    assert.same({ 0, -101, -2 }, codec.results(codec.reader(bytes [[
      ffffffff 00 00000000 00000000 ffffffff 00 ffffff9b ffffff9b
      ffffffff 00 fffffffe fffffffe ffffffff 01 ffffffff]])))
  end)

  it("has ids that are numbers where they are exact", function()
    assert.equal(4294967296 * 3 + 7, codec.number(bytes "0000000300000007"))
    assert.equal(9007199254740991, codec.number(bytes "001fffffffffffff"))
    local large = codec.number(bytes "0020000000000001")
    assert.is_true(large == nil or large - 9007199254740992 == 1)
  end)
end)

describe("a malformed message", function()
  it("is noticed, wherever it ends", function()
    local whole = bytes "00000002 00000001 61 00000003 626364"
    for n = 0, #whole - 1 do
      local its = codec.reader(whole:sub(1, n))
      its:texts()
      assert.is_true(its.is_bad, n)
    end
  end)

  it("makes no list longer than itself", function()
    for _, count in ipairs { "7fffffff", "00000003", "80000000" } do
      local its = codec.reader(bytes(count .. "00000000 00000000"))
      assert.is_true(#its:texts() <= 2)
    end
    local its = codec.reader(bytes "7fffffff 61")
    assert.equal("", its:text())
    assert.is_true(its.is_bad)
    its = codec.reader(bytes "fffffffe 61")
    assert.equal("", its:text())
    assert.is_true(its.is_bad)
  end)

  it("raises no error, and ends, whatever its bytes", function()
    local random = math.random
    math.randomseed(seed)
    local methods = { "int", "id", "bool", "text", "texts", "stat" }
    for _ = 1, 3000 do
      local list = {}
      for i = 1, random(0, 60) do
        list[i] = string.char(random(3) == 1 and random(0, 255)
          or ({ 0, 1, 255 })[random(3)])
      end
      local text = table.concat(list)
      local its = codec.reader(text)
      while not its.is_bad do its[methods[random(#methods)]](its) end
      codec.welcome(text)
      codec.results(codec.reader(text))
      codec.head(text)
    end
  end)
end)

describe("an address of ZooKeeper", function()
  local function parse(text) return (assert(url.parse(text))) end

  it("has hosts, a chroot and a login", function()
    assert.same({ tls = false, chroot = "/app/x", username = "me",
      password = "p:@", hosts = { { host = "h1", port = 2181 },
      { host = "::1", port = 2182 } } },
      parse "zk://me:p%3a%40@h1,[::1]:2182/app/x")
    assert.equal("", parse("zk://h/").chroot)
    assert.is_true(parse("ZKS://h").tls)
    assert.equal("h1:2181,[::1]:2182/app/x",
      url.show(parse "zk://me:p@h1,[::1]:2182/app/x"))
  end)

  it("has no control characters in a path", function()
    assert.equal("it has a control character", url.fault "/a\nb")
  end)

  it("is refused with the reason, without the password", function()
    for text, why in pairs {
      ["zk://"] = "the host is missing", ["zk://h,"] = "the host is missing",
      ["zk://h:0"] = "the port must", ["zk://h:x"] = "the port must",
      ["zk://secret@h"] = "a login is user:password",
      ["zk://:secret@h"] = "a login is user:password",
      ["zk://h/a//b"] = "an empty part", ["zk://h/a/"] = "an empty part",
      ["zk://h/../a"] = "the part ..", ["zk://h/zookeeper"] = "is reserved",
      ["zk://h/a?x=1"] = "a ?query", ["zk://h/%zz"] = "a % that",
      ["redis://h"] = "must begin with zk://",
    } do
      local parsed, code, detail = url.parse(text)
      assert.is_nil(parsed, text)
      assert.equal("usage", code)
      assert.truthy(detail:find(why, 1, true), detail)
      assert.is_nil(detail:find "secret")
    end
  end)
end)

describe("the bound of a session", function()
  local function begun()
    local its = validity.new()
    its:begin(100, 20, true)
    return its
  end

  it("is 9/10 of the time-out after a handshake", function()
    assert.equal(0, validity.new().ends)
    assert.equal(118, begun().ends)
  end)

  it("counts from a sync before two others", function()
    local its = begun()
    its:wrote(115)
    for _, row in ipairs { { 101, 118 }, { 103, 118 }, { 107, 118 },
        { 108, 119 }, { 109, 121 }, { 112, 121 }, { 113, 125 } } do
      its:synced(row[1], row[1])
      assert.equal(row[2], its.ends)
    end
  end)

  it("is at least two fifths of the time-out after regular beats", function()
    local its = begun()
    for i = 1, 1000 do
      local sent = 100 + 2 * i
      if its:needs_write(sent) then its:wrote(sent) end
      its:synced(sent, sent + 0.5)
      assert.is_true(its.ends - sent >= (i > 5 and 10 or 0))
    end
    assert.is_true(#its.syncs < 8)
  end)

  it("needs only a few syncs of many", function()
    local its = begun()
    its:wrote(200)
    for i = 1, 1000 do its:synced(100 + i / 50, 100 + i / 50) end
    assert.is_true(#its.syncs < 10)
    assert.is_true(its.ends >= 130)
  end)

  -- The leader may know of nothing since the sync at 101.
  it("is not moved by one sync after a gap, or by two", function()
    local its = begun()
    its:wrote(130)
    its:synced(101, 101)
    its:synced(115, 115)
    assert.equal(118, its.ends)
    its:synced(117, 117)
    assert.equal(119, its.ends)
  end)

  -- The leader was suspended; it has answered all at once.
  it("does not count from syncs that were answered late", function()
    local its = begun()
    its:wrote(130)
    for sent = 101, 113, 2 do its:synced(sent, 114) end
    assert.equal(118, its.ends)
    its:synced(115, 115)
    assert.equal(118, its.ends)
    its:synced(119, 119)
    its:synced(120, 120)
    assert.equal(131, its.ends)
  end)

  -- A leader that was deposed may have answered the handshake and the syncs.
  it("ends without an answered write", function()
    local its = begun()
    for sent = 102, 140, 2 do its:synced(sent, sent) end
    assert.equal(118, its.ends)
    its:begin(141, 20, false)
    assert.equal(118, its.ends)
    its:wrote(142)
    assert.equal(159, its.ends)
    assert.is_false(its:needs_write(148))
    assert.is_true(its:needs_write(148.1))
  end)
end)
