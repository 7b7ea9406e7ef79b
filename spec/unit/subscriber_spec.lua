--- A subscriber's channels, whatever the order of messages, with a connection
--- that only records what is sent.

local subscriber = require "rlock.redis.subscriber"

local sent, told, message, its, clock, go_on, lose

local connection = {
  listen = function(_, verb, name) sent[#sent + 1] = verb .. " " .. name end,
  close = function() sent[#sent + 1] = "close" end,
}

local host = {
  now = function() return clock end,
  sleep = function(seconds) return coroutine.yield(seconds) end,
  random_number = function() return 0 end,
  log = function() end,
  event = function()
    return { set = function() end, wait = function(_, seconds)
      return coroutine.yield(seconds)
    end }
  end,
  service = function(fn, ...)
    go_on = coroutine.wrap(fn)
    go_on(...)
    return {}
  end,
}

local node = {
  host = host, where = "a server",
  open = function(_, lost, hear)
    message, lose = hear, lost
    return connection
  end,
  report = function() end,
}

-- What the server says: "subscribe", ...
local function say(...)
  for _, kind in ipairs { ... } do message(kind, "c", nil) end
end

describe("a subscriber", function()
  local channel

  before_each(function()
    sent, told, clock = {}, {}, 0
    its = subscriber.new(node, "both", function(event, _, ...)
      told[#told + 1] = table.concat({ event, ... }, " ")
    end)
    its:add { name = "other" }                   -- the connection stays
    channel = { name = "c" }
    its:add(channel)
    sent = {}
  end)

  it("is live when both kinds of messages arrive", function()
    say "subscribe"
    assert.is_false(channel.is_live)
    say "ssubscribe"
    assert.is_true(channel.is_live)
    assert.same({ "live" }, told)
  end)

  it("passes on the verb of a message", function()
    message("message", "c", "0")
    message("smessage", "c", "0")
    message("smessage", "unknown", "0")
    assert.same({ "message 0 message", "message 0 smessage" }, told)
  end)

  it("ignores a message whose payload is no string", function()
    for _, payload in ipairs { 5, false, { "0" } } do
      message("message", "c", payload)
      message("smessage", "c", payload)
    end
    assert.same({}, told)
  end)

  it("reports a moved slot, and subscribes again", function()
    say("subscribe", "ssubscribe", "sunsubscribe")
    assert.is_false(channel.is_live)
    assert.same({ "live", "moved" }, told)
    its:renew(channel)
    say("subscribe", "ssubscribe")
    assert.is_true(channel.is_live)
  end)

  it("does not take late confirmations for others", function()
    say("subscribe", "ssubscribe")
    its:remove(channel)
    its:add(channel)
    assert.same({ "unsubscribe c", "sunsubscribe c", "subscribe c",
      "ssubscribe c" }, sent)
    say("unsubscribe", "sunsubscribe", "subscribe")
    assert.is_false(channel.is_live)
    say "ssubscribe"
    assert.is_true(channel.is_live)
    assert.same({ "live", "live" }, told)
  end)

  -- Lets it run for this many seconds; it hears what it asks for.
  local function pass(seconds)
    local last = clock + seconds
    while clock < last do
      local before = #sent
      clock = clock + (go_on() or last)
      for i = before + 1, #sent do
        local kind, name = sent[i]:match "^(%S+) (%S+)$"
        if kind then message(kind, name, nil) end
      end
    end
  end

  it("unsubscribes an idle channel within two seconds, since rlockctl shows "
    .. "subscribers as waiters", function()
    say("subscribe", "ssubscribe")
    clock = 100
    channel.idle_since = 100
    pass(2)
    assert.same({ "unsubscribe c", "sunsubscribe c" }, sent)
    assert.is_nil(its.channels.c)
  end)

  it("drops an idle channel whose slot has moved, and leaves its other half",
    function()
      say("subscribe", "ssubscribe", "sunsubscribe")
      sent, told = {}, {}
      channel.idle_since, clock = 100, 101.5
      go_on()
      assert.same({ "unsubscribe c" }, sent)
      assert.same({ "dropped" }, told)
      assert.is_nil(its.channels.c)
    end)

  it("subscribes again for a waiter that has joined meanwhile", function()
    say("subscribe", "ssubscribe")
    clock, channel.idle_since = 100, 100
    for _ = 1, 20 do
      if not channel.is_leaving then
        clock = clock + 0.1
        go_on()
      end
    end
    assert.is_true(channel.is_leaving)
    sent, told = {}, {}
    channel.idle_since = nil            -- a waiter joins
    say("unsubscribe", "sunsubscribe")
    assert.same({ "subscribe c", "ssubscribe c" }, sent)
    assert.same({}, told)
  end)

  it("examines a channel once a second, however many are added", function()
    local examined, MANY = 0, 100
    local counted = { __index = function(_, field)
      if field == "idle_since" then examined = examined + 1 end
    end }
    for i = 1, MANY do
      its:add(setmetatable({ name = "c" .. i }, counted))
      clock = clock + 1 / MANY
      go_on()                                    -- woken by the new channel
    end
    assert.is_true(examined <= 2 * MANY, examined)
    examined = 0
    pass(10)
    assert.is_true(examined >= 9 * MANY and examined <= 11 * MANY, examined)
  end)

  it("keeps its connection a while without a channel", function()
    local other = its.channels.other
    say("subscribe", "ssubscribe")
    message("subscribe", "other", nil)
    message("ssubscribe", "other", nil)
    channel.idle_since, other.idle_since = 0, 0
    pass(3)
    assert.equal(0, its.count)
    assert.is_nil(sent[5])
    its:add { name = "new" }
    assert.equal("subscribe new", sent[5])
    message("subscribe", "new", nil)
    message("ssubscribe", "new", nil)
    its.channels.new.idle_since = clock
    its:wind_down()
    pass(3)
    assert.equal("close", sent[#sent])
  end)

  it("does not unsubscribe what the server has ended", function()
    say("subscribe", "ssubscribe", "sunsubscribe")
    its:remove(channel)
    assert.same({ "unsubscribe c" }, sent)
  end)
end)

describe("a subscriber of locks that are handed over", function()
  local naming = require "rlock.naming"
  local channel

  -- What is sent, with short names of the channels.
  local function spoken()
    local names = { [naming.inbox("c", "id")] = "inbox",
      [naming.waiters "c"] = "waiters" }
    local list = {}
    for i, text in ipairs(sent) do
      local verb, name = text:match "^(%S+) ?(.*)$"
      list[i] = verb .. " " .. (names[name] or name)
    end
    sent = {}
    return table.concat(list, ", ")
  end

  -- Lets it notice the loss, and wait.
  local function reconnect()
    go_on()
    go_on()
  end

  before_each(function()
    sent, told, clock = {}, {}, 0
    its = subscriber.new(node, "publish", function(event, its_channel, ...)
      told[#told + 1] = table.concat({ event, its_channel.name, ... }, " ")
    end)
    channel = { name = "c", inbox = "id" }
    its:add(channel)
  end)

  it("subscribes to the waiters last, and unsubscribes first", function()
    assert.equal("subscribe inbox, subscribe c, subscribe waiters", spoken())
    say "subscribe"
    assert.is_true(channel.is_live)
    its:remove(channel)
    assert.equal("unsubscribe waiters, unsubscribe c, unsubscribe inbox",
      spoken())
  end)

  it("delivers messages of its inbox until the channel is removed", function()
    say "subscribe"
    message("message", naming.inbox("c", "id"), "owner")
    assert.same({ "live c", "granted c owner" }, told)
    its:remove(channel)
    message("message", naming.inbox("c", "id"), "owner")
    assert.same({ "live c", "granted c owner" }, told)
  end)

  it("drops channels that the user may not use, requests first", function()
    its:add { name = "requests", notify = print }
    spoken()
    lose "NOPERM this user has no permissions"
    assert.is_false(channel.is_live)
    reconnect()
    assert.equal("subscribe inbox, subscribe c, subscribe waiters", spoken())
    lose "NOPERM this user has no permissions"
    reconnect()
    assert.equal("subscribe c", spoken())
    its:remove(channel)
    assert.equal("unsubscribe c", spoken())
  end)

  it("has no requests to drop first if no lock listens for any", function()
    spoken()
    lose "NOPERM this user has no permissions"
    reconnect()
    assert.equal("subscribe c", spoken())
  end)

  it("drops idle channels before it reconnects", function()
    local other = { name = "other" }
    its:add(other)
    clock = 10
    spoken()
    lose "closed"
    go_on()
    other.idle_since, clock = 10, 12
    go_on()
    assert.equal("subscribe inbox, subscribe c, subscribe waiters", spoken())
    assert.same({ "dropped other" }, told)
  end)

  it("restores all channels after any other loss", function()
    its:add { name = "requests", notify = print }
    spoken()
    lose "closed"
    reconnect()
    local text = spoken()
    assert.matches("subscribe inbox, subscribe c, subscribe waiters", text)
    assert.matches("subscribe requests", text)
  end)
end)
