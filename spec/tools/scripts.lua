--- Generates random scripts that call Redis: with the commands of commands.lua,
--- in branches and loops, whose replies become arguments, conditions and
--- results. The same seed gives the same script.

local commands = require "spec.tools.commands"

local scripts = {}

local HEAD = [[
local function text(value)
  if type(value) == "table" then
    value = value.ok or value.err or #value
  end
  -- Valkey has another message
  return (tostring(value):gsub("Redis command", "command")
    :gsub("Lua redis lib command arg", "Command arg"))
end
local function number(value)
  local n = tonumber(value) or 3
  if n ~= n or n > 1e6 or n < -1e6 then return 7 end
  return math.floor(n * 4) / 4
end
local function sorted(list)
  if type(list) == "table" and not list.err then
    table.sort(list, function(a, b) return text(a) < text(b) end)
  end
  return list
end
local function list(value)
  return type(value) == "table" and value or { text(value) }
end
]]

-- Their replies have no order that all servers share.
local UNORDERED = { hgetall = true, hkeys = true, hvals = true, smembers = true,
  sinter = true, sunion = true, sdiff = true, keys = true }
-- Not here: their replies are random, or depend on the clock, on when the
-- server deletes what has expired, or on how data is stored.
local LEFT_OUT = { time = true, hscan = true, sscan = true, zscan = true,
  scan = true, dbsize = true, spop = true, srandmember = true,
  hrandfield = true, zrandmember = true, randomkey = true }

local Script = {}
Script.__index = Script

local function quoted(word)
  return '"' .. word:gsub('[%c"\\\128-\255]', function(char)
    return ("\\%03d"):format(char:byte())
  end) .. '"'
end

function Script:below(n) return self.gen:below(n) end
function Script:chance(percent) return self.gen:chance(percent) end
function Script:pick(list) return self.gen:pick(list) end

-- A variable in scope, or nil.
function Script:variable(prefix)
  local list = self[prefix]
  return #list > 0 and self:pick(list) or nil
end

function Script:declare(prefix)
  self.count = self.count + 1
  local name = prefix .. self.count
  table.insert(self[prefix], name)
  return name
end

-- An argument: mostly the word itself.
function Script:argument(word)
  local reply, number = self:variable "r", self:variable "n"
  local choice = self:below(30)
  if choice == 0 and reply then return ("text(%s)"):format(reply) end
  if choice == 1 and number then return number end
  if choice == 2 then return self:pick { "KEYS[1]", "KEYS[2]", "ARGV[1]",
    "ARGV[2]", "ARGV[3]", "#ARGV", "7", "2.5", "-1", "1e15", "nil", "{}",
    "true" } end
  if choice == 3 and #word > 1 then
    return quoted(word:sub(1, 1)) .. " .. " .. quoted(word:sub(2))
  elseif choice < 6 and word:find("^%-?[1-9]%d?%d?$") then
    return word
  end
  return quoted(word)
end

-- A call of redis.call or redis.pcall.
function Script:call()
  local words
  repeat
    words = self.gen:command(true)
  until not LEFT_OUT[words[1]:lower()]
  local list = { quoted(words[1]) }
  for i = 2, #words do list[i] = self:argument(words[i]) end
  local all, kind = table.concat(list, ", "), self:below(100)
  local text = ("redis.pcall(%s)"):format(all)
  if kind < 10 then text = ("redis.call(%s)"):format(all) end
  if kind >= 85 then
    text = ("select(2, pcall(redis.call, %s))"):format(all)
  end
  return UNORDERED[words[1]:lower()] and ("sorted(%s)"):format(text) or text
end

function Script:condition()
  local reply, number = self:variable "r", self:variable "n"
  if number and self:chance(40) then
    return ("%s %s %d"):format(number, self:pick { "<", ">=", "==" },
      self:below(5))
  end
  return (self:pick { "%s", "not %s", "%s == false", "type(%s) == 'table'",
    "text(%s) == 'OK'", "#text(%s) > 1", "%s == 1", "#list(%s) < 2" })
    :format(reply or "KEYS[1]")
