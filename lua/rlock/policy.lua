--- Finds a policy, checks that it is well formed, and compiles its operations.
--- A policy is a table, usually returned by a module: `name`, `keys(name)`,
--- `server` (the functions that run inside Redis: acquire, release and others)
--- and optionally `channel(keys, owner)`. A policy that is not a lock has its
--- own driver; `needs` names the operations that the driver calls and the
--- shapes of their replies (see verdicts.shaped). This file does not call the
--- operations.

--- The contract of a policy: README.md in the folder policy/.
---@class rlock.policy
---@field name string
---@field keys fun(name: string): table a list of 1 to 8 keys, the lock's first
---@field server rlock.operations
---@field channel? fun(keys: string[], owner?: string): string to which waiters
--- subscribe; without it they poll
---@field wakes? fun(payload: string): "one" | "all" how many waiters a message
--- wakes
---@field poll? number seconds after which a waiter retries without a message
---@field poll_shared? number internal
---@field reenter? boolean false: a second entry of the owner is refused
---@field extra? fun(request: rlock.request): table? a list of further
--- arguments of `acquire`
---@field title? string # in `rlockctl status`
---@field exclusive? boolean it is mutual exclusion
---@field allows? fun(holders: table[], options: table): boolean whether these
--- may hold the lock together; for `rlockctl check`, as the next four
---@field fair? boolean grants follow the order of arrival
---@field keeps? fun(keys: string[]): string[] the keys without an expiry
---@field slack? number seconds that a waiter may need beyond dead ones' leases
---@field lasts? fun(keys: string[]): table<string, number> key -> the seconds
--- for which it may outlive the leases
---@field peer? rlock.policy the other side of a pair
---@field reasserts? boolean `renew` is also called for a hold with a lease
---@field hands_over? boolean internal
---@field needs? table internal

--- A function that runs inside Redis. README.md in the folder policy/ has the
--- arguments and the reply of each.
---@alias rlock.operation fun(keys: string[], args: string[]): any

---@class rlock.operations
---@field acquire rlock.operation
---@field release rlock.operation
---@field renew? rlock.operation
---@field refresh? rlock.operation
---@field leave? rlock.operation
---@field peek? rlock.operation
---@field break_? rlock.operation

---@class rlock.request
---@field options table of the lock
---@field publish string the command with which the client publishes
---@field wait_ms integer 0: a single try; -1: forever

---@class rlock.loaded_policy: rlock.policy
---@field ops table<string, table> from script.compile

local policy = {}

local searchpath = package.searchpath       -- luacheck: ignore (not in 5.1)

local needed_of_a_lock = { acquire = true, release = true }

local known_of_a_lock = {
  acquire = true, break_ = true, leave = true, peek = true, refresh = true,
  release = true, renew = true,
}

-- Definition -> the result of policy.load.
local loaded = setmetatable({}, { __mode = "k" })

-- finding it -----------------------------------------------------------------

-- The error of a module that fails to load, on one line that begins with its
-- file and line.
local function in_one_line(message)
  return (tostring(message):gsub("^error loading module [^\n]*\n%s*", "")
    :gsub(":?\n.*", ""))
end

-- Requires a module; false if there is none of that name.
local function try_require(name)
  local ok, result = pcall(require, name)
  if ok then return result end
  local missing = type(result) == "string"
    and result:find("module '" .. name .. "' not found", 1, true)
  if missing then return false end
  error(("policy %q: %s"):format(name, in_one_line(result)), 0)
end

local function find(name)
  local own = not name:find(".", 1, true)
    and try_require("rlock.policy." .. name)
  return own or try_require(name)
end

