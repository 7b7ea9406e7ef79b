--- Writes the reference of the library in Markdown, from the comments with
--- types that editors read (LuaCATS):
---   rlockctl src/pages/reference.lua FILE
--- It knows the tags that our sources use: class, field, alias, param, return,
--- overload, generic and type.

-- What is public, in the order of the reference: names of classes and aliases,
-- and the titles of the sections.
local PUBLIC = {
  "Entry points", "rlock", "resty.rlock", "rlock.entry_point",
  "Options", "rlock.options.open", "rlock.options.local_open",
  "resty.rlock.options.open", "rlock.options.tls", "resty.rlock.options.tls",
  "rlock.options.sentinel", "rlock.options.owner", "rlock.options.red_lock",
  "rlock.options.wait", "rlock.options.lock", "rlock.options.compute",
  "rlock.options.exec", "rlock.election_options", "rlock.wait", "rlock.count",
  "rlock.log",
  "Clients", "rlock.client", "rlock.factories",
  "Locks", "rlock.lock", "rlock.handle", "rlock.asked", "rlock.asks",
  "rlock.hold", "rlock.transaction", "rlock.lock_state", "rlock.pair",
  "rlock.multi_lock", "rlock.red_lock",
  "Counters", "rlock.semaphore", "rlock.permits", "rlock.latch",
  "Built on locks", "rlock.election", "rlock.barrier", "rlock.double_barrier",
  "Tasks", "rlock.task", "rlock.event", "rlock.deadline",
  "Policies", "rlock.policy", "rlock.operations", "rlock.operation",
  "rlock.request", "rlock.inside_redis",
  "Simulation", "rlock.simulate", "rlock.options.simulate",
  "rlock.simulated_server",
  "Failures", "rlock.code",
}

local FILES = [[lua/rlock/host/uv/entry_point.lua lua/resty/rlock.lua
  lua/rlock/util/types.lua lua/rlock/client.lua lua/rlock/policy.lua
  lua/rlock/lock/lock.lua
  lua/rlock/lock/handle.lua lua/rlock/lock/effect.lua
  lua/rlock/several/factories.lua lua/rlock/several/multi.lua
  lua/rlock/several/quorum.lua lua/rlock/counters/semaphore.lua
  lua/rlock/counters/permits.lua lua/rlock/counters/latch.lua
  lua/rlock/recipes/election.lua lua/rlock/recipes/barrier.lua
  lua/rlock/recipes/double_barrier.lua lua/rlock/recipes/compute.lua
  lua/rlock/util/options.lua lua/rlock/util/deadline.lua
  lua/rlock/host/uv/tasks.lua lua/rlock/host/uv/exec.lua
  lua/rlock/simulate.lua]]

-- What an object is called in the reference; default: the end of its class.
local CALLED = {
  ["rlock.factories"] = "client", ["rlock.handle"] = "lock",
  ["rlock.asked"] = "lock", ["rlock.asks"] = "lock",
}

-- reading -------------------------------------------------------------------

