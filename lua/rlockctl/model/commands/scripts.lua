--- EVAL. A server of the simulator adds EVALSHA and SCRIPT, because the model
--- does not remember scripts.

local arguments = require "rlockctl.model.commands.arguments"

local scripts = {}

scripts.eval = { -3, function(server, words, by_client)
  if not by_client then
    arguments.fail "ERR This Redis command is not allowed from script"
  end
  local n = arguments.integer(words[3]) --[[@as integer]]
  if n > #words - 3 then
    arguments.fail "ERR Number of keys can't be greater than number of args"
  elseif n < 0 then
    arguments.fail "ERR Number of keys can't be negative"
  end
  return server:run_script(words[2], { table.unpack(words, 4, 3 + n) },
    { table.unpack(words, 4 + n) })
end }

return scripts
