--- Differential test: runs each function of spec/tools/functions.lua natively
--- and as a server script. It must give the same or be refused.

local files = require "spec.tools.files"
local functions = require "spec.tools.functions"
local script = require "rlock.script"
local shell = require "spec.tools.shell"

local differential = {}

local BATCH, STEPS = 1000, 1e6

--- The two keys and two arguments of every call.
differential.WORDS = { "key:1", "{key}2", "37", "an argument" }

local WORDS = differential.WORDS

-- The result of a function, or nil if it does not terminate.
local function run(fn)
  local thread = coroutine.create(fn)
  debug.sethook(thread, function() error(WORDS) end, "", STEPS)
  local ok, result = coroutine.resume(thread, { WORDS[1], WORDS[2] },
    { WORDS[3], WORDS[4] })
  return ok and "ok " .. result or result ~= WORDS and "error" or nil
end

--- Compiles and runs the function that a text returns.
---@param text string
---@param seed? number of the text
---@return table # `native`, "ok RESULT" or "error", and `shipped`, the script,
---  or nil if the function is refused
function differential.case(text, seed)
  script.sources["@p.lua"] = text
  local fn = assert(load(text, "@p.lua"))()
  local case = { seed = seed, text = text, native = run(fn) }
  local ok, compiled = pcall(script.compile, "p", "acquire", fn)
  script.sources["@p.lua"] = nil
  if ok then
    case.shipped = compiled.text
  elseif not compiled:find('^policy "p": p.lua:%d+: [^\n]*$') then
    error("not one clear line: " .. compiled)
  end
  return case
end

--- The cases of some seeds whose functions terminate and are not refused.
function differential.cases(from, count)
  local cases = {}
  for seed = from, from + count - 1 do
    local case = differential.case(functions.file(seed), seed)
    if case.native and case.shipped then cases[#cases + 1] = case end
  end
  return cases
end

--- Runs the scripts of cases under lua5.1.
---@return table # for each "ok RESULT" or "error WHY"
function differential.lua51(cases)
  local path, texts = os.tmpname(), {}
  for i, case in ipairs(cases) do
    texts[i] = #case.shipped .. "\n" .. case.shipped
  end
  files.write(path, table.concat(texts))
  local command = "lua5.1 spec/tools/lua51.lua " .. path
  for _, word in ipairs(WORDS) do
    command = command .. " " .. shell.quote(word)
  end
  local pipe, results = assert(io.popen(command)), {}
  for line in pipe:lines() do results[#results + 1] = line end
  pipe:close()
  os.remove(path)
  return results
end

--- Raises at the first difference, with the function and its seed.
function differential.compare(cases, results)
  assert(#cases == #results, "not every script has a result")
  for i, case in ipairs(cases) do
    local got = results[i]:match("^error") or results[i]
    if got ~= case.native then
      error(("RLOCK_SEED=%d\n%s\nnative:  %s\nshipped: %s"):format(case.seed,
        case.text, case.native, results[i]), 0)
    end
  end
end

--- Compares the functions of `count` seeds with lua5.1.
---@return number # how many were run
---@return number # how many of those ended without an error
function differential.compare_lua51(seed, count)
  local ran, ended = 0, 0
  for from = seed, seed + count - 1, BATCH do
    local cases = differential.cases(from, math.min(BATCH, seed + count - from))
    differential.compare(cases, differential.lua51(cases))
    ran = ran + #cases
    for _, case in ipairs(cases) do
      ended = ended + (case.native ~= "error" and 1 or 0)
    end
  end
  return ran, ended
end

return differential
