--- Timers that nginx refuses or ends, and the worker's timer, on which all
--- background work depends.

local eventually = require "spec.tools.eventually"
local host = require "resty.rlock.host"
local loop = require "rlock.lock.waiting"
local nginx = require "spec.tools.nginx"
local redis = require "spec.tools.redis"
local rlock = require "resty.rlock"
local tasks = require "resty.rlock.host.tasks"

local SECONDS = 20

-- luacheck: globals ngx

describe("The timer of a worker", function()
  local server, client
  local timer_at, exit = ngx.timer.at, ngx.exit

  before_each(function()
    server = redis.start()
    client = assert(rlock.open { url = server.url, watchdog = 1 })
  end)

  after_each(function()
    ngx.timer.at, ngx.exit = timer_at, exit
    client:close()
    server:stop()
  end)

  -- From now on, nginx refuses timers as if too many were pending.
  local function refuse()
    local refused = 0
    function ngx.timer.at()
      refused = refused + 1
      return nil, "too many pending timers"
    end
    return function() return refused end
  end

  -- From now on, nginx drops timers when they are due, because too many run.
  local function drop()
    local dropped = 0
    function ngx.timer.at()
      dropped = dropped + 1
      return true
    end
    return function() return dropped end
  end

  local function current() return host.whole(tasks.worker_timer) end

  -- Makes the timer due for replacement.
  local function wear_out()
    local timer = current()
    timer.taken = math.huge
    return timer
  end

  it("goes on if its successor is refused, and renews", function()
    local lock = client:lock "kept"
    assert(lock:lock())
    local refused = refuse()
    local timer = wear_out()
    eventually(function() return refused() > 2 end, SECONDS)
    assert.equal(timer, current())
    local ends = host.now() + 1.5
    eventually(function() return host.now() > ends end, SECONDS)
    assert.equal("held", lock:state())
    assert.equal("1", server:cli("EXISTS", "kept"))
    ngx.timer.at = timer_at
    eventually(function() return current() ~= timer end, SECONDS)
    assert.is_true(lock:unlock())
    eventually(function() return tasks.is_over(timer) end, SECONDS)
  end)

  it("goes on if its successor is dropped when it is due", function()
    local lock = client:lock "kept"
    assert(lock:lock())
    local dropped = drop()
    local timer = wear_out()
    eventually(function() return dropped() > 1 end, SECONDS)
    assert.equal(timer, current())
    assert.is_true(lock:unlock())
    ngx.timer.at = timer_at
    eventually(function() return current() ~= timer end, SECONDS)
  end)

  -- Ends the timer with everything that runs in it.
  local function kill()
    local timer = current()
    host.daemon(function() ngx.exit(ngx.ERROR) end)
    eventually(function() return tasks.is_over(timer) end, SECONDS)
    return timer
  end

  it("is replaced if it was ended", function()
    local timer = kill()
    assert.not_equal(timer, current())
    local lock = client:lock "kept"
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
  end)

  it("fails the job of a request when it is ended", function()
    local waiting = ngx.thread.spawn(function()
      return host.whole(function() ngx.sleep(SECONDS) end)
    end)
    kill()
    local _, result, code, detail = ngx.thread.wait(waiting)
    assert.same({ nil, "closed" }, { result, code })
    assert.matches("nginx has ended the timer", detail)
  end)

  -- The number of idle threads is then two at least.
  local function leave_two_idle()
    local function work() host.whole(function() ngx.sleep(0.01) end) end
    local first, second = ngx.thread.spawn(work), ngx.thread.spawn(work)
    assert(ngx.thread.wait(first))
    assert(ngx.thread.wait(second))
  end

  it("leaves to its successor what an idle thread has not begun", function()
    leave_two_idle()
    local timer, its, over = current(), nil, host.event()
    host.daemon(function() ngx.exit(ngx.ERROR) end)
    local task = host.daemon(function()
      its = tasks.worker_timer()
      over:set()
    end)
    assert.is_true(over:wait(SECONDS))
    assert.not_equal(timer, its)
    eventually(function() return tasks.is_over(task) end, SECONDS)
  end)

  it("leaves to its successor a call that it has not begun", function()
    leave_two_idle()
    host.daemon(function() ngx.exit(ngx.ERROR) end)
    assert.equal("done", host.whole(function() return "done" end))
  end)

  it("is replaced, and renews what an idle thread was to renew", function()
    local lock = client:lock "kept"
    assert(lock:lock())
    leave_two_idle()
    local daemon, has_ended = host.daemon, false
    function host.daemon(...)
      host.daemon, has_ended = daemon, true
      assert(daemon(...))
      ngx.exit(ngx.ERROR)
    end
    finally(function() host.daemon = daemon end)
    eventually(function() return has_ended end, SECONDS)
    local ends = host.now() + 3                   -- leases
    eventually(function() return host.now() > ends end, SECONDS)
    assert.equal("1", server:cli("EXISTS", "kept"))
    assert.equal("held", lock:state())
    assert.is_true(lock:unlock())
  end)

  -- Lets time pass without a call of rlock.
  local function pass(seconds)
    local ends = host.now() + seconds
    eventually(function() return host.now() > ends end, SECONDS)
  end

  it("is replaced without a call if it was ended, and renews", function()
    local lock = client:lock "kept"
    assert(lock:lock())
    kill()
    pass(3)
    assert.equal("1", server:cli("EXISTS", "kept"))
    assert.equal("held", lock:state())
    assert.is_true(lock:unlock())
  end)

  it("is replaced, and renews what was about to be renewed", function()
    local lock, session = client:lock "kept", client.session
    assert(lock:lock())
    function session.route_of()
      session.route_of = nil
      ngx.exit(ngx.ERROR)
    end
    eventually(function() return not rawget(session, "route_of") end, SECONDS)
    pass(3)
    assert.equal("1", server:cli("EXISTS", "kept"))
    assert.equal("held", lock:state())
    assert.is_true(lock:unlock())
  end)

  it("is replaced once nginx has timers again, and renews", function()
    local its = assert(rlock.open { url = server.url, watchdog = 5 })
    local lock = its:lock "kept"
    assert(lock:lock())
    kill()
    local dropped = drop()
    eventually(function() return dropped() > 2 end, SECONDS)
    ngx.timer.at = timer_at
    pass(6)
    assert.equal("1", server:cli("EXISTS", "kept"))
    assert.is_true(lock:unlock())
    its:close()
  end)

  it("reports what was lost while there was none", function()
    local lock, reasons = client:lock "kept", {}
    assert(lock:lock())
    lock:on_lost(function(_, reason) reasons[#reasons + 1] = reason end)
    kill()
    drop()
    eventually(function() return lock:state() == "lost" end, SECONDS)
    ngx.timer.at = timer_at
    eventually(function() return reasons[1] end, SECONDS)
    assert.same({ "not renewed in time" }, reasons)
    assert.same({ nil, "lost", "not renewed in time" }, { lock:unlock() })
  end)

  it("subscribes again after it was ended", function()
    local function subscribed()
      return server:cli("PUBSUB", "NUMSUB", "channel"):match "%d+" == "1"
    end
    local waiter = client.session.wakeup:join "channel"
    eventually(subscribed, SECONDS, "the subscription")
    kill()
    eventually(function() return not subscribed() end, SECONDS, "its end")
    eventually(subscribed, SECONDS, "another subscription")
    client.session.wakeup:leave(waiter)
  end)

  -- Starts a light thread that waits for a lock of `its`.
  local function wait_for(its, make, wait)
    return ngx.thread.spawn(function()
      return make(its):lock { wait = wait }
    end)
  end

  -- Do tasks of a client wait for a lock?
  local function has_waiters(its)
    for _, channel in pairs(its.session.wakeup.channels) do
      if channel.first then return true end
    end
    return next(its.session.heartbeats.lines) ~= nil
  end

  -- Do they listen, and send heartbeats if it is a fair lock?
  local function is_settled(its, which)
    local _, channel = next(its.session.wakeup.channels)
    local _, line = next(its.session.heartbeats.lines)
    return channel and channel.is_live
      and (not which:find "^fair" or line and line.first)
  end

  for which, make in pairs {
    fair = function(its) return its:fair_lock "kept" end,
    fair_write = function(its)
      return its:fair_read_write_lock("kept"):write_lock()
    end,
    plain = function(its) return its:lock "kept" end,
    multi = function(its)
      return rlock.multi_lock { its:lock "also", its:fair_lock "kept" }
    end,
  } do
    it("takes its waiters with it: " .. which, function()
      local held = make(assert(rlock.open { url = server.url, name = "holds" }))
      assert.is_true(held:lock())
      local dead = wait_for(client, make, 60)
      eventually(function() return is_settled(client, which) end, SECONDS,
        "a waiter")
      kill()
      local _, ok, code = ngx.thread.wait(dead)
      assert.same({ nil, "closed" }, { ok, code })
      local other = assert(rlock.open { url = server.url, name = "other" })
      local alive = wait_for(other, make, SECONDS)
      eventually(function() return is_settled(other, which) end, SECONDS,
        "another")
      eventually(function() return not has_waiters(client) end, SECONDS,
        "its end")
      assert.is_true(held:unlock())
      assert.is_true((select(2, ngx.thread.wait(alive))))
      other:close()
      held.session:close()
    end)
  end

  for which, options in pairs {
    ["a task"] = {}, ["a named owner"] = { owner = "named" },
  } do
    it("gives up the requests of " .. which, function()
      local lock = client:lock("kept", options)
      assert(client:call "PING")
      for _, method in ipairs { "lock", "unlock" } do
        server:pause()
        local dead = ngx.thread.spawn(function() return lock[method](lock) end)
        eventually(function()
          local _, granted = next(lock.record.grants)
          return granted and granted.acting
        end, SECONDS, "a request")
        kill()
        local _, ok, code = ngx.thread.wait(dead)
        assert.same({ nil, "closed" }, { ok, code })
        server:resume()
        assert.is_true(lock:lock { wait = SECONDS })
      end
      assert.is_true(lock:unlock())
      -- The given-up request is rolled back, and its place left.
      eventually(function() return client.session.pending == 0 end, SECONDS,
        "no request")
    end)
  end

  it("passes on a wake of a waiter that it ends", function()
    local wakeup = client.session.wakeup
    local joined, woken = host.event(), wakeup:join "channel"
    host.daemon(function()
      loop.join(client.session, "channel").is_woken = true
      joined:set()
      ngx.sleep(SECONDS)
    end)
    assert.is_true(joined:wait(SECONDS))
    kill()
    assert.is_true(woken:wait(SECONDS))
    assert.equal(woken, woken.channel.last)
    wakeup:leave(woken)
  end)

  it("runs the guards of a job that it ends", function()
    local undone, order = host.event(), {}
    local function undo(what)
      order[#order + 1] = what
      if what == 2 then error "on purpose" end
      if what == 1 then undone:set() end
    end
    host.daemon(function()
      host.guard(undo, 1, function()
        host.guard(undo, "over", function() end)
        host.guard(undo, 2, function()
          host.guard(undo, 3, function() ngx.sleep(SECONDS) end)
        end)
      end)
    end)
    kill()
    assert.is_true(undone:wait(SECONDS))
    assert.same({ 3, 2, 1 }, order)
  end)

  it("runs the other guards if one ends it again", function()
    local undone = host.event()
    host.daemon(function()
      host.guard(function() undone:set() end, nil, function()
        host.guard(function() ngx.exit(ngx.ERROR) end, nil, function()
          ngx.sleep(SECONDS)
        end)
      end)
    end)
    kill()
    assert.is_true(undone:wait(SECONDS))
  end)

  it("starts a service again that has raised an error", function()
    local runs, over = 0, host.event()
    host.service(function(a, b)
      runs = runs + 1
      assert.same({ "a", "b" }, { a, b })
      if runs < 3 then error "on purpose" end
      over:set()
    end, "a", "b")
    assert.is_true(over:wait(SECONDS))
    assert.equal(3, runs)
  end)

  it("seals the connection of a command that it ends", function()
    local node, lost = client.session.server.node, {}
    local seals = node.seals
    local function record(its, identity)
      lost[#lost + 1] = identity
      return getmetatable(seals).__index.lost(its, identity)
    end
    assert(client:call("PING"))
    seals.lost = record
    host.daemon(function()
      node:call(host.now() + SECONDS, { "BLPOP", "nothing", "0" }, 3)
    end)
    eventually(function()
      return server:cli("CLIENT", "LIST"):find("cmd=blpop", 1, true)
    end, SECONDS, "the command")
    kill()
    eventually(function() return lost[1] end, SECONDS, "its seal")
    assert.is_truthy(lost[1].id)
    eventually(function() return not seals:is_pending(lost[1].run_id) end,
      SECONDS)
  end)

  it("runs on_lost functions for which nginx refuses timers", function()
    local reasons, owners = {}, {}
    for i = 1, 3 do
      local lock = client:lock("lost" .. i)
      assert(lock:lock())
      lock:on_lost(function(_, reason)
        owners[host.current()] = true
        reasons[#reasons + 1] = reason
        if i == 2 then ngx.exit(ngx.ERROR) end
      end)
    end
    server:cli("DEL", "lost1", "lost2", "lost3")
    local refused, timer = refuse(), current()
    eventually(function() return reasons[3] end, SECONDS)
    assert.is_true(refused() > 0)
    assert.is_nil(owners[timer])
    assert.equal(timer, current())
    local n = 0
    for owner in pairs(owners) do
      n = n + 1
      eventually(function() return tasks.is_over(owner) end, SECONDS)
    end
    assert.equal(3, n)
    assert.matches("expired or broken", reasons[1])
  end)

  it("is replaced if it was ended and nginx refuses another", function()
    local lock = client:lock "kept"
    assert(lock:lock())
    local timer = kill()
    local refused = refuse()
    eventually(function() return lock:try_lock() end, SECONDS)
    assert.is_true(refused() > 0)
    assert.not_equal(timer, current())
    pass(2)
    assert.equal("held", lock:state())
    assert.is_true(lock:unlock())
    assert.is_true(lock:unlock())
  end)

  it("is not waited for beyond the wait of a call", function()
    local order, makers = {}, {
      lock = function() return client:lock("x"):lock { wait = 0.3 } end,
      hold = function() return client:fair_lock("x"):hold { wait = 0.3 } end,
      semaphore = function()
        return client:semaphore("s"):acquire(1, { wait = 0.3 })
      end,
      permits = function()
        return client:permits("p"):acquire { wait = 0.3 }
      end,
      latch = function() return client:latch("l"):wait { wait = 0.3 } end,
    }
    current()
    kill()
    drop()
    local threads = {}
    local function start(name, make)
      threads[#threads + 1] = ngx.thread.spawn(function()
        local ok, code, detail = make()
        assert.same({ name, nil, "refused", "no timer" },
          { name, ok, code, detail and detail:match "^no timer" })
        order[#order + 1] = makers[name] and "soon" or "late"
      end)
    end
    start("unlock", function() return client:lock("x"):unlock() end)
    start("try", function() return client:lock("x"):try_lock() end)
    for name, make in pairs(makers) do start(name, make) end
    for _, thread in ipairs(threads) do
      assert.is_true((ngx.thread.wait(thread)))
    end
    assert.same({ "soon", "soon", "soon", "soon", "soon", "late", "late" },
      order)
  end)

  it("takes the time until it starts from the wait of a call", function()
    local function wait_of(_, wait, third) return wait, third end
    assert.same({ -1, 3 }, { host.whole(wait_of, nil, -1, 3) })
    current()
    kill()
    function ngx.timer.at(_, ...)
      ngx.timer.at = timer_at
      return timer_at(0.6, ...)
    end
    local left, third = host.whole_wait(wait_of, nil, 100, 3)
    assert.is_true(left <= 99.5, left)
    assert.equal(3, third)
    assert.equal(math.huge, (host.whole_wait(wait_of, nil, math.huge)))
    assert.equal(0, (host.whole_wait(wait_of, nil, 0)))
  end)

  it("refuses jobs if there can be none, until there can", function()
    current()
    kill()
    refuse()
    local lock = client:lock "x"
    local ok, code, detail = lock:lock()
    assert.same({ nil, "refused" }, { ok, code })
    assert.matches("too many pending timers", detail)
    assert.is_nil((host.daemon(function() end)))
    ngx.timer.at = timer_at
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
  end)
end)

describe("A client in nginx whose first call finds no timer", function()
  it("works later", function()
    local server = redis.start()
    finally(function() server:stop() end)
    local client = assert(rlock.open(server.url))
    local daemon = host.daemon
    function host.daemon() return nil, "refused", "no timer" end
    local ok, code = client:lock("x"):lock { wait = 0.2 }
    host.daemon = daemon
    assert.same({ nil, "refused" }, { ok, code })
    assert.is_true(client:lock("x"):lock())
    client:close()
  end)
end)

-- In a worker that has no timer left: counts renewals, and refused timers.
local FULL = [[ location = /full { content_by_lua_block {
  local host = require "resty.rlock.host"
  local tasks = require "resty.rlock.host.tasks"
  local lock, timer_at = locks:lock "kept", ngx.timer.at
  local refused, renewals = 0, 0
  assert(lock:lock())
  local timer = host.whole(tasks.worker_timer)
  repeat until not timer_at(3600, function() end)
  timer.taken = math.huge               -- it is due for replacement
  function ngx.timer.at(...)
    local ok, why = timer_at(...)
    if not ok then refused = refused + 1 end
    return ok, why
  end
  local ends, valid = host.now() + %d, lock:valid_for()
  while (renewals < 4 or refused == 0) and host.now() < ends do
    ngx.sleep(0.02)
    local now_valid = lock:valid_for()
    if now_valid > valid then renewals = renewals + 1 end
    valid = now_valid
  end
  ngx.say(renewals, " renewals, ", refused > 0, ", ", lock:state(), ", ",
    timer == host.whole(tasks.worker_timer), ", ", lock:unlock())
} } ]]

-- What a worker that may have so many pending timers says at a location.
local function ask_worker(timers, location, path)
  local server = redis.start()
  local web = nginx.start {
    http = ([[
      lua_max_pending_timers %d;
      init_worker_by_lua_block {
        locks = assert(require("resty.rlock").open {
          url = "%s", watchdog = 2 })
      }
    ]]):format(timers, server.url),
    locations = location,
  }
  finally(function()
    web:stop()
    server:stop()
  end)
  local _, body = web:get(path)
  return body
end

describe("A worker with as many pending timers as nginx admits", function()
  it("goes on renewing in the timer that it has", function()
    assert.equal("4 renewals, true, held, true, true\n",
      ask_worker(16, FULL:format(SECONDS), "/full"))
  end)
end)

-- With an on_lost function that ends its timer, and a lock after that.
local SINGLE = [[ location = /single { content_by_lua_block {
  local host = require "resty.rlock.host"
  local ends, called = host.now() + %d, 0
  local lock = locks:lock "lost"
  assert(lock:lock())
  lock:on_lost(function()
    called = called + 1
    ngx.exit(ngx.ERROR)
  end)
  assert(lock:break_lock())
  while called == 0 and host.now() < ends do ngx.sleep(0.02) end
  local other = locks:lock "other"
  ngx.say(called, " ", lock:state(), ", ", other:lock(), ", ", other:unlock())
} } ]]

describe("A worker that may have one pending timer", function()
  it("runs on_lost functions", function()
    assert.equal("1 lost, true, true\n",
      ask_worker(1, SINGLE:format(SECONDS), "/single"))
  end)
end)

-- Loses locks, one after another. The first function for on_lost uses a lock in
-- a light thread and in a coroutine, the second one ends its timer.
local LOST = [[ location = /lost { content_by_lua_block {
  local ends, called, other = ngx.now() + %d, 0, locks:lock "other"
  local function lock_once() return other:lock() and other:unlock() end
  local function use_lock()
    local _, ok = ngx.thread.wait(ngx.thread.spawn(lock_once))
    assert(ok and coroutine.wrap(lock_once)())
  end
  for i = 1, 3 do
    local lock = locks:lock("lost" .. i)
    assert(lock:lock())
    lock:on_lost(function()
      if i == 1 then use_lock() end
      called = i
      if i == 2 then ngx.exit(ngx.ERROR) end
    end)
    assert(lock:break_lock())
    repeat ngx.sleep(0.02) until lock:state() == "lost"
    if not ngx.var.arg_wait then return end
    while called < i and ngx.now() < ends do ngx.sleep(0.02) end
  end
  ngx.say(called, ", ", lock_once())
} } ]]

for what, http in pairs {
  ["that may run one timer"] = "lua_max_running_timers 1;",
  ["in which others use all timers but one"] = [[ lua_max_running_timers 2;
    init_worker_by_lua_block {
      ngx.timer.at(0, function()
        repeat ngx.sleep(0.1) until ngx.worker.exiting()
      end)
    } ]],
} do
  describe("A worker " .. what, function()
    local server, web

    before_each(function()
      server = redis.start()
      web = nginx.start {
        http = ("init_by_lua_block { url = %q } "):format(server.url) .. http,
        locations = ([[ rewrite_by_lua_block {
          locks = locks or assert(require("resty.rlock").open {
            url = url, watchdog = 2 })
        } ]]) .. LOST:format(SECONDS),
      }
    end)

    after_each(function()
      web:stop()
      server:stop()
    end)

    it("runs on_lost functions", function()
      assert.equal("3, true\n", (select(2, web:get "/lost?wait=1")))
    end)

    it("ends, although an on_lost function has not run", function()
      assert.equal(200, (web:get "/lost"))
      web:signal "QUIT"
      eventually(function() return #web:workers() == 0 end, SECONDS)
    end)
  end)
end
