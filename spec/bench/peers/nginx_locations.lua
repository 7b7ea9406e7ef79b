--- The locations of nginx.lua: a lock by rlock, and one by lua-resty-redis that
--- polls, as its users write it: SET with NX and PX, and a script that deletes
--- only its own key.

local bench = {}

local ADDRESS = os.getenv "BENCH_ADDRESS"
local LEASE, POLL, WAIT = 30000, 0.01, 10
local FREE = [[
  if redis.call("get", KEYS[1]) == ARGV[1] then
    return redis.call("del", KEYS[1])
  end]]

-- Each connection has a lock of its own, or all have one.
local function name_of(pattern)
  return "bench:" .. (pattern == "tight" and "one" or ngx.var.connection)
end

local client

--- By rlock.
function bench.rlock(pattern)
  client = client or assert(require "resty.rlock".open("redis://" .. ADDRESS))
  local lock = client:lock(name_of(pattern))
  assert(lock:lock { wait = WAIT })
  assert(lock:unlock())
  ngx.say "ok"
end

--- By lua-resty-redis.
function bench.polling(pattern)
  local redis = require("nginx.redis"):new()
  redis:set_timeouts(3000, 3000, 3000)
  local host, port = ADDRESS:match "^(.*):(%d+)$"
  assert(redis:connect(host, tonumber(port)))
  local name, token = name_of(pattern), ngx.var.request_id
  local ends = ngx.now() + WAIT
  while redis:set(name, token, "NX", "PX", LEASE) ~= "OK" do
    assert(ngx.now() < ends, "timeout")
    ngx.sleep(POLL)
  end
  assert(redis:eval(FREE, 1, name, token) == 1)
  redis:set_keepalive(60000, 30)
  ngx.say "ok"
end

return bench
