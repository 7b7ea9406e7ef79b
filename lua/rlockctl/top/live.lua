--- The live table of `rlockctl top`. One task refreshes the data; another reads
--- keys and draws. It sends only changes to the terminal.

local lock_table = require "rlockctl.top.lock_table"
local breaking = require "rlockctl.cli.break"
local host = require "rlock.host.uv"
local statistics = require "rlockctl.top.statistics"
local status = require "rlockctl.cli.status"
local text = require "rlockctl.cli.text"

local live = {}

local FIRST, FRAME = 2, 3    -- the first row of the table; lines around it

local HELP = [[
  up down, page up, page down, home, end   choose a lock
  Enter   the details of that lock: its holders and waiters; again: back
  b       break that lock, after a confirmation
  /       show only locks with a text in their name or holders; Escape: all

  sort by:  n name   t time held   l time left   w waiters
            g grants per second   o longest wait   h length of holds
            c contention   r reverse the order

  ?       this help
  q       quit

`rlockctl help top` explains the columns.]]

local KEYS = "q quit  ? help  / filter  n t l w g o h c r sort  Enter line  "
  .. "b break"

---@class rlockctl.top.live.Table
---@field columns integer
---@field sampler any
---@field screen any
---@field view any
---@field shown table
---@field first number
---@field last number
---@field scroll number
---@field height number
---@field changed rlock.event
---@field again rlock.event
---@field mode any
---@field question any
---@field problem any
---@field message any
local Table = {}
Table.__index = Table

-- drawing ---------------------------------------------------------------------

local function put(self, row, line, attribute)
  self.screen:put(row, 0, self.columns, line, attribute)
end

local function counted(n, what)
  return ("%d %s%s"):format(n, what, n == 1 and "" or "s")
end

