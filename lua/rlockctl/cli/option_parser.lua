--- Parses the options of a command line. A table declares them: "--url" ->
--- { name, value }, where `value` names the option's value in messages, if it
--- takes one. `all`: it may be repeated, and its values are a list. `last`: no
--- options follow it.
--- Values are given as --url=X, --url X, -eX or -e X. Short options combine:
--- -nq is -n -q. "--" ends the options.

local option_parser = {}

-- Splits a word into the option and its value, if it has one.
local function split(word, known)
  local name, value = word:match("^(%-%-[^=]+)=(.*)$")
  if not name and not known[word] and word:find("^%-[^-]") then
    name, value = word:sub(1, 2), word:sub(3)
    if not known[name] then name, value = nil, nil end
  end
  return name or word, value
end

local function store(chosen, option, value)
  local name = option[1]
  if option.all then
    chosen[name] = chosen[name] or {}
    table.insert(chosen[name], value)
  else
    chosen[name] = value
  end
end

-- All long options, also those that `known` inherits.
local function long_options(known)
  local all = {}
  while known do
    for name in pairs(known) do
      if name:find "^%-%-" then all[name] = true end
    end
    known = (getmetatable(known) or {}).__index
  end
  return all
end

-- The problem of an unknown option.
local function unknown(name, known, command)
  local similar
  if name:find "^%-%-" then
    similar = require "rlockctl.cli.similar"(name, long_options(known))
  else
    name = name:sub(1, 2)
  end
  return ("unknown option %s (%ssee rlockctl help%s)"):format(name,
    similar and ("did you mean %s? "):format(similar) or "",
    command and " " .. command or "")
end

---@type function
local read_option

-- Parses the option at words[i], or `part` of it. Returns the index after it,
-- or nil, problem.
function read_option(words, i, known, chosen, command, part)
  local name, value = split(part or words[i], known)
  local option = known[name]
  if not option then
    return nil, unknown(name, known, command)
  elseif not option[2] then
    if value and #name == 2 and known["-" .. value:sub(1, 1)] then
      store(chosen, option, true)
      return read_option(words, i, known, chosen, command, "-" .. value)
    elseif value then
      return nil, "option " .. name .. " takes no value"
    end
    value = true
  elseif not value then
    i = i + 1
    value = words[i]
    if not value then
      return nil, ("option %s needs a value: %s"):format(name, option[2])
    end
  end
  store(chosen, option, value)
  return i + 1, nil, option.last
end

--- Parses options.
---@param words table
---@param i integer where to begin
---@param known table the declarations, see above
---@param chosen table receives the options: name -> value, or true
---@param operands? table receives the words between and after them, and
---  `before`, the number of words before a "--"; without `operands`, parsing
---  ends at the first such word
---@param command? string whose options they are, for messages
---@return integer? # the index of the first word that was not parsed
---@return rlock.failure? code # the problem, without any option's value
function option_parser.read(words, i, known, chosen, operands, command)
  local only_operands = false
  while words[i] do
    local word = words[i]
    if only_operands or not word:find("^%-.") then
      if not operands then return i end
      operands[#operands + 1] = word
      i = i + 1
    elseif word == "--" then
      only_operands, i = true, i + 1
      if operands then operands.before = #operands end
    else
      local problem, last
      i, problem, last = read_option(words, i, known, chosen, command)
      if not i or last then return i, problem end
    end
  end
  return i
end

return option_parser
