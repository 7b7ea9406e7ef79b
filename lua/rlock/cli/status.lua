--- rlockctl status: who holds a lock, and for how long.

local json = require "rlock.cli.json"

local status = {}

status.usage = [[
rlockctl status NAME [--json]

Shows whether the lock NAME is held, by whom, how often, and for how long.
]]

status.options = { ["--json"] = { "json" } }

-- Names come from anywhere: nothing in them may move the cursor.
local function show(text)
  return (("%q"):format(text):gsub("\\\n", "\\n"):gsub("%c", "?"))
end

local function print_state(name, state)
  print(show(name) .. " is " .. state.state)
  for _, holder in ipairs(state.holders) do
    print(("  held by %s, %d time%s"):format(show(holder.owner):sub(2, -2),
      holder.count or 0, holder.count == 1 and "" or "s"))
  end
  if state.ttl then
    print(("  for %.1f s more, unless it is renewed"):format(state.ttl))
  elseif state.state == "held" then
    print("  without an expiry")
  end
end

local function print_json(name, state)
  print(json { name = name, kind = "reentrant", state = state.state,
    ttl_ms = state.ttl and math.floor(state.ttl * 1000 + 0.5) or nil,
    holders = state.holders })
end

function status.run(cli, operands, chosen)
  local name = operands[1]
  if not name or name == "" or operands[2] then
    return cli.fault("usage", "status: one name of a lock")
  end
  local client, code, detail = require("rlock").open()
  if not client then return cli.fault(code, detail) end
  local state
  state, code, detail = client:lock(name):peek()
  if not state then return cli.fault(code, detail) end
  if chosen.json then print_json(name, state) else print_state(name, state) end
  return 0
end

return status
