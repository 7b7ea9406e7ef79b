--- Splits Lua text into tokens.
--- Accepts 5.1, LuaJIT and 5.4, and lists what Redis' Lua 5.1 does not have. A
--- token is { kind, text, from, to, line }, where kind is the keyword or the
--- sign itself, or "name", "string", "number", "end of file". Comments are
--- dropped. An interpreter has already compiled the text, so malformed tokens
--- are passed on as they are.

local lexer = {}

local TOO_BIG = 9007199254740992 -- 2^53: from here on doubles skip integers

--- A set of words, such as kinds of tokens: word -> true.
function lexer.set(words)
  local result = {}
  for word in words:gmatch("%S+") do result[word] = true end
  return result
end

local keywords = lexer.set [[
  and break do else elseif end false for function if in local nil not or repeat
  return then true until while]]
local signs = lexer.set "... == ~= <= >= .. // :: << >>"
local newer_signs = lexer.set "// :: << >> & | ~"
local newer_escapes = lexer.set "x z u"

-- Names that have no special meaning in 5.1.
local newer_names = {
  _ENV = "_ENV", __close = "the metamethod __close",
  __gc = "the metamethod __gc of a table",
  __len = "the metamethod __len of a table",
  __pairs = "the metamethod __pairs",
}

local function count_lines(text, from, to)
  local count, at = 0, text:find("\n", from, true)
  while at and at <= to do
    count, at = count + 1, text:find("\n", at + 1, true)
  end
  return count
end

-- Where the long bracket that opens at `from` ends, if there is one.
local function long_bracket(text, from)
  local _, inner, level = text:find("^%[(=*)%[", from)
  if not level then return end
  local close = "]" .. level .. "]"
  local closes, to = text:find(close, inner + 1, true)
  if not to then return #text end
  local nested = level == ""
    and text:sub(inner + 1, closes - 1):find("[[", 1, true)
  return to, nested and "[[ inside [[ ]]" or nil
end

local function quoted(text, from)
  local stops, i, newer = "[\\" .. text:sub(from, from) .. "]", from + 1, nil
  while true do
    i = text:find(stops, i)
    if not i then return #text, "string", newer end
    if text:find("^[^\\]", i) then return i, "string", newer end
    local escape = text:sub(i + 1, i + 1)
    if newer_escapes[escape] then newer = "the escape \\" .. escape end
    i = i + 2
    if escape == "z" then i = text:find("%S", i) or #text end
  end
end

local function number(text, from)
  ---@type any, any
  local _, to = text:find("^0[xX][%x.]*", from)
  if to then
    local _, exponent = text:find("^[pP][+-]?%d+", to + 1)
    to = exponent or to
  else
    _, to = text:find("^[%d.]+", from) ---@cast to any
    local _, exponent = text:find("^[eE][+-]?%d+", to + 1)
    to = exponent or to
  end
  local _, suffix = text:find("^[%w_]+", to + 1)
  to = suffix or to
  local digits = text:sub(from, to)
  local whole = digits:find("^0[xX]%x+$") or digits:find("^%d+$")
  local plain = whole or digits:find("^%d*%.?%d*[eE]?[+-]?%d*$")
  local value = plain and tonumber(digits)
  if not value or whole and (value >= TOO_BIG or value < 0) then
    return to, "number", "the number " .. digits
  end
  return to, "number"
end

local function long_string(text, from)
  local to, newer = long_bracket(text, from)
  return to, "string", newer
end

local function comment(text, from)
  local to, newer = long_bracket(text, from + 2)
  return to or (text:find("\n", from, true) or #text + 1) - 1, "comment", newer
end

local function name(text, from, to)
  local word = text:sub(from, to)
  if keywords[word] then return to, word end
  return to, "name", newer_names[word]
    or word:find("[\128-\255]") and "the name " .. word or nil
end

local function sign(text, from)
  local kind = text:sub(from, from)
  if text:find("^[.=~<>/:][.=<>/:]", from) then
    local three, two = text:sub(from, from + 2), text:sub(from, from + 1)
    kind = signs[three] and three or signs[two] and two or kind
  end
  local newer = newer_signs[kind] and "the operator " .. kind or nil
  return from + #kind - 1, kind, newer
end

-- The token at `from`: its last byte, its kind, and what 5.1 lacks of it.
local function token(text, from)
  local _, to = text:find("^[%a_\128-\255][%w_\128-\255]*", from)
  if to then return name(text, from, to) end
  local read = text:find("^%-%-", from) and comment
    or text:find("^[\"']", from) and quoted
    or text:find("^%.?%d", from) and number
    or text:find("^%[=*%[", from) and long_string or sign
  return read(text, from)
end

---@param text string its line breaks are "\n"
---@return table # a list of tokens, the last one "end of file"
---@return table # what 5.1 does not have: { from =, line =, what = }
---@return table # line -> true if it begins within a string
function lexer.tokens(text)
  local tokens, newer, inside, line, at = {}, {}, {}, 1, 1
  if text:sub(1, 1) == "#" then at = text:find("\n", 1, true) or #text + 1 end
  while true do
    local from = text:find("%S", at) or #text + 1
    line = line + count_lines(text, at, from - 1)
    if from > #text then break end
    local to, kind, what = token(text, from)
    if what then
      newer[#newer + 1] = { from = from, line = line, what = what }
    end
    if kind ~= "comment" then
      tokens[#tokens + 1] = {
        kind = kind, text = text:sub(from, to), from = from, to = to,
        line = line,
      }
    end
    if kind == "comment" or kind == "string" then
      local first = line + 1
      line = line + count_lines(text, from, to)
      for i = first, kind == "string" and line or 0 do inside[i] = true end
    end
    at = to + 1
  end
  tokens[#tokens + 1] = {
    kind = "end of file", text = "", from = #text + 1, to = #text, line = line,
  }
  return tokens, newer, inside
end

return lexer