function Table:title()
  local sums, view = self.sums, self.view
  local line = ("rlockctl top: %s, %d held, %s, by %s%s"):format(
    counted(sums.locks, "lock"), sums.held, counted(sums.waiters, "waiter"),
    view.sort, view.is_reverse and ", reversed" or "")
  if view.filter ~= "" then line = line .. ', with "' .. view.filter .. '"' end
  if sums.names < #self.sampler.names then
    line = ("%s; %s not sampled yet"):format(line,
      counted(#self.sampler.names - sums.names, "name"))
  end
  if self.sampler.is_cut then line = line .. "; there are more" end
  return line
end

local function put_cells(self, row, cell_of, attribute)
  local column = 0
  put(self, row, "", attribute)
  for _, one in ipairs(lock_table.columns(self.columns, self.view.sort)) do
    ---@type any
    local cell = cell_of(one)
    if one.right then
      ---@diagnostic disable-next-line: param-type-mismatch
      cell = (" "):rep(one.width - (utf8.len(cell) or 0)) .. cell
    end
    self.screen:put(row, column, one.width, cell, attribute)
    column = column + one.width + 1
  end
end

-- The index of the first row to show, so that `chosen` is among the rows shown.
local function scrolled(first, chosen, fit, count)
  first = math.min(first, chosen, math.max(1, count - fit + 1))
  return math.max(first, chosen - fit + 1, 1)
end

-- The index of the chosen lock. If its row is gone, chooses the row now at its
-- index.
function Table:index()
  if not self.chosen then return 1 end
  for i, entry in ipairs(self.rows) do
    if entry == self.chosen then return i end
  end
  local i = math.max(1, math.min(self.last, #self.rows))
  self.chosen = self.rows[i]
  return i
end

function Table:draw_table()
  local fit, chosen = self.height - FRAME, self:index()
  self.last, self.shown = chosen, {}
  self.first = scrolled(self.first, chosen, math.max(fit, 1), #self.rows)
  put_cells(self, FIRST - 1, function(one) return one[1] end, "bold")
  for i = 0, fit - 1 do
    local entry = self.rows[self.first + i]
    if not entry then break end
    self.shown[i + 1] = entry.name
    put_cells(self, FIRST + i, function(one) return one[2](entry) end,
      self.first + i == chosen and "reverse" or not entry.state and "dim"
      or "plain")
  end
end

-- Draws lines, scrolled by self.scroll.
function Table:draw_lines(lines)
  local fit = math.max(self.height - 2, 1)
  self.scroll = math.max(0, math.min(self.scroll, #lines - fit))
  for i = 1, fit do put(self, i, lines[self.scroll + i] or "") end
end

-- The median and the 99th percentile, or nil.
local function quantiles(entry, which)
  local half = statistics.quantile(entry, which, 0.5)
  return half and ("  %s: p50 %s, p99 %s"):format(which,
    lock_table.duration(half),
    lock_table.duration(statistics.quantile(entry, which, 0.99)))
end

local function lines_of(entry)
  local lines = entry.state and status.lines(entry.state)
    or { text.show(entry.name) .. " is free" }
  lines[#lines + 1] = ""
  lines[#lines + 1] = ("  %s seen, %.1f a second"):format(
    counted(entry.grants, "grant"), entry.rate)
  if entry.longest then
    lines[#lines + 1] = "  longest wait " .. lock_table.duration(entry.longest)
  end
  lines[#lines + 1] = quantiles(entry, "holds")
  lines[#lines + 1] = quantiles(entry, "waits")
  return lines
end

local function help_lines()
  local lines = {}
  for line in (HELP .. "\n"):gmatch "(.-)\n" do lines[#lines + 1] = line end
  return lines
end

function Table:footer()
  if self.mode == "filter" then
    return "/" .. self.view.filter .. "_", "bold"
  elseif self.mode == "ask" then
    return self.question, "bold"
  elseif self.problem or self.message then
    return self.problem or self.message, "bold"
  end
  return KEYS, "dim"
end

function Table:draw()
  local screen = self.screen
  self.height, self.columns = screen:size()
  screen:erase()
  put(self, 0, self:title(), "bold")
  if self.mode == "help" then
    self:draw_lines(help_lines())
  elseif self.detail then
    self.shown = { self.detail.name }
    self:draw_lines(lines_of(self.detail))
  else
    self:draw_table()
  end
  put(self, self.height - 1, self:footer())
  screen:refresh()
end

-- keys ------------------------------------------------------------------------

function Table:arrange()
  local watched, detail = self.sampler, self.detail
  self.rows, self.sums = lock_table.rows(watched, self.view)
  local entries = detail and watched.entries[detail.name] or {}
  self.detail = detail and (entries[detail.number] or detail)
end

function Table:entry() return self.detail or self.rows[self:index()] end

local function without_last(line)
  return line:sub(1, (utf8.offset(line, -1) or 1) - 1)
end

local function filter_key(self, key)
  local filter = self.view.filter
  if key == "enter" then
    self.mode = nil
  elseif key == "escape" then
    self.mode, self.view.filter = nil, ""
  elseif key == "backspace" then
    self.view.filter = without_last(filter)
  elseif utf8.len(key) == 1 then
    self.view.filter = filter .. key
  end
  self.chosen = nil
  self:arrange()
end

local MOVES = {
  up = function() return -1 end, down = function() return 1 end,
  k = function() return -1 end, j = function() return 1 end,
  ["page up"] = function(page) return -page end,
  ["page down"] = function(page) return page end,
  home = function() return -math.huge end, ["end"] = function()
    return math.huge
  end,
}

local function move(self, by)
  if self.detail or self.mode == "help" then
    self.scroll = math.max(-1e9, math.min(self.scroll + by, 1e9))
    return
  end
  local i = math.max(1, math.min(self:index() + by, #self.rows))
  self.chosen = i > 1 and self.rows[math.tointeger(i)] or nil
end

-- Runs fn(entry) in a separate task; shows its result.
local function aside(self, fn, entry)
  require("rlock").spawn(function()
    local message, code, detail = fn(self, entry)
    self.message = message or detail or code
    self.again:set()
    self.changed:set()
  end)
end

local function ask(self, entry)
  local hold, _, detail = breaking.find(self.sampler.client, entry.name)
  if not hold then return detail end
  if hold.is_free then return text.show(entry.name) .. " is free" end
  self.hold, self.mode = hold, "ask"
  self.question = ("Break %s, %s? [y/N]"):format(text.show(entry.name),
    hold.state.holders[1] and "held by " .. text.holders(hold.state)
    or "held by nobody")
end

local function strike(self, hold)
  local ok, _, detail = breaking.is_same(self.sampler.client, hold)
  if not ok then return detail end
  local was_held, said, why = breaking.strike(hold)
  return was_held == nil and why or said
end

local function answer(self, key)
  local hold = self.hold
  self.mode, self.hold = nil, nil
  if key == "y" or key == "Y" then return aside(self, strike, hold) end
  self.message = "not broken"
end

local function sort_by(self, name)
  self.view.sort, self.view.is_reverse, self.chosen = name, false, nil
  self:arrange()
end

local ACTIONS = {
  q = function() host.exit(0) end,
  ["?"] = function(self) self.mode, self.scroll = "help", 0 end,
  ["/"] = function(self) self.mode, self.detail = "filter", nil end,
  b = function(self)
    local entry = self:entry()
    if entry then aside(self, ask, entry) end
  end,
  r = function(self)
    self.view.is_reverse, self.chosen = not self.view.is_reverse, nil
    self:arrange()
  end,
  enter = function(self)
    self.detail, self.scroll = not self.detail and self:entry() or nil, 0
    self.again:set()
  end,
  escape = function(self)
    if self.detail then self.detail = nil return end
    self.view.filter = ""
    self:arrange()
  end,
}

local function press(self, key)
  self.message = nil
  if key == "gone" then host.exit(129) end
  if self.mode == "filter" then return filter_key(self, key) end
  if self.mode == "ask" then return answer(self, key) end
  if MOVES[key] then
    return move(self, MOVES[key](math.max(1, self.height - FRAME)))
  end
  if self.mode == "help" then self.mode = nil return end
  if lock_table.keys[key] then return sort_by(self, lock_table.keys[key]) end
  if ACTIONS[key] then ACTIONS[key](self) end
end

-- running ---------------------------------------------------------------------

-- Refreshes the data; shows a failure until a refresh succeeds.
local function refresh_forever(self, seconds)
  while true do
    local begun = host.now()
    local _, _, detail = self.sampler:turn(self.shown, seconds)
    self.problem = detail and detail:gsub("://%S*@", "://")
    self.is_new = true
    self.changed:set()
    local rest = seconds - (host.now() - begun)
    self.again:wait(math.max(rest, seconds / 10))
  end
end

-- Signals and messages only set flags for the task that draws.
local function listen(self)
  local function flag(what)
    return function()
      self[what] = true
      self.changed:set()
    end
  end
  host.on_readable(0, flag "has_keys")
  host.on_signal("WINCH", flag "is_resized")
  host.on_signal("CONT", flag "is_resized")
  host.on_signal("TSTP", flag "is_stopped")
  host.on_signal("QUIT", function() host.exit(131) end)
  ---@diagnostic disable-next-line: duplicate-set-field
  function host.write_log(line)
    self.message = text.bare((line:gsub("%s+$", "")))
    self.changed:set()
  end
end

local function handle_flags(self)
  local screen = self.screen
  if self.is_stopped then screen:suspend() end
  if self.is_resized then screen:renew() end
  self.is_stopped, self.is_resized = nil, nil
  if self.is_new then self:arrange() end
  self.is_new = nil
  for key in screen.key, screen do press(self, key) end
end

--- Shows the live table until the user quits.
---@param sampler table
---@param screen table of rlock.screen; the caller closes it
---@param view table as for lock_table.rows
---@param seconds number between two refreshes
function live.run(sampler, screen, view, seconds)
  local self = setmetatable({ sampler = sampler, screen = screen, view = view,
    shown = {}, first = 1, last = 1, scroll = 0, height = 0,
    changed = host.event(), again = host.event() }, Table)
  self:arrange()
  listen(self)
  require("rlock").spawn(refresh_forever, self, seconds)
  while true do
    self:draw()
    self.changed:wait()
    handle_flags(self)
  end
end

return live
