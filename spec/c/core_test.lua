--- Tests of rlock.core itself, run by core_test.c, which provides `check` (a
--- condition, and a value to show if it is false) and `path`, the socket of a
--- redis-server. Each function returned here runs in a fresh Lua state.

-- luacheck: std lua54

local core = require "rlock.core"
local check, path = check, path                     -- luacheck: ignore

local fns, last = {}, 0

local function new(fn)
  last = last + 1
  fns[last] = fn
  return last
end

local function unexpected(...)
  check(false, table.concat({ "told: ", ... }, " "))
end

core.dispatch(function(id, ...) fns[id](...) end)

--- Opens a connection; also returns the events reported of it.
local function open(options)
  options = options or {}
  options.path = options.path or path
  local conn, opened
  conn = assert(core.connect(new(function(ok, _, detail)
    opened = ok or detail
    core.stop()
  end), options))
  assert(core.run())
  check(opened == true, opened)
  return conn
end

local function call(conn, id, ms, ...)
  return conn:call(id, ms, { ... }, select("#", ...))
end

--- The reply to a command.
local function ask(conn, ...)
  local answer
  assert(call(conn, new(function(...)
    answer = table.pack(...)
    core.stop()
  end), 5000, ...))
  assert(core.run())
  return table.unpack(answer, 1, answer.n)
end

local function run_for(ms)
  local timer = core.timer(new(core.stop), ms)
  local ok, message = core.run()
  timer:close()
  return ok, message
end

local function raises(text, fn, ...)
  local ok, message = pcall(fn, ...)
  check(not ok, text)
  check(tostring(message):find(text, 1, true), message)
end

local tests = {}

function tests.a_raise_ends_the_run_with_a_traceback_and_loses_nothing()
  local conn = open()
  local told = 0
  local function bad_function() error "bad luck" end
  call(conn, new(bad_function), 0, "PING")
  call(conn, new(function() told = told + 1 end), 0, "PING")
  local ok, message = core.run()
  check(ok == nil, ok)
  check(message:find("bad luck", 1, true), message)
  check(message:find("stack traceback:", 1, true), message)
  local tries = 0
  repeat
    run_for(20)
    tries = tries + 1
  until told > 0 or tries == 200
  check(told == 1, told)
  call(conn, new(function() error() end), 0, "PING")
  ok, message = core.run()
  check(ok == nil and message:find("nil", 1, true), message)
end

function tests.nothing_is_told_before_the_call_returns()
  local conn = open()
  local inside = true
  local depth = 0
  local told = 0
  local function tell()
    check(not inside)
    check(depth == 0)
    depth = 1
    inside = true
    if told < 100 then call(conn, new(tell), 1000, "PING") end
    inside = false
    told = told + 1
    depth = 0
    if told > 100 then core.stop() end
  end
  call(conn, new(tell), 1000, "PING")
  local timer = core.timer(new(function() check(not inside) end), 0)
  inside = false
  core.run()
  timer:close()
  check(told == 101, told)
end

function tests.resume_is_that_of_lua()
  local function same(fn, ...)
    local ours, theirs = coroutine.create(fn), coroutine.create(fn)
    for _ = 1, 3 do
      local a = table.pack(core.resume(ours, ...))
      local b = table.pack(coroutine.resume(theirs, ...))
      check(a.n == b.n, a.n)
      for i = 1, a.n do check(a[i] == b[i], a[i]) end
      check(coroutine.status(ours) == coroutine.status(theirs))
    end
  end
  same(function(...) return coroutine.yield(...) end)
  same(function(...) return coroutine.yield(...) end, 1, nil, "x", nil)
  same(error, "an error")
  same(error)
  same(function() return core.resume(coroutine.running()) end)
  same(function() return table.unpack({}, 1, 10000) end)
  raises("coroutine expected", core.resume, 1)
end

function tests.interrupt_is_called_in_the_coroutine_that_computes()
  core.signal(new(unexpected), "TERM")
  core.interrupt(function(number) error({ number }) end)
  local co = coroutine.create(function()
    core.spawn(new(unexpected), { file = "sh",
      args = { "-c", "kill -TERM " .. core.pid() } })
    while true do pcall(check, true) end
  end)
  local ok, told = core.resume(co)
  check(not ok and type(told) == "table" and told[1] == 15, told)
  core.interrupt(nil)
end

function tests.run_within_run_is_misuse()
  local timer = core.timer(new(function()
    raises("running already", core.run)
  end), 0)
  check(core.run())
  timer:close()
end

