--- rlockctl script: prints the server scripts of a policy.

local kinds = require "rlock.lock.kinds"
local sorted = require "rlock.util.sorted"

local script = {}

local list = {}
for i, kind in ipairs(kinds) do list[i] = "  " .. kind.name .. "\n" end

script.usage = ([[
rlockctl script POLICY [OP]

Prints what Redis runs for a policy, a kind of lock. OP is one of its
operations; without it, all of them. POLICY is a module of your own on
package.path (see --lua-path), or one of these. An exclusive one may have
fencing tokens: fenced_mutex is the mutex with them.

%s]]):format(table.concat(list))

local function load_policy(name)
  local ok, found = pcall(require("rlock.policy").load, name, 0)
  if ok then return found end
  return nil, tostring(found)
end

local function print_all(policy)
  for i, name in ipairs(sorted(policy.server)) do
    io.write(i > 1 and "\n" or "", policy.ops[name].text)
  end
end

function script.run(cli, operands)
  local name, op = operands[1], operands[2]
  if not name or operands[3] then
    return cli.fault("usage", "script: give a policy, and at most one OP")
  end
  local policy, problem = load_policy(name)
  if not policy then
    return cli.fault("usage", "script: " .. problem)
  end
  if not op then
    print_all(policy)
  elseif policy.ops[op] then
    io.write(policy.ops[op].text)
  else
    return cli.fault("usage", ("script: policy %s has no operation %s, only %s")
      :format(policy.name, op, table.concat(sorted(policy.server), ", ")))
  end
  return 0
end

return script
