--- The memory of workers whose requests all want one lock does not grow with
--- the number of requests. Code compiled by LuaJIT counts as Lua's memory.
--- #long

local at_once = require "spec.tools.at_once"
local nginx = require "spec.tools.nginx"
local redis = require "spec.tools.redis"

local WORKERS = 2
local CONNECTIONS = 200
local REQUESTS = 13000          -- per round
local WARM_UPS = 4              -- rounds, which compile most of the code
local ROUNDS = 4                -- measured rounds
local ROOM = 1500               -- allowed growth of a worker's Lua, in kB
local RESIDENT = 30000          -- allowed resident memory of a worker, in kB
local TRIES = 500

local HTTP = [[
  keepalive_requests 1000000;
  lua_check_client_abort on;
  init_worker_by_lua_block {
    rlock = require "resty.rlock"
    locks = assert(rlock.open("%s"))
  }
  log_by_lua_block { rlock.log_phase() }
]]

local LOCATIONS = [[
  location = /cycle { content_by_lua_block {
    local lock = locks:lock("hot")
    assert(lock:lock { wait = 60 })
    assert(lock:unlock())
    ngx.print("done")
  } }
  location = /memory { content_by_lua_block {
    for _ = 1, 3 do collectgarbage() end
    local file = assert(io.open("/proc/self/status"))
    local resident = file:read("*a"):match("VmRSS:%s*(%d+)")
    file:close()
    ngx.print(ngx.worker.id(), " ", collectgarbage("count"), " ", resident)
  } }
]]

describe("The memory of nginx's workers", function()
  local server, web

  setup(function()
    server = redis.start()
    web = nginx.start {
      workers = WORKERS, http = HTTP:format(server.url), locations = LOCATIONS,
    }
  end)

  teardown(function()
    web:stop()
    server:stop()
  end)

  -- Makes requests over one connection until all clients have made REQUESTS.
  local function make_requests(made)
    local socket = ngx.socket.tcp()
    socket:settimeouts(60000, 60000, 60000)
    assert(socket:connect("unix:" .. web.socket))
    while made.n < REQUESTS do
      made.n = made.n + 1
      assert(socket:send("GET /cycle HTTP/1.1\r\nHost: spec\r\n\r\n"))
      assert.matches(" 200 ", (assert(socket:receive())))
      local line
      repeat line = assert(socket:receive()) until line == "0"
      assert(socket:receive())                  -- end of the last chunk
    end
    return socket:close()
  end

  local function run_round()
    local made = { n = 0 }
    at_once(CONNECTIONS, function() return make_requests(made) end)
  end

  -- For each worker: { kB of Lua, resident kB }.
  local function memory()
    local workers, count = {}, 0
    for _ = 1, TRIES do
      local _, body = web:get("/memory")
      local id, of_lua, in_all = body:match("^(%d) (%S+) (%d+)$")
      if not workers[id] then count = count + 1 end
      workers[id] = { tonumber(of_lua), tonumber(in_all) }
      if count == WORKERS then return workers end
    end
    error("not every worker has answered")
  end

  it("stays what it is, however many requests have waited for one lock",
    function()
      for _ = 1, WARM_UPS do run_round() end
      local before = memory()
      for _ = 1, ROUNDS do run_round() end
      for id, after in pairs(memory()) do
        local gain = after[1] - before[id][1]
        assert.is_true(gain < ROOM, gain .. " kB of Lua more")
        assert.is_true(after[2] < RESIDENT, after[2] .. " kB in all")
      end
    end)
end)
