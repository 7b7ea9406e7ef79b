--- One run of a user's program, with several processes, their servers and the
--- injected faults, all determined by one seed. It ends when all processes have
--- ended, when the span is over, or when it exposes a bug of the program.

local faults = require "rlockctl.simulate.faults"
local holders = require "rlockctl.simulate.holders"
local invariants = require "rlockctl.simulate.invariants"
local network = require "rlockctl.simulate.network"
local order = require "rlockctl.simulate.order"
local patch = require "rlockctl.simulate.patch"
local plans = require "rlockctl.simulate.plan"
local process = require "rlockctl.simulate.process"
local semaphores = require "rlockctl.simulate.semaphores"
local servers = require "rlockctl.simulate.servers"
local sim = require "rlockctl.model.host"
local steps = require "rlockctl.simulate.steps"
local waits = require "rlockctl.simulate.waits"

local run = {}
run.__index = run

local RESTART = 1                       -- seconds, at most, after a crash
local LOOK = 1                          -- seconds between two checks of waits
local COLLECT = 5                       -- checks between two collections
local PATIENCE = 15                     -- seconds that a wait may last, in
                                        -- addition to two leases
local LONGEST = 3                       -- times that: then a run always ends
local LEASE = 30                        -- seconds; the watchdog's default
local LOOP = 86400                      -- seconds of a loop that reads the
                                        -- clock and never waits

-- The codes of a process that loses a race. They may end some of the processes,
-- even without faults.
local LOSES = { busy = true, timeout = true, quorum = true }

--- Reads the server's data, for an invariant.
function run:read(...) return servers.read(self, ...) end

-- bugs of the program ---------------------------------------------------------

--- Ends the run because of a bug, and stores it in the field `bug`.
---@param what string its sort: "error", "code", "invariant", "deadlock",
---  "unlock", "wait", or "rlock": a bug in rlock itself
---@param text string a sentence
---@param at? table `process`, `line`, `time`
function run:found(what, text, at)
  if self.bug then return end
  at = at or {}
  if self.broken then text = ("%s (earlier, %s)"):format(text, self.broken) end
  self.bug = { what = what, text = text, time = at.time or self.universe.now,
    process = at.process, line = at.line }
  self.universe.is_over = true
end

--- Records the first use of something that is not reproducible: it may differ
--- between two runs of a seed.
---@param what string
function run:depends_on_addresses(what)
  if self.cause then return end
  local level = 2
  local info
  repeat
    level = level + 1
    info = debug.getinfo(level, "Sl")
  until not info or self.program.chunks[info.source:match "^@(.*)" or ""]
  self.cause = ("Likely cause: %s%s"):format(what, info and (", at %s:%d")
    :format(info.short_src:match "[^/]*$", info.currentline) or "")
end

--- Ends the run, because the simulated server lacks something.
---@param what string such as "command GEOADD"
function run:lacks(what)
  self.lack = self.lack or what
  self.universe.is_over = true
end

-- The innermost line of the program in a traceback.
local function line_in(self, message)
  for path, line in message:gmatch "\n%s*([^\n]-):(%d+): in " do
    if self.program.chunks[path] then
      return ("%s:%s"):format(path:match "[^/]*$", line)
    end
  end
end

-- Is this the name of a file of the program? (A message may shorten its path.)
local function is_file(self, name)
  for path in next, self.program.chunks do
    if path:match "[^/]*$" == name then return true end
  end
end

-- Splits the first line of a message into the position that it begins with, if
-- that is in the program, and the text.
local function split(self, message)
  local first = message:match "^[^\n]*"
  local file, line, text = first:match "^([^\n]-):(%d+): (.*)$"
  local name = file and file:match "[^/]*$"
  if name and is_file(self, name) then
    return ("%s:%s"):format(name, line), text
  end
  -- The error names the caller of rlock, which is steps.lua in a recorded run.
  local is_recorder = file and file:find "simulate/steps%.lua$"
  return nil, is_recorder and text or first
end

--- Called when an uncaught error ends a process. `code` is the error code of
--- rlock, if it has one.
function run:uncaught(own, code, message)
  local line, text = split(self, message)
  line = line or line_in(self, message)
  if self.steps then steps.add(self, own, "ends: " .. text, line) end
  text, own.line = own:explained(text), line
  local is_strict, is_calm = self.options.strict, not self.plan[1]
  if code then
    self.codes[code] = (self.codes[code] or 0) + 1
    own.loss = text
    if not is_strict and (LOSES[code] or not is_calm) then return end
    if is_calm then text = text .. ", although no fault was injected" end
  end
  self:found(code and "code" or "error", ("process %s ends by an uncaught "
    .. "error: %s"):format(own.host.label, text),
    { process = own.host.label, line = line })
end

