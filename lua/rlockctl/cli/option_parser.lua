--- Parses the options of a command line. A table declares them: "--url" ->
--  { name, value }, where `value` names the option's value in messages, if it
--  takes one. `all`: it may be repeated, and its values are a list. `last`: no
--  options follow it.
--  Values are given as --url=X, --url X, -eX or -e X; "--" ends the options.

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

-- Parses the option at words[i]; returns the index after it, or nil, problem.
local function read_option(words, i, known, chosen)
  local name, value = split(words[i], known)
  local option = known[name]
  if not option then
    if not name:find("^%-%-") then name = name:sub(1, 2) end
    return nil, "unknown option " .. name .. " (see rlockctl help)"
  elseif not option[2] then
    if value then return nil, "option " .. name .. " takes no value" end
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
-- @tparam table words
-- @tparam integer i      where to begin
-- @tparam table known    the declarations, see above
-- @tparam table chosen   receives the options: name -> value, or true
-- @tparam[opt] table operands receives the words between and after them, and
--   `before`, how many come before a "--"; without it, parsing ends at the
--   first such word
-- @treturn[1] integer the index of the first word that was not parsed
-- @treturn[2] nil
-- @treturn[2] string what is wrong, without any option's value
function option_parser.read(words, i, known, chosen, operands)
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
      i, problem, last = read_option(words, i, known, chosen)
      if not i or last then return i, problem end
    end
  end
  return i
end

return option_parser
