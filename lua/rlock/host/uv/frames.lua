--- A connection of frames, for ZooKeeper.

local core = require "rlock.core"
local tasks = require "rlock.host.uv.tasks"

local frames = {}

---@class rlock.host.uv.frames.Frames
local Frames = {}
Frames.__index = Frames

-- The bytes of the longest frame to accept: a list of some 100 000 nodes.
local LIMIT = 8388608

--- Opens a connection, which suspends the task.
---@param options table host, port, tls, timeout (ms), frame = function(bytes)
---  and lost = function(detail), which are called outside of any task and must
---  not wait; is_plain: no frames, but bytes as they come
---@return any # the connection
---@return rlock.failure? code, string? detail
function frames.open(options)
  local self = setmetatable({}, Frames)
  self.frame_id = tasks.callback(options.frame)
  self.lost_id = tasks.callback(function(detail)
    self:free_ids()
    options.lost(detail)
  end)
  local id, code, detail = tasks.begin()
  if id then
    self.raw, code, detail = core.frames(id, {
      host = options.host, port = options.port, tls = options.tls,
      timeout = options.timeout, limit = not options.is_plain and LIMIT or nil,
      frame = self.frame_id, lost = self.lost_id,
    })
  end
  local ok
  if self.raw then ok, code, detail = tasks.await(true) end
  if ok then return self end
  self:close()
  return nil, code, detail
end

function Frames:free_ids()
  if self.frame_id then tasks.free_id(self.frame_id) end
  if self.lost_id then tasks.free_id(self.lost_id) end
  self.frame_id, self.lost_id = nil, nil
end

--- Queues a frame. Those queued in a turn of the loop share a write.
---@param bytes string
---@return true?, rlock.failure? code, string? detail
function Frames:send(bytes) return self.raw:send(bytes) end

--- The IP address of our end, or nil.
function Frames:address() return self.raw:address() end

--- Closes the connection. Calls no callback.
function Frames:close()
  local id = self.raw and self.raw:close()
  if id then tasks.fail({ id }, "closed", "the connection was closed") end
  self:free_ids()
end

return frames