-- The tags of a block of comment lines, each { name, text }, and its text.
local function parse(lines)
  local tags, about = {}, {}
  for _, line in ipairs(lines) do
    local tag, text = line:match("^%-%-%-@([%w_]+)%s*(.*)$")
    local item = line:match("^%-%-%-|%s*(.*)$")
    line = line:gsub("^%-%-%- ?", "")
    if tag then
      tags[#tags + 1] = { name = tag, text = text }
    elseif item and tags[1] then
      table.insert(tags[#tags], item)
    elseif tags[1] and tags[#tags].name ~= "class" then
      tags[#tags].text = tags[#tags].text .. " " .. line:gsub("^%s+", "")
    else
      about[#about + 1] = line
    end
  end
  return tags, table.concat(about, "\n")
end

-- Splits "TYPE rest" where the type ends.
local function split(text)
  local at, depth = 1, 0
  while at <= #text do
    local char = text:sub(at, at)
    if char:find "[%(%[{<]" then depth = depth + 1 end
    if char:find "[%)%]}>]" then depth = depth - 1 end
    if char == " " and depth == 0 and not text:find("^ [|&] ", at)
        and not text:sub(1, at - 1):find "[|&,:]$" then
      break
    end
    at = at + 1
  end
  return text:sub(1, at - 1), text:sub(at + 1)
end

local found = {}                        -- name -> class or alias

local function class_of(name)
  found[name] = found[name] or { name = name, fields = {}, functions = {} }
  return found[name]
end

local function add_tags(tags, about)
  local class
  for _, tag in ipairs(tags) do
    if tag.name == "class" then
      local name, parents = tag.text:match("^([%w_.]+):?%s*(.*)$")
      class = class_of(name)
      class.parents, class.about = parents, about
    elseif tag.name == "alias" then
      local name, text = tag.text:match("^([%w_.]+)%s*(.*)$")
      local alias = class_of(name)
      alias.about, alias.items = about, tag
      alias.type = text ~= "" and text or nil
    elseif tag.name == "field" and class then
      table.insert(class.fields, tag.text)
    end
  end
  return class
end

-- Marks the methods that check that they are called with a colon, as public
-- ones do; those of a handle that check it inline are listed here.
local function mark_public(path, variables)
  local file <close> = assert(io.open(path))
  for variable, names in file:read("a"):gmatch(
      'colon%.methods%((%w+), "[%w ]*",%s*[%["]+([^"%]]*)') do
    local class = variables[variable]
    if class then
      class.public = {}
      for name in (names .. " lock try_lock unlock"):gmatch "%S+" do
        class.public[name] = true
      end
    end
  end
end

-- Reads the classes and functions of a file.
local function read(path)
  local block, variables = {}, {}
  for line in io.lines(path) do
    local text = line:match("^%s*(%-%-%-.*)$")
    if text then
      block[#block + 1] = text
    else
      local tags, about = parse(block)
      local class = add_tags(tags, about)
      local variable = line:match("^%s*local (%w+) =")
      if class and variable then variables[variable] = class end
      local owner, sign, name, arguments =
        line:match("^%s*function (%w+)([.:])([%w_]+)(%b())")
      owner = owner and variables[owner]
      if owner and block[1] then
        table.insert(owner.functions, { name = sign .. name, tags = tags,
          arguments = arguments, about = about })
      end
      block = {}
    end
  end
  mark_public(path, variables)
end

-- writing -------------------------------------------------------------------

local lines = {}

local function put(text) lines[#lines + 1] = text end

-- A type as code; the part of an options type that refuses other names is not
-- for people.
local function shown(type)
  local text = type:gsub(" ?& %b{}", "")
  return "`" .. text:gsub("([%w_.]+)_options", function(name)
    local class = name:gsub("^rlock%.", "rlock.options.")
      :gsub("^resty%.rlock%.", "resty.rlock.options.")
    return found[class] and class or name .. "_options"
  end) .. "`"
end

local function item(head, about)
  about = about:gsub("^#%s*", "")
  put("- " .. head .. (about ~= "" and ": " .. about or ""))
end

local function put_returns(text)
  -- Several in a line: "TYPE name, TYPE name".
  local first, others = text:match "^([%w_.?%[%]]+ ?[%w_]*), (.*)$"
  if first then
    put_returns(first)
    return put_returns(others)
  end
  local type, rest = split(text)
  local name, about = rest:match("^([%w_.]+)%s*(.*)$")
  if rest:sub(1, 1) == "#" or not name then name, about = nil, rest end
  item(("returns %s%s"):format(shown(type), name and " " .. name or ""), about)
end

local function put_function(class, fn)
  local prefix = fn.name:sub(1, 1) == "." and class.name
    or CALLED[class.name] or class.name:match("[^.]*$")
  put(("\n#### %s%s%s\n"):format(prefix, fn.name, fn.arguments))
  put(fn.about .. "\n")
  for _, tag in ipairs(fn.tags) do
    if tag.name == "param" then
      local name, rest = tag.text:match("^(%S+)%s*(.*)$")
      local type, about = split(rest)
      item(("`%s` %s"):format(name, shown(type)), about)
    elseif tag.name == "return" then
      put_returns(tag.text)
    end
  end
end

local function is_internal(text) return text:find "%f[%w]internal%f[%W]" end

local function put_field(text)
  local name, rest = text:match("^(%b[]%??)%s*(.*)$")
  if not name then name, rest = text:match("^(%S+)%s*(.*)$") end
  local type, about = split(rest)
  if not is_internal(about) then
    item(("`%s` %s"):format(name, shown(type)), about)
  end
end

local function is_for_users(class, fn)
  local sign, name = fn.name:match "^(.)(.*)$"
  local is_entry_point = ("rlock resty.rlock rlock.simulate")
      :find(class.name, 1, true)
  if sign == "." and not is_entry_point then return false end
  if class.public and not class.public[name] then return false end
  return not name:find "^__" and not fn.about:find "%f[%w][Ii]nternal"
end

local function put_class(class)
  put(("\n### %s\n"):format(class.name))
  if class.about ~= "" then put(class.about .. "\n") end
  if class.parents and class.parents ~= "" then
    put(("It has what `%s` has.\n"):format(class.parents:gsub(", ", "` and `")))
  end
  if class.type then put(shown(class.type)) end
  for _, row in ipairs(class.items or {}) do
    local value, about = row:match("^(.-)%s*#%s*(.*)$")
    item(shown(value or row), about or "")
  end
  for _, text in ipairs(class.fields) do put_field(text) end
  for _, fn in ipairs(class.functions) do
    if is_for_users(class, fn) then put_function(class, fn) end
  end
end

for path in FILES:gmatch "%S+" do read(path) end
put "# Reference of rlock\n"
put [[
Made from the comments of the sources (`make docs`). A type with `?` may be nil.
Durations are seconds. Failures are returned as nil, a code and a sentence.]]
for _, name in ipairs(PUBLIC) do
  local class = found[name]
  if class then
    put_class(class)
  elseif name:find "^%u" then
    put(("\n## %s"):format(name))
  else
    error("no class or alias " .. name)
  end
end

local file <close> = assert(io.open(assert(arg[1]), "w"))
assert(file:write(table.concat(lines, "\n"), "\n"))
