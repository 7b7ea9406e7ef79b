--- rlockctl top: what it derives from successive samples, and the live table in
--- terminals of two sizes. Locks are written by redis-cli, so that the screens
--- are known.

local lock_table = require "rlockctl.top.lock_table"
local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"
local sampler = require "rlockctl.top.sampler"
local terminal = require "spec.tools.terminal"
local statistics = require "rlockctl.top.statistics"

local SOON = 20 * slow
local DAYS = 361000000                  -- milliseconds: 4d04h

local on_terminal = terminal.only(describe, pending)

local server

-- A lock that somebody holds.
local function hold(name, owner)
  server:cli("DEL", name)
  server:cli("HSET", name, owner, 1)
  server:cli("PEXPIRE", name, DAYS)
end

setup(function() server = redis.start { port = true } end)
before_each(function() server:cli "FLUSHALL" end)
teardown(function()
  server:stop()
  ctl.clean()
end)

describe("the statistics of a lock", function()
  local function held_by(...)
    local state = { holders = {}, waiters = 0 }
    for i, owner in ipairs { ... } do
      state.holders[i] = { owner = owner, count = 1 }
    end
    return state
  end

  local function queued(...)
    local state = held_by "a"
    state.queue = {}
    for i, owner in ipairs { ... } do state.queue[i] = { owner = owner } end
    return state
  end

  -- The statistics after samples at these times: time, state, ...
  local function after(self, ...)
    local samples = table.pack(...)
    for i = 1, samples.n, 2 do
      statistics.add(self, samples[i + 1] or nil, samples[i])
    end
    return self
  end

  it("knows since when a lock is held, or at least how long", function()
    local self = after(statistics.new(), 10, held_by "a", 13, held_by "a")
    assert.same({ 3, false }, { statistics.held(self) })
    after(self, 14, held_by "b", 16, held_by "b")
    assert.same({ 2, true }, { statistics.held(self) })
    after(self, 17, held_by("b", "c"))
    assert.same({ 3, true }, { statistics.held(self) })
    after(self, 18, held_by "c")
    assert.same({ 1, true }, { statistics.held(self) })
    after(self, 19, false)
    assert.is_nil(statistics.held(self))
  end)

  it("counts grants: new holders, and more holds of one", function()
    local self = after(statistics.new(), 0, held_by "a", 1, held_by "a")
    assert.equal(0, self.grants)
    assert.equal(1, after(self, 2, held_by "b").grants)
    assert.equal(1, after(self, 3, false).grants)
    assert.equal(2, after(self, 4, held_by "b").grants)
    local twice = held_by "b"
    twice.holders[1].count = 3
    assert.equal(4, after(self, 5, twice).grants)
    assert.equal(6, after(self, 6, held_by("c", "d")).grants)
  end)

  it("counts the first grant of a lock that was not there before", function()
    local self = after(statistics.new(5), 6, held_by "a")
    assert.same({ 1, 1 }, { self.grants, self.rate })
    assert.is_false(select(2, statistics.held(self)))
  end)

  it("sees by the token that the same owner has another hold", function()
    local function with(token)
      local state = held_by "a"
      state.token = token
      return state
    end
    local now = 1700000000000000
    local self = after(statistics.new(), 0, with(now), 1, with(now + 7))
    assert.equal(1, self.grants)
    assert.same({ 0, true }, { statistics.held(self) })
    self = after(statistics.new(), 0, with(3), 1, false, 2, with(7))
    assert.equal(4, self.grants)        -- Redisson's tokens are counters
  end)

  it("averages the rate, first over the time so far", function()
    local self = after(statistics.new(), 0, held_by "a", 1, held_by "b")
    assert.equal(1, self.rate)
    after(self, 2, held_by "b")
    assert.near(0.5, self.rate, 1e-9)
    for i = 3, 60 do after(self, i, held_by("b" .. i, "c" .. i)) end
    assert.near(2, self.rate, 0.01)
    for i = 61, 120 do after(self, i, false) end
    assert.near(0, self.rate, 0.01)
  end)

  it("knows the longest wait in a line", function()
    local self = after(statistics.new(), 0, queued("x", "y"), 2, queued "y",
      3, queued("y", "z"))
    assert.equal(3, self.longest)
    local state = queued("y", "z")
    after(self, 5, state)
    assert.same({ 5, 2, 5 }, { state.queue[1].waited, state.queue[2].waited,
      self.longest })
    after(self, 6, held_by "a")
    assert.equal(5, self.longest)
  end)

  it("knows how long there are waiters without a grant", function()
    local function waited(owner, count)
      local state = held_by(owner)
      state.waiters = count
      return state
    end
    local self = after(statistics.new(), 0, waited("a", 0), 1, waited("a", 2),
      3, waited("a", 1))
    assert.equal(2, self.longest)
    after(self, 4, waited("b", 1), 5, waited("b", 1), 6, waited("b", 0))
    assert.equal(2, self.longest)
    self = after(statistics.new(), 0, held_by "a", 9, held_by "a")
    assert.is_nil(self.longest)
  end)
end)

