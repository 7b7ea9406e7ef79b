--- The calls of a check, for the probe rows of trace.lua. They are recorded
--- while a model has a list of them, its `trail`.

local trail = {}

--- Executes an operation.
---@param model table
---@param server table a snapshot, or a probe of one
---@param op table the result of script.compile
---@param keys table
---@param words table
---@param is_turned? boolean
---@return table # as snapshot:run
function trail.run(model, server, op, keys, words, is_turned)
  local result, list = server:run(op, keys, words, is_turned), model.trail
  if list then
    list[#list + 1] = {
      result = result, now = server.now,
      after = result.after and result.after.server or server.server:fork(),
    }
  end
  return result
end

return trail
