--- The keys of a command of the user: from COMMAND INFO, which is sent once for
--- each command, or from COMMAND GETKEYS if their place depends on the
--- arguments.

local errors = require "rlock.redis.errors"

local command_keys = {}

--- Reads a reply to COMMAND INFO.
---@return table|boolean # { first, last, step }: positions after the command's
---  name, negative ones from the end, first 0: none; false: only COMMAND
---  GETKEYS knows them, as for a command with subcommands or "movable" keys
local function place_in(reply)
  local about = type(reply) == "table" and reply[1]
  if type(about) ~= "table" then return false end
  for i = 4, 6 do                       -- whole numbers, not too great
    local n = about[i]
    if type(n) ~= "number" or n % 1 ~= 0 or n <= -2^20 or n >= 2^20 then
      return false
    end
  end
  for _, flag in ipairs(type(about[3]) == "table" and about[3] or {}) do
    if flag == "movablekeys" then return false end
  end
  if type(about[10]) == "table" and about[10][1] then return false end
  return { about[4], about[5], about[6] }
end

---@return any # the place of a command's keys
---@return rlock.failure? code, string? detail
local function place_of(server, deadline, name)
  local places = server.key_places or {}
  server.key_places = places
  if places[name] ~= nil then return places[name] end
  local reply, code, detail =
    server:any():call(deadline, { "COMMAND", "INFO", name }, 3)
  if reply == nil and code ~= "redis" then return nil, code, detail end
  local place = place_in(reply)
  -- Unknown commands are not cached, because their number has no bound.
  if type(reply) == "table" and reply[1]
      or code and not errors.is_passing(detail) then
    places[name] = place
  end
  return place
end

local function keys_at(place, words, n)
  local keys, first, last, step = {}, place[1], place[2], place[3]
  if last < 0 then last = n + last end
  if first < 1 or step < 1 then return keys end
  for i = first + 1, math.min(last + 1, n), step do
    keys[#keys + 1] = tostring(words[i])
  end
  return keys
end

-- The keys according to COMMAND GETKEYS; none if it refuses to name them.
local function ask(server, deadline, words, n)
  local question, keys = { "COMMAND", "GETKEYS" }, {}
  for i = 1, n do question[i + 2] = words[i] end
  local reply, code, detail = server:any():call(deadline, question, n + 2)
  if reply == nil and code ~= "redis" then return nil, code, detail end
  for i, key in ipairs(type(reply) == "table" and reply or {}) do
    if type(key) == "string" then keys[i] = key end
  end
  return keys
end

--- The keys of a command.
---@param server table a node or a cluster; keeps what it learns in its field
---  `key_places`
---@param deadline number by host.now()
---@param words table the command and its arguments
---@param n integer the number of words
---@return table? # the keys, perhaps none
---@return rlock.failure? code, string? detail
function command_keys.of(server, deadline, words, n)
  local place, code, detail =
    place_of(server, deadline, tostring(words[1]):upper())
  if place == nil then return nil, code, detail end
  if place then return keys_at(place, words, n) end
  return ask(server, deadline, words, n)
end

return command_keys
