--- lua5.4 spec/mutate/main.lua choose SEED=n [COUNT=n] [EACH=n] [LEAST=n]
---     [FILE=path] [QUICK=1]
---     prints a line "FILE NUMBER" for each chosen mutant. Before them come
---     lines "FILE -KILLER", which try each killer on the unchanged file
--- lua5.4 spec/mutate/main.lua report [GATE=percent] <RESULTS
---     prints what was caught, and the survivors by file; fails if that is too
---     little

local killers = require "spec.mutate.killers"
local known = require "spec.mutate.known"
local mutants = require "spec.mutate.mutants"
local sorted = require "rlock.util.sorted"

local LEAST = 0.9                       -- of the mutants must be caught
local EQUAL = 0.1                       -- may be declared equivalent

local cache = {}

local function mutants_of(file)
  if not cache[file] then
    local opened <close> = assert(io.open(file))
    cache[file] = mutants.of(opened:read "a")
  end
  return cache[file]
end

-- choosing --------------------------------------------------------------------

local function options()
  local result = {}
  for _, word in ipairs(arg) do
    local name, value = word:match("^(%u+)=(.+)$")
    if name then result[name] = value end
  end
  return result
end

-- A number that depends on each byte of the text: FNV-1a, mixed once more.
local function hash(text)
  local n = 0xcbf29ce484222325
  for i = 1, #text do n = (n ~ text:byte(i)) * 0x100000001b3 end
  n = (n ~ n >> 33) * 0xff51afd7ed558ccd
  return n ~ n >> 33
end

-- All mutants of a file, as { file, number, rank }. The rank depends on nothing
-- but the seed, the mutant and how often the file has had the same one before.
local function ranked(file, seed)
  local list, seen = {}, {}
  for number, mutant in ipairs(mutants_of(file)) do
    local words = table.concat({ seed, file, mutant.place, mutant.old,
      mutant.new }, "\n")
    seen[words] = (seen[words] or 0) + 1
    list[number] = { file, number, hash(words .. "\n" .. seen[words]) }
  end
  return list
end

