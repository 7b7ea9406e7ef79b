--- What `rlockctl doctor` says of one server, or of a set of servers: a list of
--- findings. A rule is a function of the facts about a server. It returns the
--- level of its finding, and what it found; below "ok" also why that matters
--- for a lock, and the command that mends it. It returns nothing if it does not
--- apply. What a server does not tell is no fault: the finding is "unknown".

local text = require "rlockctl.cli.text"

local report = {}

---@class rlockctl.doctor.report.Report
---@field where any
---@field server table
---@field findings table
---@field is_spare boolean
---@field version any
---@field role any
local Report = {}
Report.__index = Report

---@class rlockctl.doctor.report.Facts
local Facts = {}
Facts.__index = Facts

--- The levels, from the worst.
report.levels = { "fault", "warning", "note", "unknown", "ok" }

local rank = {}
for i, level in ipairs(report.levels) do rank[level] = i end

-- facts -----------------------------------------------------------------------

local Unknown = {}                      -- the class of the errors of `of`

local function unknown(why)
  error(setmetatable({ why = why }, Unknown), 0)
end

--- Facts about a server. Each source of facts is a table of texts by name, or a
--- text: why it is unknown.
---@param its table the sources, and fields for the rules
---@return table
function report.facts(its) return setmetatable(its, Facts) end

--- A fact that may be missing from its source.
---@param source string
---@param name string
---@return string?
function Facts:find(source, name)
  ---@type any
  local its = self[source]
  if type(its) ~= "table" then unknown(its or source .. " is unknown") end
  return its[name]
end

--- A fact; without it, the finding of the rule is "unknown".
---@return any
function Facts:of(source, name)
  return self:find(source, name)
    or unknown(("%s has no %s"):format(source, name))
end

--- A fact that is a number, of at most 2^53.
function Facts:number(source, name)
  local number = tonumber(self:of(source, name))
  if number and math.abs(number) <= 2^53 then return number end
  unknown(("%s: %s is no number"):format(source, name))
end

-- findings --------------------------------------------------------------------

---@param where string the address of the server, or the name of the set
---@param server string "redis", "zookeeper", ...
---@param is_spare? boolean no lock is on it, unless another one fails
---@return table
function report.new(where, server, is_spare)
  return setmetatable({ where = where, server = server, findings = {},
    is_spare = is_spare }, Report)
end

---@class rlockctl.doctor.report.Audit
---@field reports any
local Audit = {}
Audit.__index = Audit

--- An audit of what a client connects to.
---@param its table client, lease in seconds, perhaps name and policy
---@return table # with `reports`
function report.audit(its)
  its.reports = {}
  return setmetatable(its, Audit)
end

--- Adds a report; arguments as for `new`.
function Audit:add(...)
  local its = report.new(...)
  table.insert(self.reports, its)
  return its
end

--- Adds a finding.
---@param check string its name
---@param level? string nil: there is nothing to say
---@param what? string
---@param why? string
---@param mend? string
function Report:add(check, level, what, why, mend)
  if not level then return end
  table.insert(self.findings, { check = check, level = level, what = what,
    why = why, mend = mend })
end

--- Adds that the server cannot be audited.
---@param code string
---@param detail string
function Report:fail(code, detail)
  self.code, self.detail, self.is_done = code, detail, true
  self:add("reach", self.is_spare and "warning" or "fault", detail,
    self.is_spare and "there may be too few servers for the next failover"
      or "locks that are on it can be neither acquired nor renewed",
    "start it, or correct its address, login or firewall")
end

local function note(self, check, ok, level, ...)
  if ok then return self:add(check, level, ...) end
  if getmetatable(level) ~= Unknown then error(level, 0) end
  self:add(check, "unknown", level.why)
end

--- Adds the findings of rules, a list of { check, rule }.
---@param rules table
---@param ... any the arguments of each rule
function Report:apply(rules, ...)
  for _, rule in ipairs(rules) do
    note(self, rule[1], pcall(rule[2], ...))
  end
end

--- Sorts the findings, the worst first; returns the worst level.
---@return string
function Report:sort()
  for i, finding in ipairs(self.findings) do finding.order = i end
  table.sort(self.findings, function(a, b)
    local x, y = rank[a.level], rank[b.level]
    return x < y or x == y and a.order < b.order
  end)
  local worst = self.findings[1]
  return worst and worst.level or "ok"
end

--- The report for JSON.
function Report:record()
  local level, findings = self:sort(), {}
  for i, its in ipairs(self.findings) do
    findings[i] = { check = its.check, level = its.level, what = its.what,
      why = its.why, mend = its.mend }
  end
  return { where = self.where, server = self.server, version = self.version,
    role = self.role, findings = findings, level = level }
end

-- text ------------------------------------------------------------------------

local WIDTH = 78
local COLOURS = { fault = "1;31", warning = "1;33", note = "1" }

-- The text unchanged, for copying, unless a terminal could display it wrongly.
local function bare(words)
  return words:find "[%c\127-\255]" and text.bare(words) or words
end

-- Breaks a text into lines; those after the first are indented by 6.
local function wrap(lines, words, indent)
  local line = indent
  for word in bare(words):gmatch "%S+" do
    if #line > #indent and #line + #word >= WIDTH then
      lines[#lines + 1], indent = line, "      "
      line = indent
    end
    line = line .. (#line > #indent and " " or "") .. word
  end
  lines[#lines + 1] = line
end

local function paint(word, level, is_coloured)
  if not is_coloured or not COLOURS[level] then return word end
  return ("\27[%sm%s\27[0m"):format(COLOURS[level], word)
end

local function add_finding(lines, its, is_coloured)
  local first = #lines + 1
  wrap(lines, ("%s: %s: %s"):format(its.level, its.check, its.what), "  ")
  lines[first] = lines[first]:gsub("%l+", function(word)
    return paint(word, its.level, is_coloured)
  end, 1)
  if its.why then wrap(lines, "why: " .. its.why, "    ") end
  if its.mend then lines[#lines + 1] = "    mend: " .. bare(its.mend) end
end

-- Adds the checks of a level on one line for each text.
local function add_short(lines, findings, level)
  local groups, order = {}, {}
  for _, its in ipairs(findings) do
    if its.level == level then
      local what = level == "unknown" and its.what or ""
      if not groups[what] then order[#order + 1] = what end
      groups[what] = (groups[what] and groups[what] .. ", " or "") .. its.check
    end
  end
  for _, what in ipairs(order) do
    wrap(lines, ("%s: %s%s"):format(level, groups[what],
      what ~= "" and " (" .. what .. ")" or ""), "  ")
  end
end

--- The report as lines of text.
---@param is_coloured boolean
---@return table
---@return any ...
function Report:lines(is_coloured)
  local level = self:sort()
  local lines = { ("%s: %s%s%s"):format(bare(self.where), self.server,
    self.version and " " .. bare(self.version) or "",
    self.role and ", " .. bare(self.role) or "") }
  for _, its in ipairs(self.findings) do
    if rank[its.level] < rank.unknown then
      add_finding(lines, its, is_coloured)
    end
  end
  add_short(lines, self.findings, "unknown")
  add_short(lines, self.findings, "ok")
  return lines, level
end

return report
