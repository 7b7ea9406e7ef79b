-- Our own side of the interop specs, run by rlockctl, or by nginx. It reads
-- commands from a list in Redis and answers into another; spec/interop/peer.lua
-- sends and documents them.
--
--    rlockctl spec/interop/ours.lua NAME WATCHDOG ADDRESS MEMBER...
--    spec/tools/in-nginx spec/interop/ours.lua NAME WATCHDOG ADDRESS MEMBER...
--
-- NAME is that of the lists, WATCHDOG its lease in milliseconds, ADDRESS the
-- server of everything, and MEMBERs are the servers of RedLocks. If there is
-- LOCKS in the environment, the locks are there instead.

if rawget(_G, "ngx") then require "spec.tools.inside" end
local host = require "rlock.host.uv"
local rlock = require "rlock"

local name, watchdog, address = arg[1], tonumber(arg[2]) / 1000, arg[3]

local function open(url)
  return assert(rlock.open { url = url, watchdog = watchdog })
end

local elsewhere = os.getenv "LOCKS"
local control, client = open(address), open(elsewhere or address)
local store, members = elsewhere and control or client, {}
for i = 4, #arg do members[#members + 1] = open(arg[i]) end

local PATIENCE = 30          -- seconds

local function number(word) return assert(math.tointeger(tonumber(word))) end

-- Milliseconds as our seconds; nil for -1.
local function seconds(word)
  local ms = number(word)
  if ms >= 0 then return ms / 1000 end
end

-- kinds -------------------------------------------------------------------

