--- Also runs the steps of a trace on a real server: its replies and keys must
--- be those of the model. Time passes on the server itself, so times may differ
--- slightly.

local errors = require "rlock.redis.errors"
local naming = require "rlock.naming"
local redis = require "rlockctl.model.redis"
local snapshot = require "rlockctl.check.snapshot"
local trace = require "rlockctl.check.trace"

local real_server = {}

local NEAR = 500                        -- ms by which times may differ

-- comparing -------------------------------------------------------------------

-- Are two numbers equal, or the same time? Times are more than `least`.
local function is_near(a, b, least)
  if a == b then return true end
  a, b = tonumber(a), tonumber(b)
  if not a or not b or a < least or b < least then return false end
  return math.abs(a - b) <= math.max(NEAR, a * 1e-9)
end

-- Are two texts equal, except for times in them?
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

-- requests --------------------------------------------------------------------

-- The class of errors of requests that fail or have a malformed reply. A Fault
-- with a code says nothing about how the server executes a policy: there is no
-- connection, a login or a permission is refused, or it is loading its data.
local Fault = {}

local function fail(detail, code)
  error(setmetatable({ detail = naming.printable(detail), code = code }, Fault),
    0)
end

local function caught(ok, result, ...)
  if ok then return result, ... end
  if getmetatable(result) ~= Fault or result.code then error(result, 0) end
  return nil, result.detail
end

-- Calls fn(...); returns nil, detail if it raises a Fault without a code.
local function try(fn, ...) return caught(pcall(fn, ...)) end

--- The failure that `open`, `step` or `compare` has raised; nil for another
--- error.
---@return string? # code
---@return string? detail
function real_server.failure(fault)
  if getmetatable(fault) == Fault then return fault.code, fault.detail end
end

-- Is the reply of the server an error that a policy can cause?
local function is_reply(code, detail)
  local class = code == "redis" and errors.classify(detail)
  return class and class.code == "redis" and not class.permits
    and not class.retry
end

local function call_of(client)
  return function(...)
    local reply, code, detail = client:call(...)
    if reply ~= nil or not code then return reply end
    ---@cast detail string
    if is_reply(code, detail) then fail(code .. ": " .. detail) end
    fail(detail, code)
  end
end

local function malformed(command)
  fail(("the reply to %s is malformed"):format(command))
end

-- The reply to a command, which must be of a type.
local function answer(call, kind, command, ...)
  local reply = call(command, ...)
  if type(reply) ~= kind then malformed(command) end
  return reply
end

local function check_texts(list, command)
  for i = 1, #list do
    if type(list[i]) ~= "string" then malformed(command) end
  end
  return list
end

-- The reply to a command, which must be a list of texts.
local function texts(call, command, ...)
  return check_texts(answer(call, "table", command, ...), command)
end

local function now_of(call)
  local time = texts(call, "TIME")
  local text = ("%s.%s"):format(time[1], time[2])
  local seconds, us = text:match "^(%d+)%.(%d+)$"
  if not seconds or #seconds > 12 or #us > 6 then malformed "TIME" end
  return tonumber(seconds) --[[@as number]] * 1000 + tonumber(us) // 1000
end

-- the keys of the server ------------------------------------------------------

-- A map from a list of keys and values.
local function map_of(list, value_of, command)
  local map = {}
  for i = 1, #list, 2 do
    local value = value_of(list[i + 1] or "")
    if not list[i + 1] or not value then malformed(command) end
    map[list[i]] = value
  end
  return map
end

local function same(value) return value end

local READ = {
  string = function(call, key) return answer(call, "string", "GET", key) end,
  list = function(call, key) return texts(call, "LRANGE", key, 0, -1) end,
  hash = function(call, key)
    return map_of(texts(call, "HGETALL", key), same, "HGETALL")
  end,
  zset = function(call, key)
    return map_of(texts(call, "ZRANGE", key, 0, -1, "WITHSCORES"), tonumber,
      "ZRANGE")
  end,
  set = function(call, key)
    local set = {}
    for _, member in ipairs(texts(call, "SMEMBERS", key)) do
      set[member] = true
    end
    return set
  end,
}

-- A page of keys, and the cursor of the next.
local function scan(call, cursor, pattern)
  local page = answer(call, "table", "SCAN", cursor, "MATCH", pattern)
  if type(page[1]) ~= "string" or type(page[2]) ~= "table" then
    malformed "SCAN"
  end
  return check_texts(page[2], "SCAN"), page[1]
