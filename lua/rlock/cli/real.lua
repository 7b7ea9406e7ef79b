--- Does the steps of a trace on a real server as well: it must answer as the
--  model does, and its keys must hold the same. Time passes as on the server,
--  so times may differ by a little.

local redis = require "rlock.check.redis"
local snapshot = require "rlock.check.snapshot"
local trace = require "rlock.check.trace"

local real = {}

local NEAR = 500                        -- ms by which times may differ

-- comparing -------------------------------------------------------------------

-- Are two numbers equal, or the same time? Times are more than `least`.
local function is_near(a, b, least)
  if a == b then return true end
  a, b = tonumber(a), tonumber(b)
  if not a or not b or a < least or b < least then return false end
  return math.abs(a - b) <= math.max(NEAR, a * 1e-9)
end

-- Are two texts equal, but for times in them?
local function is_alike(a, b, least)
  local function bare(text) return (text:gsub("%d[%d.]*", "#")) end
  if bare(a) ~= bare(b) then return false end
  local others = b:gmatch("%d[%d.]*")
  for number in a:gmatch("%d[%d.]*") do
    if not is_near(number, others(), least) then return false end
  end
  return true
end

local function show(reply)
  if type(reply) == "number" then return ("%.0f"):format(reply) end
  if type(reply) ~= "table" then return tostring(reply or false) end
  local parts = {}
  for i, item in ipairs(reply) do parts[i] = show(item) end
  return "{ " .. table.concat(parts, ", ") .. " }"
end

-- the keys of the server ------------------------------------------------------

local function map_of(list, value_of)
  local map = {}
  for i = 1, #list, 2 do map[list[i]] = value_of(list[i + 1]) end
  return map
end

local function same(value) return value end

local READ = {
  string = function(call, key) return call("GET", key) end,
  list = function(call, key) return call("LRANGE", key, 0, -1) end,
  hash = function(call, key) return map_of(call("HGETALL", key), same) end,
  zset = function(call, key)
    return map_of(call("ZRANGE", key, 0, -1, "WITHSCORES"), tonumber)
  end,
  set = function(call, key)
    local set = {}
    for _, member in ipairs(call("SMEMBERS", key)) do set[member] = true end
    return set
  end,
}

-- The keys of the server that have the name, as a model of it.
local function keys_of(call, name)
  local server, cursor = redis.new(), "0"
  server.now = 0
  repeat
    local page = call("SCAN", cursor, "MATCH", "*" .. name .. "*")
    cursor = page[1]
    for _, key in ipairs(page[2]) do
      local kind, left = call("TYPE", key), call("PTTL", key)
      if READ[kind] then
        server.entries[key] = { kind = kind, value = READ[kind](call, key),
          expires = left >= 0 and left or nil }
      end
    end
  until cursor == "0"
  return server
end

-- What differs between the keys of the model and those of the server.
local function keys_differ(model, server)
  local names = {}
  for _, one in ipairs { model, server } do
    for key in pairs(one.entries) do
      if one:entry(key) then names[key] = true end
    end
  end
  for key in pairs(names) do
    local a, b = trace.entry(model, key), trace.entry(server, key)
    if not a or not b or not is_alike(a.value, b.value, 1e6)
        or not a.left ~= not b.left
        or a.left and math.abs(a.left - b.left) > NEAR then
      return ("the key %s is %s in the model, and %s on the server"):format(key,
        a and a.text or "missing", b and b.text or "missing")
    end
  end
end

-- steps -----------------------------------------------------------------------

local function call_of(client)
  return function(...)
    local reply, code, detail = client:call(...)
    if reply == nil and code then error(code .. ": " .. detail, 0) end
    return reply
  end
end

-- Sends what the model has executed; returns how the replies differ.
local function send(call, result)
  local words = { "EVAL", result.op.text, #result.keys }
  for _, list in ipairs { result.keys, result.words } do
    for _, word in ipairs(list) do words[#words + 1] = word end
  end
  local ok, reply = pcall(call, table.unpack(words))
  local expected = result.reply
  if type(expected) == "table" and expected.err then
    return ok and "the model fails, but the server does not: " .. expected.err
  elseif not ok then
    return "the server fails: " .. reply
  elseif not is_alike(show(expected), show(reply), 0) then
    return ("the model answers %s, and the server %s"):format(show(expected),
      show(reply))
  end
end

local function now_of(call)
  local time = call "TIME"
  return time[1] * 1000 + time[2] // 1000
end

--- Begins a comparison.
-- @tparam table model  whose name nothing else on the server has
-- @tparam string url
-- @treturn table with `step`, as below, `state`, and `close()`
function real.open(model, url)
  local rlock = require "rlock"
  local client = assert(rlock.open(url))
  local call = call_of(client)
  model.empty = snapshot.empty(model:is_timed(), now_of(call))
  local self = { model = model, state = model:start(), call = call }
  if self.state.first then assert(not send(call, self.state.first)) end

  -- Deletes what is left there.
  function self.close()
    for key in pairs(keys_of(call, model.lock_name).entries) do
      call("DEL", key)
    end
    client:close()
  end
  return self
end

--- Does a step on both; returns the row of trace.lua, and how they differ.
function real.step(self, step)
  local call, state = self.call, self.state
  if step.what == "jump" then
    error("--on: the clock of a server cannot be made to jump", 0)
  elseif step.what == "tick" then
    require("rlock").sleep((step.ms or self.model.tick) / 1000)
    step = setmetatable({ ms = now_of(call) - state.server.now },
      { __index = step })
  else
    state.server = state.server:later(
      math.max(now_of(call) - state.server.now, 0))
  end
  local row = trace.row(self.model, state, step)
  local problem
  if step.key then call("DEL", step.key) end
  if row.result then problem = send(call, row.result) end
  return row, problem
    or keys_differ(state.server.server, keys_of(call, self.model.lock_name))
end

--- Does the steps of a trace.
-- @tparam table model
-- @tparam table list  lines
-- @tparam string url
-- @treturn[1] boolean true
-- @treturn[2] boolean false
-- @treturn[2] string where they differ
function real.compare(model, list, url)
  local self = real.open(model, url)
  for i, line in ipairs(list) do
    local step, problem = model:read(self.state, line)
    if step then problem = select(2, real.step(self, step)) end
    if problem then
      self.close()
      return false, ("step %d, %s: %s"):format(i, line, problem)
    end
  end
  self.close()
  return true
end

return real
