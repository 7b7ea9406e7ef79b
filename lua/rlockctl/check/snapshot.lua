--- A state of the server, shared by all states of the exploration that have it.
--- It is immutable, and caches the results of its operations, so that each is
--- executed once. Two snapshots of one exploration with the same keys, expiries
--- and clock are one object.

local memory = require "rlockctl.model.memory"
local source_lines = require "rlockctl.check.source_lines"
local redis = require "rlockctl.model.redis"

---@class rlockctl.check.snapshot
---@field book any
---@field server table
---@field now number
---@field results table
---@field number any
---@field lonely table
---@field taken table
---@field fine table
local snapshot = {}
snapshot.__index = snapshot

-- Assigns a number to a text; equal texts have equal numbers.
local function numbered(numbers, text)
  local number = numbers[text]
  if not number then
    number = numbers.count + 1
    numbers[text], numbers.count = number, number
  end
  return number
end

-- The snapshot of a server, which must not change afterwards.
local function shared(book, server)
  local identity = server:text(true)
  local found = book.known[identity]
  if found then return found end
  local alike = book.is_absolute and identity or server:text()
  found = setmetatable({
    book = book, server = server, now = server:ms(), results = {},
    number = numbered(book.numbers, alike), lonely = {},
    taken = {}, fine = {},
  }, snapshot)
  book.known[identity] = found
  return found
end

--- The empty server.
---@param is_absolute boolean the operations read the clock, so times are not
---  relative
---@param now? integer ms
---@param listeners? table channel -> the number of its subscribers
---@return table # `now`, ms; `number`: equal for servers that behave alike
function snapshot.empty(is_absolute, now, listeners)
  local book = {
    known = {}, numbers = { count = 0 }, is_absolute = is_absolute,
  }
  local server = redis.new()
  if now then server.now = now * 1000 end
  server.listeners = listeners or server.listeners
  return shared(book, server)
end

--- A number for a text, equal for equal texts; never that of a server.
function snapshot:number_of(text) return numbered(self.book.numbers, text) end

-- Is it one of `keys`, or one of these followed by ":" and more?
local function is_own(keys, key)
  for _, own in ipairs(keys) do
    if key == own or key:sub(1, #own + 1) == own .. ":" then return true end
  end
  return false
end

-- The first of the touched keys that is not among `keys`, by name; or nil.
local function foreign(keys, touched)
  local first
  for key in pairs(touched) do
    if not is_own(keys, key) and (not first or key < first) then first = key end
  end
  return first
end

local function executed(self, op, keys, words, is_turned)
  local server, touched = self.server:fork(), {}
  server.turned, server.touched = is_turned, touched
  local result = {
    op = op, keys = keys, words = words, is_turned = is_turned,
    origin = self.server,
  }
  result.reply = source_lines.run(result, server)
  server.touched = nil
  result.sent, result.is_ordered = server.sent, server.is_ordered
  result.foreign = foreign(keys, touched)
  result.refused = memory.fault(self.server, op, keys, words, server)
  result.after = shared(self.book, server)
  return result
end

--- Executes an operation.
---@param op table the result of script.compile
---@param keys table
---@param words table
---@param is_turned? boolean replies without a defined order are turned
---@return table # `op`, `keys`, `words`; `reply`; `after`, a snapshot; `sent`,
---  a list of the messages: { channel, payload }; `is_ordered`: it had a reply
---  without a defined order; `foreign`, a key that it used and that is not
---  among `keys`; `refused`, a fault if a full server refuses it. The caller
---  may add fields.
function snapshot:run(op, keys, words, is_turned)
  local results = self.results[op]
  if not results then
    results = {}
    self.results[op] = results
  end
  local key = table.concat(words, "\0") .. (is_turned and "\1" or "\2")
    .. (keys[3] or "")
  local result = results[key]
  if not result then
    result = executed(self, op, keys, words, is_turned)
    results[key] = result
  end
  return result
end

--- Checks the result of an operation, regardless of the meaning of its reply.
---@param result table of `run`
---@return string? # a fault
function snapshot.fault_of(result)
  local op, reply = result.op, result.reply
  if result.foreign then
    return ("%s uses the key %s, which is not among those of `keys`"):format(
      op.op, result.foreign)
  elseif type(reply) == "table" and reply.err then
    return ("%s fails: %s"):format(op.name, source_lines.explain(result))
  end
  return result.refused
end

--- The server some milliseconds later, or earlier if its clock jumps back.
function snapshot:later(ms)
  local server = self.server:fork()
  server.now = server.now + ms * 1000
  return shared(self.book, server)
end

-- A server outside the exploration, for probes: cheaper than a snapshot, which
-- is compared with all others.
---@class rlockctl.check.snapshot.Probe
---@field server table
---@field now number
local probe = {}
probe.__index = probe

--- A copy some milliseconds later. It has `now`, `wait(ms)` and the `run` of a
--- snapshot, whose results here lack `after`.
function snapshot:probe(ms)
  local server = self.server:fork()
  server.now = server.now + ms * 1000
  return setmetatable({ server = server, now = server:ms() }, probe)
end

function probe:wait(ms)
  self.server.now = self.server.now + ms * 1000
  self.now = self.server:ms()
end

function probe:run(op, keys, words)
  local touched = {}
  self.server.touched = touched
  local result = { op = op, keys = keys, words = words, origin = self.server }
  result.reply = source_lines.run(result, self.server)
  result.foreign = foreign(keys, touched)
  return result
end

--- The server without a key, a millisecond later.
function snapshot:without(key)
  local server = self.server:fork()
  server.entries[key], server.now = nil, server.now + 1000
  return shared(self.book, server)
end

--- The names of its keys, sorted.
function snapshot:keys()
  local names = {}
  for name in pairs(self.server.entries) do
    if self.server:entry(name) then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

return snapshot
