--- rlockctl status: who holds a lock, and for how long.

local help = require "rlock.cli.help"
local json = require "rlock.cli.json"

local function read(arguments)
  local name, as_json
  for _, argument in ipairs(arguments) do
    if argument == "--json" then
      as_json = true
    elseif not name then
      name = argument
    else
      return nil, nil, "status: one name, please, not " .. argument
    end
  end
  if not name or name == "" then return nil, nil, "status: which lock?" end
  return name, as_json
end

local function print_people(name, state)
  print(("%q is %s"):format(name, state.state))
  for _, holder in ipairs(state.holders) do
    print(("  held by %s, %d time%s"):format(holder.owner, holder.count or 0,
      holder.count == 1 and "" or "s"))
  end
  if state.ttl then
    print(("  for %.1f s more, unless it is renewed"):format(state.ttl))
  elseif state.state == "held" then
    print("  without an expiry")
  end
end

return function(arguments, cli)
  if arguments[1] == "--help" then return help({ "status" }, cli) end
  local name, as_json, fault = read(arguments)
  if not name then return cli.fault("usage", fault) end
  local client, code, detail = require("rlock").open()
  if not client then return cli.fault(code, detail) end
  local state
  state, code, detail = client:lock(name):peek()
  if not state then return cli.fault(code, detail) end
  if as_json then
    print(json { name = name, kind = "reentrant", state = state.state,
      ttl_ms = state.ttl and math.floor(state.ttl * 1000 + 0.5) or nil,
      holders = state.holders })
  else
    print_people(name, state)
  end
  return 0
end
