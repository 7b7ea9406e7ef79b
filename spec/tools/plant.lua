--- Copies of the client's files with planted faults.

local ctl = require "spec.cli.ctl"
local files = require "spec.tools.files"

local plant = {}

--- Writes a faulty copy of a file into a folder of its own.
---@param name string of the folder
---@param file string such as "rlock/lock/grant.lua"
---@param text string what is in the file
---@param faulty string what the copy has instead
---@return string # the folder, for the path of modules
function plant.folder(name, file, text, faulty)
  local path = (file:find("^rlock/") and "lua/" or "") .. file
  local source = assert(files.read(path))
  local from, to = source:find(text, 1, true)
  assert(from, path .. " has changed: plant the fault in its new text")
  ctl.file(name .. "/" .. file, source:sub(1, from - 1) .. faulty
    .. source:sub(to + 1))
  return ctl.folder() .. "/" .. name
end

--- Loads a faulty copy of a module.
---@param module string such as "rlock.lock.grant"
---@param text string
---@param faulty string
function plant.module(module, text, faulty)
  local file = module:gsub("%.", "/") .. ".lua"
  return dofile(plant.folder("faulty", file, text, faulty) .. "/" .. file)
end

-- Modules that are loaded again: all that may refer to the faulty one. The
-- model of Redis does not, and keeps the scripts that it has translated.
local function is_ours(name)
  return name:find("^rlock%.") and not name:find("^rlock%.core")
    and not name:find("^rlock%.host%.uv")
    or name:find("^spec%.simulate") or name:find("^rlockctl%.simulate")
end

--- Calls fn while a module has another text. What fn requires is loaded again,
--- so that no module keeps a function of the module's own text.
---@param module string
---@param text string
---@param faulty string
---@param fn function
---@return any # what fn returned
function plant.during(module, text, faulty, fn)
  local loaded, own = package.loaded, {}
  for name, value in pairs(loaded) do
    if is_ours(name) then own[name] = value end
  end
  for name in pairs(own) do loaded[name] = nil end
  local ok, result = pcall(function()
    loaded[module] = plant.module(module, text, faulty)
    return fn()
  end)
  for name in pairs(loaded) do
    if is_ours(name) then loaded[name] = own[name] end
  end
  for name, value in pairs(own) do loaded[name] = value end
  return assert(ok and result, result)
end

return plant