describe("the quantiles of a lock", function()
  local function sample(self, now, holder, ...)
    local state = holder and { holders = { { owner = holder } }, queue = {} }
    for i, waiter in ipairs { ... } do state.queue[i] = { owner = waiter } end
    statistics.add(self, state, now)
  end

  local function near(seconds, self, which, q)
    assert.near(seconds, statistics.quantile(self, which, q), seconds * 0.05)
  end

  it("are those of the holds and waits that were seen", function()
    local self = statistics.new(0)
    assert.is_nil(statistics.quantile(self, "holds", 0.5))
    assert.is_nil(statistics.quantile(self, "waits", 0.5))
    for i = 1, 99 do                    -- each is held and waited for for 1 s
      sample(self, 2 * i, "holder" .. i, "waiter" .. i)
      sample(self, 2 * i + 1, nil)
    end
    near(1, self, "holds", 0.99)
    near(1, self, "waits", 0.99)
    sample(self, 200, "last", "patient")
    sample(self, 260, "last", "patient")            -- not over yet
    near(1, self, "holds", 0.5)
    near(60, self, "holds", 1)
    near(60, self, "waits", 1)
    near(1, self, "waits", 0.99)
  end)

  it("have an end for each token", function()
    local self = statistics.new(0)
    for token = 1, 4 do
      statistics.add(self, { token = token,
        holders = { { owner = "a", count = 1 } } }, 5 * token)
    end
    near(5, self, "holds", 0.9)
  end)

  it("have the time without a grant if waiters are only counted", function()
    local self = statistics.new(0)
    local function crowd(now, holder, n)
      statistics.add(self, { waiters = n,
        holders = { { owner = holder, count = 1 } } }, now)
    end
    crowd(0, "a", 0)
    crowd(1, "a", 2)
    crowd(9, "b", 1)
    crowd(11, "c", 0)
    near(2, self, "waits", 0.5)
    near(8, self, "waits", 1)
  end)
end)

