--- Counters and histograms of a client's use of locks. A client has a series
--- for each kind of lock, and one for each lock that the program lists. They
--- are always on, so `observe` and the increments elsewhere allocate nothing
--- and read no clock.
---
--- Outside of a series, a number has a key: "field\tclient\tkind\tlock". Maps
--- from keys to numbers can be added: those of closed clients, or of several
--- workers of nginx.

local sorted = require "rlock.util.sorted"

local metrics = {}

--- Upper bounds of the buckets, in seconds.
local function bounds(text)
  local list = {}
  for ms in text:gmatch("%S+") do
    list[#list + 1] = tonumber(ms) --[[@as number]] / 1000
  end
  list[#list + 1] = math.huge
  return list
end

local BOUNDS = {
  wait = bounds [[1 5 10 25 50 100 250 500 1000 2500 5000 10000 30000 60000
    300000]],
  round_trip = bounds "0.25 1 2.5 5 10 25 50 100 250 500 1000 2500",
}
BOUNDS.hold = BOUNDS.wait

--- The bounds, for callers that cannot afford a call of `observe`.
metrics.bounds = BOUNDS

local COUNTERS = {
  { "acquired", "Locks and permits acquired." },
  { "handed_over", "Locks that a release handed over to a waiter." },
  { "busy", "Attempts that found it busy and did not wait." },
  { "timeouts", "Waits that ended without a grant." },
  { "errors", "Calls that failed in another way." },
  { "lost", "Holds lost: expired, broken or not renewed in time." },
  { "asked", "Release requests passed to a callback of a holder." },
  { "late_renewals", "Renewals sent when half of the lease had passed." },
  { "computed", "Values computed by client:compute." },
  { "cached", "Values that another caller of client:compute had computed." },
  { "stale", "Old values returned while another caller computed." },
}

local HISTOGRAMS = {
  { "wait", "Time waited for a grant; 0 if the first attempt got it." },
  { "hold", "Time for which a lock or a permit was held." },
  { "round_trip", "Time from a granted request or a renewal to its reply." },
}

local function new_series()
  local series = {}
  for _, row in ipairs(COUNTERS) do series[row[1]] = 0 end
  for _, row in ipairs(HISTOGRAMS) do
    local histogram = { sum = 0, bounds = BOUNDS[row[1]] }
    for i = 1, #histogram.bounds do histogram[i] = 0 end
    series[row[1]] = histogram
  end
  return series
end

--- Records a duration.
---@param histogram table
---@param seconds number
function metrics.observe(histogram, seconds)
  local limits, i = histogram.bounds, 1
  while seconds > limits[i] do i = i + 1 end
  histogram[i] = histogram[i] + 1
  histogram.sum = histogram.sum + seconds
end

local field_of = { busy = "busy", timeout = "timeouts" }

--- Counts a call that failed. A cancelled call is not a failure.
---@param series table
---@param code string
function metrics.failed(series, code)
  if code == "cancelled" then return end
  local field = field_of[code] or "errors"
  series[field] = series[field] + 1
end

---@class rlock.meter
---@field client string
---@field kinds table<string, table>
---@field listed table
---@field all table
---@field meters table
local Meter = {}
Meter.__index = Meter

-- The meters of a host: the set of those that are `open`, and the numbers of
-- closed ones, by key, in `past`.
local function meters_of(host)
  host.meters = host.meters or { open = {}, past = {} }
  return host.meters
end

--- Creates the meter of a client.
---@param host table
---@param client? string its name
---@param locks? table names of locks with a series of their own
function metrics.new(host, client, locks)
  local self = setmetatable({ client = (client or ""):gsub("%c", "?"),
    listed = {}, all = {}, meters = meters_of(host) }, Meter)
  for _, name in ipairs(locks or {}) do self.listed[name] = true end
  self.meters.open[self] = true
  return self
end

--- The series of a kind or, if its name is listed, of a lock.
---@param kind string
---@param name? string of the lock
---@return table? # nil if there is a name and it is not listed
function Meter:series(kind, name)
  if name and not self.listed[name] then return nil end
  local label = ("\t%s\t%s\t%s"):format(self.client, kind:gsub("%c", "?"),
    name or "")
  self.all[label] = self.all[label] or new_series()
  return self.all[label]
end

local function add(numbers, key, n)
  if n ~= 0 then numbers[key] = (numbers[key] or 0) + n end
end

--- Adds the meter's numbers to a map. The histogram `wait` has only the calls
--- that waited; this adds the others to it.
function Meter:add_to(numbers)
  for label, series in pairs(self.all) do
    for _, row in ipairs(COUNTERS) do
      add(numbers, row[1] .. label, series[row[1]])
    end
    local at_once = series.acquired
    for i = 1, #series.wait do at_once = at_once - series.wait[i] end
    add(numbers, "wait.1" .. label, at_once)
    for _, row in ipairs(HISTOGRAMS) do
      local name, histogram = row[1], series[row[1]]
      for i, n in ipairs(histogram) do
        add(numbers, name .. "." .. i .. label, n)
      end
      add(numbers, name .. ".sum" .. label, histogram.sum)
    end
  end
  return numbers
end

--- Closes the meter; its numbers stay in those of the host.
function Meter:close()
  local meters = self.meters
  if not meters.open[self] then return end
  meters.open[self] = nil
  self:add_to(meters.past)
end

--- The numbers of all clients that a host has had, by key.
---@param host table
function metrics.numbers(host)
  local numbers, meters = {}, meters_of(host)
  for key, n in pairs(meters.past) do numbers[key] = n end
  for meter in next, meters.open do meter:add_to(numbers) end
  return numbers
end

local function split(key)
  return key:match("^([^\t]*)\t([^\t]*)\t([^\t]*)\t(.*)$")
end

-- A histogram as { count, sum, buckets = { { bound, count up to it }, ... } }.
local function report_histogram(fields, name)
  local count, buckets = 0, {}
  for i, bound in ipairs(BOUNDS[name]) do
    count = count + (fields[name .. "." .. i] or 0)
    buckets[i] = { bound, count }
    fields[name .. "." .. i] = nil
  end
  local sum = fields[name .. ".sum"] or 0
  fields[name .. ".sum"] = nil
  return { count = count, sum = sum, buckets = buckets }
end

local function derive(fields)
  for _, row in ipairs(COUNTERS) do fields[row[1]] = fields[row[1]] or 0 end
  for _, row in ipairs(HISTOGRAMS) do
    fields[row[1]] = report_histogram(fields, row[1])
  end
  return fields
end

local function group(groups, name, field, n)
  groups[name] = groups[name] or {}
  add(groups[name], field, n)
end

--- The meter's numbers as tables: of all locks, and in `kinds` and `locks` for
--- each kind, and each listed lock.
function Meter:stats()
  local all, kinds, locks = {}, {}, {}
  for key, n in pairs(self:add_to {}) do
    local field, _, kind, lock = split(key)
    add(all, field, n)
    group(kinds, kind, field, n)
    if lock ~= "" then group(locks, lock, field, n) end
  end
  for _, groups in ipairs { kinds, locks } do
    for _, fields in pairs(groups) do derive(fields) end
  end
  derive(all)
  all.kinds, all.locks = kinds, locks
  return all
end

local escapes = { ["\\"] = "\\\\", ['"'] = '\\"', ["\n"] = "\\n" }

-- A label's value, which must be UTF-8.
local function escaped(text)
  if text:gsub("[\194-\244][\128-\191]+", ""):find("[\128-\255]") then
    text = text:gsub("[\128-\255]", "?")
  end
  return (text:gsub('[\\"\n]', escapes))
end

local function labels_of(client, kind, lock)
  local text = ('kind="%s"'):format(escaped(kind))
  if client ~= "" then
    text = ('client="%s",'):format(escaped(client)) .. text
  end
  if lock ~= "" then text = text .. (',lock="%s"'):format(escaped(lock)) end
  return text
end

-- Label text -> field -> number, and the sorted label texts.
local function labelled(numbers)
  local of = {}
  for key, n in pairs(numbers) do
    local field, client, kind, lock = split(key)
    group(of, labels_of(client, kind, lock), field, n)
  end
  return of, sorted(of)
end

local function begin(lines, name, help, type)
  lines[#lines + 1] = ("# HELP %s %s\n# TYPE %s %s\n"):format(name, help, name,
    type)
end

local function write_histogram(lines, full, labels, histogram)
  for _, bucket in ipairs(histogram.buckets) do
    local bound = bucket[1] == math.huge and "+Inf"
      or ("%.14g"):format(bucket[1])
    lines[#lines + 1] = ('%s_bucket{%s,le="%s"} %.0f\n'):format(full, labels,
      bound, bucket[2])
  end
  lines[#lines + 1] = ("%s_sum{%s} %.6f\n%s_count{%s} %.0f\n"):format(full,
    labels, histogram.sum, full, labels, histogram.count)
end

--- The numbers in the text format of Prometheus.
---@param numbers table by key
---@return string
function metrics.text(numbers)
  local lines = {}
  local of, list = labelled(numbers)
  for _, labels in ipairs(list) do derive(of[labels]) end
  for _, row in ipairs(COUNTERS) do
    local full = ("rlock_%s_total"):format(row[1])
    begin(lines, full, row[2], "counter")
    for _, labels in ipairs(list) do
      lines[#lines + 1] = ("%s{%s} %.0f\n"):format(full, labels,
        of[labels][row[1]])
    end
  end
  for _, row in ipairs(HISTOGRAMS) do
    local full = ("rlock_%s_seconds"):format(row[1])
    begin(lines, full, row[2], "histogram")
    for _, labels in ipairs(list) do
      write_histogram(lines, full, labels, of[labels][row[1]])
    end
  end
  return table.concat(lines)
end

return metrics
