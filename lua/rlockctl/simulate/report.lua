--- What a search has found, as text.

local report = {}

local function summary(result)
  local parts, names = {}, {}
  for code in pairs(result.codes) do names[#names + 1] = code end
  table.sort(names)
  for i, code in ipairs(names) do
    parts[i] = ("%s %d"):format(code, result.codes[code])
  end
  return ("%d runs%s: %s"):format(result.runs, parts[1]
    and ", processes ended by uncaught codes: " .. table.concat(parts, ", ")
    or "", result.run and "a fault" or "no fault found")
end

local function print_steps(list)
  for _, step in ipairs(list) do
    print(("%10.6f  %-4s %-16s %s%s"):format(step.time, step.process or "",
      step.line or "", step.what, step.result
      and (" = %s"):format(step.result) or ""))
  end
end

local function print_log(list)
  for _, entry in ipairs(list) do
    print(("%10.6f  %-4s %s"):format(entry.time, entry.process,
      (entry.text:gsub("\n$", ""))))
  end
end

--- Prints a result.
-- @tparam table result of search.run
-- @tparam string command that repeats it, without --seed
-- @tparam boolean has_log whether to print what the program has printed
function report.print(result, command, has_log)
  local shown = result.shown
  if shown then
    print_steps(shown.steps)
    if has_log then print_log(shown.log) end
    local fault = shown.fault or result.run.fault
    print(("%s%s, at %.6f s"):format(fault.line and fault.line .. ": " or "",
      fault.text, fault.time))
    if not result.is_reproducible then
      print("Not reproducible: the same seed ran differently the second time"
        .. (result.cause and ". " .. result.cause or ""))
    end
    print(command:format(result.seed))
  end
  print(summary(result))
end

return report
