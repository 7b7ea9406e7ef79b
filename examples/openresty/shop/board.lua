--- The data of the page: the holders and waiters of a printer and of a
--- configuration. A request can hold one of them for a while.
---
---   curl http://127.0.0.1:8080/locks
---   curl -X POST 'http://127.0.0.1:8080/hold?what=print&who=me&seconds=5'

local json = require "cjson.safe"
local answer = require "shop.answer"
local locks = require "shop.locks"

local board = {}

-- Use -> function(options) -> the lock that it needs.
local uses = {
  print = function(options) return locks:fair_lock("printer", options) end,
  read = function(options)
    return locks:fair_read_write_lock("config", options):read_lock()
  end,
  write = function(options)
    return locks:fair_read_write_lock("config", options):write_lock()
  end,
}

local printer, reading, writing = uses.print(), uses.read(), uses.write()
local modes = { ["r:"] = "read", ["w:"] = "write" }

local function add_holders(all, lock, mode)
  local state, code, detail = lock:peek()
  if not state then return nil, code, detail end
  for _, holder in ipairs(state.holders) do
    all[#all + 1] = { owner = holder.owner, mode = mode, lease = state.ttl }
  end
  return state
end

local function printer_now()
  local now = { name = "printer", holders = {}, waiters = {} }
  local state, code, detail = add_holders(now.holders, printer, "print")
  if not state then return nil, code, detail end
  for i, owner in ipairs(state.queue or {}) do
    now.waiters[i] = { owner = owner, mode = "print" }
  end
  return now
end

local function config_now()
  local now = { name = "config", holders = {}, waiters = {} }
  local state, code, detail = add_holders(now.holders, writing, "write")
  if state then
    state, code, detail = add_holders(now.holders, reading, "read")
  end
  if not state then return nil, code, detail end
  for i, who in ipairs(state.queue or {}) do        -- readers and writers
    now.waiters[i] = { owner = who:sub(3), mode = modes[who:sub(1, 2)] }
  end
  return now
end

-- An array as JSON. cjson.empty_array_mt is missing in Debian 12's cjson, which
-- writes an empty array as {}.
local function list(items)
  local texts = {}
  for i, item in ipairs(items) do texts[i] = json.encode(item) end
  return "[" .. table.concat(texts, ",") .. "]"
end

local function text_of(now)
  return ('{"name":%s,"holders":%s,"waiters":%s}'):format(
    json.encode(now.name), list(now.holders), list(now.waiters))
end

--- Replies with the current holders and waiters.
function board.show()
  local first, code, detail = printer_now()
  if not first then return answer(nil, code, detail) end
  local second
  second, code, detail = config_now()
  if not second then return answer(nil, code, detail) end
  ngx.header["Content-Type"] = "application/json"
  ngx.header["Cache-Control"] = "no-store"
  ngx.say("[", text_of(first), ",", text_of(second), "]")
end

--- Waits for a lock, and holds it for `seconds`.
function board.hold()
  local asked = ngx.req.get_uri_args()
  local use, seconds = uses[asked.what], tonumber(asked.seconds)
  local who = tostring(asked.who or "somebody"):sub(1, 40)
  if ngx.req.get_method() ~= "POST" or not use or not seconds then
    return answer(nil, "usage", "POST /hold?what=print|read|write&seconds=N")
  end
  seconds = math.max(0, math.min(seconds, 60))
  -- Owners are distinguished only by name, so make the name unique.
  local lock = use { owner = who .. " " .. ngx.var.request_id:sub(1, 6) }
  -- A lock with an explicit owner is not released when the request ends.
  assert(ngx.on_abort(function()
    lock:unlock()
    ngx.exit(499)
  end))
  answer(lock:with({ wait = 60, lease = seconds + 5 }, function()
    ngx.sleep(seconds)
    return "done"
  end))
end

return board
