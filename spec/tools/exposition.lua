--- A strict parser of the Prometheus text format: raises an error for text that
--- Prometheus refuses, and for text that it accepts but that is inconsistent.
---
---   local read = require "spec.tools.exposition"
---   local values = read(text)
---   values['rlock_acquired_total{kind="fair"}']      --> 12
---
--- Histograms: buckets with rising bounds and counts, the last one +Inf with
--- the value of _count, and a _sum.

local NAME = "^[%a_:][%w_:]*$"

local function fault(line, why) error(("%s: %s"):format(why, line), 0) end

-- Takes the labels of a sample apart: name -> value as written.
local function labels_of(line, text)
  local labels, at = {}, 1
  while at <= #text do
    local name, first = text:match('^([%a_][%w_]*)="()', at)
    if not name or labels[name] then fault(line, "bad label") end
    local last = first
    while text:sub(last, last) ~= '"' do
      local char = text:sub(last, last)
      if char == "" then fault(line, "a label without its end") end
      if char == "\\" then
        last = last + 1
        if not text:find('^[\\"n]', last) then fault(line, "bad escape") end
      end
      last = last + 1
    end
    labels[name] = text:sub(first, last - 1)
    at = last + 1
    if at <= #text then
      if text:sub(at, at) ~= "," then fault(line, "no comma") end
      at = at + 1
    end
  end
  return labels
end

local function number_of(line, text)
  if text == "+Inf" then return math.huge end
  local n = text:find("^%-?[%d.]+$") and tonumber(text)
    or text:find("^%-?[%d.]+e[+-]?%d+$") and tonumber(text)
  return n or fault(line, "bad value")
end

-- Checks a sample of a histogram against the one before it.
local function check_bucket(state, line, suffix, labels, value)
  if suffix == "_bucket" then
    local bound = number_of(line, labels.le or fault(line, "no le"))
    if state.bound and (bound <= state.bound or value < state.value) then
      fault(line, "buckets do not rise")
    end
    state.bound, state.value = bound, value
  elseif suffix == "_sum" then
    if state.bound ~= math.huge then fault(line, "no bucket +Inf") end
    state.has_sum = true
  elseif suffix == "_count" then
    if not state.has_sum or value ~= state.value then
      fault(line, "not the count of the buckets")
    end
    state.bound, state.has_sum = nil, nil
  else
    fault(line, "not of a histogram")
  end
end

local function sample(state, values, line)
  local name, inner, text = line:match("^([^{ ]+){(.*)} (%S+)$")
  if not name then name, text = line:match("^(%S+) (%S+)$") end
  if not name or not name:find(NAME) then fault(line, "bad sample") end
  if values[line:match("^(.*) ")] then fault(line, "twice the same series") end
  local labels, value = labels_of(line, inner or ""), number_of(line, text)
  if name:sub(1, #state.name) ~= state.name then fault(line, "no TYPE") end
  if state.type == "histogram" then
    check_bucket(state, line, name:sub(#state.name + 1), labels, value)
  elseif name ~= state.name or value < 0 or not name:find("_total$") then
    fault(line, "not a counter")
  end
  values[line:match("^(.*) ")] = value
end

return function(text)
  local values, seen, state = {}, {}, nil
  if text:sub(-1) ~= "\n" then error("the last line has no end", 0) end
  for line in text:gmatch("([^\n]*)\n") do
    local word, name, rest = line:match("^# (%u+) (%S+) (.+)$")
    if word == "HELP" then
      if seen[name] then fault(line, "twice the same name") end
      seen[name] = true
      state = { name = name }
    elseif word == "TYPE" then
      if not state or state.name ~= name or state.type then
        fault(line, "not after its HELP")
      end
      state.type = rest
    else
      if not state then fault(line, "no HELP") end
      sample(state, values, line)
    end
  end
  return values
end
