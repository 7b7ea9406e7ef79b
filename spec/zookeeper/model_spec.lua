--- Differential test: random requests get the same answers, and cause the same
--- events, from a real ZooKeeper and from the model (spec/simulate/zookeeper).
--- The seed is fixed; RLOCK_SEED sets another one.

local codec = require "rlock.zookeeper.codec"
local connection = require "rlock.zookeeper.connection"
local host = require "rlock.host.uv"
local network = require "rlockctl.simulate.network"
local on_zookeeper = require "spec.tools.on_zookeeper"
local oracle = require "spec.simulate.oracle"
local scene = require "spec.simulate.zookeeper.scene"
local sim = require "rlockctl.model.host"
local url = require "rlock.zookeeper.url"

local server = on_zookeeper("the model of ZooKeeper",
  { describe = describe, pending = pending, teardown = teardown })
if not server then return end

local SEED = tonumber(os.getenv "RLOCK_SEED") or 1
local COUNT = 3000
local PATIENCE = 20

local ops, flags = codec.ops, codec.flags
local PATHS = { "/d", "/d/a", "/d/b", "/d/c", "/d/a/x", "/d/a/y", "/d/b/x",
  "/d/c/s-", "/d/a/s-", "/none/a" }

local function nothing() return math.huge end

local function open(on, address)
  local options = url.parse(address)
  options.timeout, options.connect_timeout = PATIENCE, PATIENCE
  options.watchdog = PATIENCE
  local link = connection.new(on, options, { on_ready = nothing,
    on_dropped = nothing, on_ended = nothing, on_tick = nothing })
  assert(link:connect(on.now() + PATIENCE))
  return link
end

-- the requests ----------------------------------------------------------------

local function one_of(list, random) return list[1 + random(#list)] end

local choose = {}

function choose.create2(random)
  return codec.create(one_of(PATHS, random), "v" .. random(9),
    one_of({ 0, 0, flags.ephemeral, 2, flags.sequential }, random))
end

-- Without children, a container stays.
function choose.create_container()
  return codec.create("/d/k", "", flags.container)
end

function choose.delete(random)
  return codec.versioned(one_of(PATHS, random),
    one_of({ -1, -1, 0, 1 }, random))
end

function choose.set(random)
  return codec.set(one_of(PATHS, random), "v" .. random(9),
    one_of({ -1, 0, 1, 2 }, random))
end

local function read(random)
  return codec.read(one_of(PATHS, random), random(2) == 0)
end

choose.get, choose.exists, choose.children = read, read, read

function choose.multi(random)
  local parts = {}
  for i = 1, 1 + random(3) do
    local name = one_of({ "check", "set", "delete" }, random)
    parts[i] = { ops[name], (choose[name] or choose.delete)(random) }
  end
  return codec.multi(parts)
end

local NAMES = { "create2", "create2", "create2", "create2", "create_container",
  "delete", "delete", "set", "set", "get", "exists", "children", "multi" }

-- the answers -----------------------------------------------------------------

local function show_stat(its, links)
  local stat = its:stat()
  local owner = stat.owner == codec.NO_ID and "nobody" or "somebody"
  for i, link in ipairs(links) do
    if stat.owner == link.session.id then owner = "session " .. i end
  end
  return ("version %d of %s%s"):format(stat.version, owner,
    stat.changed == stat.created and "" or ", once with children")
end

local show = { exists = show_stat, set = show_stat }

function show.multi(its) return table.concat(codec.results(its), " ") end

function show.delete() return "" end

function show.create2(its, links)
  return its:text() .. " " .. show_stat(its, links)
end

function show.get(its, links)
  return tostring(its:text()) .. " " .. show_stat(its, links)
end

function show.children(its)
  local names = its:texts()
  table.sort(names)
  return table.concat(names, " ")
end

show.create_container = show.create2

-- Asks one of the links, and waits until the other has heard of it.
local function ask(self, name, body, which)
  local links, on = self.links, self.host
  local deadline = on.now() + PATIENCE
  local path = codec.reader(body):text()
  if name == "get" or name == "exists" or name == "children" then
    links[which]:watch(path, function(is_deleted)
      self.events[#self.events + 1] = ("%d: %s%s"):format(which, path,
        is_deleted and " deleted" or "")
    end)
  end
  local err, its = assert(links[which]:post(ops[name], body):wait(deadline))
  for _, link in ipairs(links) do
    assert(link:post(ops.sync, codec.text "/"):wait(deadline))
  end
  table.sort(self.events)
  local text = ("%s %d %s [%s]"):format(name, err,
    err == 0 and show[name](its, links) or "",
    table.concat(self.events, ", "))
  self.events = {}
  return text
end

-- The answers to the requests of a seed, one line each.
local function answers(on, address)
  local stream = sim.stream(SEED, "requests")
  local function random(n) return math.floor(stream() * n) end
  local self, lines = { host = on, events = {},
    links = { open(on, address), open(on, address) } }, {}
  for i = 1, COUNT do
    local name = one_of(NAMES, random)
    local body = choose[name](random)
    lines[i] = ("%d %s"):format(i, ask(self, name, body, 1 + random(2)))
    if random(100) == 0 then            -- its ephemeral nodes end
      self.links[2]:close(on.now() + PATIENCE)
      self.links[2] = open(on, address)
    end
  end
  for _, link in ipairs(self.links) do link:close(on.now() + PATIENCE) end
  return lines
end

local function of_model()
  local universe = sim.new(SEED)
  local its = scene.new({ network = network.new(universe), universe = universe,
    only = { servers = 1 }, servers = {}, things = {}, processes = {},
    by_key = {}, oracle = oracle.new(universe) }, function() return 0.9 end)
  local own = universe:host { name = "client" }
  its:connect(own)
  local ok, lines
  own.spawn(function()
    own.sleep(1)
    ok, lines = pcall(answers, own, "zk://zk1")
  end)
  while ok == nil do universe:run(universe.now + 1) end
  return assert(ok and lines, lines)
end

describe("the model of ZooKeeper", function()
  it("answers as a server does", function()
    local expected, found = answers(host, server.url), of_model()
    for i, line in ipairs(expected) do
      assert.equal(line, found[i],
        ("RLOCK_SEED=%d, request %d"):format(SEED, i))
    end
  end)
end)
