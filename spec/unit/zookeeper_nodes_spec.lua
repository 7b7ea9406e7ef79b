--- The nodes of locks on ZooKeeper: their names, order and data; the kinds of
--- locks, and the errors of the server.

local codec = require "rlock.zookeeper.codec"
local errors = require "rlock.zookeeper.errors"
local kinds = require "rlock.zookeeper.kinds"
local nodes = require "rlock.zookeeper.nodes"
local place = require "rlock.zookeeper.place"
local queues = require "rlock.zookeeper.queues"

local UUID = "_c_01234567-89ab-cdef-0123-456789abcdef-"

-- Names of nodes, such as "lock- 7".
local function names(...)
  local list = {}
  for i, text in ipairs { ... } do
    local mark, number = text:match "^(%S+) (%d+)$"
    list[i] = mark and ("%s%s%010d"):format(UUID, mark, tonumber(number))
      or text
  end
  return list
end

-- The nodes of a list, as texts.
local function show(list)
  local texts = {}
  for i, node in ipairs(list) do
    texts[i] = ("%s %d"):format(node.mark, node.number)
  end
  return table.concat(texts, ", ")
end

describe("the name of a node", function()
  it("has a mark and a number", function()
    for _, mark in ipairs { "lock-", "__READ__", "__WRIT__", "lease-",
        "member-", "latch-", "__lock__" } do
      local found, number = place.parse(names(mark .. " 42")[1])
      assert.same({ mark, 42 }, { found, number })
    end
    for _, name in ipairs { "", "limit", "x0000000001", "lock-", "lock-1",
        "lock-000000001", "lock-00000000012x", "ready" } do
      assert.is_nil(place.parse(name))
    end
    assert.same({ "lock-", 7 }, { place.parse "lock-0000000007" })
  end)
end)

describe("the nodes of a lock", function()
  local function holders(most, ...)
    return show(queues.holders(queues.sorted(names(...), "/a"), most))
  end

  it("are sorted by number, a writer before its reader",
    function()
      local list = queues.sorted(names("lock- 9", "limit", "lock- 10",
        "lock- 2"), "/a")
      assert.equal("lock- 2, lock- 9, lock- 10", show(list))
      assert.equal("/a/" .. list[1].name, list[1].path)
      assert.equal("__WRIT__ 3, __READ__ 3, __READ__ 5",
        show(queues.sorted(names("__READ__ 5", "__READ__ 3", "__WRIT__ 3"),
        "/a")))
    end)

  it("hold it: the first one, or the first n", function()
    assert.equal("", holders(nil))
    assert.equal("lock- 2", holders(nil, "lock- 5", "lock- 2"))
    assert.equal("lease- 2, lease- 3",
      holders(2, "lease- 5", "lease- 2", "lease- 3"))
  end)

  it("hold it: the readers before a writer, or the writer", function()
    assert.equal("__READ__ 1, __READ__ 2",
      holders(nil, "__READ__ 1", "__READ__ 2", "__WRIT__ 3", "__READ__ 4"))
    assert.equal("__WRIT__ 1, __READ__ 1",
      holders(nil, "__WRIT__ 1", "__READ__ 1", "__READ__ 2", "__WRIT__ 3"))
    assert.equal("__WRIT__ 1", holders(nil, "__WRIT__ 1", "__WRIT__ 2"))
    assert.equal("__READ__ 1", holders(nil, "__READ__ 1", "__WRIT__ 2",
      "__WRIT__ 3"))
  end)
end)

describe("the data of a node", function()
  it("identifies its creator", function()
    for data, expected in pairs {
      ["10.0.0.1 u:5 rlock,host,7,x"] =
        { "u:5", "rlock,host,7,x", "10.0.0.1" },
      ["10.0.0.1 u:5 rlock,host,7,x waits for y"] =
        { "u:5", "rlock,host,7,x", "10.0.0.1", "waits for y" },
      ["10.0.0.1 u:5 rlock,host,7,x revocable"] =
        { "u:5", "rlock,host,7,x", "10.0.0.1" },
      ["10.0.0.1"] = { nil, nil, "10.0.0.1" },
      ["what it likes"] = { nil, nil, "what it likes" },
      [""] = {},
      ["__REVOKE__"] = {}, ["__REVOKE__ 1:2 why"] = {},
    } do
      local owner, name, address, wait = queues.maker(data)
      assert.same(expected, { owner, name, address, wait })
    end
  end)
end)

