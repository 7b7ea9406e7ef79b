--- ZooKeeper from nginx: what is specific to nginx. The locks themselves are in
--- spec/zookeeper, which runs in nginx, too.

local at_once = require "spec.tools.at_once"
local codec = require "rlock.zookeeper.codec"
local eventually = require "spec.tools.eventually"
local host = require "resty.rlock.host"
local nginx = require "spec.tools.nginx"
local rlock = require "resty.rlock"
local slow = require "spec.tools.slow"
local tasks = require "resty.rlock.host.tasks"
local zookeeper = require "spec.tools.zookeeper"

if not zookeeper.is_installed() then
  return describe("ZooKeeper from nginx", function()
    pending "needs libzookeeper-java (spec/tools/deps zookeeper)"
  end)
end

package.loaded["rlock.host.uv"] = host
local peers = require "spec.tools.zookeeper_peer"

local SECONDS = 20 * slow
-- Sessions last 4 to 40 seconds: what ends within SECONDS has not expired.
local TICK = 2000 * slow
local LONGEST = 20 * TICK / 1000

local server = zookeeper.start { tick = TICK, tls = true }
local peer, client, name, number = nil, nil, nil, 0

teardown(function() server:stop() end)

before_each(function()
  peer = peer or peers.open(server)
  number = number + 1
  name = "nginx" .. number
end)

after_each(function()
  if client then client:close() end
  client = nil
end)

-- The nodes of a lock.
local function nodes(path) return peer:names("/" .. (path or name)) or {} end

local function until_there(n, path)
  eventually(function() return #nodes(path) == n end, SECONDS,
    n .. " nodes")
end

local function open(options)
  options = options or {}
  options.url = options.url or server.url
  options.watchdog = options.watchdog or LONGEST
  options.name = name                    -- a client of its own
  client = assert(rlock.open(options))
  return client
end

-- How many connections the server has.
local function connections()
  local _, count = server:says("cons"):gsub("\n */", "")
  return count
end

local HTTP = ([[
  lua_check_client_abort on;
  lua_ssl_trusted_certificate %s;
  init_worker_by_lua_block {
    rlock = require "resty.rlock"
    locks = rlock.open { url = "%s", watchdog = %g }
    brief = rlock.open { url = "%s", watchdog = %g }
  }
]]):format(server.ca, server.url, LONGEST, server.url, TICK / 500)

local LOCATIONS = [[
  location = /cycle {
    content_by_lua_block {
      local kind = ngx.var.arg_kind or "lock"
      local lock = locks[kind](locks, ngx.var.arg_name)
      local ok, code, detail = lock:lock {
        wait = tonumber(ngx.var.arg_wait or 600) }
      if not ok then return ngx.print(code, " ", detail) end
      ngx.sleep(tonumber(ngx.var.arg_sleep or 0))
      assert(lock:unlock())
      ngx.print("done")
    }
    log_by_lua_block { rlock.log_phase() }
  }
  location = /acquire {
    content_by_lua_block {
      local semaphore = locks:semaphore(ngx.var.arg_name)
      if ngx.var.arg_n then semaphore:set(tonumber(ngx.var.arg_n)) end
      assert(semaphore:acquire())
      ngx.print("acquired")
    }
    log_by_lua_block { rlock.log_phase() }
  }
  location = /forget {
    content_by_lua_block {
      assert(brief:lock(ngx.var.arg_name):lock())
    }
  }
  location = /named {
    content_by_lua_block {
      local lock = locks:lock(ngx.var.arg_name, { owner = "me" })
      ngx.print(tostring(lock:lock()))
    }
  }
  location = /log {
    content_by_lua_block { ngx.print(tostring(seen)) }
    log_by_lua_block {
      seen = select(2, locks:semaphore("x"):set(1))
    }
  }
  location = /occupy { content_by_lua_block {
    leave = require("ngx.semaphore").new(0)
    for i = 1, 4 do ngx.timer.at(0, function() leave:wait(600) end) end
    while ngx.timer.running_count() < 4 do ngx.sleep(0.01) end
  } }
  location = /leave { content_by_lua_block { leave:post(4) } }
  location = /over-tls {
    content_by_lua_block {
      local client = rlock.open { url = ngx.var.arg_url, timeout = 1,
        tls = { server_name = ngx.var.arg_server } }
      local lock = client:lock(ngx.var.arg_name)
      local ok, code, detail = lock:lock { wait = 0 }
      if not ok then return ngx.print(code, " ", detail) end
      ngx.print(tostring(lock:unlock()))
    }
  }
]]

