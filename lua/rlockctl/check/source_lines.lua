--- Runs operations on the model, and explains why one fails: adds the line of
--- the policy's file at which it does. The model finds that line when it
--- executes the operation once more.

local script = require "rlock.script"
local values = require "rlockctl.model.lua51.values"

local source_lines = {}

-- The place where an operation fails with a message, or nil.
local function place_of(result, message)
  local server, op = result.origin:fork(), result.op
  server.turned = result.is_turned
  local line = server:line_of(op.text, result.keys, result.words, message)
  local from = op.lines[line]
  return from and ("%s:%d"):format(from[1], from[2])
end

--- The error of an operation.
---@param result table of snapshot:run, with an error as its reply
---@return string
function source_lines.explain(result)
  local op, message = result.op, result.reply.err
  local translated = script.translate(op, message)
  if translated ~= message then return translated end
  local place = place_of(result, message)
    or message:find(values.UNKNOWN, 1, true) and op.where
  return place and ("%s (%s)"):format(message, place) or message
end

--- Executes an operation. If the model lacks something, adds the line to the
--- error.
---@param result table # `op`, `keys`, `words`, `is_turned`; `origin`, a server
---  on which it fails in the same way
---@param server table
---@return any # the reply
function source_lines.run(result, server)
  local op = result.op
  local ok, reply =
    pcall(server.eval, server, op.text, result.keys, result.words)
  if ok then return reply end
  if not values.is_lack(reply) then error(reply, 0) end
  local is_command = reply:find("command ", 1, true)
  error(("%s (%s)"):format(reply, place_of(result, reply) or op.where)
    .. (is_command and "; Redis has it" or ""), 0)
end

return source_lines