local function multi_lock(names)
  local locks = {}
  for each in names:gmatch("[^,]+") do locks[#locks + 1] = client:lock(each) end
  return rlock.multi_lock(locks)
end

-- An election as a lock: each task is a candidate of its own.
local function election(layout)
  return function(n)
    local candidates = setmetatable({}, { __mode = "k" })
    local function mine()
      local task = coroutine.running()
      candidates[task] = candidates[task]
        or client:election(n, { layout = layout })
      return candidates[task]
    end
    return {
      lock = function(_, options)
        return mine():campaign { wait = options.wait }
      end,
      unlock = function() return mine():resign() end,
      peek = function() return select(2, mine():leader()) end,
      leader = function() return mine():leader() end,
    }
  end
end

local with_token = { fenced = true }

local kinds = {
  ["leader-latch"] = election "latch",
  ["leader-selector"] = election "selector",
  lock = function(n) return client:lock(n) end,
  mutex = function(n) return client:mutex(n) end,
  simple = function(n) return client:simple_lock(n) end,
  spin = function(n) return client:spin_lock(n) end,
  fair = function(n) return client:fair_lock(n) end,
  fenced = function(n) return client:fenced_lock(n) end,
  read = function(n) return client:read_write_lock(n):read_lock() end,
  write = function(n) return client:read_write_lock(n):write_lock() end,
  fenced_mutex = function(n) return client:mutex(n, with_token) end,
  fenced_fair = function(n) return client:fair_lock(n, with_token) end,
  fenced_write = function(n)
    return client:read_write_lock(n, with_token):write_lock()
  end,
  multi = multi_lock,
  red = function(n) return rlock.red_lock(members, n, { node_timeout = 1 }) end,
  red_simple = function(n)
    return rlock.red_lock(members, n, { policy = "simple", node_timeout = 1 })
  end,
  semaphore = function(n) return client:semaphore(n) end,
  permits = function(n) return client:permits(n) end,
  latch = function(n) return client:latch(n) end,
  barrier = function(n) return client:barrier(n) end,
  double2 = function(n) return client:double_barrier(n, 2) end,
  double4 = function(n) return client:double_barrier(n, 4) end,
  double4b = function(n) return client:double_barrier(n, 4) end,
}

local made = {}

local function thing(kind, thing_name)
  local key = kind .. " " .. thing_name
  made[key] = made[key] or kinds[kind](thing_name)
  return made[key]
end

-- answers -----------------------------------------------------------------

local refusals = {
  busy = true, timeout = true, refused = true, lost = true, not_held = true,
}

-- What a call returned, as an answer: "ok ...", "no", or an error.
local function given(ok, code, detail)
  if ok == true then
    return code == nil and "ok" or "ok " .. tostring(code)
  elseif ok ~= nil and ok ~= false then
    return "ok " .. tostring(ok)
  elseif ok == false or refusals[code] then
    return "no"
  end
  return ("error %s: %s"):format(code, detail)
end

local function call(...)
  local reply, code, detail = store:call(...)
  if reply == nil then error(("%s: %s"):format(code, detail), 0) end
  return reply
end

-- Takes one of anything; returns as a lock does: true[, token].
local function take(kind, thing_name, wait, lease)
  local it = thing(kind, thing_name)
  local options = { wait = seconds(wait), lease = seconds(lease) }
  if kind == "permits" then
    local id, code, detail = it:acquire(options)
    if not id then return nil, code, detail end
    return true, id
  elseif kind == "semaphore" then
    options.lease = nil
    return it:acquire(1, options)
  end
  if kind:find "^double" then return it:enter() end
  return it:lock(options)
end

local function give(kind, thing_name, id)
  local it = thing(kind, thing_name)
  if kind == "permits" then return it:release(id) end
  if kind == "semaphore" then return it:release(1) end
  if kind:find "^double" then return it:leave() end
  return it:unlock()
end

local function taken(kind, thing_name)
  local ok, token, detail = take(kind, thing_name, -1, -1)
  if not ok then error(("%s: %s"):format(token, detail), 0) end
  return token
end

local function given_back(kind, thing_name, id, round)
  local ok, code, detail = give(kind, thing_name, id)
  if not ok then
    error(("round %d: %s: %s"):format(round, code, detail), 0)
  end
end

-- commands ----------------------------------------------------------------

local verbs = {}

function verbs.take(_, ...) return given(take(...)) end
function verbs.give(_, ...) return given(give(...)) end

function verbs.force(_, kind, n)
  return given(thing(kind, n):break_lock())
end

function verbs.heed(_, kind, n)
  local hold, asked = assert(thing(kind, n):hold()), rlock.event()
  assert(hold:on_release_request(function() asked:set() end))
  local is_asked = asked:wait(PATIENCE)
  assert(hold:unlock())
  return is_asked and "ok" or "no"
end

function verbs.revoke(_, kind, n)
  return given(thing(kind, n):request_release "interop")
end

function verbs.state(_, kind, n)
  local state, code, detail = thing(kind, n):peek()
  if not state then return given(nil, code, detail) end
  return ("ok %d %d %d"):format(state.state == "held" and 1 or 0, state.count,
    state.ttl and math.floor(state.ttl * 1000) or -2)
end

function verbs.visit(me, kind, n, list)
  local id = taken(kind, n)
  call("RPUSH", list, me)
  given_back(kind, n, id, 1)
  return "ok"
end

function verbs.contend(_, kind, n, key, rounds)
  local switches, back = 0, 0
  for i = 1, number(rounds) do
    local id = taken(kind, n)
    call("SET", key, number(call("GET", key)) + 1)
    call("INCR", key .. ":sum")
    if call("GETSET", key .. ":last", name) ~= name then
      switches = switches + 1
    end
    if kind == "fenced" and number(call("GETSET", key .. ":token", id)) >= id
    then
      back = back + 1
    end
    given_back(kind, n, id, i)
    call("GET", key)                             -- others get a chance
  end
  return ("ok %d %d"):format(switches, back)
end

function verbs.compare(_, kind, n, key, rounds)
  local differences = 0
  for i = 1, number(rounds) do
    taken(kind, n)
    if call("GET", key) ~= call("GET", key .. ":sum") then
      differences = differences + 1
    end
    given_back(kind, n, nil, i)
  end
  return "ok " .. differences
end

function verbs.crowd(_, kind, n, key, rounds)
  local most = 0
  for i = 1, number(rounds) do
    local id = taken(kind, n)
    most = math.max(most, call("INCR", key))
    call("DECR", key)
    given_back(kind, n, id, i)
  end
  return "ok " .. most
end

function verbs.set(_, kind, n, count)
  return given(thing(kind, n):set(number(count)))
end

function verbs.add(_, kind, n, count)
  local it = thing(kind, n)
  if kind == "semaphore" then return given(it:add(number(count))) end
  local has = it:available() + it:acquired()
  return given(it:set(has + number(count)))
end

function verbs.count(_, kind, n)
  local it = thing(kind, n)
  if kind == "latch" then return given(it:count()) end
  return given(it:available())
end

function verbs.drain(_, kind, n) return given(thing(kind, n):drain()) end
function verbs.acquired(_, kind, n) return given(thing(kind, n):acquired()) end

function verbs.renew(_, kind, n, id, lease)
  return given(thing(kind, n):renew(id, seconds(lease)))
end

function verbs.down(_, kind, n)
  local ok, code, detail = thing(kind, n):count_down()
  if ok then return "ok" end
  return given(nil, code, detail)
end
function verbs.delete(_, kind, n)
  local it = thing(kind, n)
  return given((it.delete or it.remove)(it))
end

function verbs.leader(_, kind, n) return given((thing(kind, n):leader())) end

function verbs.await(_, kind, n, wait)
  return given(thing(kind, n):wait { wait = seconds(wait) })
end

-- tasks -------------------------------------------------------------------

local function obey(task, id, verb, ...)
  local ok, answer = pcall(verbs[verb] or error, name .. ":" .. task, ...)
  if not ok then answer = "error " .. tostring(answer) end
  assert(control:call("RPUSH", name .. ":answers", id .. " " .. answer))
end

local queues = {}

-- The commands of one task, one after the other.
local function work(task)
  local queue = queues[task]
  while true do
    local words = table.remove(queue, 1)
    if words then
      obey(task, words[1], table.unpack(words, 3))
    else
      queue.event:wait()
    end
  end
end

local function pass_on(line)
  local words = {}
  for word in line:gmatch("%S+") do words[#words + 1] = word end
  local task = words[2]
  if not queues[task] then
    queues[task] = { event = rlock.event() }
    rlock.spawn(work, task)
  end
  table.insert(queues[task], words)
  queues[task].event:set()
end

print "ready"
io.stdout:flush()
-- Not client:call, which does not wait for others.
local server = require("rlock.redis.url").parse(address)
local listener = assert(host.connect {
  host = server.host, port = server.port, timeout = 5000, silent = 0,
})
local DAY = 86400000                               -- milliseconds
while true do
  local reply, _, detail = listener:call(DAY, "BLPOP", name .. ":commands", 0)
  if not reply then error(detail, 0) end
  pass_on(reply[2])
end
