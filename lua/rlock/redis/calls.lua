--- The requests of a batch (batch.lua): a *call* runs an operation for one
--- item, or in one script for several that differ only in owner and keys
--- (script.batched). A server does nothing else meanwhile, so their number has
--- a limit that should keep a call below 1 ms.
---
--- A call is a list of its items, with the fields `n` (how many), `most`, `op`
--- (the compiled function for one), `width` (the number of keys of each), and
--- the arguments after the owner: `lease`, `more`, `last`.

local remote = require "rlock.redis.remote"

local calls = {}

local MOST = 64          -- items of a call
local COMMANDS = 192     -- of a call, by those in the text of its script
local OPEN = 4           -- calls of a slot or operation that an item may join

local floor, max, min = math.floor, math.max, math.min

-- op -> the same for many; and how many
local batched = setmetatable({}, { __mode = "k" })
local limits = setmetatable({}, { __mode = "k" })

local function limit_of(op)
  if not limits[op] then
    local commands = select(2, op.text:gsub("redis%.call", ""))
    limits[op] = max(1, min(MOST, floor(COMMANDS / max(1, commands))))
  end
  return limits[op]
end

--- The operation that a call runs.
---@param call table
function calls.op_of(call)
  local op = call.op
  if call.n == 1 then return op end
  batched[op] = batched[op] or require("rlock.script").batched(op)
  return batched[op]
end

--- The call that an item of this width and these arguments can join, or nil.
---@param call? table the last one; `before` leads to the others
local function open_call(call, op, width, lease, more, last)
  local left = OPEN
  while call and not (call.lease == lease and call.more == more
      and call.op == op and call.last == last and call.width == width
      and call.n < call.most) do
    left = left - 1
    call = left > 0 and call.before
  end
  return call
end

--- Distributes the items of a batch among calls.
---@param batch table
---@param now number by host.now()
---@param is_joint boolean whether a call may have several items
---@return table # the calls
function calls.of(batch, now, is_joint)
  local list, name, words = {}, batch.name, batch.sender.words
  local open = {}              -- slot or operation -> the last call
  for i = 1, #batch do
    local item = batch[i]
    local lease, more, last = words(item, now, batch)
    if lease then
      local record = item.lock.record
      local op, target = record.policy.ops[name], record.target
      local key, width = target.slot or op, #target
      local call = open_call(open[key], op, width, lease, more, last)
      if not call then
        call = { n = 0, most = is_joint and limit_of(op) or 1, op = op,
          width = width, lease = lease, more = more, last = last,
          before = open[key] }
        open[key], list[#list + 1] = call, call
      end
      local n = call.n + 1
      call.n, call[n] = n, item
    end
  end
  return list
end

local function joint(node, call, word)
  local n, width, owners = 3, call.width, {}
  local words = { "EVALSHA", remote.known_sha(node, calls.op_of(call)), "" }
  for i = 1, call.n do
    local item = call[i]
    local target = item.lock.record.target
    for k = 1, width do words[n + k] = target[k] end
    n = n + width
    owners[i] = item.owner_name
  end
  words[3] = ("%d"):format(n - 3)
  words[n + 1], words[n + 2] = width, 2
  words[n + 3], words[n + 4] = call.lease, call.more
  n = n + 4
  if call.last then words[n - 2], words[n + 1], n = 3, call.last, n + 1 end
  for i = 1, call.n do words[n + i] = owners[i] end
  if word ~= "" then words[n + call.n + 1] = word end
  return words
end

--- The command of a call.
---@param node table
---@param call table
---@param word string from remote.ready
---@param name string of the operation
---@return table
function calls.command(node, call, word, name)
  if call.n > 1 then return joint(node, call, word) end
  local item = call[1]
  local target = item.lock.record.target
  return remote.command(node, call.op, word, target,
    target:arguments(name, item.owner_name, call.lease, call.more, call.last))
end

-- Is this a reply of script.batched?
local function is_reply(call, reply)
  if type(reply) ~= "table" then return false end
  for i = 1, #reply do
    local number = reply[i]
    if type(number) ~= "number" or number < 1 or number > call.n then
      return false
    end
  end
  return reply[1] ~= nil
end

--- The positions of the items that must be asked for alone, because a call for
--- several has not renewed them.
---@param call table
---@param reply any of script.batched
---@return table
function calls.unserved(call, reply)
  local list, served = {}, 0
  if is_reply(call, reply) then
    served = reply[1]
    for i = 2, #reply do list[i - 1] = reply[i] end
  end
  for i = served + 1, call.n do list[#list + 1] = i end
  return list
end

return calls
