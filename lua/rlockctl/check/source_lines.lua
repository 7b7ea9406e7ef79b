--- Explains why a script fails on the model. Adds the faulty line of the
--- policy's file, if the text of the script shows it.

local script = require "rlock.script"
local values = require "rlockctl.model.lua51.values"

local source_lines = {}

-- The line of a script that names a command.
local function line_of(op, command)
  local number, wanted = 0, command:lower()
  for line in op.text:gmatch("[^\n]*") do
    number = number + 1
    for word in line:gmatch("[\"']([^\"']*)[\"']") do
      if word:lower() == wanted then return number end
    end
  end
end

-- Adds a line to a message: that of the command whose name ends the message,
-- or else that of the operation.
local function located(op, message)
  local command = message:match("command.* ([%u%d_.-]+)$")
  local from = command and op.lines[line_of(op, command)]
  return ("%s (%s)"):format(message,
    from and ("%s:%d"):format(from[1], from[2]) or op.where)
end

--- The error of an operation.
---@param op table the result of script.compile
---@param message string
---@return string
function source_lines.explain(op, message)
  if message:find(values.UNKNOWN, 1, true) then return located(op, message) end
  return script.translate(op, message)
end

--- Calls fn(...). If the model lacks something, adds the line to the error.
---@param op table
---@param fn function
---@return any # what fn returns
function source_lines.guard(op, fn, ...)
  local ok, result = pcall(fn, ...)
  if ok then return result end
  if not values.is_lack(result) then error(result, 0) end
  local is_command = result:find("command ", 1, true)
  error(located(op, result) .. (is_command and "; Redis has it" or ""), 0)
end

return source_lines
