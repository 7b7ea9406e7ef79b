--- Metrics of nginx: one worker's, and the sums of all workers.

local cjson = require "cjson"
local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local nginx = require "spec.tools.nginx"
local read = require "spec.tools.exposition"
local redis = require "spec.tools.redis"

local WORKERS, CYCLES, SECONDS = 2, 20, 20

local HTTP = [[
  %s
  init_worker_by_lua_block {
    rlock = require "resty.rlock"
    locks = assert(rlock.open { url = "%s", name = "web" })
  }
]]

local LOCATIONS = [[
  location = /cycle { content_by_lua_block {
    local lock = locks:lock("metrics:" .. ngx.worker.pid())
    assert(lock:lock())
    assert(lock:unlock())
    ngx.print(ngx.worker.pid())
  } }
  location = /metrics { content_by_lua_block {
    ngx.header.content_type = "text/plain; version=0.0.4"
    ngx.print(require("resty.rlock").metrics())
  } }
]]

local ACQUIRED = 'rlock_acquired_total{client="web",kind="reentrant"}'

describe("metrics of nginx", function()
  local server, web

  setup(function() server = redis.start() end)
  teardown(function() server:stop() end)
  after_each(function() web:stop() end)

  local function start(workers, more)
    web = nginx.start { workers = workers, locations = LOCATIONS,
      http = HTTP:format(more or "", server.url) }
  end

  local function get(path)
    local status, body = web:get(path)
    assert.equal(200, status)
    return body
  end

  -- Cycles until all workers have had a part; returns the number.
  local function cycle()
    local workers, n, seen = 0, 0, {}
    while workers < WORKERS or n < CYCLES do
      local pid = get "/cycle"
      if not seen[pid] then seen[pid], workers = true, workers + 1 end
      n = n + 1
    end
    return n
  end

  local function count() return read(get "/metrics")[ACQUIRED] or 0 end

  it("are those of a worker", function()
    start(1)
    for _ = 1, 3 do get "/cycle" end
    assert.equal(3, count())
  end)

  it("are those of all workers with lua_shared_dict rlock_metrics", function()
    start(WORKERS, "lua_shared_dict rlock_metrics 1m;")
    local n = cycle()
    eventually(function() return count() == n end, SECONDS)
    local values = read(get "/metrics")
    assert.equal(n, values['rlock_hold_seconds_count{client="web",'
      .. 'kind="reentrant"}'])
    assert.equal(n, values['rlock_wait_seconds_bucket{client="web",'
      .. 'kind="reentrant",le="0.001"}'])
  end)

  it("are all that the dashboard of the examples shows", function()
    start(1)
    get "/cycle"
    local values, named = read(get "/metrics"), 0
    local dashboard =
      cjson.decode((files.read "examples/monitoring/grafana.json"))
    for _, panel in ipairs(dashboard.panels) do
      for _, target in ipairs(panel.targets) do
        local metric = target.expr:match "(rlock_[%w_]+){"
        local labels = '{client="web",kind="reentrant"'
          .. (metric:find "_bucket$" and ',le="+Inf"}' or "}")
        assert.is_number(values[metric .. labels], metric)
        named = named + 1
      end
    end
    assert.equal(12, named)
  end)

  it("keep the numbers of workers that have ended", function()
    start(WORKERS, "lua_shared_dict rlock_metrics 1m;")
    local n = cycle()
    eventually(function() return count() == n end, SECONDS)
    web:signal "HUP"
    n = n + cycle()
    eventually(function() return count() == n end, SECONDS)
  end)
end)
