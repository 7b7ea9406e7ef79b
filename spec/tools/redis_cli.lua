--- Runs commands on a server and formats the replies as redis-cli does when its
--- output is not a terminal, without a process for each. Blocks.
---
---   local redis_cli = require "spec.tools.redis_cli"
---   redis_cli.run({ path = server.socket }, { { "GET", "key" } })
---   redis_cli.run({ port = 26379, password = "x", timeout = 1 }, commands)

local socket = require "socket"
local unix = require "socket.unix"

local redis_cli = {}

local TIMEOUT = 60

-- Raised with the text to return in place of further replies.
local function fail(text) error({ text = text }, 0) end

local function receive(connection, pattern)
  local data, why = connection:receive(pattern)
  if data then return data end
  fail(why == "closed" and "Error: Server closed the connection"
    or "Error: " .. why)
end

-- Reads one reply and appends its lines.
local function read(connection, lines)
  local line = receive(connection, "*l")
  local kind, rest = line:sub(1, 1), line:sub(2)
  if kind == "$" then
    local length = tonumber(rest)
    lines[#lines + 1] = length < 0 and ""
      or receive(connection, length + 2):sub(1, -3)
  elseif kind == "*" then
    for _ = 1, tonumber(rest) do read(connection, lines) end
    if tonumber(rest) <= 0 then lines[#lines + 1] = "" end
  elseif kind == "-" then
    lines[#lines + 1] = rest .. "\n"
  else
    lines[#lines + 1] = rest
  end
end

-- The wire format of a command.
local function request(words)
  local parts = { ("*%d\r\n"):format(#words) }
  for _, word in ipairs(words) do
    word = tostring(word)
    parts[#parts + 1] = ("$%d\r\n%s\r\n"):format(#word, word)
  end
  return table.concat(parts)
end

local function exchange(connection, commands, lines)
  for _, words in ipairs(commands) do
    local sent, why = connection:send(request(words))
    if not sent then
      fail(why == "closed" and "Error: Server closed the connection"
        or "Error: " .. why)
    end
    read(connection, lines)
  end
end

local function connect(options)
  local connection = options.path and unix.stream() or socket.tcp()
  connection:settimeout(options.timeout or TIMEOUT)
  local ok, why
  if options.path then
    ok, why = connection:connect(options.path)
  else
    ok, why = connection:connect("127.0.0.1", options.port)
  end
  if ok then return connection end
  connection:close()
  return nil, ("Could not connect to Redis at %s: %s"):format(
    options.path or "127.0.0.1:" .. options.port, why)
end

--- Runs commands over one connection.
---@param options table path, of a unix socket, or port; password; timeout in
---  seconds (60)
---@param commands table each a list of words of any bytes
---@return string # the replies: a string, a number's digits, "" for nil, a line
---  for each element of an array, or an error's text
function redis_cli.run(options, commands)
  local connection, why = connect(options)
  if not connection then return why end
  local lines = {}
  local ok, failure = pcall(function()
    if options.password then
      exchange(connection, { { "AUTH", options.password } }, {})
    end
    exchange(connection, commands, lines)
  end)
  connection:close()
  if not ok then
    if type(failure) ~= "table" then error(failure, 0) end
    lines[#lines + 1] = failure.text
  end
  return (table.concat(lines, "\n"):gsub("\n+$", ""))
end

return redis_cli