function tests.what_is_collected_tells_nothing()
  local conn = open()
  call(conn, new(unexpected), 10, "BLPOP", "none", 0.05)
  conn = nil                                        -- luacheck: ignore
  core.connect(new(unexpected), { path = path })
  core.connect(new(unexpected), { host = "localhost", port = 1 })
  core.timer(new(unexpected), 1)
  core.signal(new(unexpected), "USR1")
  core.spawn(new(unexpected), { file = "true" })
  collectgarbage()
  collectgarbage()
  check(run_for(50))
end

function tests.what_is_collected_in_the_middle_of_a_reply_tells_nothing()
  local conn, others = open(), {}
  local sums, is_over = 0, false
  for i = 1, 50 do others[i] = open() end
  for i = 1, 200 do
    call(others[i % 50 + 1], new(function() check(not is_over) end), 0, "PING")
    call(conn, new(function(reply)
      if i == 5 then
        is_over = true
        collectgarbage()
      end
      if reply ~= "PONG" then sums = sums + #reply end
    end), 0, i % 2 == 0 and "PING" or "TIME")
  end
  others = nil                                      -- luacheck: ignore
  call(conn, new(core.stop), 0, "PING")
  assert(core.run())
  run_for(20)
  check(sums == 200, sums)
end

function tests.finalizers_may_use_what_is_being_used()
  local conn = open()
  local sent, answered = 0, 0
  local function litter()
    setmetatable({}, { __gc = function()
      if sent > 2000 then return end
      sent = sent + 1
      call(conn, new(function() answered = answered + 1 end), 0,
        "ECHO", sent, 1.5 * sent)
      core.timer(new(unexpected), 100000)
    end })
  end
  collectgarbage("generational", 1, 1)
  for i = 1, 300 do
    litter()
    call(conn, new(function() litter() end), 0, "ECHO", i, 0.25, ("x"):rep(i))
    if i % 10 == 0 then run_for(0) end
  end
  collectgarbage "incremental"
  sent = 3000
  ask(conn, "PING")
  check(answered > 100, answered)
  conn:close()
end

