--- A process of zookeeper_storm.lua: takes and releases one lock until there is
--- a file FOLDER/stop. It keeps the lock while there is a file FOLDER/keepN.
---
---   rlockctl spec/tools/contend.lua FOLDER N TIMEOUT URL
---
--- Also runs in in-nginx. Prints "+" when it has got the lock, and "=" when it
--- keeps it. After the hold it prints from when and until when it could rely on
--- it, by a clock that all processes share, and the wall clock. The end is what
--- valid_for() has promised, or the time of the unlock. Other lines are for
--- people: why and when it did not get the lock. It checks nothing itself.

if package.loaded["resty.rlock"] then require "spec.tools.inside" end

local rlock = require "rlock"

local FOLDER, N, TIMEOUT, URL = arg[1], arg[2], tonumber(arg[3]), arg[4]
local PAUSE = 0.005

local function exists(name)
  local file = io.open(FOLDER .. "/" .. name)
  if file then file:close() end
  return file ~= nil
end

local function say(...)
  io.write(table.concat({ ... }, " "), "\n")
  io.stdout:flush()
end

local from, to

-- If the hold is certainly valid now, it was at the time read before.
local function look(lock)
  local at = rlock.now()
  local left = lock:valid_for()
  if left > 0 then
    from, to = from or at, math.max(to or 0, at + left)
  end
end

local function work(lock)
  from, to = nil, nil
  look(lock)
  say "+"
  local has_told = false
  repeat
    look(lock)
    rlock.sleep(PAUSE)
    local is_kept = exists("keep" .. N)
    if is_kept and not has_told then say "=" end
    has_told = has_told or is_kept
  until not is_kept
  look(lock)
  local asked = rlock.now()
  lock:unlock()
  if from then
    say(("%.6f %.6f %d"):format(from, math.min(to, asked), os.time()))
  end
end

local lock = rlock.open({ url = URL, watchdog = TIMEOUT, timeout = TIMEOUT / 2,
  connect_timeout = TIMEOUT / 2, lazy = true }):lock "storm"
while not exists "stop" do
  local ok, code, detail = lock:lock { wait = TIMEOUT }
  if ok then
    work(lock)
  else
    say("-", code, detail or "", rlock.now())
    rlock.sleep(PAUSE)
  end
end
