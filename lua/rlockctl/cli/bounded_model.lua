--- Makes the model (check/locks.lua) of a policy, as the options of `rlockctl
--- check` and `rlockctl try` describe it. Raises one-line errors.

local lock_option = require "rlockctl.cli.lock_option"

local bounded = {}

--- The options, see option_parser.lua.
bounded.options = {
  ["--option"] = { "option", "K=V", all = true },
  ["--clients"] = { "clients", "N" }, ["--ops"] = { "ops", "N" },
  ["--ticks"] = { "ticks", "N" }, ["--tick"] = { "tick", "S" },
  ["--leases"] = { "leases", "LIST" }, ["--faults"] = { "faults", "LIST" },
  ["--no-symmetry"] = { "no_symmetry" },
}

local FAULTS = { crash = true, lost = true, twice = true, late = true,
  ["break"] = true, evict = true, expire = true, jump = true }

-- options ---------------------------------------------------------------------

local function faults_of(text)
  local faults = {}
  for word in text:gmatch("[^,%s]+") do
    if not FAULTS[word] then
      error(("--faults has no %s, only break, crash, evict, expire, jump, "
        .. "late, lost and twice"):format(word), 0)
    end
    faults[word] = true
  end
  return faults
end

local function in_range(name, text, least, most)
  local value = tonumber(text)
  if value and value >= least and value <= most then return value end
  error(("--%s must be a number from %g to %.10g"):format(name, least, most), 0)
end

--- A number among the options.
---@param chosen table
---@param name string
---@param default number
---@param least number
---@param most number
---@return number
function bounded.number(chosen, name, default, least, most)
  if chosen[name] == nil then return default end
  return in_range(name, chosen[name], least, most)
end

--- As `number`, of seconds: "60" or "60s".
function bounded.seconds(chosen, name, default, least, most)
  if chosen[name] == nil then return default end
  return in_range(name, (chosen[name]:gsub("s$", "")), least, most)
end

local function count(chosen, name, default, least, most)
  return math.floor(bounded.number(chosen, name, default, least, most))
end

-- The options of a client: those of all, unless it has its own.
local function own_of(own, name, options, clients)
  if name:byte() - 64 > clients then
    error(("--option: there is no client %s, see --clients"):format(name), 0)
  end
  own[name] = own[name] or setmetatable({}, { __index = options })
  return own[name]
end

--- Options of the lock.
---@return any ... # those of all clients, and client -> its own
local function lock_options(list, clients)
  local options, own = {}, {}
  for _, text in ipairs(list or {}) do
    local name, rest = text:match("^(%u):([^=]+=.*)$")
    local key, value = lock_option(rest or text)
    if not key then error("--option must be K=V or A:K=V", 0) end
    local its = name and own_of(own, name, options, clients) or options
    its[key] = value
  end
  own.Z = own.A                          -- of the stranger in delays.lua
  return options, own
end