-- Called at the end of a run. Without faults, some process must succeed.
local function check_success(self)
  if self.plan[1] then return end
  local last = self.processes[1] --[[@as any]]
  for _, own in ipairs(self.processes) do
    if own.ending ~= "code" then return end
    if own.ended_at > last.ended_at then last = own end
  end
  self:found("code", ("every process ends by an uncaught error, although no "
    .. "fault was injected: the program never works; process %s ends by %s")
    :format(last.host.label, last.loss),
    { process = last.host.label, line = last.line, time = last.ended_at })
end

-- Called at the end of a run, if all processes have ended.
local function check_semaphores(self)
  ---@type any, any
  local text, own = semaphores.leak(self)
  if text then
    self:found("unlock", text, { process = own.host.label,
      time = own.ended_at })
  end
end

-- Calls fn with each grant that a client holds, and with each permit that the
-- watchdog renews, until fn returns true. Returns the name of that lock.
local function held_by(client, fn)
  for _, kind in next, client.session.kinds do
    for name, record in next, kind.records do
      for _, granted in next, record.grants do
        if granted.holds[1] and granted.state ~= "lost" and fn(granted) then
          return name
        end
      end
      for _, permit in next, record.taken or {} do
        if permit.watched and permit.state ~= "lost" and fn(permit) then
          return name
        end
      end
    end
  end
end

local function is_any() return true end

--- Called when a process ends without an error. Its clients are still open,
--- unless it has closed them.
function run:ending(own)
  if self.steps then steps.add(self, own, "ends") end
  for _, client in ipairs(own.ending == "done" and own.clients or {}) do
    local name = not client.session.is_closed and held_by(client, is_any)
    if name then
      self:found("unlock", ("process %s has ended without releasing %s")
        :format(own.host.label, name), { process = own.host.label })
    end
  end
end

local function broken(self, message, entry)
  if not message then return end
  local line, text = split(self, message)
  self:found("invariant", text, { process = entry.process.host.label,
    line = line or entry.line })
end

local function check_always(self) broken(self, self.invariants:check()) end
local function check_end(self)
  broken(self, self.invariants:check_end())
  if self.bug then self.bug.since = self.broken_at end
end

-- Records since when the invariants of `finally` have been violated.
local function note_breach(self)
  local is_broken = self.invariants:check_end()
  self.broken_at = is_broken and (self.broken_at or self.universe.now) or nil
end

--- Checks the invariants after each step from now on.
function run:watch_invariants()
  if self.is_watched then return end
  self.is_watched = true
  local former = self.universe.on_resumed
  self.universe.on_resumed = function()
    if former then former() end
    check_always(self)
    if self.steps then note_breach(self) end
  end
end

-- processes -------------------------------------------------------------------

