--- Makes the mutants of a Lua file: copies with one small fault each. Works on
--- tokens; a change that does not load is no mutant.
---
--- A mutant: from, to (bytes), text (what replaces them), line, old and new
--- (the lines before and after the change), place (the function) and key (the
--- change; where the function has n such changes, with ", 2 of n"). The last
--- two name the mutant in known.lua.

local lexer = require "rlock.script.lexer"

local mutants = {}

local set = lexer.set

local OPERATORS = {                     -- operator -> what replaces it
  ["=="] = { "~=" }, ["~="] = { "==" }, ["<"] = { "<=", ">" },
  ["<="] = { "<", ">=" }, [">"] = { ">=", "<" }, [">="] = { ">", "<=" },
  ["and"] = { "or" }, ["or"] = { "and" }, ["not"] = { "" }, ["+"] = { "-" },
  ["*"] = { "/" }, ["/"] = { "*" }, ["true"] = { "false" },
  ["false"] = { "true" },
}
local openers, closers = set "( { [ function do then repeat", set ") } ] end"
local in_name = set "name . :"
local values = set "name string number ) ] } end nil true false ..."
local begins = set "name return break ("  -- a statement
local after = set [[; then do else repeat ) ] } end name string number nil true
  false]]                               -- may stand before a statement
