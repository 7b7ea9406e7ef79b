--- rlockctl try: does the steps that it reads, one on a line, on the model of
--  Redis, and shows the answers and the keys.

local model = require "rlock.cli.model"

local try = {}

try.usage = [[
rlockctl try POLICY [NAME] [options]

Reads steps, one on a line, and does them on a model of Redis, which needs no
server. Shows each answer, what the client believes, and the keys. POLICY is as
for `rlockctl script`, NAME that of the lock, the clients are A and B:

  A acquire [2s] [wait]     a lease of 2 s; wait in line, if it has one
  A release|renew|leave     all take "lost": no reply arrives
  A retry | A give up       what it does without a reply
  A die | +1.5s | break     time passes; it is broken by force
  evict KEY | jump -2s      a key is lost; the server's clock jumps
  keys                      show the keys

"acquire A" is the same as "A acquire". "A acquire read" is for a pair of a read
and a write lock. For a semaphore, say "A acquire 2", "A drain" and so on. The
options --option, --clients, --ops, --ticks, --tick, --leases, --faults and
--no-symmetry are as for `rlockctl check`.

  --on URL        do the steps on this server as well, and say if it differs;
                  the lock has a name of its own there
]]

try.options = { ["--on"] = { "on", "URL" } }
for name, option in pairs(model.options) do try.options[name] = option end

local function show_keys(state)
  local lines = require("rlock.check.trace").keys(state.server.server)
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

-- Does the step on a line; returns what is wrong with it.
local function obey(tried, state, line, on)
  if line:find "^%s*keys%s*$" then return show_keys(state) end
  local step, problem = tried:read(state, line)
  if not step then return problem end
  if not on then
    show(tried, state, require("rlock.check.trace").row(tried, state, step))
    return
  end
  local row
  row, problem = require("rlock.cli.real").step(on, step)
  show(tried, state, row)
  return problem
end

-- Reads steps until the input ends; returns the exit status: 1 if one was
-- wrong and nobody could repeat it.
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
    local name = model.name(operands, 2)
    if not chosen.on then
      return converse(model.of(name, chosen, operands[2]))
    end
    local tried = model.alone(name, chosen)
    on = require("rlock.cli.real").open(tried, chosen.on)
    return converse(tried, on)
  end)
  if on then on.close() end
  if ok then return result end
  return cli.fault("usage", "try: " .. tostring(result))
end

return try
