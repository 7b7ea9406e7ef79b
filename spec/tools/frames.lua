--- Faults between the host and a ZooKeeper: wraps host.frames.
---
---   local frames = require "spec.tools.frames"
---   frames.lose_reply "create2"     -- the next is sent; its answer is lost
---   frames.lose_request "delete"    -- the next is not even sent
---   frames.fail("create2", -1)      -- the next is sent, its answer an error
---   frames.garble(text)             -- instead of the next frame that arrives
---   frames.count "children"         -- how many were sent since `reset`
---   after_each(frames.reset)
--- With both losses the connection is lost, too.

local codec = require "rlock.zookeeper.codec"
local host = rawget(_G, "ngx") and require "resty.rlock.host"
  or require "rlock.host.uv"

local frames = {}

local real = host.frames
local replies, requests, counts, garbage = {}, {}, {}, nil
local failures = {}

-- op -> its name
local names = {}
for name, op in pairs(codec.ops) do names[codec.int(op)] = name end

-- The name of a request. A multi that sets nothing confirms the session.
local function name_of(bytes)
  local name = names[bytes:sub(5, 8)] or ""
  local sets = bytes:find(codec.int(codec.ops.set) .. "\0\255", 1, true)
  return name == "multi" and not sets and "confirm" or name
end

local function wrap(options)
  local its, lost, failed = {}, {}, {}
  for key, value in pairs(options) do its[key] = value end
  local opened, code, detail
  local function cut()
    opened:close()
    options.lost "the spec has cut it off"
  end
  function its.frame(bytes)
    local xid = bytes:sub(1, 4)
    if lost[xid] then return cut() end
    if failed[xid] then
      bytes, failed[xid] = bytes:sub(1, 12) .. codec.int(failed[xid]), nil
    end
    if garbage then bytes, garbage = garbage, nil end
    options.frame(bytes)
  end
  opened, code, detail = real(its)
  if not opened then return nil, code, detail end
  local send = opened.send
  function opened:send(bytes)
    local xid, name = bytes:sub(1, 4), name_of(bytes)
    counts[name] = (counts[name] or 0) + 1
    if (requests[name] or 0) > 0 then
      requests[name] = requests[name] - 1
      host.daemon(cut)
      return true
    elseif (replies[name] or 0) > 0 then
      replies[name] = replies[name] - 1
      lost[xid] = true
    end
    failed[xid], failures[name] = failures[name], nil
    return send(self, bytes)
  end
  return opened
end

function frames.lose_reply(name) replies[name] = (replies[name] or 0) + 1 end

function frames.lose_request(name)
  requests[name] = (requests[name] or 0) + 1
end

function frames.fail(name, err) failures[name] = err end

function frames.garble(text) garbage = text end

function frames.count(name) return counts[name] or 0 end

function frames.reset()
  replies, requests, counts, garbage = {}, {}, {}, nil
  failures = {}
end

host.frames = wrap

return frames
