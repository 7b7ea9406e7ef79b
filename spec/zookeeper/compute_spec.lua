--- client:compute on a real ZooKeeper: one computation for many callers, in
--- tasks, in clients and in processes.

local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local frames = require "spec.tools.frames"
local on_zookeeper = require "spec.tools.on_zookeeper"
local peers = require "spec.tools.zookeeper_peer"
local rlock = require "rlock"
local rows = require "spec.rows.compute"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local server, open = on_zookeeper("client:compute on ZooKeeper",
  { describe = describe, pending = pending, teardown = teardown },
  { watchdog = 20 })
if not server then return end

local KILL = 9
local MOST = 524288
local PATIENCE = 20 * slow
local LONG = { ttl = 600 }

local peer, name

teardown(ctl.clean)

before_each(function()
  peer = peer or peers.open(server)
  name = fixtures.name "compute"
end)

after_each(function()
  frames.reset()
  fixtures.close()
end)

-- The data of the value's node.
local function data() return (peer:get("/" .. name .. "/compute/value")) end

describe("the function of client:compute on ZooKeeper", function()
  for _, row in ipairs(rows) do
    it(row[1], function() row[2](open, name, MOST) end)
  end
end)

-- Each computation is a line of the file `made` in a folder.
local MANY = [[
  local rlock = require "rlock"
  local client = assert(rlock.open { watchdog = arg[4] + 0 })
  for _ = 1, tonumber(arg[3]) do
    rlock.spawn(function()
      print(assert(client:compute(arg[1], { ttl = 600 }, function()
        local file = assert(io.open(arg[2] .. "/made", "a"))
        file:write("made\n")
        file:close()
        repeat
          rlock.sleep(0.01)
          file = io.open(arg[2] .. "/go")
        until file
        return "the value"
      end)))
    end)
  end]]

local many = ctl.file("many.lua", MANY)

local function start(folder, tasks, watchdog)
  return ctl.start { many, name, folder, tasks, watchdog, url = server.url }
end

-- A folder for the files of one test.
local function new_folder()
  return ctl.file(name .. "/made", ""):match "^(.*)/"
end

local function made(folder)
  local count = 0
  for _ in io.lines(folder .. "/made") do count = count + 1 end
  return count
end

local function finish(process, count)
  local result = process:wait()
  assert.equal(0, result.status, result.err)
  assert.equal(count, select(2, result.out:gsub("the value", "")))
end

describe("client:compute in several processes on ZooKeeper", function()
  it("computes once for 100 callers", function()
    local folder, all = new_folder(), {}
    for i = 1, 4 do all[i] = start(folder, "25", "20") end
    eventually(function() return made(folder) == 1 end, PATIENCE)
    ctl.file(name .. "/go", "")
    for _, each in ipairs(all) do finish(each, 25) end
    assert.equal(1, made(folder))
  end)

  it("computes in another one when the first is killed", function()
    local folder = new_folder()
    local one = start(folder, "5", "2")
    eventually(function() return made(folder) == 1 end, PATIENCE)
    local two = start(folder, "5", "20")
    eventually(function()
      return #(peer:names("/" .. name .. "/compute") or {}) == 3
    end, PATIENCE)
    one:kill(KILL)
    one:wait()
    eventually(function() return made(folder) == 2 end, PATIENCE)
    ctl.file(name .. "/go", "")
    finish(two, 5)
  end)

  it("keeps a newer value when a paused process resumes", function()
    local file = ctl.file("paused.lua", [[
      local client = assert(require "rlock".open { watchdog = 1 })
      print(client:compute(arg[1], { ttl = 600 }, function()
        io.stdout:write("computes\n"):flush()
        os.execute("while [ ! -e " .. arg[2] .. " ]; do sleep 0.02; done")
        return "late"
      end))]])
    local paused = ctl.start { file, name, new_folder() .. "/go",
      url = server.url }
    paused:says "computes"
    assert.equal("newer", (open():compute(name, LONG, function()
      return "newer"
    end)))
    ctl.file(name .. "/go", "")
    assert.matches("\nlate\tcomputed\tnot stored: lost: ", paused:wait().out)
    assert.matches("\nnewer$", data())
  end)
end)

describe("the value of client:compute on ZooKeeper", function()
  it("is in a node, with the times until which it is valid", function()
    local client, before = open(), os.time()
    assert(client:compute(name, { ttl = 100.5, stale = 50 }, function()
      return "value"
    end))
    local fresh, gone, till, value =
      data():match "^(%d+) (%d+) (%d+) \n(.*)$"
    assert.same({ "0", "value" }, { till, value })
    assert.is_true(fresh - before >= 101 and fresh - os.time() <= 101)
    assert.equal(50, gone - fresh)
  end)

  it("is stored although requests and replies are lost", function()
    local client = open()
    for i, op in ipairs { "create2", "get", "multi" } do
      local its = ("%s/%d"):format(name, i)
      assert.equal("value", (client:compute(its, LONG, function()
        frames.lose_reply(op)
        return "value"
      end)))
      frames.reset()
    end
    for i, op in ipairs { "create2", "get" } do
      frames.lose_reply(op)
      assert.same({ "value", "computed" }, { client:compute(name .. op, LONG,
        function() return "value" end) }, i)
      frames.reset()
    end
  end)

  it("is read with one request, and no lock", function()
    local client = open()
    assert(client:compute(name, LONG, function() return "value" end))
    frames.reset()
    for _ = 1, 5 do assert(client:compute(name, LONG, error)) end
    assert.equal(5, frames.count "get")
    assert.equal(0, frames.count "create2" + frames.count "multi")
  end)

  it("wakes those that wait with its change, not in turn", function()
    local one, go, is_computing, others = open(), rlock.event(), nil, {}
    local first = task.start(function()
      return one:compute(name, LONG, function(hold)
        is_computing = true
        go:wait(PATIENCE)
        -- It remains the holder for a while.
        assert(hold:set(name .. "/compute/value",
          ("%d %d 0 \nvalue"):format(os.time() + 600, os.time() + 600)))
        for _, each in ipairs(others) do
          assert.same({ "value", "cached" }, { each:join(PATIENCE) })
        end
        return "the same"
      end)
    end)
    eventually(function() return is_computing end, PATIENCE)
    for i = 1, 5 do
      local client = open()
      others[i] = task.start(function()
        return client:compute(name, LONG, error)
      end)
    end
    eventually(function()
      return #peer:names("/" .. name .. "/compute") == 7
    end, PATIENCE)
    go:set()
    assert.equal("the same", (first:join(PATIENCE)))
  end)

  it("is open to its login only, with acl = creator", function()
    local client = open { url = server.url:gsub("//", "//me:secret@"),
      acl = "creator" }
    for _, how in ipairs { "computed", "cached" } do
      assert.same({ "value", how }, { client:compute(name, LONG, function()
        return "value"
      end) })
    end
    assert.equal("zookeeper", select(2, open():compute(name, LONG, error)))
  end)

  it("refuses a name that is no path", function()
    local value, code, detail = open():compute("a//b", LONG, error)
    assert.same({ nil, "usage" }, { value, code })
    assert.matches("it has an empty part", detail)
  end)
end)