end

local statements = {}

function statements.call(self)
  local text = self:call()
  return ("local %s = %s"):format(self:declare "r", text)
end

function statements.number(self)
  local reply = self:variable "r" or "ARGV[1]"
  local form = self:pick { "number(%s)", "number(%s) + 1", "number(%s) * 2",
    "number(%s) / 4", "number(%s) %% 3", "-number(%s)", "#text(%s)" }
  local text = form:format(reply)
  return ("local %s = %s"):format(self:declare "n", text)
end

function statements.branch(self)
  local text = ("if %s then\n%s"):format(self:condition(), self:block())
  if self:chance(50) then text = text .. "\nelse\n" .. self:block() end
  return text .. "\nend"
end

function statements.loop(self)
  local reply = self:variable "r" or "ARGV"
  return ("for i, item in ipairs(list(%s)) do\n  redis.pcall(%s, %s, "
    .. "text(item), i)\nend"):format(reply,
    self:pick { '"rpush"', '"sadd"', '"hset"', '"append"', '"set"' },
    self:pick { "KEYS[1]", "KEYS[2]", '"l0"', '"t0"', '"h0"' })
end

statements["return"] = function(self)
  return ("if %s then return %s end"):format(self:condition(), self:result(2))
end

function statements.raise(self)
  return ("if %s then error(%s) end"):format(self:condition(),
    self:pick { '"raised"', '"raised", 0', "{ err = 'MINE of mine' }", "nil",
      "redis.error_reply('MINE too')", "5", "true" })
end

function Script:block()
  local r, n, lines = #self.r, #self.n, {}
  self.depth = self.depth + 1
  for i = 1, self:below(3) + 1 do lines[i] = self:statement() end
  self.depth = self.depth - 1
  for i = #self.r, r + 1, -1 do self.r[i] = nil end
  for i = #self.n, n + 1, -1 do self.n[i] = nil end
  return table.concat(lines, "\n")
end

function Script:statement()
  local chance = self:below(100)
  if chance < 60 or self.depth > 2 then return statements.call(self) end
  if chance < 75 then return statements.number(self) end
  if chance < 88 then return statements.branch(self) end
  if chance < 95 then return statements.loop(self) end
  return statements[self:pick { "return", "raise" }](self)
end

-- An expression that the script may return.
function Script:result(depth)
  local choice = self:below(10)
  if choice < 3 and depth > 0 then
    local parts = {}
    for i = 1, self:below(4) do parts[i] = self:result(depth - 1) end
    return "{ " .. table.concat(parts, ", ") .. " }"
  elseif choice < 7 then
    return self:variable "r" or "KEYS"
  elseif choice < 8 then
    return self:variable "n" or "3.7"
  end
  return self:pick { "nil", "false", "true", "'text'", "-2.5", "1e300",
    "0 / 0", "{ ok = 'FINE' }", "{ err = 'MINE other' }", "{ 1, nil, 3 }",
    "redis.error_reply('MINE 3')", "redis.status_reply('yes')", "ARGV", "{}",
    "{ err = 5 }", "function() end", "redis.error_reply('single')" }
end

--- Generates the script of a seed. It takes two keys and three arguments.
---@return string
function scripts.file(seed)
  local self = setmetatable({
    gen = commands.new(seed, true), r = {}, n = {}, count = 0, depth = 0,
  }, Script)
  local lines = { HEAD }
  for i = 1, self:below(12) + 3 do lines[i + 1] = self:statement() end
  lines[#lines + 1] = "return { " .. self:result(3) .. ", "
    .. table.concat(self.r, ", ") .. " }"
  if self:chance(20) then lines[#lines] = "return " .. self:result(3) end
  return table.concat(lines, "\n")
end

return scripts