local continues = set [[= == ~= < > <= >= and or not + - * / % .. . : , ( {
  [ # function]]
local messages = set "error log"        -- their arguments are for people
local symmetric = set "max min"         -- the order of arguments is no matter
local of_keys = set [["del" "exists" "unlink"]]       -- the same, for commands

-- tokens ----------------------------------------------------------------------

-- token number -> that of the bracket that closes it, for "(".
local function parentheses(tokens)
  local open, closing = {}, {}
  for i, token in ipairs(tokens) do
    if token.kind == "(" then
      open[#open + 1] = i
    elseif token.kind == ")" then
      closing[table.remove(open)] = i
    end
  end
  return closing
end

-- token number -> true: it is part of a message.
local function exempt(tokens, closing)
  local result = {}
  for i, token in ipairs(tokens) do
    if messages[token.text] and closing[i + 1] then
      for at = i, closing[i + 1] do result[at] = true end
    end
  end
  return result
end

local function name_at(tokens, i)
  local first = i
  while in_name[tokens[i].kind] do i = i + 1 end
  local parts = {}
  for at = first, i - 1 do parts[#parts + 1] = tokens[at].text end
  return table.concat(parts)
end

-- token number -> the name of the last function that begins before it.
local function places(tokens)
  local result, place = {}, "file"
  for i, token in ipairs(tokens) do
    if token.kind == "function" and tokens[i + 1].kind == "name" then
      place = name_at(tokens, i + 1)
    end
    result[i] = place
  end
  return result
end

-- kinds of mutants: each adds to self ----------------------------------------

local function operators(self, i, token)
  if token.kind == "-" and values[self.tokens[i - 1].kind] then
    self:add(i, i, "+", "- to +")
  end
  for _, text in ipairs(OPERATORS[token.kind] or {}) do
    self:add(i, i, text, text == "" and "drop " .. token.kind
      or token.kind .. " to " .. text)
  end
end

local function constants(self, i, token)
  local number = tonumber(token.kind == "number" and token.text
    or token.kind == "string" and token.text:match('^"(%-?%d+)"$'))
  if not number then return end
  local moved = number < 10 and number % 1 == 0 and number + 1 or 2 * number
  local text = ("%.14g"):format(moved)
  if token.kind == "string" then text = '"' .. text .. '"' end
  self:add(i, i, text, token.text .. " to " .. text)
end

-- `if ... then` becomes `if true then` and `if false then`.
local function checks(self, i, token)
  local ends = token.kind == "while" and "do" or "then"
  if not set("if elseif while")[token.kind] then return end
  local last = i
  while self.tokens[last].kind ~= ends do last = last + 1 end
  if token.kind ~= "while" then
    self:add(i + 1, last - 1, "true", token.kind .. " to true")
  end
  self:add(i + 1, last - 1, "false", token.kind .. " to false")
end

-- The first and last tokens of each argument of the call whose "(" is at i.
local function arguments(self, i)
  local list, depth, first = {}, 0, i + 1
  for at = i + 1, self.closing[i] do
    local kind = self.tokens[at].kind
    if depth == 0 and (kind == "," or at == self.closing[i]) then
      if at > first then list[#list + 1] = { first, at - 1 } end
      first = at + 1
    end
    depth = depth + (openers[kind] and kind ~= "do" and kind ~= "then" and 1
      or closers[kind] and -1 or 0)
  end
  return list
end

function mutants:source(first, last)
  return self.text:sub(self.tokens[first].from, self.tokens[last].to)
end

-- Is the "(" at i that of a call, and not that of a definition?
local function is_call(self, i)
  local before = self.tokens[i - 1].kind
  if before ~= "name" and before ~= ")" and before ~= "]" then return false end
  local at = i - 1
  while in_name[self.tokens[at].kind] do at = at - 1 end
  return self.tokens[at].kind ~= "function"
end

local function swaps(self, i, token)
  if token.kind ~= "(" or symmetric[self.tokens[i - 1].text]
      or not is_call(self, i) then
    return
  end
  local list = arguments(self, i)
  if list[1] and of_keys[self:source(list[1][1], list[1][2])] then return end
  for n = 2, #list do
    local one, two = list[n - 1], list[n]
    local a, b = self:source(one[1], one[2]), self:source(two[1], two[2])
    if a ~= b and not a:find '^"' then
      self:add(one[1], two[2], ("%s, %s"):format(b, a), "swap arguments")
    end
  end
end

-- The last token of the statement that begins at i: the next one that begins a
-- line outside of brackets is not part of it.
local function last_of(self, i)
  local depth, tokens = 0, self.tokens
  for at = i, #tokens - 1 do
    local kind, following = tokens[at].kind, tokens[at + 1]
    depth = depth + ((openers[kind] or kind == "if") and kind ~= "then" and 1
      or closers[kind] and -1 or 0)
    if depth < 0 then return nil end
    if depth == 0 and (following.line > tokens[at].line
        and not continues[following.kind] and not continues[kind]
        or set("end else elseif until")[following.kind]) then
      return at
    end
  end
end

-- A statement within a line with `if` is not dropped: its check is turned.
local function drops(self, i, token)
  local before = self.tokens[i - 1]
  if not begins[token.kind] or not before or before.line == token.line
      or not after[before.kind] then
    return
  end
  local last = last_of(self, i)
  if last and last < #self.tokens - 1 then
    self:add(i, last, "", "drop statement")
  end
end

-- all -------------------------------------------------------------------------

local function squeezed(text)
  return (text:gsub("%s+", " "):gsub("^ ", ""):gsub(" $", ""))
end

-- The lines of `text` from byte `from` to byte `to`.
local function lines(text, from, to)
  local first = text:sub(1, from - 1):match(".*()\n")
  return text:sub(first and first + 1 or 1,
    (text:find("\n", to, true) or #text + 1) - 1)
end

--- The text of the mutant.
function mutants.apply(text, mutant)
  return text:sub(1, mutant.from - 1) .. mutant.text
    .. text:sub(mutant.to + 1)
end

function mutants:add(first, last, text, key)
  for at = first, last do
    if self.exempt[at] then return end
  end
  local tokens = self.tokens
  local mutant = {
    from = tokens[first].from, to = tokens[last].to, text = text,
    line = tokens[first].line, place = self.places[first], key = key,
    old = squeezed(lines(self.text, tokens[first].from, tokens[last].to)),
  }
  local new = mutants.apply(self.text, mutant)
  if not load(new, "=mutant", "t") then return end
  mutant.new = squeezed(lines(new, mutant.from, mutant.from + #text))
  if text == "" and first < last then
    mutant.new = "drop " .. squeezed(self:source(first, last))
  end
  self.list[#self.list + 1] = mutant
end

-- Numbers the same changes of a function, so that each has a key of its own.
-- The key has their count, too: with one more or one less, it names no mutant.
local function number(list)
  local same = {}
  for _, mutant in ipairs(list) do
    local name = mutant.place .. "\n" .. mutant.key
    same[name] = same[name] or {}
    table.insert(same[name], mutant)
  end
  for _, some in pairs(same) do
    for i, mutant in ipairs(#some > 1 and some or {}) do
      mutant.key = ("%s, %d of %d"):format(mutant.key, i, #some)
    end
  end
end

--- All mutants of a file.
---@param text string
---@return table # a list
function mutants.of(text)
  local tokens = lexer.tokens(text)
  local closing = parentheses(tokens)
  local self = setmetatable({
    text = text, tokens = tokens, closing = closing, list = {},
    exempt = exempt(tokens, closing), places = places(tokens),
  }, { __index = mutants })
  for i, token in ipairs(tokens) do
    for _, make in ipairs { operators, constants, checks, swaps, drops } do
      make(self, i, token)
    end
  end
  number(self.list)
  return self.list
end

return mutants
