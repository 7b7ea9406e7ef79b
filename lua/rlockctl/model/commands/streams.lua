--- Commands of streams, without consumer groups. A stream is a list of
--- { id, ms, number, words, node }: the ID as text, its halves, which are
--- unsigned integers, and the fields and values. `last` is the last ID that was
--- added. Nodes have up to 100 items each: XTRIM and XADD with "~" remove whole
--- ones. `node` of the stream is the last, which has room for `room` more. In
--- Redis, large items fill a node earlier.

local arguments = require "rlockctl.model.commands.arguments"

local streams = {}

local fail, integer = arguments.fail, arguments.integer
local ult = math.ult

local NONE = {}
local NODE = 100                         -- stream-node-max-entries

local function entry_of(server, key) return server:entry(key, "stream") end

local function items_of(server, key)
  local entry = entry_of(server, key)
  return entry and entry.value or NONE
end

-- IDs -------------------------------------------------------------------------

local MOST = -1                          -- as unsigned

local INVALID = "ERR Invalid stream ID specified as stream command argument"

local function show_unsigned(n)
  if n >= 0 then return ("%d"):format(n) end
  local tens = (n >> 1) // 5
  return ("%d%d"):format(tens, n - tens * 10)
end

local function show(ms, number)
  return show_unsigned(ms) .. "-" .. show_unsigned(number)
end

-- An unsigned integer as C's strtoull reads it.
local function unsigned(text)
  local digits = text:match "^%s*%+?0*(%d+)$"
  if not digits or #digits > 20
      or #digits == 20 and digits > "18446744073709551615" then
    if text:find "^%s*%-0" then arguments.lacks "IDs with a sign" end
    fail(INVALID)
  end
  local n = 0
  for digit in digits:gmatch "%d" do
    n = n * 10 + math.tointeger(digit) --[[@as integer]]
  end
  return n
end

--- An ID, whose second half may be missing.
---@return any ... # its halves
local function read(text, missing)
  if #text > 127 then fail(INVALID) end
  text = text:match "^[^\0]*"
  local ms, number = text:match "^([^-]*)%-(.*)$"
  if not ms then return unsigned(text), missing end
  return unsigned(ms), unsigned(number)
end

local function is_less(a, b, c, d)       -- a-b before c-d
  return ult(a, c) or a == c and ult(b, d)
end

-- The position of the first item whose ID is not less.
local function position(items, ms, number)
  local low, high = 1, #items + 1
  while low < high do
    local middle = (low + high) // 2
    local item = items[middle]
    if is_less(item.ms, item.number, ms, number) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- adding and trimming ---------------------------------------------------------

local TWICE = "ERR syntax error, MAXLEN and MINID options at the same time are "
  .. "not compatible"

local function read_threshold(options, strategy, text)
  if strategy == "minid" then
    options.minid = { read(text, 0) }
    return
  end
  options.maxlen = integer(text)
  if options.maxlen < 0 then fail "ERR The MAXLEN argument must be >= 0." end
end

--- MAXLEN or MINID at position i.
---@return integer # the position of its last word
local function read_strategy(options, words, i)
  if options.strategy then fail(TWICE) end
  local sign = words[i + 2] and words[i + 1]
  options.is_rough = sign == "~"
  local at = (sign == "~" or sign == "=") and i + 2 or i + 1
  options.strategy = words[i]:lower()
  read_threshold(options, options.strategy, words[at])
  return at
end

local function check_trim(options, is_add)
  local limit = options.limit
  if limit and limit ~= 0 and not options.strategy then
    fail("ERR syntax error, LIMIT cannot be used without specifying a trimming "
      .. "strategy")
  elseif not is_add and not options.strategy then
    fail("ERR syntax error, XTRIM must be called with a trimming strategy")
  elseif limit and not options.is_rough then
    fail("ERR syntax error, LIMIT cannot be used without the special ~ option")
  end
  return options
end

-- The ID of XADD: `ms` and `number`; no number after "-*"; neither for "*".
local function read_new(options, text)
  if text == "*" then return end
  local ms = text:match "^([^-]*)%-%*$"
  if ms then
    options.ms = unsigned(ms)
  else
    options.ms, options.number = read(text, 0)
  end