local function start(self, number, life)
  local own = process.start(self, number, life)
  self.processes[#self.processes + 1] = own
  if self.steps then
    steps.add(self, own, life == 1 and "starts" or "starts again")
  end
end

-- Have all processes ended?
local function have_ended(self)
  if self.coming > 0 then return false end
  for _, own in ipairs(self.processes) do
    if not own.is_closed and not own.host.is_dead then return false end
  end
  return true
end

--- Ends the run if all processes have ended.
function run:ended()
  if have_ended(self) then self.universe.is_over = true end
end

-- Crashes a process, and restarts it.
local function crash(self, own, seconds)
  self.universe:kill(own.host)
  if own.ending then return self:ended() end
  self.coming = self.coming + 1
  self.universe:after(math.min(seconds, RESTART), function()
    self.coming = self.coming - 1
    start(self, own.number, own.life + 1)
  end)
end

--- Logs what a process prints.
function run:printed(own, text, is_error)
  if not self.log then return end
  self.log[#self.log + 1] = { time = self.universe.now,
    after = self.steps and #self.steps, process = own.host.label, text = text,
    is_error = is_error }
end

-- fault injection -------------------------------------------------------------

-- The other kinds of faults need servers, which exist once the program has
-- opened its first client.
local OF_PROCESS = { kill = true, stall = true }

-- Which of several servers a fault affects, for the report.
local function place_of(self, kind, a, b)
  if self.sort ~= "redis" or not self.servers[2] or OF_PROCESS[kind] then
    return ""
  end
  local dice = faults.of_servers[kind] and a or b
  return " " .. faults.one_of(self.servers, dice).place
end

local function inject(self, event)
  local _, kind, a, b, seconds = table.unpack(event)
  local own = faults.process_of(self, a)
  if not own or not self.sort and not OF_PROCESS[kind] then return end
  if self.steps then
    steps.add(self, not faults.of_servers[kind] and own or nil,
      ("FAULT %s%s%s"):format(kind, place_of(self, kind, a, b),
      kind ~= "reset" and (" %.3f s"):format(kind == "kill"
      and math.min(seconds, RESTART) or seconds) or ""))
  end
  self.broken = self.broken or plans.broken[kind]
  if kind == "kill" then return crash(self, own, seconds) end
  faults.inject[kind](self, a, b, seconds)
end

local function schedule(self)
  for _, event in ipairs(self.plan) do
    self.universe:at(event[1], { fire = function() inject(self, event) end })
  end
end

-- running ---------------------------------------------------------------------

local function collect(self)
  self.looks = self.looks + 1
  if self.looks % COLLECT == 0 then collectgarbage "step" end
end

-- Finds locks whose task has ended, if two successive checks see them: at the
-- first one, rlock may still be passing the hold on.
local function look_for_abandoned(self)
  local former, found = self.abandoned, {}
  self.abandoned = found
  local function is_twice(granted)
    found[granted] = granted:is_abandoned() or nil
    return found[granted] and former[granted]
  end
  for _, own in ipairs(self.processes) do
    local is_gone = own.host.is_dead or own.ending
    for _, client in ipairs(is_gone and {} or own.clients) do
      local name = held_by(client, is_twice)
      if name then
        return self:found("unlock", ("a task of process %s has ended without "
          .. "releasing %s"):format(own.host.label, name),
          { process = own.host.label })
      end
    end
  end
end

-- Ends a run when its time is over. If a process has been waiting since before
-- that time, the run continues for a while, because that wait may never end.
local function look(self)
  local now = self.universe.now
  collect(self)
  look_for_abandoned(self)
  local before = now - self.patience
  if before >= self.calm_at then
    ---@type any, any, any
    local what, text, host = waits.endless(self, before)
    if what then
      return self:found(what, semaphores.explain(self, text),
        { process = host.label })
    end
  end
  local ends = math.max(self.span, self.calm_at)
  if now >= ends and (not waits.any(self, ends)
      or now >= ends + LONGEST * self.patience)
  then
    self.universe.is_over = true
  end
end

local function new(program, seed, options)
  local universe = sim.new(seed)
  local self = setmetatable({
    program = program, seed = seed, options = options, universe = universe,
    network = network.new(universe), servers = {}, processes = {}, waits = {},
    codes = {}, coming = 0, looks = 0, abandoned = {},
    holders = {}, granted_at = {}, taken = {}, semaphores = {},
    span = options.span,
    plan = options.plan or {}, steps = options.steps and {},
    log = options.log and {}, moments = {}, lease = 0,
  }, run)
  function self.network.on_lack(_, what) self:lacks(what) end
  self.invariants = invariants.new(self)
  self.patience = 2 * (options.lease or LEASE) + PATIENCE
  self.calm_at = plans.ends(self.plan) + RESTART
  return self
end

local function simulate(program, seed, options)
  local self = new(program, seed, options)
  local universe = self.universe
  -- Other runs do not end loops: the hook costs a tenth of the speed.
  if options.is_probe or options.has_loop or self.steps then
    process.end_loops(universe, LOOP, self.steps and steps.line_hook(self))
  end
  if options.stop then options.stop.universe = universe end
  schedule(self)
  if self.steps then self:watch_invariants() end
  for number = 1, options.processes do start(self, number, 1) end
  while not universe.is_over do
    universe:run(universe.now + LOOK)
    if not universe.is_over then look(self) end
  end
  if self.bug or self.lack then return self end
  if have_ended(self) then
    check_success(self)
    check_semaphores(self)
  end
  if not self.bug then check_end(self) end
  return self
end

local programs = {}

local PATCHES = {}
for _, module in ipairs { waits, holders, semaphores, servers } do
  table.move(module.patches, 1, #module.patches, #PATCHES + 1, PATCHES)
end

--- Runs a program once.
---@param program table `path`, `arg`, `version` of rlock, `chunks` (a table),
---  `url`, the default of rlock.open
---@param seed integer
---@param options table `processes`; `span`, seconds of virtual time; `plan`,
---  see plan.lua; `lease`, the longest one in the probe; `strict`; `steps` and
---  `log`, whether to record them; `is_probe`; `servers`, a sort of
---  servers.lua, with their number of `replicas`; `data`, name -> value;
---  `stop`, a table that gets the `universe` of the run
---@return table # the run: `bug`, { what, text, time, process, line } or nil;
---  `lack`, what the simulated server lacks, or nil; `cause`, a sentence that
---  says why another run of the seed may differ, or nil; `codes`, the uncaught
---  error codes of rlock with their counts; `steps`; `log`; `sort`, that of its
---  servers; for a probe, also `moments` and `lease`
function programs.run(program, seed, options)
  local function all(...)
    if options.steps then return steps.during(simulate, ...) end
    return simulate(...)
  end
  return order.run(patch, PATCHES, all, program, seed, options)
end

return programs
