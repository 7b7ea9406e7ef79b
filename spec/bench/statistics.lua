--- What many turns of a measurement say.

local statistics = {}

--- Sorted copy of a list of numbers.
local function sorted(list)
  local copy = {}
  for i, value in ipairs(list) do copy[i] = value end
  table.sort(copy)
  return copy
end

--- The median; of an even number, the mean of the middle two. nil of none.
function statistics.median(list)
  local all = sorted(list)
  local n = #all
  if n == 0 then return nil end
  local half = math.floor(n / 2)
  return (all[n - half] + all[half + 1]) / 2
end

--- The least and the greatest.
function statistics.spread(list)
  local all = sorted(list)
  return all[1], all[#all]
end

-- How the results of processes that ran side by side become one.
local function sum(list)
  local total = 0
  for _, value in ipairs(list) do total = total + value end
  return total
end

local function most(list) return select(2, statistics.spread(list)) end

local TOGETHER = {
  count = sum, total = sum, cpu_s = sum, rss_kb = sum, seconds = most,
  p50_us = statistics.median, p99_us = most,
}

--- One result of several processes: counts, processor time and memory add up,
--- the 99th percentile is the worst process's, the median that of the medians.
function statistics.together(results)
  local one = {}
  for field, combine in pairs(TOGETHER) do
    local values = {}
    for _, result in ipairs(results) do
      values[#values + 1] = result[field]
    end
    if values[1] then one[field] = combine(values) end
  end
  return one
end

--- Adds what follows from a result: rate (per second), cpu_us (of the client,
--- for each), cpu_percent (of a core), and of the server for each: server_us,
--- commands.
function statistics.derive(result)
  local count, seconds, cpu = result.count, result.seconds, result.cpu_s
  if count and seconds and seconds > 0 then result.rate = count / seconds end
  if cpu and count and count > 0 then result.cpu_us = cpu / count * 1e6 end
  if cpu and seconds and seconds > 0 then
    result.cpu_percent = cpu / seconds * 100
  end
  local total = result.total
  if total and total > 0 and result.server_s then
    result.server_us = result.server_s / total * 1e6
    result.commands = result.server_commands / total
  end
  return result
end

--- The turns of one peer at one point: for each field a table of `median`,
--- `least` and `most`.
function statistics.summary(turns)
  local lists, all = {}, {}
  for _, turn in ipairs(turns) do
    for field, value in pairs(turn) do
      lists[field] = lists[field] or {}
      table.insert(lists[field], value)
    end
  end
  for field, list in pairs(lists) do
    local least, greatest = statistics.spread(list)
    all[field] =
      { median = statistics.median(list), least = least, most = greatest }
  end
  return all
end

return statistics
