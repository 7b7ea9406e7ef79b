--- Whether random replies of the model in lua/rlockctl/model are like those of
--- a server: of the same type and number, and of elements that the key has.
---
---   chance.same(model, { "spop", "t", "2" }, got, want)    tagged replies

local replies = require "spec.tools.replies"

local chance = {}

local show = replies.show

-- Command -> what lists all elements of a key.
local ALL = {
  spop = { "smembers" }, srandmember = { "smembers" },
  hrandfield = { "hgetall", is_map = true },
  zrandmember = { "zrange", "0", "-1", "withscores", is_map = true },
  randomkey = { "keys", "*" },
}

local function name_of(words) return words[1]:lower() end

--- Does a command choose at random?
function chance.is_random(words) return ALL[name_of(words)] ~= nil end

-- Element -> what it has, or true.
local function elements_of(model, words)
  local read = ALL[name_of(words)]
  local list = model:call(name_of(words) == "randomkey" and read
    or { read[1], words[2], table.unpack(read, 2) })
  local all, step = {}, read.is_map and 2 or 1
  for i = 1, list.err and 0 or #list, step do
    all["$" .. list[i]] = step == 1 or "$" .. list[i + 1]
  end
  return all
end

--- The elements of a reply; nil if it has another one, or one twice.
---@param is_distinct boolean
---@param is_map boolean each is followed by what it has
local function chosen(all, reply, is_distinct, is_map)
  local seen, list = {}, {}
  for i = 2, #reply, is_map and 2 or 1 do
    local name = reply[i]
    if not all[name] or is_distinct and seen[name]
        or is_map and replies.rounded(all[name])
        ~= replies.rounded(reply[i + 1]) then
      return nil
    end
    seen[name], list[#list + 1] = true, name
  end
  return list
end

--- Could a server with these keys reply either?
---@param model table before the command
---@param words table
---@param got string | table tagged
---@param want string | table
function chance.same(model, words, got, want)
  local all = elements_of(model, words)
  if type(got) ~= type(want) then return false end
  if type(got) == "string" then
    if all[got] and all[want] then return true end
    return replies.same(name_of(words), got, want, 0)
  end
  local is_distinct = not words[3]:find "^-"
  local one = chosen(all, got, is_distinct, words[4])
  local two = chosen(all, want, is_distinct, words[4])
  return one ~= nil and two ~= nil and #one == #two
end

--- Raises unless the model has removed just what its SPOP replied.
---@param before table the model
---@param after table the model
---@param words table
---@param got string | table
function chance.check(before, after, words, got)
  if name_of(words) ~= "spop" then return end
  local left, now = elements_of(before, words), elements_of(after, words)
  if type(got) == "string" then got = { "*", got } end
  for i = 2, #got do left[got[i]] = nil end
  for name in pairs(left) do
    if not now[name] then error(show(words) .. " also removed " .. name, 0) end
    now[name] = nil
  end
  if next(now) then error(show(words) .. " left " .. next(now), 0) end
end

--- Removes from the model what the server's SPOP replied.
function chance.follow(model, words, want)
  if name_of(words) ~= "spop" then return end
  if type(want) == "string" then want = { "*", want } end
  for i = 2, #want do
    if want[i]:sub(1, 1) == "$" then
      model:call { "srem", words[2], want[i]:sub(2) }
    end
  end
end

return chance
