--- A connection of frames, for ZooKeeper: a length of 4 bytes, then that many
--- bytes.

local duplex = require "resty.rlock.host.duplex"
local socket = require "resty.rlock.host.socket"

local frames = {}

local Frames = duplex.class {}

local byte, char, concat, floor, sub =
  string.byte, string.char, table.concat, math.floor, string.sub

local HEAD = 4                    -- the bytes of a length
local LIMIT = 8388608             -- the longest frame to accept, as in
                                  -- rlock/host/uv/frames.lua
local PIECE = 4096                -- bytes read at once
local TOO_LONG = "protocol error: the server announced a frame that is too "
  .. "long (does this port speak ZooKeeper?)"
local USE_PLAIN = "; zks:// was tried: if this port does not use TLS, use "
  .. "zk://"

function Frames.connect(_, options) return socket.open(options, USE_PLAIN) end

-- The next n bytes; or nil, why.
local function take(self, n)
  local missing = n - (#self.buffer - self.at + 1)
  if missing > 0 then
    local pieces = { sub(self.buffer, self.at) }
    while missing > 0 do
      local bytes, why = self:receiveany(PIECE)
      if not bytes then return nil, why end
      pieces[#pieces + 1] = bytes
      missing = missing - #bytes
    end
    self.buffer, self.at = concat(pieces), 1
  end
  local at = self.at
  self.at = at + n
  ---@diagnostic disable-next-line: param-type-mismatch
  return sub(self.buffer, at, at + n - 1)
end

-- The next frame; or nil, why.
local function next_frame(self)
  local head, why = take(self, HEAD)
  if not head then return nil, why end
  local a, b, c, d = byte(head, 1, HEAD)
  local length = ((a * 256 + b) * 256 + c) * 256 + d
  if length > LIMIT then return nil, TOO_LONG end
  return take(self, length)
end

function Frames:read()
  while not self.is_closed do
    local frame, why = next_frame(self)
    if not frame then
      if why == "closed" then why = "the server closed the connection" end
      return ("%s: %s"):format(self.where, why)
    end
    if not self.is_closed then self.heard(frame) end
  end
end

--- Opens a connection.
---@param options table host, port, tls, timeout (ms); frame = function(bytes)
---  and lost = function(detail), which are called outside of any task and must
---  not wait
---@param address? string of our end, for `address`
---@return any # the connection
---@return rlock.failure? code, string? detail
function frames.open(options, address)
  return duplex.open(setmetatable({ heard = options.frame, buffer = "", at = 1,
    where = socket.show(options), own = address }, Frames), options)
end

--- Queues a frame. Those queued before the writer's turn share a write.
---@param bytes string
---@return true?, rlock.failure? code, string? detail
function Frames:send(bytes)
  local n = #bytes
  return self:write(char(floor(n / 16777216), floor(n / 65536) % 256,
    floor(n / 256) % 256, n % 256) .. bytes)
end

--- The host name: a cosocket does not expose its address.
function Frames:address() return self.own end

return frames