function tests.close_tells_which_ids_it_leaves()
  local conn = open()
  local a, b = new(unexpected), new(unexpected)
  call(conn, a, 0, "PING")
  call(conn, b, 0, "PING")
  local ids = conn:close()
  check(#ids == 2 and ids[1] == a and ids[2] == b)
  check(#conn:close() == 0)
  local ok, code, detail = call(conn, a, 0, "PING")
  check(ok == nil and code == "closed" and detail)
  local c = new(unexpected)
  ids = core.connect(c, { path = path }):close()
  check(#ids == 1 and ids[1] == c)
  check(run_for(10))
end

function tests.close_within_a_reply_leaves_the_rest()
  local conn = open()
  local rest
  call(conn, new(function()
    rest = conn:close()
    core.stop()
  end), 0, "PING")
  local b = new(unexpected)
  call(conn, b, 0, "PING")
  check(core.run())
  run_for(10)
  check(#rest == 1 and rest[1] == b)
end

function tests.a_block_closes_what_it_declares_so()
  do
    local conn <close> = open()
    call(conn, new(unexpected), 0, "PING")
    local timer <close> = core.timer(new(unexpected), 0)
    local signal <close> = core.signal(new(unexpected), "TERM")
    local child <close> = assert(core.spawn(new(unexpected),
      { file = "sh", args = { "-c", "exit 1" } }))
    check(timer and signal and child)
  end
  check(run_for(20))
end

function tests.a_handle_has_no_methods_of_another()
  local timer <close> = core.timer(new(unexpected), 1000)
  local signal <close> = core.signal(new(unexpected), "TERM")
  raises("rlock.core.signal expected", signal.close, timer)
  raises("rlock.core.timer expected", timer.close, signal)
  raises("rlock.core.timer expected", timer.close, {})
end

function tests.arguments_become_strings_exactly()
  local conn = open()
  check(ask(conn, "ECHO", math.maxinteger) == "9223372036854775807")
  check(ask(conn, "ECHO", math.mininteger) == "-9223372036854775808")
  check(ask(conn, "ECHO", 0.1) == "0.10000000000000001")
  check(ask(conn, "ECHO", 3.0) == "3")
  check(ask(conn, "ECHO", 2^70) == "1.1805916207174113e+21")
  check(ask(conn, "ECHO", "") == "")
  check(ask(conn, "ECHO", "a\0b\r\n*") == "a\0b\r\n*")
  local big = ("x"):rep(1 << 20)
  check(ask(conn, "ECHO", big) == big)
  local many = {}
  for i = 1, 200000 do many[i] = i end
  check(ask(conn, "RPUSH", "list", table.unpack(many, 1, 200)) == 200)
  conn:close()
end

function tests.eval_writes_keys_and_arguments_up_to_the_first_nil()
  local conn = open()
  local sha = ask(conn, "SCRIPT", "LOAD",
    "return table.concat(KEYS, ' ') .. '|' .. table.concat(ARGV, ' ')")
  local function eval(...)
    local answer
    assert(conn:eval(new(function(reply)
      answer = reply
      core.stop()
    end), 5000, sha, ...))
    assert(core.run())
    return answer
  end
  check(eval({}) == "|")
  check(eval({ "k", 7 }, "a", 1, 2.5) == "k 7|a 1 2.5")
  check(eval({ "k" }, "a", "b", "c", "d", { "e", 5 }) == "k|a b c d e 5")
  check(eval({ "k" }, "a", nil, "c", nil, { "e" }) == "k|a e")
  local id = new(unexpected)
  raises("bad argument #5", conn.eval, conn, id, 0, sha, "k")
  raises("bad argument #4", conn.eval, conn, id, 0, nil, {})
  raises("a word must be a string or a number", conn.eval, conn, id, 0, sha,
    { {} })
  raises("a word must be a string or a number", conn.eval, conn, id, 0, sha,
    {}, "a", {})
  raises("bad argument #10", conn.eval, conn, id, 0, sha, {}, "a", nil, nil,
    nil, "extra")
  conn:close()
  check(select(2, conn:eval(id, 0, sha, {})) == "closed")
end

function tests.misuse_names_the_argument()
  local conn = open()
  local id = new(unexpected)
  raises("bad argument #4", conn.call, conn, id, 0, "PING", 1)
  raises("not a count of words", call, conn, id, 0)
  raises("bad argument #5", conn.call, conn, id, 0, { "PING" })
  raises("a word must be a string or a number", call, conn, id, 0, "GET", {})
  raises("a word must be a string or a number", call, conn, id, 0, "GET", nil)
  raises("positive id expected", call, conn, 0, 0, "PING")
  raises("number expected, got string", call, conn, "x", 0, "PING")
  raises("duration out of range", call, conn, id, -1, "PING")
  raises("duration out of range", call, conn, id, 1 << 41, "PING")
  raises("no integer representation", call, conn, id, 0.5, "PING")
  raises("rlock.core.conn expected", conn.call, {}, id, 0, { "PING" }, 1)
  raises("bad argument #1", core.timer, -1, 0)
  raises("bad argument #2", core.timer, id, -1)
  raises("bad argument #1", core.random, 0)
  raises("bad argument #1", core.random, 1025)
  raises("bad argument #2", core.connect, id)
  raises("host and port, or path expected", core.connect, id, {})
  raises("option 'port' out of range", core.connect, id,
    { host = "h", port = 65536 })
  raises("option 'timeout' out of range", core.connect, id,
    { path = "p", timeout = 1.5 })
  raises("option 'host' must be a string", core.connect, id,
    { host = {}, port = 1 })
  raises("bad argument #2", core.signal, id, "NOSUCH")
  raises("file expected", core.spawn, id, {})
  raises("must be strings", core.spawn, id, { file = "ls", args = { 1 } })
  raises("not a path", core.private_dir, "a\0b")
  raises("not a path", core.flock, "")
  local ok, code = call(conn, id, 0, "SUBSCRIBE", "a")
  check(ok == nil and code == "usage")
  raises("invalid option", conn.listen, conn, "psubscribe", "a")
  ok, code = conn:listen("subscribe", "a")
  check(ok == nil and code == "usage")
  conn:close()
end

function tests.replies_become_values()
  local conn = open()
  check(ask(conn, "PING") == "PONG")
  check(ask(conn, "GET", "no such key") == false)
  local value, code, message = ask(conn, "EVAL",
    "return redis.error_reply('MINE is no good')", 0)
  check(value == nil and code == "redis" and message == "MINE is no good")
  local list = ask(conn, "EVAL", "return { 1, '2', false, {}, " ..
    "{ err = 'E rr' }, { ok = 'fine' }, { { 'deep' } } }", 0)
  check(#list == 7 and list[1] == 1 and list[2] == "2" and list[3] == false)
  check(#list[4] == 0 and list[5].err == "E rr" and list[6] == "fine")
  check(list[7][1][1] == "deep")
  check(ask(conn, "SET", "n", math.maxinteger) == "OK")
  check(ask(conn, "INCRBY", "n", 0) == math.maxinteger)
  conn:close()
end

function tests.depth_is_bounded()
  local conn = open()
  local deep = ("{"):rep(40) .. ("}"):rep(40)
  local value, code, message = ask(conn, "EVAL", "return " .. deep, 0)
  check(value == nil, value)
  -- hiredis before 1.0 itself fails beyond a depth of seven
  check(code == "redis" and message == "reply nested too deep"
    or code == "closed" and message:find "nested", message)
  conn:close()
end

function tests.random_bytes_and_clock()
  check(#core.random(1) == 1 and #core.random(1024) == 1024)
  check(core.random(16) ~= core.random(16))
  local before = core.now()
  run_for(10)
  local passed = core.now() - before
  check(passed >= 0.010 and passed < 5, passed)
  check(math.type(core.pid()) == "integer")
  check(core.hostname():find("^[%w.-]+$"))
  check(math.type(core.uid()) == "integer")
  check(core.isatty(99) == false)
end

function tests.private_folders_and_lock_files()
  local folder = path .. ".private"
  check(core.private_dir(folder))
  check(core.private_dir(folder))
  os.execute(("chmod 750 '%s'"):format(folder))
  local ok, code, detail = core.private_dir(folder)
  check(not ok and code == "refused" and detail:find "750", detail)
  os.execute(("ln -s '%s' '%s.link'"):format(folder, folder))
  ok, code = core.private_dir(folder .. ".link")
  check(not ok and code == "refused")
  local file = folder .. "/lock"
  local lock = assert(core.flock(file))
  ok, code = core.flock(file)
  check(not ok and code == "busy", code)
  lock:close()
  lock:close()
  lock = assert(core.flock(file))
  check(lock)
  lock = nil                                        -- luacheck: ignore
  collectgarbage()
  check(core.flock(file))
  ok, code = core.flock(folder .. ".link")
  check(not ok and code == "refused", code)
  os.execute(("mkfifo '%s.fifo'"):format(folder))
  ok, code, detail = core.flock(folder .. ".fifo")
  check(not ok and code == "refused" and detail:find "regular", detail)
  for _, kind in ipairs { "directory", "socket" } do
    ok, code, detail = core.check_private(folder .. ".fifo", kind)
    check(not ok and code == "refused" and detail:find(kind), detail)
    ok, code = core.check_private(folder .. ".none", kind)
    check(not ok and code == "missing", code)
  end
end

function tests.children()
  local status, signal
  local file = path .. ".out"
  local child = assert(core.spawn(new(function(...)
    status, signal = ...
    core.stop()
  end), {
    file = "sh", args = { "-c", 'echo "$A $1"; exit 3', "x", "y z" },
    env = { "A=b" }, stdout = file,
  }))
  core.run()
  check(status == 3 and signal == 0)
  check(io.open(file):read "a" == "b y z\n")
  local ok, code = child:kill(15)
  check(not ok and code == "closed")
  child:close()
  raises("closed", child.kill, child, 15)
  child = assert(core.spawn(new(function(...)
    status, signal = ...
    core.stop()
  end), { file = "sleep", args = { "10" }, detached = true }))
  check(child:pid() > 0)
  check(child:kill "TERM")
  core.run()
  check(status == 0 and signal == 15, signal)
  local detail, name
  ok, code, detail, name = core.spawn(1, { file = "no-such-program" })
  check(not ok and code == "usage" and name == "ENOENT")
  check(detail == "no-such-program: not found", detail)
end

--- An object whose finalizer runs after the core's.
function tests.finalizers_after_the_end_are_told_so()
  package.loaded["rlock.core"] = nil
  local late = {}
  _G.late = setmetatable({}, { __gc = function()
    for name, fn in pairs(late) do pcall(fn, name) end
  end })
  local mine = require "rlock.core"                 -- a second core
  local conn = mine.connect(1, { path = path })
  local timer = mine.timer(1, 1000)
  late[1] = function() mine.timer(1, 0) end
  late[2] = function() return call(conn, 1, 0, "PING") end
  late[3] = function() return conn:close(), conn:listen("subscribe", "x") end
  late[4] = function() timer:close() end
  late[5] = function() mine.run() end
  late[6] = function() mine.connect(1, { path = path }) end
end

--- An object whose finalizer runs before the core's.
function tests.finalizers_at_the_end_may_still_open_things()
  local keep = {}
  _G.early = setmetatable({}, { __gc = function()
    keep[1] = core.timer(1, 1000)
    keep[2] = core.connect(1, { path = path })
    keep[3] = core.connect(1, { host = "localhost", port = 1 })
    keep[4] = core.signal(1, "TERM")
    keep[5] = core.spawn(1, { file = "true" })
    keep[6] = core.flock(path .. ".early")
    check(#keep == 6)
  end })
end

function tests.a_state_may_be_closed_with_everything_open()
  local conn, other = open(), coroutine.wrap(function(...)
    coroutine.yield(open(...))
  end)
  _G.kept = {
    conn, other(), call(conn, new(unexpected), 0, "PING"),
    core.timer(1, 0), core.timer(1, 1000),
    core.connect(1, { host = "localhost", port = 1 }),
    core.signal(1, "HUP"), core.spawn(1, { file = "sleep", args = { "1" } }),
  }
end

return tests
