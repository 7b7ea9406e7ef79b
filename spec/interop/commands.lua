--- rlockctl on locks of other clients: ls, status and break.

local assert = require "luassert"
local rlockctl = require "spec.tools.rlockctl"
local shell = require "spec.tools.shell"
local world = require "spec.interop.world"

local LEASE = 60000
local OWNER = "%x+%-%x+%-%x+%-%x+%-%x+:%d+"

-- What `rlockctl ls` calls a kind.
local CALLED = { fenced = "fenced", read = "readwrite", write = "readwrite" }

local function run(w, ...)
  return shell.run(shell.words { rlockctl, "--url",
    w.set and w.set.url or w.options.address, ... })
end

-- The line of a name.
local function line_of(w, name)
  for line in run(w, "ls"):gmatch "[^\n]+" do
    if line:sub(1, #name + 1) == name .. " " then return line end
  end
  error("not listed: " .. name, 2)
end

-- A lock of another client is listed with its owner, and freed by force.
local function shown(w, kind)
  for i = 1, #w.forms do
    local name, holder = w:name(i), w.theirs:task()
    assert.is_true(holder:ask("take", kind, name, -1, LEASE))
    assert.matches(" " .. (CALLED[kind] or "reentrant") .. " +[456]%d%.%ds .*"
      .. OWNER, line_of(w, name))
    local text, ok = run(w, "status", name)
    assert.is_true(ok)
    assert.matches("is held: .* by " .. OWNER, text)
    text, ok = run(w, "break", "--force", name)
    assert.is_true(ok)
    assert.matches("is broken: it was held by " .. OWNER, text)
    assert.is_false((select(2, run(w, "status", name))))
    if kind ~= "fair" then            -- anybody may give a free one of theirs
      assert.is_false(holder:ask("give", kind, name))
    end
  end
end

-- A waiter of another client is counted, and woken when the lock is broken.
local function woken(w, kind)
  local name, holder, waiter = w:name(), w.theirs:task(), w.theirs:task()
  assert.is_true(holder:ask("take", kind, name, -1, LEASE))
  local waiting = waiter:send("take", kind, name, -1, LEASE)
  w:asleep(name)
  assert.matches("%ds +1 ", line_of(w, name))
  local start = world.now()
  run(w, "break", "--force", name)
  world.at_once(waiting, start)
  assert.is_true(waiter:ask("give", kind, name))
end

-- A permit of another client is listed by its id.
local function permits_shown(w)
  local name, holder = w:name(), w.theirs:task()
  assert.is_true(holder:ask("set", "permits", name, 2))
  local _, id = holder:ask("take", "permits", name, -1, LEASE)
  assert.matches(" permits .* 1 available; " .. id, line_of(w, name))
  assert.is_true(holder:ask("give", "permits", name, id))
end

local function readers_shown(w) shown(w, "read") end

return {
  readers_shown = { "of theirs to read is listed and broken by rlockctl",
    readers_shown },
  shown = { "is listed and broken by rlockctl", shown },
  woken = { "is freed by rlockctl break, which wakes their waiter", woken },
  permits_shown = { "are listed by rlockctl", permits_shown },
}
