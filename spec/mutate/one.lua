--- Runs one mutant: lua5.4 spec/mutate/one.lua FILE NUMBER FOLDER [quick]
--- Number -K runs the Kth of the file's killers on the file as it is. Prints a
--- line, with tabs: the file, the number, what caught it (or "none"), seconds,
--- the test that failed.

local killers = require "spec.mutate.killers"
local mutants = require "spec.mutate.mutants"
local shell = require "spec.tools.shell"

local SECONDS = 60                      -- limit of a spec: processor time
local CHECK = 2 * SECONDS               -- the same of rlockctl check
local WAIT = 8 * SECONDS                -- limit of either: real time
-- Flaky tests: on a busy machine they may fail without a mutant.
local UNSURE = { "cost the same", "behind a bad network", "worth asking again" }
local INCOMPLETE = 3                    -- rlockctl check was too slow to say
local TIMEOUTS = { [124] = true, [137] = true, [152] = true }  -- 152: SIGXCPU
local MEMORY = 2000000                  -- kB of a process; a JVM lifts it

local file, number, folder, quick = table.unpack(arg)
number = tonumber(number)
local program = folder .. "/rlockctl"   -- with the copy

local function read(path)
  local opened <close> = assert(io.open(path))
  return opened:read "a"
end

local function write(path, text)
  local opened <close> = assert(io.open(path, "w"))
  opened:write(text)
end

-- The copy: the modules in the folder are found before all others.
local function write_copy()
  local path = folder .. "/" .. file:gsub("^lua/", "")
  local text = read(file)
  if number > 0 then
    text = mutants.apply(text, mutants.of(text)[number])
  end
  assert(os.execute("mkdir -p " .. shell.quote(path:match("^(.*)/"))))
  write(path, text)
  -- the specs in cli/ start programs without LUA_PATH
  write(program, ("#!/bin/sh\nexec '%s' --lua-path '%s' \"$@\"\n"):format(
    os.getenv "RLOCKCTL", folder))
  assert(os.execute("chmod +x " .. shell.quote(program)))
end

-- The command line of a killer, and whether it is a spec.
local function command(words, test)
  local first, rest = words:match("^(%S+) ?(.*)$")
  if first == "check" then return "check --limit 200 " .. rest, false end
  if first == "simulate" then
    return "spec/simulate/run.lua SEED=1 SHRINK=0 " .. rest, false
  end
  local filter = test and test:gsub("%W", "%%%0") or rest ~= "" and rest or "."
  local path = first:find("/", 1, true) and first or "redis/" .. first
  local out = {}
  for i, name in ipairs(UNSURE) do
    out[i] = "--filter-out=" .. shell.quote(name)
  end
  return ("%s -o plainTerminal --no-keep-going --exclude-tags=long "
    .. "--filter=%s %s spec/%s.lua"):format(os.getenv "BUSTED",
    shell.quote(filter), table.concat(out, " "), path), true
end

-- The name of the test that failed last, if one did.
local function failed_test()
  return read(folder .. "/log"):match("\n%a+ %-> [^\n]+\n([^\n]+)")
end

-- Does the killer pass? If not, the second result is what it did. A test of a
-- spec must fail twice, because the machine may be slow.
local function passes(words, test)
  local line, is_spec = command(words, test)
  local ran, how, status = os.execute(([[
    ulimit -S -v %d
    ulimit -t %d
    export LUA_PATH=%s real=$RLOCKCTL RLOCKCTL=%s
    timeout -k 1 %d "$real" %s >%s/log 2>&1 </dev/null
    ]]):format(MEMORY, is_spec and SECONDS or CHECK,
    shell.quote(folder .. "/?.lua;./?.lua;;"), shell.quote(program), WAIT, line,
    shell.quote(folder)))
  assert(how == "exit", "interrupted")
  if ran or not is_spec and status == INCOMPLETE then return true end
  if TIMEOUTS[status] then return false, "timeout" end
  local failed = is_spec and not test and failed_test()
  if failed then return passes(words, failed) end
  return false, nil, test
end

local function caught_by(list)
  for _, words in ipairs(list) do
    if words == "then" then
      if quick then return "none" end
    else
      local ok, what, test = passes(words)
      if not ok then
        return what and ("%s: %s"):format(what, words) or words, test
      end
    end
  end
  return "none"
end

write_copy()
local began = os.time()
local by, test = caught_by(number < 0 and { killers[file][-number] }
  or killers[file])
print(("%s\t%d\t%s\t%d\t%s"):format(file, number, by, os.time() - began,
  test or ""))
