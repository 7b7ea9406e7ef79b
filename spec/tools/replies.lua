--- Replies of Redis with their types, as texts and lists of texts, and whether
--- two replies are the same: of the model in lua/rlockctl/model, and a server.
---
---   "$text"  ":1.5"  "_" (nil)  "+OK"  "-ERR text"  { "*", "$a", "$b" }

local replies = {}

-- texts -----------------------------------------------------------------------

--- Messages that versions of Redis and Valkey word differently.
function replies.neutral(text)
  return (text:gsub("Redis command", "command")
    :gsub("Valkey command", "command")
    :gsub("Lua redis lib command arg", "Command arg")
    :gsub("Unbalanced [%a']+ list", "Unbalanced list")
    :gsub("ID, '%+', or", "ID or"))
end

-- The part of an error's text that must be the same.
local function normal(fault)
  -- scripts get another message than clients for a wrong number of words
  if fault:lower():find("^%-err wrong number of arg") then return "-arity" end
  if fault:find("^%-ERR Error compiling script") then return "-compile" end
  -- the model names the command, too
  fault = fault:gsub("^(%-ERR Unknown [^:]*command called from script).*",
    "%1")
  -- 5.1 and 5.4 name the culprit differently
  return replies.neutral((fault:gsub("(user_script:%d+: attempt to ).*", "%1")))
end

--- A value of a script with its type.
function replies.tagged(value)
  local kind = type(value)
  if kind == "number" then return (":%.17g"):format(value) end
  if kind == "string" then return "$" .. value end
  if kind ~= "table" then return "_" end
  if value.err then return "-" .. value.err end
  if value.ok then return "+" .. value.ok end
  local list = { "*" }
  for i, item in ipairs(value) do list[i + 1] = replies.tagged(item) end
  return list
end

--- The same for a reply that a client has received: it gets "+" and "$" alike.
--- Without what Redis appends to errors of scripts.
function replies.plain(reply)
  if type(reply) == "string" then return "$" .. replies.neutral(reply) end
  if math.tointeger(reply) then return (":%d"):format(reply) end
  if type(reply) == "number" then return (":%.17g"):format(reply) end
  if type(reply) ~= "table" then return "_" end
  if reply.err then
    return normal("-" .. reply.err:gsub(" script: %x+, on @.*$", ""))
  end
  if reply.ok then return "$" .. reply.ok end
  local list = { "*" }
  for i, item in ipairs(reply) do list[i + 1] = replies.plain(item) end
  return list
end

--- A reply as one line.
function replies.show(reply)
  if type(reply) ~= "table" then return ("%q"):format(reply) end
  local parts = {}
  for i, item in ipairs(reply) do parts[i] = replies.show(item) end
  return "{" .. table.concat(parts, " ") .. "}"
end

--- The same, with all lists sorted.
function replies.show_sorted(reply)
  if type(reply) ~= "table" then return replies.show(reply) end
  local parts = {}
  for i, item in ipairs(reply) do parts[i] = replies.show_sorted(item) end
  table.sort(parts)
  return "{" .. table.concat(parts, " ") .. "}"
end

local show = replies.show

-- comparing -------------------------------------------------------------------

--- Commands whose replies have no order -> the number of texts in an element.
replies.UNORDERED = { smembers = 1, sinter = 1, sunion = 1, sdiff = 1,
  hkeys = 1, hvals = 1, hgetall = 2, sscan = 1, hscan = 2, zscan = 2, keys = 1,
  scan = 1 }

-- Commands that reply with a time -> its unit in milliseconds.
local TIMES = { pttl = 1, pexpiretime = 1, ttl = 1000, expiretime = 1000 }

-- The elements of a list, of `n` texts each, sorted.
local function items_of(list, n)
  local items = {}
  for i = 2, #list, n do
    items[#items + 1] = show(table.move(list, i, i + n - 1, 1, {}))
  end
  table.sort(items)
  return items
end

local function sorted(list, n) return table.concat(items_of(list, n), " ") end

-- A server may reply with a part: it then has another cursor than 0.
local function same_scan(got, want, n)
  if want[2] == "$0" then return sorted(got[3], n) == sorted(want[3], n) end
  local has = {}
  for _, item in ipairs(items_of(got[3], n)) do has[item] = true end
  for _, item in ipairs(items_of(want[3], n)) do
    if not has[item] then return false end
  end
  return true
end

local function same_list(name, got, want)
  local n = replies.UNORDERED[name]
  local is_scan = n and type(got[3]) == "table" and type(want[3]) == "table"
  if is_scan then return same_scan(got, want, n) end
  if n then return sorted(got, n) == sorted(want, n) end
  return show(got) == show(want)
end

--- Two times, as texts of ":milliseconds".
---@param slack integer by how many milliseconds they may differ
function replies.same_time(got, want, slack, unit)
  local a, b = tonumber(got:match("^:(%d+)$")), tonumber(want:match("^:(%d+)$"))
  return a and b and math.abs(a - b) * (unit or 1) <= slack + (unit or 1) - 1
end

--- The reply to a command, with all numbers in texts shown alike: Redis 7.0
--- shows scores with 17 digits.
function replies.rounded(reply)
  if type(reply) == "string" then
    local number = tonumber(reply:match("^%$(.+)$"))
    return number and ("$%.17g"):format(number) or reply
  end
  local list = {}
  for i, item in ipairs(reply) do list[i] = replies.rounded(item) end
  return list
end

--- The replies to a command, tagged.
---@param name string
---@param slack integer by how many milliseconds times may differ
function replies.same(name, got, want, slack)
  if type(got) ~= type(want) then return false end
  if type(got) == "table" then return same_list(name, got, want) end
  if got == want then return true end
  if got:find("^%-") and want:find("^%-") then
    return normal(got) == normal(want)
  end
  -- Redis counts keys that have expired until it has deleted them.
  if name == "dbsize" then
    return tonumber(got:sub(2)) <= tonumber(want:sub(2))
  end
  return TIMES[name] and slack > 0
    and replies.same_time(got, want, slack, TIMES[name])
end

return replies
