--- A subscriber's channels, whatever the order of messages, with a connection
--- that only records what is sent.

local subscriber = require "rlock.redis.subscriber"

local sent, told, message, its

local connection = {
  listen = function(_, verb, name) sent[#sent + 1] = verb .. " " .. name end,
  close = function() end,
}

local host = {
  now = function() return 0 end,
  random_number = function() return 0 end,
  log = function() end,
  event = function()
    return { set = function() end, wait = coroutine.yield }
  end,
  daemon = function(fn, ...) coroutine.wrap(fn)(...) end,
}

local node = {
  host = host, where = "a server",
  open = function(_, _, hear)
    message = hear
    return connection
  end,
}

-- What the server says: "subscribe", ...
local function say(...)
  for _, kind in ipairs { ... } do message(kind, "c", nil) end
end

describe("a subscriber", function()
  local channel

  before_each(function()
    sent, told = {}, {}
    its = subscriber.new(node, "both", function(event)
      told[#told + 1] = event
    end)
    its:add { name = "other" }                   -- the connection stays
    channel = { name = "c" }
    its:add(channel)
    sent = {}
  end)

  it("is live when both kinds of messages are heard", function()
    say "subscribe"
    assert.is_false(channel.is_live)
    say "ssubscribe"
    assert.is_true(channel.is_live)
    assert.same({ "live" }, told)
  end)

  it("tells of a slot that has moved, and subscribes again", function()
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

  it("does not unsubscribe what the server has ended", function()
    say("subscribe", "ssubscribe", "sunsubscribe")
    its:remove(channel)
    assert.same({ "unsubscribe c" }, sent)
  end)
end)