-- At most three, in milliseconds; default: two ticks.
local function leases_of(text, tick)
  if not text then return { 2 * tick } end
  local leases = {}
  for word in text:gmatch("[^,%s]+") do
    leases[#leases + 1] =
      math.floor(in_range("leases", (word:gsub("s$", "")), 0.001, 86400) * 1000)
  end
  if not leases[1] or leases[4] then
    error("--leases must be one to three numbers of seconds", 0)
  end
  table.sort(leases)
  return leases
end

-- A pair of locks has many more states, so it has fewer ticks by default. A
-- policy may depend on the order of the clients' names. If each acts only once,
-- the symmetry reduction is off, so that all orders of names are explored.
local function bounds_of(chosen, is_pair)
  local faults = faults_of(chosen.faults or "crash,lost,twice")
  local tick = bounded.seconds(chosen, "tick", 1, 0.01, 86400)
  tick = math.floor(tick * 1000)
  local ops = count(chosen, "ops", 2, 1, 100)
  local clients = count(chosen, "clients", 2, 1, 5)
  local options, own = lock_options(chosen.option, clients)
  return {
    clients = clients, ops = ops,
    ticks = count(chosen, "ticks", is_pair and 2 or 3, 0, 1000), tick = tick,
    has_tick = chosen.tick ~= nil, has_ticks = chosen.ticks ~= nil,
    listeners = chosen.listeners,
    leases = leases_of(chosen.leases, tick), faults = faults,
    most_holds = math.max(2, math.min(ops, 3)),
    breaks = faults["break"] and 1 or 0,
    server_faults = (faults.evict or faults.expire or faults.jump) and 1 or 0,
    options = options, options_of = own,
    is_symmetric = not chosen.no_symmetry and ops > 1 and not next(own),
  }
end

-- policies --------------------------------------------------------------------

-- The module of a pair of policies, for reading and writing; or nil.
local function pair_of(name)
  local ok, found = pcall(require,
    name:find(".", 1, true) and name or "rlock.policy." .. name)
  if ok and type(found) == "table" and not found.server
      and type(found.read) == "table" and type(found.write) == "table" then
    return found
  end
end

local function sides_of(name)
  local load = require("rlock.policy").load
  local pair = pair_of(name)
  if pair then return { load(pair.read, 0), load(pair.write, 0) } end
  return { load(name, 0) }
end

--- The model of a policy.
---@param name string as for `rlockctl script`
---@param chosen table options
---@param lock_name? string default: "lock"
---@return table
function bounded.of(name, chosen, lock_name)
  local sides = sides_of(name)
  local bounds = bounds_of(chosen, sides[2] ~= nil)
  bounds.name = lock_name
  if sides[1].needs then
    local model = sides[1].ops.enter and "barriers" or "counters"
    return require("rlockctl.check." .. model).new(sides[1], bounds)
  end
  return require("rlockctl.check.locks").new(sides, bounds)
end

local CLIENTS = 2                       -- by default
local SKIPPED = "three clients were not searched, because options of single "
  .. "clients are given: add --clients 3 and the options of C"

-- Smaller searches of cases that two clients with equal leases do not reach: a
-- second waiter, a short lease beside a long one, a third hold, a break.
local FURTHER = {
  { clients = "3", ops = "1", ticks = "1", tick = "2",
    faults = "crash,twice,break" },
  { ops = "1", ticks = "2", leases = "1,3", faults = "crash,twice,break" },
  { clients = "1", ops = "3", ticks = "2", leases = "1,3" },
}

-- The same for a lock that is handed over to its waiters: they share it with a
-- client of another kind, or have no subscription.
local BESIDE = {
  { ops = "1", ticks = "2", faults = "crash,lost,twice,break",
    listeners = "foreign" },
  { ops = "1", ticks = "2", faults = "crash,lost,twice,break",
    listeners = "deaf" },
}

-- The options that fit a search with this many clients.
local function options_for(list, clients)
  local kept = {}
  for _, text in ipairs(list or {}) do
    local name = text:match "^(%u):"
    if not name or name:byte() - ("A"):byte() < clients then
      kept[#kept + 1] = text
    end
  end
  return kept
end

--- The models of the smaller searches that complete one with default bounds.
---@param name string
---@param chosen table
---@return table # a list; empty if bounds are chosen, and for counters
---@return string? # a note on a search that is skipped
function bounded.further(name, chosen)
  local list, skipped = {}, nil
  local first = sides_of(name)[1]
  local searches = table.move(FURTHER, 1, #FURTHER, 1, {})
  if first.hands_over then
    table.move(BESIDE, 1, #BESIDE, #searches + 1, searches)
  end
  for _, bounds in ipairs(searches) do
    local all = {
      listeners = bounds.listeners,
      option = options_for(chosen.option, tonumber(bounds.clients or CLIENTS)),
      no_symmetry = chosen.no_symmetry,
    }
    for _, key in ipairs { "clients", "ops", "ticks", "tick", "leases",
        "faults" } do
      if chosen[key] then return {} end
      all[key] = bounds[key]
    end
    if first.needs then return {} end
    local its = bounded.of(name, all)
    -- Options of single clients say nothing of a third client.
    if not next(its.options_of) or its.bounds.clients <= CLIENTS then
      list[#list + 1] = its
    else
      skipped = SKIPPED
    end
  end
  return list, skipped
end

--- As `of`, under a name that nothing else has, for a real server.
function bounded.alone(name, chosen)
  local random = require("rlock.host.uv").random(8):gsub(".", function(byte)
    return ("%02x"):format(byte:byte())
  end)
  return bounded.of(name, chosen, "rlock_check_" .. random)
end

--- The policy that the operands of a command name.
---@param operands table
---@param most integer the largest number of operands
---@return string
function bounded.name(operands, most)
  if not operands[1] or operands[most + 1] then
    error("give one policy" .. (most > 1 and ", and at most a name" or ""), 0)
  end
  return operands[1]
end

--- Prints the error that ended a command; returns its exit status.
---@param cli table
---@param command string
---@param fault any
---@return integer
function bounded.fault(cli, command, fault)
  local code, detail = require("rlockctl.cli.real_server").failure(fault)
  return cli.fault(code or "usage",
    ("%s: %s"):format(command, detail or tostring(fault)))
end

return bounded
