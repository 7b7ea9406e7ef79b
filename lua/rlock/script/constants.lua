--- Values of constant expressions in a text that rlock.script.parser has read:
--- numbers, arithmetic, `math.huge`, and local variables that are never
--- assigned again. Pure.

local load = rawget(_G, "loadstring") or load

local constants = {}

local arithmetic = { ["+"] = true, ["-"] = true, ["*"] = true, ["/"] = true,
  ["%"] = true, ["^"] = true, ["("] = true, [")"] = true }
local suffixes = { ["("] = true, ["["] = true, ["."] = true, [":"] = true,
  ["string"] = true, ["{"] = true }

local huge = math.huge

---@type function
local value_of

-- The value of a variable of a function; the module math is "math".
local function of_variable(self, variable)
  if not variable.owner or not variable.first or variable.last
      or variable.written then
    return nil
  elseif self.values[variable] == nil then
    self.values[variable] =
      value_of(self, variable.first, variable.final) or false
  end
  return self.values[variable] or nil
end

local function of_name(self, use)
  local variable, value = use.variable, use.name == "math" and "math" or nil
  if variable then value = of_variable(self, variable) end
  if use.field then return value == "math" and use.field == "huge" and huge end
  return value
end

-- A number as an operand.
local function text_of(number)
  if number ~= number then return "(0/0)" end
  return number == huge and "1e999" or number == -huge and "(-1e999)"
    or ("(%.17g)"):format(number)
end

-- The value of the tokens from `first` to `last`; nil: it is no constant.
function value_of(self, first, last)
  local parts, at = {}, first
  while at <= last do
    local token = self.tokens[at]
    if token.kind == "name" then
      local use = self.uses[token.from]
      local value = use and of_name(self, use)
      if value == "math" and first == last then return value end
      if type(value) ~= "number" then return nil end
      parts[#parts + 1] = text_of(value)
      if use.field then at = at + 2 end
    elseif token.kind == "number" or arithmetic[token.kind] then
      parts[#parts + 1] = token.text
    else
      return nil
    end
    at = at + 1
  end
  local fn = load("return " .. table.concat(parts, " "))
  local ok, value = pcall(fn or error)
  return ok and type(value) == "number" and value or nil
end

-- The index of the ")" that belongs to the "(" at an index.
local function closing(tokens, at)
  local depth = 0
  repeat
    local kind = tokens[at].kind
    depth = depth + (kind == "(" and 1 or kind == ")" and -1 or 0)
    at = at + 1
  until depth == 0
  return at - 1
end

-- The last token of the operand that begins at a token; nil: it is no constant.
local function end_of(tokens, at)
  while tokens[at].kind == "-" do at = at + 1 end
  local kind = tokens[at].kind
  if kind == "(" then
    at = closing(tokens, at)
  elseif kind == "name" and tokens[at + 1].kind == "." then
    at = at + 2
  elseif kind ~= "name" and kind ~= "number" then
    return nil
  end
  local after = tokens[at + 1].kind
  if after == "^" then return end_of(tokens, at + 2) end
  return (kind == "number" or not suffixes[after]) and at or nil
end

-- Is the operand a number, a global or a variable of the file, perhaps with
-- signs and in parentheses? The compiler knows its value.
local function is_known(self, first, last)
  while self.tokens[first].kind == "-" or self.tokens[first].kind == "(" do
    first = first + 1
  end
  while self.tokens[last].kind == ")" do last = last - 1 end
  local token = self.tokens[first]
  local use = self.uses[token.from]
  if token.kind == "number" then return first == last end
  return use and last == first + (use.field and 2 or 0)
    and not (use.variable and use.variable.owner)
end

-- What the functions above need.
local function new(tokens, uses)
  local self = { tokens = tokens, uses = {}, values = {} }
  for _, use in ipairs(uses) do
    if not use.method then self.uses[use.from] = use end
  end
  return self
end

--- Finds the operators % whose right operand is infinite or NaN.
---@param tokens table of rlock.script.lexer
---@param uses table of rlock.script.parser
---@return table # their tokens
function constants.endless(tokens, uses)
  local self, found = nil, {}
  for i, token in ipairs(tokens) do
    local last = token.kind == "%" and end_of(tokens, i + 1)
    self = self or last and new(tokens, uses)
    local value = last and not is_known(self, i + 1, last)
      and value_of(self, i + 1, last)
    if value and (value ~= value or value == huge or value == -huge) then
      found[#found + 1] = token
    end
  end
  return found
end

return constants