-- The `count` mutants of lowest rank.
local function lowest(list, count)
  table.sort(list, function(a, b) return a[3] < b[3] end)
  return table.move(list, 1, math.min(tonumber(count) or #list, #list), 1, {})
end

-- Each killer of these files once, as { file, -number }.
local function killers_of(files, is_quick)
  local list, seen = {}, { ["then"] = true }
  for _, file in ipairs(files) do
    for i, words in ipairs(killers[file]) do
      if words == "then" and is_quick then break end
      if not seen[words] then list[#list + 1] = { file, -i } end
      seen[words] = true
    end
  end
  return list
end

-- Appends some items to a list.
local function append(list, some)
  table.move(some, 1, #some, #list + 1, list)
end

-- The `least` mutants of lowest rank of each file, then others by their ranks.
local function sample(given)
  local chosen, others = {}, {}
  for _, file in ipairs(sorted(killers)) do
    local is_left_out = given.QUICK and killers[file][1] == "then"
      or given.FILE and not file:find(given.FILE, 1, true)
    if not is_left_out then
      local some = lowest(ranked(file, given.SEED), given.EACH)
      local least = math.min(tonumber(given.LEAST or 0), #some)
      append(chosen, table.move(some, 1, least, 1, {}))
      append(others, table.move(some, least + 1, #some, 1, {}))
    end
  end
  local wanted = tonumber(given.COUNT) or math.huge
  append(chosen, lowest(others, math.min(math.max(wanted - #chosen, 0),
    #others)))
  return lowest(chosen)
end

-- A sample is stable: a change of a source replaces only mutants of changed
-- lines.
local function choose()
  local given, bases = options(), {}
  local chosen = sample(given)
  for _, one in ipairs(chosen) do bases[one[1]] = true end
  for _, base in ipairs(killers_of(sorted(bases), given.QUICK)) do
    print(base[1], base[2])
  end
  for _, one in ipairs(chosen) do print(one[1], one[2]) end
end

-- reporting -------------------------------------------------------------------

-- The rule: of the mutants that known.lua does not list, at least LEAST must be
-- caught, or for a large run what GATE says. So a few survivors that are not
-- listed yet do not fail a run of fresh mutants. Listed mutants must exist, and
-- at most EQUAL of the mutants of a file may be declared equivalent.

local function entry_of(file, mutant)
  for _, entry in ipairs(known[file] or {}) do
    if entry[1] == mutant.place and entry[2] == mutant.key then
      return entry
    end
  end
end

-- Is the list of a file valid?
local function is_listed_well(file, list)
  local found, equal, ok = {}, 0, true
  for _, mutant in ipairs(mutants_of(file)) do
    local entry = entry_of(file, mutant)
    if entry then found[entry] = true end
  end
  for _, entry in ipairs(list) do
    if entry.equal then equal = equal + 1 end
    if not found[entry] then
      ok = false
      print(("known.lua: %s has no mutant %s: %s"):format(file, entry[1],
        entry[2]))
    end
  end
  return ok and equal <= EQUAL * #mutants_of(file)
end

local function are_known_well()
  local ok = true
  for file, list in pairs(known) do
    ok = is_listed_well(file, list) and ok
  end
  return ok
end

local function new_sum()
  return { mutants = 0, caught = 0, known = 0, equal = 0, by = {},
    survivors = {} }
end

local function survived(sum, file, mutant)
  local entry = entry_of(file, mutant)
  table.insert(sum.survivors, { mutant = mutant, entry = entry })
  if entry then sum.known = sum.known + 1 end
  if entry and entry.equal then sum.equal = sum.equal + 1 end
end

-- Prints the survivors of a file, in the order of its lines.
local function show_survivors(file, sum)
  table.sort(sum.survivors, function(a, b)
    return a.mutant.from < b.mutant.from
      or a.mutant.from == b.mutant.from and a.mutant.key < b.mutant.key
  end)
  for _, one in ipairs(sum.survivors) do
    local mutant, entry = one.mutant, one.entry
    print(("%s:%d: %s: %s\n  - %s\n  + %s%s"):format(file, mutant.line,
      mutant.place, mutant.key, mutant.old, mutant.new,
      entry and "\n  known: " .. entry[3] or ""))
  end
end

-- The lines of the results, and what fails without a mutant -> true: a check, a
-- test of a spec, or either because it takes too long.
local function read_results()
  local lines, broken = {}, {}
  for line in io.lines() do
    local file, number, by, test =
      line:match("^(%S+)\t(%-?%d+)\t([^\t]+)\t%d+\t?(.*)")
    if not file then error("not a result: " .. line) end
    local failed = by .. " " .. test
    if tonumber(number) > 0 then
      lines[#lines + 1] = { file, tonumber(number), by, failed }
    elseif by ~= "none" then
      broken[failed] = true
      print("fails without a fault: " .. failed)
    end
  end
  return lines, broken
end

-- A mutant is not caught by a test that also fails without it: on a slow
-- machine, tests may fail by chance.
local function sums_of(lines, broken)
  local files = {}
  for _, line in ipairs(lines) do
    local file, number, by, failed = table.unpack(line)
    local sum = files[file] or new_sum()
    files[file], sum.mutants = sum, sum.mutants + 1
    if by == "none" or broken[failed] then
      survived(sum, file, mutants_of(file)[number])
    else
      sum.caught, sum.by[by] = sum.caught + 1, (sum.by[by] or 0) + 1
    end
  end
  return files
end

local function show(name, sum)
  print(("%-36s %4d mutants, %4d caught, %3d known, %3d equivalent"):format(
    name, sum.mutants, sum.caught, sum.known, sum.equal))
end

-- The share that must be caught of n mutants: what GATE says; or LEAST, less
-- two standard deviations of a random sample, or CI would fail by chance.
local function least_of(n, gate)
  if gate then return tonumber(gate) / 100 end
  return LEAST - 2 * math.sqrt(LEAST * (1 - LEAST) / math.max(n, 1))
end

local function report()
  local files, all, gate = sums_of(read_results()), new_sum(), options().GATE
  for _, file in ipairs(sorted(files)) do show_survivors(file, files[file]) end
  for _, file in ipairs(sorted(files)) do
    local sum = files[file]
    show(file, sum)
    for _, by in ipairs(sorted(sum.by)) do
      print(("    %4d by %s"):format(sum.by[by], by))
    end
    for _, name in ipairs { "mutants", "caught", "known", "equal" } do
      all[name] = all[name] + sum[name]
    end
  end
  show("all", all)
  local judged = all.mutants - all.known
  local share = judged > 0 and all.caught / judged or 1
  local least = least_of(judged, gate)
  local is_enough = share >= least and are_known_well()
  print(("%.1f %% of all are caught; %.1f %% of those not known, of which "
    .. "%.1f %% must be"):format(100 * all.caught / math.max(all.mutants, 1),
    100 * share, 100 * least))
  print(("total: %d passed, %d failed, 0 skipped"):format(all.caught,
    is_enough and 0 or math.max(1, judged - all.caught)))
  os.exit(is_enough)
end

if arg[1] == "choose" then choose() else report() end
