--- A cluster in nginx, also over TLS: a timer of the worker follows the slots,
--- requests do not; what is open ends with the worker.

local clusters = require "spec.tools.cluster"
local eventually = require "spec.tools.eventually"
local nginx = require "spec.tools.nginx"
local rlock = require "resty.rlock"
local slot = require "rlock.redis.slot"
local slow = require "spec.tools.slow"

local SECONDS = 30 * slow
local LEASE = 3 * slow
local REQUESTS = 12

local HTTP = [[
  lua_ssl_trusted_certificate %s/ca.crt;
  lua_ssl_verify_depth 3;
  lua_shared_dict flags 100k;
  init_worker_by_lua_block {
    local open = require("resty.rlock").open
    clients = {
      tls = assert(open { url = "%s", name = "spec", watchdog = %g,
        tls = { server_name = "localhost" } }),
      plain = assert(open { url = "%s", name = "spec", watchdog = %g }),
    }
  }
]]

local LOCATIONS = [[
  location = /lock { content_by_lua_block {
    local lock = clients[ngx.var.arg_client]:lock(ngx.var.arg_name)
    local ok, code, detail = lock:lock { wait = 20 }
    if not ok then return ngx.say(code, " ", detail) end
    local port = lock.record.target:route("").options.port
    ngx.sleep(0.01)
    assert(lock:unlock())
    ngx.say("locked at ", port)
  } }
  location = /hold { content_by_lua_block {
    local lock = clients.plain:lock(ngx.var.arg_name)
    assert(lock:lock { wait = 20 })
    ngx.shared.flags:set("held", true)
    while not ngx.shared.flags:get "over" do ngx.sleep(0.05) end
    local state = lock:state()
    ngx.say(state, " at ", lock.record.target:route("").options.port)
    assert(lock:unlock())
  } }
  location = /over { content_by_lua_block {
    ngx.say(ngx.shared.flags:set("over", true))
  } }
  location = /held { content_by_lua_block {
    ngx.say(ngx.shared.flags:get "held")
  } }
]]

describe("nginx with a cluster", function()
  local cluster, web, names

  setup(function()
    cluster = clusters.start { tls = true }
    names = {}
    for _, node in ipairs(cluster.nodes) do
      local i = 0
      repeat i = i + 1 until cluster:owner("x" .. i) == node
      names[node] = "x" .. i
    end
  end)
  teardown(function() cluster:stop() end)

  before_each(function()
    local plain = "redis+cluster://127.0.0.1:" .. cluster.nodes[1].port
    web = nginx.start {
      workers = 2, shutdown_timeout = 60, locations = LOCATIONS,
      http = HTTP:format(cluster.certificates, cluster.url, LEASE, plain,
        LEASE),
    }
  end)

  after_each(function() web:stop() end)

  local function lock(client, name)
    local status, body = web:get(("/lock?client=%s&name=%s"):format(client,
      name))
    assert.equal(200, status)
    return assert(tonumber(body:match "^locked at (%d+)"), body)
  end

  -- Requests that contend for a lock on each node.
  local function all_lock()
    local threads = {}
    for i = 1, REQUESTS do
      threads[i] = ngx.thread.spawn(function()
        for _, name in pairs(names) do
          lock(i % 2 == 0 and "tls" or "plain", name)
        end
      end)
    end
    for _, thread in ipairs(threads) do assert(ngx.thread.wait(thread)) end
  end

  -- The ids of nginx's connections to all nodes.
  local function connections()
    local ids, n = {}, 0
    for i, node in ipairs(cluster.nodes) do
      for id in node:cli("CLIENT", "LIST"):gmatch "id=(%d+)[^\n]*,spec " do
        ids[i .. ":" .. id], n = true, n + 1
      end
    end
    return n, ids
  end

  it("locks on each node, over TLS and without", function()
    for node, name in pairs(names) do
      assert.equal(node.tls_port, lock("tls", name))
      assert.equal(node.port, lock("plain", name))
    end
  end)

  it("follows a slot while its request does nothing", function()
    local source, target = cluster.nodes[1], cluster.nodes[2]
    local name = names[source]
    local held = ngx.thread.spawn(function()
      return select(2, web:get("/hold?name=" .. name))
    end)
    eventually(function()
      return select(2, web:get "/held") == "true\n"
    end, SECONDS, "it is held")
    cluster:move(slot.of(name), target)
    local before = target:stat "evalsha"
    eventually(function()
      return target:stat "evalsha" > before
    end, SECONDS, "it is renewed at the new node")
    web:get "/over"
    local _, text = ngx.thread.wait(held)
    assert.equal(("held at %d\n"):format(target.port), text)
    cluster:move(slot.of(name), source)
    assert.equal(source.port, lock("plain", name))
  end)

  it("leaves nothing behind when it reloads", function()
    all_lock()
    local old, before = web:workers(), select(2, connections())
    assert.is_truthy(next(before))
    web:signal "HUP"
    eventually(function()
      local now = web:workers()
      return #now == 2 and now[1] ~= old[1] and now[2] ~= old[2]
        and now[1] ~= old[2] and now[2] ~= old[1]
    end, SECONDS, "other workers")
    all_lock()
    for id in pairs(select(2, connections())) do assert.is_nil(before[id]) end
    assert.is_nil(web:log():find("[alert]", 1, true), web:log())
  end)

  it("leaves nothing behind when it quits", function()
    all_lock()
    assert.is_true(connections() > 0)
    web:signal "QUIT"
    eventually(function() return web:has_ended() end, SECONDS, "its end")
    assert.equal(0, (connections()))
    assert.is_nil(web:log():find("[alert]", 1, true), web:log())
  end)
end)

-- A call that never ends would leave the worker's client dead forever.
describe("The client of a worker works again", function()
  local cluster, is_faulty

  setup(function() cluster = clusters.start { masters = 1 } end)
  teardown(function() cluster:stop() end)
  before_each(function() is_faulty = true end)

  -- Fails once with this detail, then locks.
  local function recovers(client, pattern)
    finally(function() client:close() end)
    local lock = client:lock "x"
    local ok, code, detail = lock:try_lock()
    assert.same({ nil, "connect" }, { ok, code })
    assert.matches(pattern, detail)
    is_faulty = false
    assert.is_true(lock:lock { wait = SECONDS })
    assert.is_true(lock:unlock())
  end

  local function open(options)
    options.url = "redis+cluster://127.0.0.1:" .. cluster.nodes[1].port
    options.timeout = 1
    return assert(rlock.open(options))
  end

  it("after its nat has raised an error", function()
    local function nat()
      if is_faulty then error "on purpose" end
    end
    recovers(open { nat = nat }, "nat raised an error .* on purpose")
  end)

  for what, reply in pairs {
    ["of a bad port"] = { { 0, 16383, { "127.0.0.1", 2^40 } } },
    ["of a bad host"] = { { 0, 16383, { "a\0b", 1 } } },
    ["without slots"] = { {} }, ["of no list"] = "OK", ["of nil"] = false,
  } do
    it("after a reply to CLUSTER SLOTS " .. what, function()
      local client = open { name = what }
      local node = client.session.server.node:any()
      local call = node.call
      function node.call(its, deadline, words, n)
        if is_faulty and words[1] == "CLUSTER" then return reply end
        return call(its, deadline, words, n)
      end
      recovers(client, "reply to CLUSTER SLOTS is malformed")
    end)
  end
end)
