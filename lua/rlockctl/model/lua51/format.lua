--- string.format of Lua 5.1.

local values = require "rlockctl.model.lua51.values"

local format = string.format

-- A double as C's `unsigned long`: beyond 2^63, and text of one.
local function unsigned(number)
  if number >= 2.0 ^ 63 and number < 2.0 ^ 64 then
    return values.long(number - 2.0 ^ 63) | math.mininteger
  elseif number >= 2.0 ^ 64 then
    return 0
  end
  return values.long(number)
end

local function show_unsigned(spec, number)
  if number >= 0 then return format(spec:gsub("u$", "d"), number) end
  if #spec > 2 then values.lacks "%u with flags for numbers above 2^63" end
  local tenth = (number >> 1) // 5
  return format("%d%d", tenth, number - tenth * 10)
end

local QUOTED = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\\n",
  ["\r"] = "\\r", ["\0"] = "\\000" }

local function show_text(spec, text)
  if #text >= 100 and not spec:find(".", 1, true) then return text end
  text = text:match("^[^\0]*")
  return #spec == 2 and text or format(spec, text)
end

-- Letter -> the flags that it accepts; 5.4 refuses the others.
local FLAGS = { s = "-", c = "-", q = "", d = "-+0 ", i = "-+0 ", u = "-0",
  o = "-#0", x = "-#0", X = "-#0", e = "-+#0 ", E = "-+#0 ", f = "-+#0 ",
  g = "-+#0 ", G = "-+#0 " }

local function accepted(flags, letter)
  return (flags:gsub(".", function(flag)
    return FLAGS[letter]:find(flag, 1, true) and flag or ""
  end))
end

local function show_number(spec, letter, number)
  if letter:find("[eEfgG]") then return format(spec, number) end
  if letter:find("[oxX]") then return format(spec, unsigned(number)) end
  if letter == "u" then return show_unsigned(spec, unsigned(number)) end
  if letter == "c" and not (number > -2.0 ^ 31 - 1 and number < 2.0 ^ 31) then
    values.lacks "%c for numbers beyond 2^31"
  end
  local text = format(spec, values.long(number))
  return letter == "c" and text:match("^[^\0]*") or text
end

-- The text of argument `i` by a conversion.
local function converted(spec, letter, i, value)
  if letter == "s" then
    return show_text(spec, values.text(value, i, "format"))
  elseif letter == "q" then
    local text = values.text(value, i, "format")
    return '"' .. text:gsub('["\\\n\r%z]', QUOTED) .. '"'
  end
  return show_number(spec, letter, values.number(value, i, "format"))
end

local function check_spec(flags, width, precision, letter)
  if not FLAGS[letter] then
    error(("invalid option '%%%s' to 'format'"):format(letter), 0)
  elseif #flags > 5 then
    error("invalid format (repeated flags)", 0)
  elseif #width > 2 or #precision > 3 then
    error("invalid format (width or precision too long)", 0)
  end
end

--- As string.format.
return function(text, ...)
  text = values.text(text, 1, "format")
  if text == "%d" then             -- the most frequent
    return format(text, values.integer((...), 2, "format"))
  end
  local arguments, i = { ... }, 1
  return (text:gsub("%%([-+ #0]*)(%d*)(%.?%d*)(.?)",
    function(flags, width, precision, letter)
      local middle = width .. precision
      if letter == "%" and flags .. middle == "" then return "%" end
      check_spec(flags, width, precision, letter)
      if letter == "c" then middle = width end
      i = i + 1
      return converted("%" .. accepted(flags, letter) .. middle .. letter,
        letter, i, arguments[i - 1])
    end))
end
