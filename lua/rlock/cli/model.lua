--- Makes the model (check/locks.lua) of a policy, as the options of `rlockctl
--  check` and `rlockctl try` describe it. Raises one-line errors.

local model = {}

--- The options, see options.lua.
model.options = {
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
  error(("--%s must be a number from %g to %g"):format(name, least, most), 0)
end

--- A number among the options.
-- @tparam table chosen
-- @tparam string name
-- @tparam number default
-- @tparam number least
-- @tparam number most
-- @treturn number
function model.number(chosen, name, default, least, most)
  if chosen[name] == nil then return default end
  return in_range(name, chosen[name], least, most)
end

--- As `number`, of seconds: "60" or "60s".
function model.seconds(chosen, name, default, least, most)
  if chosen[name] == nil then return default end
  return in_range(name, (chosen[name]:gsub("s$", "")), least, most)
end

local function count(chosen, name, default, least, most)
  return math.floor(model.number(chosen, name, default, least, most))
end

-- Options of the lock: numbers and booleans are recognised.
local function lock_options(list)
  local options = {}
  for _, text in ipairs(list or {}) do
    local key, value = text:match("^([^=]+)=(.*)$")
    if not key then error("--option must be K=V", 0) end
    if value == "true" or value == "false" then value = value == "true" end
    options[key] = tonumber(value) or value
  end
  return options
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
-- policy may depend on the order of the clients' names. If each acts once only,
-- they are not taken as alike, so that all orders of names are explored.
local function bounds_of(chosen, is_pair)
  local faults = faults_of(chosen.faults or "crash,lost,twice")
  local tick = math.floor(model.seconds(chosen, "tick", 1, 0.01, 86400) * 1000)
  local ops = count(chosen, "ops", 2, 1, 100)
  return {
    clients = count(chosen, "clients", 2, 1, 5), ops = ops,
    ticks = count(chosen, "ticks", is_pair and 2 or 3, 0, 1000), tick = tick,
    has_tick = chosen.tick ~= nil,
    leases = leases_of(chosen.leases, tick), most_holds = 2, faults = faults,
    breaks = faults["break"] and 1 or 0,
    mishaps = (faults.evict or faults.expire or faults.jump) and 1 or 0,
    options = lock_options(chosen.option),
    is_symmetric = not chosen.no_symmetry and ops > 1,
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
-- @tparam string name   as for `rlockctl script`
-- @tparam table chosen  options
-- @tparam[opt="lock"] string lock_name
-- @treturn table
function model.of(name, chosen, lock_name)
  local sides = sides_of(name)
  local bounds = bounds_of(chosen, sides[2] ~= nil)
  bounds.name = lock_name
  if sides[1].needs then
    return require("rlock.check.counters").new(sides[1], bounds)
  end
  return require("rlock.check.locks").new(sides, bounds)
end

--- As `of`, under a name that nothing else has, for a real server.
function model.alone(name, chosen)
  local random = require("rlock.host.uv").random(8):gsub(".", function(byte)
    return ("%02x"):format(byte:byte())
  end)
  return model.of(name, chosen, "rlock_check_" .. random)
end

--- The policy that the operands of a command name.
-- @tparam table operands
-- @tparam integer most how many there may be
-- @treturn string
function model.name(operands, most)
  if not operands[1] or operands[most + 1] then
    error("give one policy" .. (most > 1 and ", and at most a name" or ""), 0)
  end
  return operands[1]
end

return model
