--- Finds a policy, checks that it is well formed, and compiles its operations.
--  A policy is a table with `name`, `keys(name)`, `server` (the functions that
--  run inside Redis: acquire, release, and any others) and perhaps
--  `channel(keys, owner)`; usually it is what a module returns. One that is no
--  lock, and has a driver of its own, lists in `needs` the operations that this
--  driver calls instead. Does not know what the operations mean, and calls none
--  of them.
--  @module rlock.policy

local script = require "rlock.script"

local policy = {}

local needed_of_a_lock = { "acquire", "release" }

-- Definition -> what policy.load gave for it.
local loaded = setmetatable({}, { __mode = "k" })

-- Requires a module; false if there is none of that name.
local function try_require(name)
  local ok, result = pcall(require, name)
  if ok then return result end
  local missing = type(result) == "string"
    and result:find("module '" .. name .. "' not found", 1, true)
  if missing then return false end
  error(result, 0)
end

local function find(name)
  local own = not name:find(".", 1, true)
    and try_require("rlock.policy." .. name)
  return own or try_require(name)
end

local fields = { name = true, keys = true, channel = true, server = true,
  wakes = true, reenter = true, poll = true, extra = true, needs = true,
  twin = true, exclusive = true }

local function check(def)
  for key in pairs(def) do
    if not fields[key] then
      return "there is no field " .. tostring(key) .. " in a policy"
    end
  end
  if type(def.name) ~= "string" or def.name == "" then
    return "name must be a string"
  elseif type(def.keys) ~= "function" then
    return "keys must be a function"
  elseif def.channel ~= nil and type(def.channel) ~= "function" then
    return "channel must be a function"
  elseif type(def.server) ~= "table" then
    return "server must be a table of functions"
  elseif def.needs ~= nil and type(def.needs) ~= "table" then
    return "needs must be a list of operations"
  end
  for _, op in ipairs(def.needs or needed_of_a_lock) do
    if def.server[op] == nil then return "server." .. op .. " is missing" end
  end
  for op, fn in pairs(def.server) do
    if type(op) ~= "string" then return "server has a key that is no name" end
    if type(fn) ~= "function" then
      return "server." .. op .. " must be a function"
    end
  end
end

-- In the order of their names, so that the first fault is always the same.
local function compile(def)
  local names, ops = {}, {}
  for op in pairs(def.server) do names[#names + 1] = op end
  table.sort(names)
  for _, op in ipairs(names) do
    ops[op] = script.compile(def.name, op, def.server[op])
  end
  return ops
end

--- Loads a policy.
--  Raises one line for a policy that does not exist, is not well formed, or
--  has a function that cannot be shipped. The result for a definition is kept
--  and shared; it is not to be changed.
--  @tparam string|table which "reentrant" (a policy of ours), the name of a
--    module on package.path, or a definition
--  @tparam[opt=2] number level whose fault it is, as in error()
--  @treturn table `name`, `keys`, `channel`, `source` (the definition), `ops`:
--    operation -> what script.compile gave
function policy.load(which, level)
  level = (level or 2)
  local def, called = which, "the policy"
  if type(which) == "string" then
    def, called = find(which), string.format("policy %q", which)
    if def == false then
      error(called .. ": there is no such module", level)
    end
  end
  if type(def) ~= "table" then
    error(called .. ": must be a table, or the name of a module that returns"
      .. " one", level)
  end
  if loaded[def] then return loaded[def] end
  local fault = check(def)
  if fault then error(called .. ": " .. fault, level) end
  local result = {
    name = def.name, keys = def.keys, channel = def.channel, source = def,
    ops = compile(def),
  }
  loaded[def] = result
  return result
end

return policy
