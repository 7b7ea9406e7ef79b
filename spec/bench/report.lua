--- Writes what spec/bench/peers/run measured: as Markdown, as CSV, and as input
--- for gnuplot. Text only: the caller writes the files.
---
--- A section is { id =, title =, note =, x = "tasks", points = { 1, 64 },
--- field = "rate", unit = "1/s", more = { { field, title }, ... }, results =
--- { [peer] = { [point] = list of turns } } }.

local statistics = require "spec.bench.statistics"

local report = {}

local NONE = "–"

--- Three digits or so, thousands apart: 57 123 is "57 100".
function report.number(value)
  if not value then return NONE end
  if value == 0 then return "0" end
  local size = math.floor(math.log(math.abs(value), 10) + 1e-9)
  local unit = 10 ^ (size - 2)
  local text = ("%." .. math.max(0, 2 - size) .. "f"):format(
    math.floor(value / unit + 0.5) * unit)
  local whole, rest = text:match "^(-?%d+)(.*)$"
  whole = whole:reverse():gsub("(%d%d%d)", "%1 "):reverse():gsub("^ ", "")
  return whole .. rest
end

local function cell(summary, field)
  local its = summary and summary[field]
  if not its then return NONE end
  local text = report.number(its.median)
  if its.least == its.most then return text end
  return ("%s (%s–%s)"):format(text, report.number(its.least),
    report.number(its.most))
end

local function row(cells) return "| " .. table.concat(cells, " | ") .. " |" end

local function table_of(section, peers, field, title)
  local head, rule, lines = { title }, { "---" }, {}
  for i, point in ipairs(section.points) do
    head[i + 1] = ("%s %s"):format(point, section.x)
    rule[i + 1] = "---:"
  end
  for _, peer in ipairs(peers) do
    local cells, any = { peer }, false
    for i, point in ipairs(section.points) do
      local turns = (section.results[peer] or {})[point]
      cells[i + 1] = cell(turns and statistics.summary(turns), field)
      any = any or cells[i + 1] ~= NONE
    end
    if any then lines[#lines + 1] = row(cells) end
  end
  if not lines[1] then return nil end
  return table.concat({ row(head), row(rule), table.concat(lines, "\n") }, "\n")
end

local function fields_of(section)
  local fields = { { section.field, section.unit } }
  for i, field in ipairs(section.more or {}) do fields[i + 1] = field end
  return fields
end

--- The report.
---@param about table lines about the machine and the run
---@param sections {table,...}
---@param peers {string,...} in the order of the rows
---@param skipped {string,...} lines
function report.markdown(about, sections, peers, skipped)
  local parts = { "# rlock beside other lock libraries",
    table.concat(about, "\n") }
  if skipped[1] then
    parts[#parts + 1] = "- " .. table.concat(skipped, "\n- ")
  end
  for _, section in ipairs(sections) do
    parts[#parts + 1] = "## " .. section.title
    parts[#parts + 1] = section.note
    for _, field in ipairs(fields_of(section)) do
      parts[#parts + 1] = table_of(section, peers, field[1], field[2])
    end
    parts[#parts + 1] = ("![%s](%s.svg)"):format(section.title, section.id)
  end
  return table.concat(parts, "\n\n") .. "\n"
end

--- A line for each turn and field.
function report.csv(sections, peers)
  local lines = { "workload,peer,point,turn,field,value" }
  for _, section in ipairs(sections) do
    for _, peer in ipairs(peers) do
      for _, point in ipairs(section.points) do
        for i, turn in ipairs((section.results[peer] or {})[point] or {}) do
          local fields = {}
          for field in pairs(turn) do fields[#fields + 1] = field end
          table.sort(fields)
          for _, field in ipairs(fields) do
            lines[#lines + 1] = ("%s,%s,%s,%d,%s,%.6g"):format(section.id,
              peer, point, i, field, turn[field])
          end
        end
      end
    end
  end
  return table.concat(lines, "\n") .. "\n"
end

local PLOT = [[
set terminal svg size 720,440 dynamic background rgb "white"
set output "%s.svg"
set title "%s"
set xlabel "%s"
set ylabel "%s"
set logscale y
set key outside
set style data yerrorlines
%s
plot %s
]]

--- Input for gnuplot, which writes ID.svg, or nil if there is nothing to show.
function report.plot(section, peers)
  local data, curves, ticks = {}, {}, {}
  for i, point in ipairs(section.points) do
    ticks[i] = ("'%s' %d"):format(point, i)
  end
  for _, peer in ipairs(peers) do
    local lines = {}
    for i, point in ipairs(section.points) do
      local turns = (section.results[peer] or {})[point]
      local its = turns and statistics.summary(turns)[section.field]
      if its and its.least > 0 then
        lines[#lines + 1] = ("%d %.6g %.6g %.6g"):format(i, its.median,
          its.least, its.most)
      end
    end
    if lines[1] then
      local name = ("$p%d"):format(#curves + 1)
      data[#data + 1] = ("%s << END\n%s\nEND"):format(name,
        table.concat(lines, "\n"))
      curves[#curves + 1] = ("%s title '%s'"):format(name, peer)
    end
  end
  if not curves[1] then return nil end
  data[#data + 1] = ("set xtics (%s)\nset xrange [0.5:%g]"):format(
    table.concat(ticks, ", "), #section.points + 0.5)
  return PLOT:format(section.id, section.title, section.x, section.unit,
    table.concat(data, "\n"), table.concat(curves, ", "))
end

return report