describe("the access to a node", function()
  -- What is refused if anyone has one permission.
  local function refused(permission, is_value)
    local list = codec.int(1) .. codec.int(permission) .. codec.text "world"
      .. codec.text "anyone"
    local code, detail = nodes.refusal({ err = 0, its = codec.reader(list) },
      "/a", is_value)
    return code and detail:match "^anyone may (.-)," or code
  end

  it("must not let others delete its children, or set its value", function()
    assert.equal("delete nodes of /a", refused(codec.DELETE))
    assert.is_nil(refused(codec.WRITE))
    assert.equal("set /a", refused(codec.WRITE, true))
    assert.is_nil(refused(codec.DELETE, true))
  end)
end)

describe("a kind of lock on ZooKeeper", function()
  it("has a queue, and a set of nodes that block it", function()
    local blocks = {}
    for _, name in ipairs { "reentrant", "fair", "fenced", "mutex", "compute",
        "election", "election.latch", "election.selector", "barrier",
        "permits", "semaphore", "readwrite.read", "fair_readwrite.write" } do
      local queue, list = kinds.load(name).queue, {}
      for mark, is_ahead in pairs(queue.blocks) do
        list[#list + 1] = mark .. (is_ahead and "" or "?")
      end
      table.sort(list)
      blocks[name] = queue.mark .. " " .. table.concat(list, " ")
    end
    local lock = "lock- __lock__ lock-"
    assert.same({ reentrant = lock, fair = lock, fenced = lock, compute = lock,
      election = lock, ["election.selector"] = lock,
      ["election.latch"] = "latch- latch-", barrier = "member- member-?",
      mutex = "lock- lock-", permits = "lock- lock-",
      semaphore = "lock- lock-",
      ["readwrite.read"] = "__READ__ __READ__? __WRIT__",
      ["fair_readwrite.write"] = "__WRIT__ __READ__ __WRIT__",
    }, blocks)
    assert.same({ mark = "lease-", blocks = { ["lease-"] = false } },
      kinds.load("mutex").leases)
    assert.equal(1, kinds.load("mutex").most)
  end)

  it("is exclusive, reentrant or shared", function()
    for name, expected in pairs {
      reentrant = { true, nil, nil }, mutex = { true, false, nil },
      compute = { true, false, nil }, fair = { true, nil, nil },
      ["readwrite.write"] = { true, nil, nil },
      ["readwrite.read"] = { nil, nil, true }, permits = {},
    } do
      local its = kinds.load(name)
      assert.same(expected, { its.exclusive, its.reenter, its.is_shared })
    end
    local sides = kinds.sides "readwrite"
    assert.equal(sides.write, sides.read.peer)
    assert.equal(sides.read, sides.write.peer)
  end)

  it("lists the waiters if it is an election", function()
    assert.is_true(kinds.load("election").tells_queue)
    assert.is_false(kinds.load("reentrant").tells_queue)
    assert.is_nil(kinds.load("election").data)
    assert.equal("an owner", kinds.load("election.latch").data "an owner")
    for _, name in pairs(kinds.elections) do kinds.load(name) end
  end)

  it("is loaded by its name, with or without tokens", function()
    assert.equal(kinds.load "mutex", kinds.load "fenced_mutex")
    assert.equal(kinds.load "mutex", kinds.load(kinds.load "mutex"))
    assert.equal(kinds.load "fair", kinds.fenced(kinds.load "fair"))
    for name, why in pairs { spin = "none has to spin",
        simple = "no key with a single value", other = "need Redis" } do
      local ok, fault = pcall(function() return (kinds.load(name)) end)
      assert.is_false(ok)
      assert.match("^spec/unit/zookeeper_nodes_spec.lua:%d+: \"?" .. name
        .. "\"? is not for ZooKeeper: .*" .. why, fault)
      assert.matches(why, select(2, pcall(kinds.load, { name = name })))
    end
  end)
end)

describe("an error of ZooKeeper", function()
  it("closes the connection if it is temporary", function()
    local ends = {}
    for number = -200, -1 do
      if errors.of(number).ends then ends[#ends + 1] = number end
    end
    assert.same({ -127, -119, -118, -112, -7, -4, -1 }, ends)
  end)

  it("is explained, with the node", function()
    assert.equal("NONODE for /a: there is no such node",
      errors.says(errors.NO_NODE, "/a"))
    assert.equal("RUNTIMEINCONSISTENCY for /a", errors.says(-2, "/a"))
    assert.equal("error -99 for /a", errors.says(-99, "/a"))
    for name, number in pairs { NODEEXISTS = errors.NODE_EXISTS,
        BADVERSION = errors.BAD_VERSION, NOTEMPTY = errors.NOT_EMPTY,
        NOAUTH = errors.NO_AUTH, AUTHFAILED = -115, QUOTAEXCEEDED = -125,
        INVALIDACL = -114, BADARGUMENTS = -8, UNIMPLEMENTED = -6,
        MARSHALLINGERROR = -5, NOCHILDRENFOREPHEMERALS = -108 } do
      assert.match("^" .. name .. " for /a: %l", errors.says(number, "/a"))
    end
  end)
end)

describe("the answer to a request", function()
  local left

  -- A server whose next answer is this: an error, and bytes; or a failure.
  local function server(...)
    local answer = { ... }
    left = nil
    return { connection = {
      post = function()
        return { wait = function()
          local err, its, detail = answer[1], answer[2], answer[3]
          return err, err and codec.reader(its or "") or its, detail
        end }
      end,
      leave = function(_, why) left = why end,
    } }
  end

  local STAT = ("\0"):rep(68)

  it("is a version or an error for `set`", function()
    local function set(...) return { nodes.set(server(...), 9, "/a", "x") } end
    assert.same({ 0 }, set(0, STAT))
    assert.same({ nil, "zookeeper", "BADVERSION for /a: the node has another "
      .. "version", -103 }, set(-103))
    assert.same({ nil, "timeout", "late" }, set(nil, "timeout", "late"))
    assert.same({ nil, "closed", "gone" }, set(nil, "closed", "gone"))
    for _, err in ipairs { -1, -4, -7, -112, -118, -127 } do
      assert.same({ nil, "closed", "no reply: it may have been executed" },
        set(err))
    end
    assert.is_nil(left)
    assert.same({ nil, "closed", "no reply: it may have been executed" },
      set(0, "short"))
    assert.equal("protocol error: a malformed reply", left)
  end)

  it("is read again if it is malformed, for a list", function()
    local replies = { "\0\0\0\9", "\0\0\0\1\0\0\0\1x" }
    local its = server()
    its.connection.reach = function() return true end
    its.connection.post = function()
      local reply = table.remove(replies, 1)
      return { wait = function() return 0, codec.reader(reply) end }
    end
    assert.same({ "x" }, nodes.children(its, 9, "/a"))
    assert.equal("protocol error: a malformed reply", left)
  end)

  it("is final, or makes the caller retry", function()
    local function answer(...)
      return { nodes.answer(server(...).connection.post(), 9, "/a") }
    end
    assert.equal(0, answer(0)[1])
    assert.equal(-101, answer(-101)[1])
    assert.same({ nil, "timeout", "late" }, answer(nil, "timeout", "late"))
    assert.same({ nil, "cancelled", "x" }, answer(nil, "cancelled", "x"))
    assert.same({ false }, answer(nil, "closed", "gone"))
    assert.same({ false }, answer(-112))
    assert.same({ nil, "zookeeper",
      "NOAUTH for /a: this login has no permission for the node" },
      answer(-102))
  end)
end)