end

-- The keys of the server that have the name, as a model of it.
local function keys_of(call, name)
  local server, cursor = redis.new(), "0"
  server.now = 0
  repeat
    ---@type any
    local page
    page, cursor = scan(call, cursor, "*" .. name .. "*")
    for _, key in ipairs(page) do
      local kind = answer(call, "string", "TYPE", key)
      local left = answer(call, "number", "PTTL", key)
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

-- Sends the operation that the model has executed; returns a difference of the
-- replies, if any.
local function send(call, result)
  local words = { "EVAL", result.op.text, #result.keys }
  for _, list in ipairs { result.keys, result.words } do
    for _, word in ipairs(list) do words[#words + 1] = word end
  end
  local reply, problem = try(call, table.unpack(words))
  local expected = result.reply
  if type(expected) == "table" and expected.err then
    return not problem
      and "the model fails, but the server does not: " .. expected.err
  elseif problem then
    return "the server fails: " .. problem
  elseif not is_alike(show(expected), show(reply), 0) then
    return ("the model returns %s, and the server %s"):format(show(expected),
      show(reply))
  end
end

local function begin(self)
  local model, call = self.model, self.call
  ---@diagnostic disable-next-line: param-type-mismatch
  model.empty = snapshot.empty(model:is_timed(), now_of(call))
  self.state = model:start()
  local problem = self.state.first and send(call, self.state.first)
  if problem then fail(problem) end
  return true
end

local function delete_all(self)
  for key in pairs(keys_of(self.call, self.model.lock_name).entries) do
    self.call("DEL", key)
  end
end

--- Begins a comparison. Raises an error if that is not possible.
---@param model table with a lock name that is unique on the server
---@param url string
---@return table # with `step`, as below, `state`, and `close()`
function real_server.open(model, url)
  local client, code, detail = require("rlock").open(url)
  if not client then
    ---@cast detail string
    fail(detail, code)
  end
  ---@cast client -nil
  local self = { model = model, call = call_of(client) }

  -- Deletes the remaining keys, if possible.
  function self.close()
    pcall(delete_all, self)
    client:close()
  end
  local ok, fault = pcall(begin, self)
  if ok then return self end
  self.close()
  error(fault, 0)
end

-- Advances the model's clock by the time that passed on the server; returns the
-- step.
local function follow(self, step)
  local call, state = self.call, self.state
  if step.what ~= "tick" then
    state.server = state.server:later(
      math.max(now_of(call) - state.server.now, 0))
    return step
  end
  require("rlock").sleep((step.ms or self.model.tick) / 1000)
  return setmetatable({ ms = math.max(now_of(call) - state.server.now, 0) },
    { __index = step })
end

-- Runs a step of the model on the server; returns how they differ.
local function repeated(self, step, result)
  local call = self.call
  if step.key then call("DEL", step.key) end
  local problem = result and send(call, result)
  return problem or keys_differ(self.state.server.server,
    keys_of(call, self.model.lock_name))
end

--- Runs a step on both. Raises an error that `failure` knows if the server does
--- not answer, or refuses a login or a permission.
---@return table? # the row of trace.lua; nil if the server does not reply
---@return string? # how they differ, or why there is no reply
function real_server.step(self, step)
  if step.what == "jump" then
    error("--on: the clock of a server cannot be made to jump", 0)
  end
  local followed, problem = try(follow, self, step)
  if not followed then return nil, problem end
  local row = trace.row(self.model, self.state, followed)
  local differs
  differs, problem = try(repeated, self, followed, row.result)
  return row, differs and naming.printable(differs) or problem
end

-- Runs the steps of a trace; returns where the server differs.
local function compare(self, list)
  for i, line in ipairs(list) do
    local step, problem = self.model:read(self.state, line)
    if step then problem = select(2, real_server.step(self, step)) end
    if problem then return ("step %d, %s: %s"):format(i, line, problem) end
  end
end

--- Runs the steps of a trace. Raises an error as `open` and `step` do.
---@param model table
---@param list table lines
---@param url string
---@return boolean # true; false
---@return string? # where they differ
function real_server.compare(model, list, url)
  local self = real_server.open(model, url)
  local ok, problem = pcall(compare, self, list)
  self.close()
  if not ok then error(problem, 0) end
  return not problem, problem
end

return real_server