describe("A request in nginx that uses ZooKeeper", function()
  local web

  setup(function()
    web = nginx.start { http = HTTP, locations = LOCATIONS }
  end)

  teardown(function() web:stop() end)

  for _, kind in ipairs { "lock", "mutex" } do
    it("releases what it holds when it is aborted: " .. kind, function()
      local held = kind == "mutex" and name .. "/leases" or name
      local request = web:send(("/cycle?sleep=600&name=%s&kind=%s"):format(
        name, kind))
      until_there(1, held)
      request:close()
      until_there(0, held)
    end)

    it("leaves the queue when it is aborted: " .. kind, function()
      local queue = kind == "mutex" and name .. "/locks" or name
      local lock = open()[kind](client, name)
      assert(lock:lock())
      local before = kind == "mutex" and 0 or 1
      until_there(before, queue)
      local request = web:send(("/cycle?name=%s&kind=%s"):format(name, kind))
      until_there(before + 1, queue)
      local next_one = ngx.thread.spawn(function()
        return web:get(("/cycle?name=%s&kind=%s"):format(name, kind))
      end)
      until_there(before + 2, queue)
      request:close()
      until_there(before + 1, queue)
      assert(lock:unlock())
      assert.equal("done", select(3, ngx.thread.wait(next_one)))
    end)
  end

  it("leaves the queue of a semaphore when it is aborted", function()
    local semaphore = open():semaphore(name)
    assert(semaphore:set(1))
    assert(semaphore:acquire())
    local request = web:send("/acquire?name=" .. name)
    until_there(1, name .. "/locks")
    request:close()
    until_there(0, name .. "/locks")
    until_there(1, name .. "/leases")
    assert(semaphore:release())
    assert.equal(1, semaphore:available())
  end)

  it("is no longer renewed after its end, without log_phase", function()
    assert.equal(200, (web:get("/forget?name=" .. name)))
    until_there(0)
  end)

  it("shares one connection with all others", function()
    assert.equal("done", (select(2, web:get("/cycle?name=" .. name))))
    local before = connections()
    local all = at_once(30, function()
      return (select(2, web:get("/cycle?sleep=0.01&name=" .. name)))
    end)
    for _, body in ipairs(all) do assert.equal("done", body) end
    assert.is_true(connections() <= before)
    assert.same({}, nodes())
  end)

  it("is refused in a phase that cannot wait, and changes nothing", function()
    web:get "/log"
    assert.equal("refused", (select(2, web:get "/log")))
    assert.is_nil(peer:get "/x/limit")
  end)

  it("goes over TLS, to a server that it trusts", function()
    local path = "/over-tls?name=" .. name
    local url = server.tls_url:gsub("localhost", "127.0.0.1")
    -- A deadline may cut off the first attempt.
    local function until_it_says(pattern, more)
      eventually(function()
        return select(2, web:get(path .. more)):find(pattern)
      end, SECONDS, pattern)
    end
    until_it_says("^true$", "&server=localhost&url=" .. url)
    until_it_says("^connect 127.*certificate host mismatch", "&url=" .. url)
    until_it_says("^connect .*zks:// was tried: if this port does not use TLS",
      "&url=zks://127.0.0.1:" .. server.port)
  end)
end)