-- Sorted keys, so that the first error reported is always the same.
local function names_of(map)
  local names = {}
  for name in pairs(map) do names[#names + 1] = tostring(name) end
  table.sort(names)
  return names
end

local function place_of(fn)
  local info = debug.getinfo(fn, "S") ---@cast info -nil
  return ("%s:%d"):format(info.source:match("^@(.*)") or info.short_src,
    info.linedefined)
end

local function is_lua(fn)
  return type(fn) == "function"
    and debug.getinfo(fn, "S") --[[@as table]].what ~= "C"
end

local function first_function(map)
  for _, name in ipairs(names_of(map)) do
    if is_lua(map[name]) then return map[name] end
  end
end

-- The source location of a definition, best effort: that of a function in it,
-- or the file of its module.
local function home_of(which, def)
  local is_table = type(def) == "table"
  local fn = is_table and (first_function(def)
    or type(def.server) == "table" and first_function(def.server))
  if fn then return place_of(fn) end
  return searchpath and type(which) == "string"
    and searchpath(which, package.path) or nil
end

-- Advice if a path was given instead of the name of a module.
local function hint(name)
  if not name:find("[/\\]") and not name:find("%.lua$") then return "" end
  local path = name:gsub("%.lua$", ""):gsub("^%.[/\\]+", "")
  if not path:find("^[%w_]") or path:find(".", 1, true) then
    return "; give the name of a module, not a path"
  end
  return ("; a module has a name such as %s, not a path"):format(
    path:gsub("[/\\]+", "."))
end

-- checking it ----------------------------------------------------------------

local fields = {
  name = "string", keys = "function", server = "table", channel = "function",
  wakes = "function", extra = "function", reenter = "boolean", poll = "number",
  poll_shared = "number", exclusive = "boolean", excludes = "boolean",
  needs = "table", reasserts = "boolean",
  peer = "table", title = "string", hands_over = "boolean",
  allows = "function", fair = "boolean",
  keeps = "function", slack = "number", lasts = "function",
}

-- Former names of fields, which policies of users may still have.
local FORMER = { twin = "peer", restates = "reasserts" }

local function check_fields(def)
  if type(def.read) == "table" and type(def.write) == "table" then
    return "it is a pair: use its read or write"
  end
  for _, key in ipairs(names_of(def)) do
    local kind, value = fields[key], def[key]
    if not kind then
      return ("a policy has no field %s, only %s"):format(key,
        table.concat(names_of(fields), ", "))
    elseif type(value) ~= kind then
      return ("%s must be a %s, is a %s"):format(key, kind, type(value))
    end
  end
  for _, key in ipairs { "name", "keys", "server" } do
    if not def[key] then
      return ("%s is missing: a %s"):format(key, fields[key])
    end
  end
  if def.name == "" then return "name must not be empty" end
end

local function check_server(def)
  for _, op in ipairs(names_of(def.needs or needed_of_a_lock)) do
    if def.server[op] == nil then return "server." .. op .. " is missing" end
  end
  if def.reasserts and not def.server.renew then
    return "server.renew is missing: reasserts needs it"
  end
  for op, fn in pairs(def.server) do
    if type(op) ~= "string" then
      return "server has a key that is not a string"
    end
    if not def.needs and not known_of_a_lock[op] then
      return ("server.%s is not an operation; a lock has %s"):format(op,
        table.concat(names_of(known_of_a_lock), ", "))
    end
    if not is_lua(fn) then
      return ("server.%s must be a function written in Lua, is a %s"):format(op,
        type(fn) == "function" and "C function" or type(fn))
    end
  end
end

-- its client-side functions --------------------------------------------------

local function check_keys(keys)
  local ok = type(keys) == "table" and #keys >= 1 and #keys <= 8
  for i = 1, ok and #keys or 0 do
    ok = ok and type(keys[i]) == "string" and keys[i] ~= ""
  end
  return not ok and "must return a list of 1 to 8 strings"
end

local function check_channel(channel)
  return (type(channel) ~= "string" or channel == "")
    and "must return a string, the channel's name"
end

local function check_extra(list)
  local ok = list == nil or type(list) == "table"
  for i = 1, ok and list and #list or 0 do
    ok = ok and (type(list[i]) == "string" or type(list[i]) == "number")
  end
  return not ok and "must return a list of strings and numbers"
end

-- Wraps a function of the definition to check its result.
local function checked(def, field, check)
  local fn = def[field]
  return fn and function(...)
    local result = fn(...)
    local fault = check(result)
    if fault then
      error(("policy %q: %s: %s %s"):format(def.name, place_of(fn), field,
        fault), 0)
    end
    return result
  end
end

-- compiling it ---------------------------------------------------------------

-- Is this one of our own policies, or a side of one?
local function is_built_in(def)
  local own = package.loaded["rlock.policy." .. def.name:match("^[^.]*")]
  return type(own) == "table"
    and (def == own or def == own.read or def == own.write)
end

-- Compiles each operation when it is first read.
local function compile_on_demand(def)
  return setmetatable({}, { __index = function(ops, op)
    local fn = def.server[op]
    local its = fn and require("rlock.script").compile(def.name, op, fn)
    ops[op] = its
    return its
  end })
end

local prepared_op = {}

-- The lines of a prepared script, see rlock.script.compile.
function prepared_op:__index(field)
  if field ~= "lines" then return end
  local lines = {}
  for number, path, line in self.places:gmatch("(%d+) ([^\n]*):(%d+)") do
    lines[tonumber(number)] = { path, tonumber(line) }
  end
  self.lines = lines
  return lines
end

-- Operations of a built-in policy that were compiled when rlockctl was built
-- (src/embed.lua), or nil.
local function prepared(def)
  local module = "rlock.prepared." .. def.name:match("^[^.]*")
  local found, list = pcall(require, module)
  local ops = found and list[def.name]
  for op, fn in pairs(ops and def.server or {}) do
    if not ops[op] or ops[op].home ~= place_of(fn) then return end
    setmetatable(ops[op], prepared_op)
  end
  return ops
end

local function operations(def)
  if is_built_in(def) then return prepared(def) or compile_on_demand(def) end
  local ops = compile_on_demand(def)
  for _, op in ipairs(names_of(def.server)) do ops[op] = ops[op] end
  return setmetatable(ops, nil)
end

-- The error in a definition, or nil.
local function check(which, def)
  if type(def) == "table" then return check_fields(def) or check_server(def) end
  if type(which) == "string" then
    return "the module must return a table, the policy"
  end
  return "must be a table, or the name of a module that returns one"
end

-- Its name in messages.
local function called(which, def)
  local name = type(which) == "string" and which
    or type(def) == "table" and def.name
  return type(name) == "string" and ("policy %q"):format(name) or "the policy"
end

--- The two sides of a built-in read/write lock.
---@param name string
---@return table # `read` and `write`, definitions
function policy.sides(name) return find(name) end

--- Loads a policy.
--- Raises a one-line error if the policy does not exist, is malformed, or has a
--- function that cannot be shipped. The result is cached, shared and read-only.
---@param which string | rlock.policy "reentrant" (a built-in policy), the name
---  of a module on package.path, or a definition
---@param level? integer as in error(), if the policy's own location is not
---  known; default: 2
---@return rlock.loaded_policy # the definition's fields, of which `keys`,
---  `channel` and `extra` raise a one-line error for an invalid result; and
---  `ops`: operation of `server` -> the result of script.compile, which may be
---  made when it is first read, so iterate over `server`
function policy.load(which, level)
  level = level or 2
  local def = which
  if type(which) == "string" then def = find(which) end
  if def == false then
    error(called(which) .. ": there is no such module on package.path"
      .. hint(which), level)
  elseif type(def) == "table" and loaded[def] then
    return loaded[def]
  end
  for old, new in pairs(type(def) == "table" and FORMER or {}) do
    if def[old] ~= nil and def[new] == nil then
      def[new], def[old] = def[old], nil
    end
  end
  local fault = check(which, def)
  if fault then
    local home = home_of(which, def)
    if home then fault, level = home .. ": " .. fault, 0 end
    error(called(which, def) .. ": " .. fault, level)
  end
  local result = setmetatable({
    name = def.name, keys = checked(def, "keys", check_keys),
    channel = checked(def, "channel", check_channel),
    extra = checked(def, "extra", check_extra), ops = operations(def),
  }, { __index = def })
  loaded[def] = result
  return result
end

return policy