end

local function read_limit(text)
  local limit = integer(text)
  if limit < 0 then fail "ERR The LIMIT argument must be >= 0." end
  return limit
end

---@return table # options
---@return integer # the position after them, and after the ID of XADD
local function trim_options(words, is_add)
  local options, i = {}, 3
  while words[i] do
    local option = words[i]:lower()
    if (option == "maxlen" or option == "minid") and words[i + 1] then
      i = read_strategy(options, words, i)
    elseif option == "limit" and words[i + 1] then
      options.limit, i = read_limit(words[i + 1]), i + 1
    elseif is_add and option == "nomkstream" then
      options.no_new = true
    elseif is_add then
      read_new(options, words[i])
      break
    else
      arguments.syntax()
    end
    i = i + 1
  end
  return check_trim(options, is_add), i + 1
end

-- Of the first `n` items, how many form whole nodes.
local function in_nodes(items, n, limit)
  if limit == 0 then limit = n end
  local whole = 0
  for i = 1, math.min(n, limit or 100 * NODE) do
    if not items[i + 1] or items[i + 1].node ~= items[i].node then whole = i end
  end
  return whole
end

-- How many of the first items the options remove.
local function surplus(items, options)
  ---@type any
  local n = options.maxlen and math.max(#items - options.maxlen, 0)
    or position(items, options.minid[1], options.minid[2]) - 1
  return options.is_rough and in_nodes(items, n, options.limit) or n
end

local function trim(server, key, options)
  local n = surplus(items_of(server, key), options)
  if n == 0 then return 0.0 end
  local items = server:change(key, "stream").value
  local last = #items
  table.move(items, n + 1, last, 1)
  for i = last - n + 1, last do items[i] = nil end
  return n + 0.0
end

-- The next ID after one.
local function after(ms, number)
  if number ~= MOST then return ms, number + 1 end
  return ms + 1, 0
end

local SMALL = "ERR The ID specified in XADD is equal or smaller than the "
  .. "target stream top item"

-- The ID of a new item, whose predecessor is ms-number.
local function next_id(server, options, ms, number)
  local own, its = options.ms, options.number
  if not own and ult(ms, server:ms()) then return server:ms(), 0 end
  if not own then return after(ms, number) end
  if not its and own == ms then
    if number == MOST then fail(SMALL) end
    return ms, number + 1
  end
  its = its or 0
  if not is_less(ms, number, own, its) then fail(SMALL) end
  return own, its
end

local function append(items, ms, number, words)
  local last = items[#items]
  if items.room == 0 or not last or last.node ~= items.node then
    items.node, items.room = items.node + 1, NODE
  end
  items.room, items.last = items.room - 1, show(ms, number)
  items[#items + 1] = {
    id = items.last, ms = ms, number = number, words = words, node = items.node,
  }
end

streams.xadd = { -5, function(server, words)
  local options, i = trim_options(words, true)
  local n = #words - i + 1
  if n < 2 or n % 2 == 1 then arguments.wrong_number(words) end
  if options.ms == 0 and options.number == 0 then
    fail "ERR The ID specified in XADD must be greater than 0-0"
  end
  local key = words[2]
  local before = entry_of(server, key)
  if not before and options.no_new then return false end
  local ms, number = read(before and before.value.last or "0-0")
  if ms == MOST and number == MOST then
    fail("ERR The stream has exhausted the last possible ID, unable to add "
      .. "more items")
  end
  ms, number = next_id(server, options, ms, number)
  append(server:change(key, "stream", { node = 0, room = 0 }).value, ms, number,
    table.move(words, i, #words, 1, {}))
  if options.strategy then trim(server, key, options) end
  return show(ms, number)
end }

streams.xtrim = { -4, function(server, words)
  local options = trim_options(words)
  return trim(server, words[2], options)
end }

streams.xdel = { -3, function(server, words)
  local entry, removed = entry_of(server, words[2]), 0.0
  if not entry then return 0.0 end
  local ids = {}
  for i = 3, #words do ids[i - 2] = { read(words[i], 0) } end
  for _, id in ipairs(ids) do
    local items = items_of(server, words[2])
    local at = position(items, id[1], id[2])
    if items[at] and items[at].id == show(id[1], id[2]) then
      table.remove(server:change(words[2], "stream").value, at)
      removed = removed + 1
    end
  end
  return removed
end }

-- reading ---------------------------------------------------------------------

streams.xlen = { 2, function(server, words)
  return #items_of(server, words[2]) + 0.0
end }

local function shown(item)
  return { item.id, table.move(item.words, 1, #item.words, 1, {}) }
end

-- The positions of the items between two bounds.
local function read_low(text)
  local rest = text:match "^%((.+)$"
  if text == "-" then return 0, 0 end
  if text == "+" then return MOST, MOST end
  if not rest then return read(text, 0) end
  local ms, number = read(rest, 0)
  if ms == MOST and number == MOST then
    fail "ERR invalid start ID for the interval"
  end
  return after(ms, number)
end

local function read_high(text)
  local rest = text:match "^%((.+)$"
  if text == "-" then return 0, 0 end
  if text == "+" then return MOST, MOST end
  if not rest then return read(text, MOST) end
  local ms, number = read(rest, MOST)
  if ms == 0 and number == 0 then fail "ERR invalid end ID for the interval" end
  if number ~= 0 then return ms, number - 1 end
  return ms - 1, MOST
end

-- COUNT of XRANGE; nil: all.
local function read_count(words)
  local count
  for i = 5, #words, 2 do
    if words[i]:lower() ~= "count" or not words[i + 1] then
      arguments.syntax()
    end
    count = integer(words[i + 1])
  end
  return count
end

local function range(is_reverse)
  return { -4, function(server, words)
    local low, high = words[3], words[4]
    if is_reverse then low, high = high, low end
    local from, from_number = read_low(low)
    local to, to_number = read_high(high)
    local count, list = read_count(words), {}
    local entry = entry_of(server, words[2])
    if not entry then return {} end
    if count and count <= 0 then return false end
    local items = entry.value
    local first = position(items, from, from_number)
    local last = position(items, to, to_number)
    if not items[last] or items[last].id ~= show(to, to_number) then
      last = last - 1
    end
    local step = 1
    if is_reverse then first, last, step = last, first, -1 end
    for i = first, last, step do
      if count and #list >= count then break end
      list[#list + 1] = shown(items[i])
    end
    return list
  end }
end

streams.xrange, streams.xrevrange = range(false), range(true)

--- The options of XREAD.
---@return integer # the position of the first key
---@return integer # the number of streams
---@return integer? # how many items of each
local function read_options(words)
  local count, i = nil, 2
  while words[i]:lower() ~= "streams" do
    local option = words[i]:lower()
    if option == "block" then arguments.lacks "XREAD with BLOCK" end
    if option ~= "count" or not words[i + 2] then arguments.syntax() end
    count, i = integer(words[i + 1]), i + 2
  end
  local n = #words - i
  if n == 0 then arguments.syntax() end
  if n % 2 ~= 0 then
    fail("ERR Unbalanced XREAD list of streams: for each stream key an ID or "
      .. "'$' must be specified.")
  end
  return i + 1, n // 2, count and count > 0 and count or nil
end

-- The ID after which XREAD reads a stream.
local function start_of(server, key, text)
  local entry = entry_of(server, key)
  if text == "$" then return read(entry and entry.value.last or "0-0") end
  if text == "+" then arguments.lacks "XREAD with +" end
  return read(text, 0)
end

streams.xread = { -4, function(server, words)
  local first, n, count = read_options(words)
  local reply, starts = {}, {}
  for i = first, first + n - 1 do
    starts[i] = { start_of(server, words[i], words[i + n]) }
  end
  for i = first, first + n - 1 do
    local items, list = items_of(server, words[i]), {}
    local at = position(items, after(starts[i][1], starts[i][2]))
    if starts[i][1] == MOST and starts[i][2] == MOST then at = #items + 1 end
    while items[at] and (not count or #list < count) do
      list[#list + 1], at = shown(items[at]), at + 1
    end
    if list[1] then reply[#reply + 1] = { words[i], list } end
  end
  return reply[1] and reply or false
end }

return streams
