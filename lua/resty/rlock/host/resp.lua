--- Encodes requests and decodes replies of Redis' protocol, RESP2. Reads from
--- anything with a method receiveany(max), such as a cosocket. Opens and closes
--- nothing.

local naming = require "rlock.naming"

local resp = {}

local DEPTH = 32                  -- of nested arrays
local LONGEST = {                 -- limits of a reply, as in src/reader.c
  line = 2^20, string = 2^29,     -- bytes
  array = 2^20,                   -- elements
}
local PIECE = 4096                -- bytes read at once

local byte, find, sub = string.byte, string.find, string.sub
local format, concat = string.format, table.concat

-- requests ----------------------------------------------------------------

local ARRAY, LENGTH = {}, {}      -- precomputed headers of short items
for i = 0, 255 do
  ARRAY[i], LENGTH[i] = ("*%d\r\n"):format(i), ("\r\n$%d\r\n"):format(i)
end

local function text_of(word)
  if type(word) == "string" then return word end
  if word % 1 == 0 and word > -2^53 and word < 2^53 then
    return format("%.0f", word)
  end
  return format("%.17g", word)
end

local scratch = {}                -- reused: a request is sent as a string

--- A request as text.
---@param words table strings and numbers
---@param n integer their number
function resp.request(words, n)
  local last = 2 * n + 1
  scratch[1] = n < 256 and sub(ARRAY[n], 1, -3) or format("*%d", n)
  for i = 1, n do
    local word = text_of(words[i])
    scratch[2 * i] = LENGTH[#word] or format("\r\n$%d\r\n", #word)
    scratch[2 * i + 1] = word
  end
  scratch[last + 1] = "\r\n"
  return concat(scratch, "", 1, last + 1)
end

-- replies -----------------------------------------------------------------

---@class resty.rlock.host.resp.Reader
---@field source any
---@field goes_on function?
---@field buffer string
---@field at any a position
local Reader = {}
Reader.__index = Reader

--- Reads replies.
---@param source any has receiveany(max) -> bytes, or nil, why
---@param goes_on? function called with the source before each piece but the
---  first; returns true, or nil, why to stop reading
function resp.reader(source, goes_on)
  return setmetatable({
    source = source, goes_on = goes_on, buffer = "", at = 1,
  }, Reader)
end

-- The next bytes; or nil, why.
local function receive(self)
  if self.has_begun and self.goes_on then
    local ok, why = self.goes_on(self.source)
    if not ok then return nil, why end
  end
  self.has_begun = true
  return self.source:receiveany(PIECE)
end

local function more(self)
  local bytes, why = receive(self)
  if not bytes then return nil, why end
  if self.at > #self.buffer then
    self.buffer = bytes
  else
    self.buffer = sub(self.buffer, self.at) .. bytes
  end
  self.at = 1
  return true
end

local GARBLED = "the server does not speak RESP2"
local TOO_LONG = "protocol error: the server announced a reply that is too long"

-- The kind of the next reply (its first byte) and the rest of its line.
local function line(self)
  local stop = find(self.buffer, "\r\n", self.at, true)
  while not stop do
    ---@type any
    local from = #self.buffer - self.at     -- the last byte may be a \r
    if from > LONGEST.line then return nil, TOO_LONG end
    local ok, why = more(self)
    if not ok then return nil, why end
    stop = find(self.buffer, "\r\n", from > 0 and from or 1, true)
  end
  local at = self.at
  ---@cast stop -nil
  self.at = stop + 2
  ---@cast stop -nil
  return byte(self.buffer, at), sub(self.buffer, at + 1, stop - 1)
end

-- The next n bytes. Skips the line end that follows them.
local function bulk(self, n)
  if n > LONGEST.string then return nil, TOO_LONG end
  if #self.buffer - self.at + 1 < n + 2 then
    local pieces = { sub(self.buffer, self.at) }
    local have = #pieces[1]
    while have < n + 2 do
      local bytes, why = receive(self)
      if not bytes then return nil, why end
      have = have + #bytes
      pieces[#pieces + 1] = bytes
    end
    self.buffer, self.at = concat(pieces), 1
  end
  local at = self.at
  self.at = at + n + 2
  ---@diagnostic disable-next-line: param-type-mismatch
  if sub(self.buffer, at + n, at + n + 1) ~= "\r\n" then return nil, GARBLED end
  ---@diagnostic disable-next-line: param-type-mismatch
  return sub(self.buffer, at, at + n - 1)
end

local STATUS, ERROR, INTEGER, BULK, LIST = byte("+-:$*", 1, 5)

---@type function
local value

local function list(self, n, depth)
  if depth == DEPTH then return nil, "reply nested too deep" end
  if n > LONGEST.array then return nil, TOO_LONG end
  local values = {}
  for i = 1, n do
    local why
    values[i], why = value(self, depth + 1)
    if values[i] == nil then return nil, why end
  end
  return values
end

-- The next value; or nil, why.
function value(self, depth)
  local kind, rest = line(self)
  if not kind then
    return nil, rest
  elseif kind == STATUS then
    return rest
  elseif kind == ERROR then
    return { err = naming.printable(rest) }
  end
  local n = find(rest, "^[+-]?%d+$") and tonumber(rest)
  if not n then
    return nil, GARBLED
  elseif kind == INTEGER then
    return n
  elseif n == -1 then
    return false
  elseif n < 0 then
    return nil, GARBLED
  elseif kind == BULK then
    return bulk(self, n)
  elseif kind == LIST then
    return list(self, n, depth)
  end
  return nil, GARBLED
end

--- Reads one reply.
---@return any # a string, a number, false for a Redis nil, or an array of
---  those; an error inside an array is { err = message }
---@return rlock.failure? code # "redis": the reply is an error; "closed": no
---  reply
---@return string? # the error, or why there is no reply ("timeout", ...)
function Reader:read()
  local reply, why = value(self, 0)
  if reply == nil then return nil, "closed", why end
  if type(reply) == "table" and reply.err then
    return nil, "redis", reply.err
  end
  return reply
end

--- Is the buffer empty?
function Reader:is_done() return self.at > #self.buffer end

return resp
