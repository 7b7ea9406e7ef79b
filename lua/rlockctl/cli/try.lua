--- rlockctl try: reads steps, one per line, runs them on the model of Redis,
--- and shows the replies and the keys.

local bounded = require "rlockctl.cli.bounded_model"

local try = {}

try.usage = [[
rlockctl try POLICY [NAME] [options]

Reads steps, one per line, and runs them on a model of Redis, without a server.
Shows each reply, the client's belief, and the keys. POLICY is as for
`rlockctl script`, NAME is the lock's name, the clients are A and B:

  A acquire [2s] [wait]     a lease of 2 s; wait in the queue, if it has one
  A release|renew|leave     with "lost" added, no reply arrives
  A refresh                 the heartbeat of a waiter
  A retry | A give up       after a lost reply
  A die | +1.5s | break     time passes; it is broken by force
  evict KEY | jump -2s      a key is lost; the server's clock jumps
  keys                      show the keys
  help | quit               show this text; end

"acquire A" is the same as "A acquire". "A acquire read" is for a pair of a read
and a write lock. For a semaphore, say "A acquire 2", "A drain" and so on; for a
barrier, which has no break, evict or jump, "A enter" and "A leave". The
options --option, --clients, --ops, --ticks, --tick, --leases, --faults and
--no-symmetry are as for `rlockctl check`.

  --on URL        run the steps on this server as well, and report differences;
                  there, the lock has a unique name
]]

---@type table<string, any>
try.options = { ["--on"] = { "on", "URL" } }
for name, option in pairs(bounded.options) do try.options[name] = option end

local STEPS = try.usage:match "\n(  A acquire.-)\n\n"

local function show_keys(state)
  local lines = require("rlockctl.check.trace").keys(state.server.server)
  for _, line in ipairs(lines) do print("    " .. line) end
  if not lines[1] then print "    no keys" end
end

-- The client of a row's step, as an index; nil for time and the like.
local function client_of(tried, text)
  for i, name in ipairs(tried:names()) do
    if text:find("^%s*" .. name .. "%s") then return i end
  end
end

local function show(tried, state, row)
  local i = client_of(tried, row.text)
  local belief = i and row.beliefs[i] ~= "-" and row.beliefs[i]
  if row.answer ~= "" or belief then
    print("  " .. row.answer .. (belief and "  (" .. belief .. ")" or ""))
  end
  show_keys(state)
  local fault = row.fault or tried:judge(state)
  if fault then print("  fault: " .. fault) end
end

-- Takes the step on a line; returns the problem with it, if any.
local function obey(tried, state, line, on)
  if line:find "^%s*keys%s*$" then return show_keys(state) end
  if line:find "^%s*help%s*$" then return print(STEPS) end
  local step, problem = tried:read(state, line)
  if not step then return problem end
  if not on then
    show(tried, state, require("rlockctl.check.trace").row(tried, state, step))
    return
  end
  local row
  row, problem = require("rlockctl.cli.real_server").step(on, step)
  if row then show(tried, state, row) end
  return problem
end

-- Reads steps until the input ends; returns the exit status: 1 if a step was
-- invalid and there was no terminal to correct it.
local function converse(tried, on)
  local host = require "rlock.host.uv"
  local has_prompt, status = host.is_terminal(0), 0
  local state = on and on.state or tried:start()
  while true do
    if has_prompt then io.write("> ") end
    io.stdout:flush()
    local line = io.read("l")
    if not line then return status end
    if not has_prompt and line:find("%S") then print(line) end
    if line:find "^%s*quit%s*$" then return status end
    local problem = line:find("%S") and obey(tried, state, line, on)
    if problem then
      print("  " .. problem)
      if not has_prompt then status = 1 end
    end
  end
end

function try.run(cli, operands, chosen)
  local on
  local ok, result = pcall(function()
    local name = bounded.name(operands, 2)
    if not chosen.on then
      return converse(bounded.of(name, chosen, operands[2]))
    end
    local tried = bounded.alone(name, chosen)
    on = require("rlockctl.cli.real_server").open(tried, chosen.on)
    return converse(tried, on)
  end)
  if on then on.close() end
  if ok then return result end
  return bounded.fault(cli, "try", result)
end

return try
