--- How a program ends before its time: a signal or os.exit ends it, but its
--  tasks clean up first; the message of an assert that ends it has the detail
--  beside the code. The same in rlockctl and in rlock.run.

local host = require "rlock.host.uv"

local ending = {}

local SIGNALS = { HUP = 129, INT = 130, TERM = 143 }
local AGAIN = 0.2           -- seconds after which a signal is another one

local plain_exit = os.exit
local pcall, xpcall = pcall, xpcall     -- whatever programs make of the names

-- signals --------------------------------------------------------------------

local told_at

-- The first signal unwinds the program, a later one ends it at once. What comes
-- with the first is the same: timeout(1) sends each twice.
local function end_by(status)
  local now = host.now()
  if told_at and now - told_at >= AGAIN then plain_exit(status) end
  told_at = told_at or now
  host.exit(status)
end

-- os.exit --------------------------------------------------------------------

-- How deep the frame at this level of the caller is, and how deep the first
-- pcall from there on: 0 if there is none, but the one that is a task's first.
local function depths(level)
  local n, found = 0, nil
  local frame = debug.getinfo(level + 1, "f")
  while frame do
    n = n + 1
    local func = frame.func
    frame = debug.getinfo(level + 1 + n, "f")
    if frame and not found and (func == pcall or func == xpcall) then
      found = n
    end
  end
  return n, found and n - found + 1 or 0
end

-- Raises what nobody can catch. While it unwinds, `<close>` variables are
-- closed above the pcall that is to catch it; once anything runs below, it was
-- caught, and is raised again.
local function raise(unwind)
  local _, catcher = depths(2)
  if catcher > 0 then
    debug.sethook(function()
      local depth, next_one = depths(2)
      if depth > catcher then return end
      catcher = next_one
      if catcher == 0 then debug.sethook() end
      error(unwind, 0)
    end, "", 1)
  end
  error(unwind, 0)
end

local function status_of(status)
  if status == nil or status == true then return 0 end
  if status == false then return 1 end
  local number = math.tointeger(status)
  if number then return number & 0xFF end
  error(("bad argument #1 to 'exit' (%s)"):format(type(status) == "number"
    and "number has no integer representation"
    or "number expected, got " .. type(status)), 3)
end

-- os.exit: does not return, but lets the tasks clean up. (It does return in a
-- finalizer that no task runs.)
local function exit(status)
  local _, unwind = pcall(host.exit, status_of(status))
  if unwind then raise(unwind) end
end

-- assert ---------------------------------------------------------------------

local failed = {}                       -- what assert was given last

--- What ended a program, with the detail if it is the code of a failed assert.
-- @tparam string message  may have lines of a traceback
-- @treturn string
function ending.explained(message)
  local first, rest = message:match("^([^\n]*)(.*)$")
  local code = ": " .. (failed.code or "\n")
  if (": " .. first):sub(-#code) ~= code then return message end
  return first .. ": " .. failed.detail .. rest
end

-- all of them ----------------------------------------------------------------

--- From now on, signals and os.exit unwind the program, and assert keeps the
--  detail for `explained`.
-- @treturn function puts everything back
function ending.prepare()
  local handles, exit_before, assert_before = {}, os.exit, assert
  for name, status in pairs(SIGNALS) do
    handles[#handles + 1] = host.on_signal(name, function()
      end_by(status)
    end)
  end
  os.exit, assert = exit, host.new_assert(failed)        -- luacheck: ignore
  return function()
    for _, handle in ipairs(handles) do handle:close() end
    os.exit, assert = exit_before, assert_before         -- luacheck: ignore
  end
end

return ending
