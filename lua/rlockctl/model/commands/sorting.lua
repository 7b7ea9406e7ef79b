--- SORT: the elements of a list, set or sorted set, in an order that other keys
--- may define.

local arguments = require "rlockctl.model.commands.arguments"

local sorting = {}

local KINDS = { list = true, set = true, zset = true }

local READ = {}                   -- option -> how many words follow

READ.asc, READ.desc, READ.alpha = 0, 0, 0
READ.limit, READ.get, READ.by, READ.store = 2, 1, 1, 1

local function options_of(words, can_store)
  local options, i = { get = {} }, 3
  while words[i] do
    local option = words[i]:lower()
    local n = READ[option] --[[@as integer]]
    if not n or not words[i + n] or option == "store" and not can_store then
      arguments.syntax()
    end
    if option == "limit" then
      options.offset = arguments.integer(words[i + 1])
      options.count = arguments.integer(words[i + 2])
    elseif option == "get" then
      table.insert(options.get, words[i + 1])
    elseif n == 1 then
      options[option] = words[i + 1]
    elseif option == "alpha" then
      options.is_text = true
    else
      options.is_descending = option == "desc"
    end
    i = i + n + 1
  end
  return options
end

-- What a pattern such as "weight_*" or "user_*->age" has for an element.
local function look_up(server, pattern, element)
  if pattern == "#" then return element end
  local before, after = pattern:match "^([^*]*)%*(.*)$"
  if not before then return nil end
  local rest, field = after:match "^(.-)%->(.+)$"
  local entry = server:entry(before .. element .. (rest or after))
  if not entry or entry.kind ~= (field and "hash" or "string") then
    return nil
  end
  if field then return entry.value[field] end
  return entry.value
end

local function elements_of(server, key)
  local entry = server:entry(key)
  if not entry then return {} end
  if not KINDS[entry.kind] then server:entry(key, "list") end
  if entry.kind == "list" then
    return table.move(entry.value, 1, #entry.value, 1, {})
  end
  return entry.kind == "set" and arguments.sorted(entry.value)
    or arguments.by_score(entry.value)
end

-- The number by which an element is sorted.
local function weight_of(text)
  text = text and text:match "^[^\0]*" or ""
  if text == "" then return 0.0 end
  local ok, number = pcall(arguments.double, text)
  if not ok then
    arguments.fail "ERR One or more scores can't be converted into double"
  end
  return number
end

-- What the elements are compared by: texts, or numbers.
local function keys_of(server, elements, options)
  local keys = {}
  for _, element in ipairs(elements) do
    local text = element
    if options.by then text = look_up(server, options.by, element) end
    keys[element] = options.is_text and (text or "") or weight_of(text)
  end
  return keys
end

-- Of elements with the same number, the text decides. Redis defines no order of
-- those whose texts of BY are the same: here they stay as they were.
local function sort(server, elements, options)
  local keys, places = keys_of(server, elements, options), {}
  for i, element in ipairs(elements) do places[element] = i end
  table.sort(elements, function(a, b)
    local one, two = keys[a], keys[b]
    if one == two and options.is_text then return places[a] < places[b] end
    if one == two then one, two = a, b end
    if options.is_descending then return one > two end
    return one < two
  end)
end

local function limited(elements, options)
  if not options.offset then return elements end
  local first = math.min(math.max(options.offset, 0), #elements)
  local last = options.count < 0 and #elements
    or first + math.min(options.count, #elements - first)
  return table.move(elements, first + 1, last, 1, {})
end

local function replied(server, elements, options)
  if not options.get[1] then return elements end
  local list = {}
  for _, element in ipairs(elements) do
    for _, pattern in ipairs(options.get) do
      list[#list + 1] = look_up(server, pattern, element) or false
    end
  end
  return list
end

local function store(server, key, list)
  for i, item in ipairs(list) do list[i] = item or "" end
  server:entry(key)
  server.entries[key] = nil
  if list[1] then server:change(key, "list", list) end
  return #list + 0.0
end

local function command(can_store)
  return { -2, function(server, words)
    local options = options_of(words, can_store)
    local elements = elements_of(server, words[2])
    local keeps_order = options.by and not options.by:find("*", 1, true)
    if not keeps_order then
      sort(server, elements, options)
    elseif options.is_descending then
      arguments.lacks "SORT with BY without a pattern, and DESC"
    end
    local list = replied(server, limited(elements, options), options)
    if options.store then return store(server, options.store, list) end
    return list
  end }
end

sorting.sort, sorting.sort_ro = command(true), command(false)

return sorting
