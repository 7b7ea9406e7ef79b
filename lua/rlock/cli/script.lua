--- rlockctl script: prints the server scripts of a policy.

local help = require "rlock.cli.help"

local function load_policy(name)
  local ok, found = pcall(require("rlock.policy").load, name, 0)
  if ok then return found end
  return nil, tostring(found)
end

return function(arguments, cli)
  local name, op = arguments[1], arguments[2]
  if name == "--help" then return help({ "script" }, cli) end
  if not name then return cli.fault("usage", "script: which policy?") end
  local policy, fault = load_policy(name)
  if not policy then return cli.fault("usage", "script: " .. fault) end
  if op then
    if not policy.ops[op] then
      return cli.fault("usage", ("script: policy %s has no %s"):format(
        policy.name, op))
    end
    io.write(policy.ops[op].text, "\n")
    return 0
  end
  local names = {}
  for each in pairs(policy.ops) do names[#names + 1] = each end
  table.sort(names)
  for _, each in ipairs(names) do
    io.write("-- ", policy.name, ".", each, "\n", policy.ops[each].text, "\n\n")
  end
  return 0
end