describe("A worker that ends", function()
  local function start(options)
    options.http = (options.http or "") .. HTTP
    options.locations = LOCATIONS
    local web = nginx.start(options)
    finally(function() web:stop() end)
    return web
  end

  it("frees its locks and permits at once", function()
    local web = start {}
    assert.equal("true", (select(2, web:get("/named?name=" .. name))))
    assert.equal("acquired", (select(2,
      web:get("/acquire?n=2&name=" .. name .. "/s"))))
    web:signal "QUIT"
    eventually(function() return web:has_ended() end, SECONDS, "its end")
    assert.same({}, nodes(name .. "/s/leases"))
    assert.same({ "s" }, nodes())
  end)

  it("lets its requests finish, and its successor wait", function()
    local web = start {}
    local path = "/cycle?name=" .. name
    local first = ngx.thread.spawn(function()
      return web:get(path .. "&sleep=2")
    end)
    until_there(1)
    web:signal "HUP"
    eventually(function() return #web:workers() == 2 end, SECONDS, "a reload")
    assert.equal("done", (select(2, web:get(path))))
    assert.equal("done", select(3, ngx.thread.wait(first)))
    eventually(function() return #web:workers() == 1 end, SECONDS, "one worker")
  end)

  it("reports that it has no timer for its first lock", function()
    local web = start { http = "lua_max_running_timers 4;" }
    assert.equal(200, (web:get "/occupy"))
    assert.matches("^refused no timer", (select(2,
      web:get("/cycle?wait=1&name=" .. name))))
    assert.equal(200, (web:get "/leave"))
    assert.equal("done", (select(2, web:get("/cycle?name=" .. name))))
  end)
end)

it("ZooKeeper serves requests with lua_code_cache off", function()
  local web = nginx.start {
    server = "lua_code_cache off;",
    locations = ([[
      location = /cycle { content_by_lua_block {
        local locks = assert(require("resty.rlock").open("%s"))
        local lock = locks:lock(ngx.var.arg_name)
        assert(lock:lock { wait = 600 })
        if ngx.var.arg_forget then return ngx.print("forgotten") end
        assert(lock:unlock())
        ngx.print("done")
      } }
    ]]):format(server.url),
  }
  finally(function() web:stop() end)
  local before, path = connections(), "/cycle?name=" .. name
  for _ = 1, 2 do assert.equal("done", (select(2, web:get(path)))) end
  assert.equal("forgotten", (select(2, web:get(path .. "&forget=1"))))
  until_there(0)
  for _, body in ipairs(at_once(5, function()
    return (select(2, web:get(path)))
  end)) do assert.equal("done", body) end
  eventually(function() return connections() <= before end, SECONDS,
    "the end of its connections")
  assert.is_nil(web:log():find("[error]", 1, true))
end)

describe("A session of nginx with ZooKeeper", function()
  local lock, link

  before_each(function()
    lock = open():lock(name)
    link = client.session.server.connection
    assert(lock:lock())
  end)

  local function until_it_is(state)
    eventually(function() return lock:state() == state end, SECONDS, state)
  end

  -- Ends the timer of the worker with everything that runs in it.
  local function kill()
    local timer = host.whole(tasks.worker_timer)
    host.daemon(function() ngx.exit(ngx.ERROR) end)
    eventually(function() return tasks.is_over(timer) end, SECONDS)
  end

  it("survives the end of its server", function()
    local why
    lock:on_lost(function(_, reason) why = reason end)
    local token, epoch = lock:token(), link.epoch
    server:kill()
    until_it_is "at_risk"
    server:restart()
    until_it_is "held"
    assert.is_nil(why)
    assert.equal(epoch, link.epoch)
    assert.equal(token, lock:token())
    assert.equal(1, #nodes())
    assert.is_true(lock:unlock())
  end)

  it("does not wait beyond a call's wait for a server that is silent",
    function()
      local other = client:lock(name .. "/other", { owner = "other" })
      server:signal "STOP"
      local began = host.now()
      local ok, code = other:lock { wait = 0.5 }
      local took = host.now() - began
      server:signal "CONT"
      assert.is_nil(ok)
      assert.is_true(code == "timeout" or code == "connect", code)
      assert.is_true(took < LONGEST / 2, took)
      until_it_is "held"
      until_there(0, name .. "/other")
      assert.is_true(lock:unlock())
    end)

  it("survives the timer that owns its connection", function()
    kill()
    eventually(function() return not link.is_ready end, SECONDS, "its loss")
    eventually(function() return link.is_ready end, SECONDS, "its return")
    until_it_is "held"
    assert.equal(1, link.epoch)
    local beat = link.next_beat
    eventually(function() return link.next_beat > beat end, SECONDS, "a sync")
    assert.is_true(lock:unlock())
    assert.same({}, nodes())
  end)

  it("is resumed if a request cannot be sent", function()
    local why
    lock:on_lost(function(_, reason) why = reason end)
    local frames = link.link.frames
    function frames.socket.send() return nil, "on purpose" end
    local call = link:sync()
    eventually(function() return call.is_over end, SECONDS, "its failure")
    assert.equal("closed", call.code)
    assert.matches("^127%.0%.0%.1:%d+: cannot send: on purpose$", call.detail)
    until_it_is "held"
    assert.not_equal(frames, link.link.frames)
    assert.is_nil(why)
    assert.is_true(lock:unlock())
  end)

  for what, prepare in pairs {
    ["a lock"] = function() return lock end,
    ["a semaphore"] = function()
      local semaphore = client:semaphore(name)
      assert(lock:unlock())
      assert(semaphore:set(1))
      assert(semaphore:acquire())
      return setmetatable({ unlock = semaphore.release },
        { __index = semaphore })
    end,
  } do
    it("releases in spite of the end of its timer: " .. what, function()
      local held = prepare()
      local path = what == "a semaphore" and name .. "/leases" or name
      until_there(1, path)
      local frames = link.link.frames
      function frames.socket.send() return 1 end       -- it sends nothing
      local unlocking = ngx.thread.spawn(held.unlock, held)
      eventually(function() return next(link.calls) end, SECONDS, "a request")
      kill()
      local _, ok, code = ngx.thread.wait(unlocking)
      assert.same({ nil, "closed" }, { ok, code })
      until_there(0, path)
    end)
  end

  it("keeps a timer that was replaced until it has ended", function()
    local timer = host.whole(tasks.worker_timer)
    timer.taken = math.huge
    eventually(function()
      return host.whole(tasks.worker_timer) ~= timer
    end, SECONDS, "another timer")
    assert.is_true(lock:unlock())
    assert.is_true(lock:lock())
    assert.is_true(link.is_ready)
    assert.is_false(tasks.is_over(timer))
    client:close()
    peer:close()                         -- another connection
    peer = nil
    eventually(function() return tasks.is_over(timer) end, SECONDS, "its end")
  end)

  it("refuses a token that LuaJIT cannot represent", function()
    local real = codec.number
    finally(function() codec.number = real end)
    assert.is_nil(codec.number "\0\32\0\0\0\0\0\1")
    assert.equal(2 ^ 53 - 1, codec.number "\0\31\255\255\255\255\255\255")
    function codec.number() return real "\0\32\0\0\0\0\0\1" end
    local ok, code, detail = client:lock(name .. "/other"):lock { wait = 1 }
    assert.same({ nil, "zookeeper" }, { ok, code })
    assert.matches("the token is beyond 2^53, and this Lua has no integers",
      detail, 1, true)
    until_there(0, name .. "/other")
  end)
end)

it("Frames of ZooKeeper are sent and received in pieces", function()
  local data = ("0123456789"):rep(50000)
  assert.equal("/big", (peer:make("/big", data)))
  local read = {}
  for i = 1, 8 do
    read[i] = peer.link:post(codec.ops.get, codec.read "/big")
  end
  for i = 1, 8 do
    local err, its = read[i]:wait(host.now() + SECONDS)
    assert.equal(0, err)
    assert.is_true(its:text() == data)
    assert.is_false(its.is_bad)
  end
end)

describe("nginx says what is wrong with", function()
  -- Tries to lock until the failure matches a pattern, since a deadline may cut
  -- off the first attempt. Returns the code.
  local function refusal(pattern, options, lock_name)
    options.timeout = 1
    local lock = open(options):lock(lock_name or name)
    return (eventually(function()
      local ok, code, detail = lock:lock { wait = 0 }
      assert.is_nil(ok)
      assert.is_nil(detail:find "\n")
      return detail:find(pattern) and code
    end, SECONDS, pattern))
  end

  it("a login", function()
    local mine = server.url:gsub("//", "//me:secret@")
    local link = open({ url = mine }).session.server.connection
    assert(link:connect(host.now() + SECONDS))
    assert.equal(0, (link:post(codec.ops.create2, codec.create("/mine", "",
      codec.flags.persistent, codec.CREATOR)):wait(host.now() + SECONDS)))
    client:close()
    assert.equal("zookeeper", refusal("^NOAUTH for /mine/a: this login has no "
      .. "permission for the node$", { url = mine:gsub("secret", "wrong") },
      "mine/a"))
    assert.is_nil(tostring(client):find "wrong")
  end)

  it("a chroot", function()
    assert.equal("refused", refusal("there is no node /none; make it",
      { url = server.url .. "/none" }))
  end)

  it("a server of another kind, or none", function()
    local web = nginx.start()
    finally(function() web:stop() end)
    local options = { url = "zk://127.0.0.1:" .. web.port }
    assert.equal("connect", refusal("a frame that is too long %(does this port "
      .. "speak ZooKeeper", options))
    client:close()
    web:stop()
    assert.equal("connect", refusal("127.0.0.1:%d+: connection refused",
      options))
  end)
end)
