--- Requests to ZooKeeper that are sent together and only read.

local codec = require "rlock.zookeeper.codec"
local errors = require "rlock.zookeeper.errors"

local requests = {}

-- How each answer is read.
local READ = {
  children = function(its) return its:texts() end,
  exists = function(its) return its:stat() end,
  get = function(its)
    local data, at = its:text() or "", its.at
    local stat = its:stat()
    stat.modified = not its.is_bad
      and codec.number(its.bytes:sub(at + 24, at + 31)) or nil
    return data, stat
  end,
}

--- Sends a list of bodies; waits until all are answered.
---@param server table the back end
---@param deadline number by host.now()
---@param list table { op, path, body }
---@return table? # calls, in the same order, as of connection:post; those with
---  an `err` other than 0 have failed
---@return rlock.failure? code, string? detail
function requests.send(server, deadline, list)
  local link, calls = server.connection, {}
  local ok, code, detail = link:reach(deadline)
  if code == "cancelled" then error(detail, 0) end
  if not ok then return nil, code, detail end
  for i, one in ipairs(list) do
    calls[i] = link:post(codec.ops[one[1]], one[3])
  end
  for i, one in ipairs(list) do
    local err
    err, code, detail = calls[i]:wait(deadline)
    if code == "cancelled" then error(detail, 0) end
    if not err then return nil, code, detail end
    if errors.of(err).ends then
      return nil, "closed", errors.says(err, one[2])
    end
  end
  return calls
end

--- Reads nodes. One that does not exist, or that the login may not read, is no
--- failure.
---@param server table
---@param deadline number
---@param list table { op, path }: op is "children", "exists" or "get"
---@return table? # answers, in the same order: `err`; if that is 0, `value`
---  (names, a stat, or data) and for "get" `stat`
---@return rlock.failure? code, string? detail
function requests.read(server, deadline, list)
  for _, one in ipairs(list) do one[3] = codec.read(one[2]) end
  local calls, code, detail = requests.send(server, deadline, list)
  if not calls then return nil, code, detail end
  local answers = {}
  for i, call in ipairs(calls) do
    local answer = { err = call.err }
    if call.err == 0 then
      answer.value, answer.stat = READ[list[i][1]](call.its)
      if call.its.is_bad then
        return nil, "zookeeper", "the answer about " .. list[i][2]
          .. " is malformed"
      end
    end
    answers[i] = answer
  end
  return answers
end

return requests