describe("the table of top", function()
  it("shows durations in six columns", function()
    local shown = {}
    for i, seconds in ipairs { 0, 0.44, 9.94, 9.96, 59.4, 59.6, 3599.4, 3600,
        86399, 86400, 1e6, 1e7, 1e12 } do
      shown[i] = lock_table.duration(seconds)
      assert(#shown[i] <= 6, shown[i])
    end
    assert.same({ "0.0s", "0.4s", "9.9s", "10s", "59s", "1m00s", "59m59s",
      "1h00m", "23h59m", "1d00h", "11d13h", "115d", "99999d" }, shown)
  end)

  it("fits into each width", function()
    for _, sort in ipairs { "name", "contention" } do
      for width = 60, 300 do
        local used = 0
        for _, column in ipairs(lock_table.columns(width, sort)) do
          used = used + column.width + 1
        end
        assert(used <= width and used > width - 3, width)
      end
    end
  end)

  local function titles(...)
    local list = {}
    for i, column in ipairs(lock_table.columns(...)) do list[i] = column[1] end
    return table.concat(list, " ")
  end

  it("has quantiles if it is sorted by them, or wide", function()
    assert.equal("NAME HELD LEFT WAITERS GRANTS/S LONGEST HELD BY",
      titles(99, "held"))
    assert.equal("NAME KIND HELD WAITERS HOLD50 HOLD99 WAIT50 WAIT99 HELD BY",
      titles(139, "contention"))
    assert.equal(titles(140, "name"), titles(140, "holds"))
    assert.matches("LONGEST HOLD50 HOLD99 WAIT50 WAIT99", titles(140, "name"))
  end)

  -- A lock that was held, and waited for, this long.
  local function watched_lock(name, held, waited)
    local entry = statistics.new(0)
    entry.name, entry.title, entry.number = name, name, 1
    local state = { holders = { { owner = "a" } }, queue = { { owner = "b" } } }
    statistics.add(entry, state, 0)
    if waited < held then
      statistics.add(entry, { holders = state.holders }, waited)
    end
    statistics.add(entry, { holders = {}, queue = state.queue }, held)
    statistics.add(entry, nil, held)
    return entry
  end

  it("is sorted by contention: by waits, then by holds", function()
    local watched = { now = function() return 11 end, entries = {
      a = { watched_lock("a", 2, 1) }, b = { watched_lock("b", 10, 1) },
      c = { watched_lock("c", 4, 3) }, d = { statistics.new() } } }
    local function sorted_by(sort)
      local list = {}
      for i, entry in ipairs(lock_table.rows(watched,
          { sort = sort, filter = "" })) do
        list[i] = entry.name
      end
      return table.concat(list, " ")
    end
    assert.equal("c b a", sorted_by "contention")
    assert.equal("b c a", sorted_by "holds")
    assert.equal("a b c", sorted_by "name")
  end)
end)

describe("a turn of top", function()
  it("samples what is shown, and others only while time lasts #long",
    function()
    server:cli("EVAL", [[
      for i = 1, 10000 do
        redis.call("hset", "lock:" .. i, "somebody", 1)
        redis.call("pexpire", "lock:" .. i, 1e8)
      end]], 0)
    local client <close> = assert(rlock.open(server.url))
    local watched = sampler.new(client, { limit = 20000 })
    assert(watched:scan())
    assert.equal(10000, #watched.names)
    local shown = { table.unpack(watched.names, 9001, 9022) }
    server:cli("CONFIG", "RESETSTAT")
    assert(watched:turn(shown, 0))
    for _, name in ipairs(shown) do assert(watched.entries[name], name) end
    local count = #lock_table.rows(watched, { sort = "name", filter = "" })
    assert.equal(22 + 64, count)
    local stats = server:cli("INFO", "commandstats")
    assert(tonumber(stats:match "cmdstat_evalsha:calls=(%d+)") <= 3 * count)
    assert.is_nil(stats:find("cmdstat_scan:", 1, true))
    local before = rlock.now()
    assert(watched:turn(shown, 0.5))
    assert(rlock.now() - before < 20 * slow)
    count = #lock_table.rows(watched, { sort = "name", filter = "" })
    assert(count > 22 + 64 and count < 10000, count)
    assert(watched:turn({}, math.huge))
    hold("new", "me")
    watched.scan_at = 0
    assert(watched:turn({}, 0))
    assert(watched.entries["new"])      -- a new name comes first
  end)

  it("watches no more names than its limit", function()
    for i = 1, 5 do hold("l:" .. i, "me") end
    local client <close> = assert(rlock.open(server.url))
    local watched = sampler.new(client, { limit = 3 })
    assert(watched:turn({}, math.huge))
    assert.equal(3, #lock_table.rows(watched, { sort = "name", filter = "" }))
    assert.is_true(watched.is_cut)
  end)

  it("asks once who the holders are", function()
    local client <close> = assert(rlock.open(server.url))
    assert(client:lock("held"):lock())
    hold("other", "01234567-0123-0123-0123-012345678901:1")
    local watched = sampler.new(client, {})
    server:cli("CONFIG", "RESETSTAT")
    for _ = 1, 3 do assert(watched:turn({}, math.huge)) end
    local stats = server:cli("INFO", "commandstats")
    assert.equal("1", stats:match "cmdstat_client|list:calls=(%d+)")
  end)

  it("keeps a lock for a while when it is free", function()
    hold("held", "me")
    local client <close> = assert(rlock.open(server.url))
    local watched = sampler.new(client, {})
    local now = 100
    function watched.now() return now end
    local function count()
      assert(watched:turn({}, math.huge))
      return #lock_table.rows(watched, { sort = "name", filter = "" })
    end
    assert.equal(1, count())
    server:cli("DEL", "held")
    now = 109
    assert.equal(1, count())
    now = 120
    assert.equal(0, count())
    assert.same({}, watched.entries)
  end)
end)

describe("rlockctl top without a terminal", function()
  local function rows_of(text)
    local rows = {}
    for line in text:gmatch "[^\n]+" do
      rows[#rows + 1] = line:gsub("%d[%d.]*s", "T"):gsub(" +", " ")
    end
    return rows
  end

  it("prints plain lines once, after two samples", function()
    hold("one", "bob")
    hold("two\27[31m", "eve")
    hold("other", "eve")
    server:cli("RPUSH", "redisson_lock_queue:{one}", "ann", "joe")
    local text = ctl.output { url = server.url, "top", "--once",
      "--interval=0.2", "--sort=waiters", "*o*" }
    assert.same({
      "NAME KIND HELD LEFT WAITERS GRANTS/S LONGEST HELD BY",
      "one fair >T 4d04h 2 0.0 T bob",
      "other reentrant >T 4d04h 0 0.0 - eve",
      "two\\27[31m reentrant >T 4d04h 0 0.0 - eve",
    }, rows_of(text))
  end)

  it("prints a table after each interval", function()
    hold("one", "bob")
    local prints = ctl.start { url = server.url, "top", "--interval", "0.1" }
    eventually(function()
      return select(2, prints:out():gsub("NAME +KIND", "")) >= 3
    end, SOON, "three tables")
    prints:kill(15)
    local result = prints:wait()
    assert.same({ 143, "" }, { result.status, result.err })
    assert.is_nil(result.out:find("\27", 1, true))
  end)

  it("ends when nobody reads it", function()
    local result = ctl.run { program = "bash", url = server.url, "-c",
      "set -o pipefail; " .. ctl.binary .. " top --interval 0.1 | head -n 1" }
    assert.matches("^NAME +KIND ", result.out)
    assert.same({ 141, "" }, { result.status, result.err })
  end)

  it("refuses bad usage, and ends with 202 without a server", function()
    for _, words in ipairs { { "a", "b" }, { "--interval=x" },
        { "--interval=0" }, { "--sort=x" }, { "--limit=0" }, { "--limit=x" } }
    do
      ctl.fault(206, { url = server.url, "top", table.unpack(words) })
    end
    ctl.fault(202, { url = "redis://127.0.0.1:1", "top", "--once" })
    ctl.fault(202, { url = "redis://127.0.0.1:1", "top" })
  end)

  it("tells the meaning of the columns in its help", function()
    local text = ctl.output { "top", "--help" }
    for _, column in ipairs { "HELD", "LEFT", "WAITERS", "GRANTS/S",
        "LONGEST", "HOLD50, HOLD99", "WAIT50, WAIT99" } do
      assert.matches("\n  " .. column .. " ", text)
    end
  end)
end)

on_terminal("rlockctl top on a terminal", function()
  local screen
  local folder = ctl.folder()
  local before, pid = folder .. "/before", folder .. "/pid"

  -- Opens a shell with job control, and runs top in it.
  local function open(columns, lines, words, env)
    screen = terminal.open(shell.words { "env", "LC_ALL=C.UTF-8", "PS1=$ ",
      "RLOCK_URL=" .. server.url, "HISTFILE=", "TOP=" .. ctl.binary,
      "BEFORE=" .. before, "PID=" .. pid, "bash", "--norc", "-i" },
      { folder = folder, columns = columns, lines = lines })
    screen:shows "^%$\n"
    screen:type(("stty -g >$BEFORE; %s sh -c 'echo $$ >$PID; exec $TOP top "
      .. "%s'\n"):format(env or "", words or "--interval 0.1"))
    screen:shows "NAME .*HELD BY\n"
  end

  after_each(function() screen:close() end)

  -- Asserts that the shell is back, with this status, and the terminal as it
  -- was, with what it showed.
  local function ended(status)
    screen:shows "%$\n$"            -- the line with the command may be gone
    screen:type 'echo "was $?"; stty -g | cmp - $BEFORE && echo same\n'
    screen:shows("\nwas " .. status .. "\nsame\n")
  end

  -- The screen; times that vary are a T.
  local function plain()
    return (screen:text():gsub("( *>?%d[%d.]*s)%f[ \n]", function(time)
      return (" "):rep(#time - 1) .. "T"
    end))
  end

  -- Waits until the screen is this.
  local function looks_like(text)
    local shown
    local ok = pcall(eventually, function()
      shown = plain()
      return shown == text
    end, SOON)
    if not ok then assert.equal(text, shown) end
  end

  local function furnish()
    hold("invoice:1", "bob")
    hold("invoice:2", "eve")
    hold("gr\u{fc}\u{df}e:\u{65e5}\u{672c}", "ann")
    hold("bad\27[31m\xff", "x")
    server:cli("RPUSH", "redisson_lock_queue:{invoice:2}", "joe", "sue")
  end

  local KEYS =
    "q quit  ? help  / filter  n t l w g o h c r sort  Enter line  b break\n"

  local NARROW = [[
rlockctl top: 4 locks, 4 held, 2 waiters, by name
NAME                 HELD   LEFT WAITERS GRANTS/S LONGEST HELD BY
bad\27[31m\255          T  4d04h       0      0.0       - x
grüße:日本              T  4d04h       0      0.0       - ann
invoice:1               T  4d04h       0      0.0       - bob
invoice:2               T  4d04h       2      0.0       T eve
]]

  -- A line of the wide table. The name has this many columns more than letters.
  local function wide(name, kind, rest, more)
    return name .. (" "):rep(52 - utf8.len(name) - (more or 0)) .. kind
      .. (" "):rep(15 - #kind) .. rest .. "\n"
  end

  local WIDE = "rlockctl top: 4 locks, 4 held, 2 waiters, by name\n"
    .. wide("NAME", "KIND", "   HELD   LEFT WAITERS GRANTS/S LONGEST "
      .. "HOLD50 HOLD99 WAIT50 WAIT99 HELD BY")
    .. wide("bad\\27[31m\\255", "reentrant", "      T  4d04h       0      "
      .. "0.0       -      T      T      -      - x")
    .. wide("gr\u{fc}\u{df}e:\u{65e5}\u{672c}", "reentrant",
      "      T  4d04h       0      "
      .. "0.0       -      T      T      -      - ann", 2)
    .. wide("invoice:1", "reentrant", "      T  4d04h       0      "
      .. "0.0       -      T      T      -      - bob")
    .. wide("invoice:2", "fair", "      T  4d04h       2      "
      .. "0.0       T      T      T      T      T eve")

  it("shows locks in 80x24 and in 200x50, also after a resize", function()
    furnish()
    open(80, 24)
    looks_like(NARROW .. ("\n"):rep(17) .. KEYS)
    screen:resize(200, 50)
    looks_like(WIDE .. ("\n"):rep(43) .. KEYS)
    for _, size in ipairs { { 20, 3 }, { 10, 1 }, { 300, 5 } } do
      screen:resize(table.unpack(size))
      screen:shows(size[1] == 10 and "^q quit" or "^rlockctl top")
    end
    screen:resize(80, 24)
    looks_like(NARROW .. ("\n"):rep(17) .. KEYS)
    screen:type "q"
    ended(0)
  end)

  it("shows locks in 200x50 from the start", function()
    furnish()
    open(200, 50)
    looks_like(WIDE .. ("\n"):rep(43) .. KEYS)
  end)

  it("sends only what has changed: it does not flicker", function()
    furnish()
    open(80, 24)
    looks_like(NARROW .. ("\n"):rep(17) .. KEYS)
    local path = folder .. "/sent"
    screen:record(path)
    hold("invoice:1", "jim")
    screen:shows "invoice:1 .* jim\n"
    hold("invoice:3", "new")
    screen:shows "invoice:3 .* new\n"
    local sent = files.read(path)
    assert.matches("jim", sent)
    assert.is_nil(sent:find "\27%[%d*J")      -- nothing is cleared
    assert.is_nil(sent:find("ann", 1, true))  -- what stays is not sent again
  end)

  it("sorts, either way round", function()
    furnish()
    open(80, 24)
    local function first(name)
      screen:shows("HELD BY\n" .. name .. " ")
    end
    screen:type "w"
    screen:shows "by waiters\n"
    first "invoice:2"
    screen:type "r"
    screen:shows "by waiters, reversed\n"
    first "invoice:1"
    server:cli("PEXPIRE", "invoice:1", DAYS * 2)
    screen:type "l"
    first "invoice:1"
    for _, name in ipairs { "held", "grants", "longest" } do
      screen:type(({ held = "t", grants = "g", longest = "o" })[name])
      screen:shows("by " .. name .. "\n")
    end
    first "invoice:2"
    screen:type "n"
    first "bad%S+"
  end)

  it("filters by text in names and holders", function()
    furnish()
    open(80, 24)
    screen:type "/inv"
    screen:shows('^[^\n]+with "inv"\n[^\n]+\ninvoice:1[^\n]+\ninvoice:2.*'
      .. "\n/inv_\n")
    assert.is_nil(screen:text():find("ann", 1, true))
    screen:press "BSpace"
    screen:type "q:"
    screen:shows "with \"inq:\"\n[^\n]+\n\n.*/inq:_\n"
    for _ = 1, 4 do screen:press "BSpace" end
    screen:type "\u{df}e"
    screen:press "Enter"
    screen:shows "with \"\u{df}e\"\n[^\n]+\ngr%S+ [^\n]+\n\n.*q quit"
    screen:press "Escape"
    screen:shows "by name\n.*bad"
    screen:type "/eve"
    screen:shows "with \"eve\"\n[^\n]+\ninvoice:2 "
    screen:press "Escape"
    screen:shows "by name\n.*bad.*q quit"
  end)

  it("shows one lock's line", function()
    furnish()
    open(80, 24)
    screen:shows "invoice:2"
    screen:press "End"
    screen:press "Enter"
    screen:shows('\n"invoice:2" is held: fair lock\n  held by eve, 1 time\n'
      .. "  for %d+%.%d s more, unless it is renewed\n"
      .. "  1%. in line: joe, for %d+%.%d s\n  2%. in line: sue, for "
      .. "%d+%.%d s\n\n  %d grants seen, %d%.%d a second\n"
      .. "  longest wait %d+%S*s\n")
    server:cli("LPOP", "redisson_lock_queue:{invoice:2}")
    hold("invoice:2", "joe")
    server:cli("HDEL", "invoice:2", "eve")
    screen:shows "held by joe, .*1%. in line: sue, .*\n  1 grant seen"
    server:cli("DEL", "invoice:2", "redisson_lock_queue:{invoice:2}")
    screen:shows '\n"invoice:2" is free\n'
    screen:press "Enter"
    screen:shows "NAME .*invoice:2 +%- +%- .*nobody\n"
  end)

  it("scrolls, and follows the chosen lock", function()
    for i = 10, 59 do hold("lock:" .. i, "me") end
    open(80, 24)
    screen:shows "lock:10 .*lock:30 .*\nq quit"
    screen:press "NPage"
    screen:shows "lock:11 .*lock:31 .*\nq quit"
    screen:press "End"
    screen:shows "lock:39 .*lock:59 .*\nq quit"
    screen:press "Up"
    screen:press "Enter"
    screen:shows '\n"lock:58" is held'
    screen:press "Escape"
    screen:press "Home"
    screen:shows "HELD BY\nlock:10 "
    screen:type "?"
    screen:shows "  Enter   the details of that lock.*rlockctl help top"
    screen:type "x"
    screen:shows "HELD BY\nlock:10 "
  end)

  it("breaks a lock after asking", function()
    local client <close> = assert(rlock.open(server.url))
    local lock = client:lock "mine"
    assert(lock:lock())
    hold("other", "bob")
    open(100, 24)
    screen:shows "\nmine "
    screen:type "b"
    screen:shows '\nBreak "mine", held by %S+: %S+ %(pid %d+%)%? %[y/N%]\n'
    screen:press "Enter"
    screen:shows "\nnot broken\n"
    assert.is_true(lock:is_locked())
    screen:type "b"
    screen:shows "y/N"
    screen:type "y"
    screen:shows '\n"mine" is broken: it was held by [^\n]+\n$'
    assert.is_false(lock:is_locked())
    screen:type "/mine"
    screen:press "Enter"
    screen:type "b"
    screen:shows '\n"mine" is free\n'
    assert.equal("1", server:cli("EXISTS", "other"))
  end)

  it("does not break another hold than the one that it asked about", function()
    local owner = "01234567-89ab-cdef-0123-456789abcdef:"
    hold("held", owner .. "1")
    open(80, 24)
    screen:shows(owner:sub(1, 8))
    screen:type "b"
    screen:shows 'Break "held", held by 01234567%-'
    server:cli("DEL", "held")
    hold("held", owner .. "2")
    screen:type "y"
    screen:shows "\nnot broken: it has changed hands\n"
    assert.equal("1", server:cli("EXISTS", "held"))
  end)

  it("leaves the terminal as it was at Ctrl-C, Ctrl-\\ and signals", function()
    for key, status in pairs { ["C-c"] = 130, ["C-\\"] = 131 } do
      open(80, 24)
      screen:press(key)
      ended(status)
      screen:close()
    end
    for name, status in pairs { TERM = 143, HUP = 129, INT = 130 } do
      open(80, 24)
      screen:type "?"
      screen:shows "quit\n"
      shell.run(("kill -%s $(cat %s)"):format(name, pid))
      ended(status)
      if name ~= "INT" then screen:close() end
    end
  end)

  it("leaves the terminal as it was at Ctrl-Z, and comes back", function()
    furnish()
    open(80, 24)
    screen:press "C-z"
    screen:shows "Stopped"
    screen:type "stty -g | cmp - $BEFORE && echo same\n"
    screen:shows "\nsame\n"
    screen:resize(200, 50)
    screen:type "fg\n"
    looks_like(WIDE .. ("\n"):rep(43) .. KEYS)
    screen:type "w"
    screen:shows "by waiters"
    screen:press "C-z"
    screen:shows "Stopped.*Stopped"
    screen:type "fg\n"
    screen:shows "by waiters"
    screen:type "q"
    ended(0)
  end)

  it("ends with an error that the terminal shows", function()
    ctl.file("faulty/rlockctl/cli/status.lua",
      "return { lines = function() error 'no such luck' end }")
    hold("held", "bob")
    open(120, 24, "--lua-path " .. folder .. "/faulty")
    screen:shows "bob"
    screen:press "Enter"
    screen:shows "rlockctl: [^\n]*no such luck\n.*traceback"
    ended(1)
  end)

  it("shows that the server is away, and goes on when it is back", function()
    local other = redis.start { port = true }
    local function put(name)
      other:cli("HSET", name, "bob", 1)
      other:cli("PEXPIRE", name, DAYS)
    end
    put "held"
    open(80, 24, "--interval 0.1 --url " .. other.url)
    screen:shows "held .* bob\n"
    other:kill()
    screen:shows "held .*\n[^\n]*connect[^\n]*\n$"
    other:restart()
    put "again"
    screen:shows "again .* bob\n.*\nq quit [^\n]+\n$"
    other:stop()
    screen:type "q"
    ended(0)
  end)

  it("prints plain lines without terminfo, or with --once", function()
    furnish()
    for _, env in ipairs { "TERM=unknown", "TERM=dumb", "TERM=", "TERM=nil" }
    do
      open(80, 24, "--interval 0.1", env)
      screen:shows "KIND.*KIND.*KIND"
      screen:press "C-c"
      ended(130)
      screen:close()
    end
    open(80, 24, "--once --interval=0.1")
    ended(0)
  end)
end)
