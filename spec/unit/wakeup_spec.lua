--- Which waiters a message wakes, with a fake subscriber that records calls.

local SUBSCRIBER, CHANNELS = "rlock.redis.subscriber", "rlock.redis.channels"
local wakeup = require "rlock.lock.wakeup"

local now, subscribers, woken

local Fake = {}
Fake.__index = Fake
function Fake:add(channel)
  channel.subscriber, self.channels[channel.name] = self, channel
  self.told[#self.told + 1] = "add " .. channel.name
end
function Fake:remove(channel)
  self.channels[channel.name] = nil
  self.told[#self.told + 1] = "remove " .. channel.name
end
function Fake:renew(channel)
  self.told[#self.told + 1] = "renew " .. channel.name
end
function Fake:reconnect(why) self.told[#self.told + 1] = "reconnect " .. why end
function Fake:wind_down() self.told[#self.told + 1] = "wind_down" end
function Fake:close() self.told[#self.told + 1] = "close" end

local function new_subscriber(node, publish, notify)
  local its = setmetatable({
    node = node, publish = publish, notify = notify, told = {}, channels = {},
  }, Fake)
  subscribers[#subscribers + 1] = its
  return its
end

local Event = {}
Event.__index = Event
function Event:set()
  self.is_set = true
  woken[#woken + 1] = self.label
end
function Event:pause(seconds)
  self.is_set = nil
  return "paused", seconds
end

local host = {
  now = function() return now end,
  event = function() return setmetatable({}, Event) end,
}

-- A wakeup on a server with a node for channels that begin with "a", and
-- another.
local function open(publish)
  local server = { host = host, suspected = 0 }
  local a, b = { name = "a", server = { run_id = 1 } }, { name = "b" }
  server.a, server.b = a, b
  function server:of(keys)
    return keys[1]:sub(1, 1) == "a" and self.a or nil
  end
  function server:any() return self.b end
  function server:suspect() self.suspected = self.suspected + 1 end
  local channels = require(CHANNELS).new(server, publish or "publish")
  return wakeup.new(channels, host), server
end

local function join(self, channel, label, wakes)
  local waiter = self:join(channel, wakes)
  waiter.label = label
  return waiter
end

local function join_all(self, channel, labels, wakes)
  local waiters = {}
  for label in labels:gmatch "%S+" do
    waiters[label] = join(self, channel, label, wakes)
  end
  return waiters
end

-- Its wait has returned because it was woken.
local function retries(waiter) waiter.is_set = nil end

-- The labels of those that were woken since the last call.
local function heard()
  local text = table.concat(woken, " ")
  woken = {}
  return text
end

local function told(number)
  local text = table.concat(subscribers[number].told, ", ")
  subscribers[number].told = {}
  return text
end

local function message(self, name, payload, verb)
  local channel = self.channels[name]
  channel.subscriber.notify("message", channel, payload or "0",
    verb or "message")
  return heard()
end

local own = {}

describe("the waiters of a channel", function()
  before_each(function()
    for _, name in ipairs { SUBSCRIBER, CHANNELS } do
      own[name], package.loaded[name] = package.loaded[name], nil
    end
    package.loaded[SUBSCRIBER] = { new = new_subscriber }
    now, subscribers, woken = 100, {}, {}
  end)
  after_each(function()
    for _, name in ipairs { SUBSCRIBER, CHANNELS } do
      package.loaded[name] = own[name]
    end
  end)

  it("share a subscription, and a subscriber for each node", function()
    local self = open "spublish"
    join_all(self, "a1", "1 2")
    assert.equal(1, self.count)
    join_all(self, "a2", "3")
    join_all(self, "b1", "4")
    assert.equal(3, self.count)
    assert.equal(2, #subscribers)
    assert.equal("add a1, add a2", told(1))
    assert.equal("add b1", told(2))
    assert.equal("a b", subscribers[1].node.name .. " "
      .. subscribers[2].node.name)
    assert.equal("spublish", subscribers[1].publish)
    local channel = self.channels.a1
    channel.subscriber.notify("dropped", channel)
    assert.equal(2, self.count)
    assert.is_nil(self.channels.a1)
    join(self, "a1")
    assert.equal("add a1", told(1))
  end)

  it("are woken one by one, in order of arrival", function()
    local self = open()
    join_all(self, "a", "1 2 3")
    assert.equal("1", message(self, "a"))
    assert.equal("2", message(self, "a"))
    assert.equal("3", message(self, "a"))
    assert.equal("1", message(self, "a"))
    assert.equal("1", message(self, "a"))
  end)

  it("are woken again after a retry", function()
    local self = open()
    local waiters = join_all(self, "a", "1 2 3")
    assert.equal("1", message(self, "a"))
    local was_woken, seconds = self:wait(waiters["1"], 5)
    assert.equal("paused", was_woken)
    assert.equal(5, seconds)
    assert.is_true(waiters["1"].is_woken)      -- set before it waited
    assert.equal("2", message(self, "a"))
    self:wait(waiters["1"], 5)
    assert.is_false(waiters["1"].is_woken)
    assert.equal("1", message(self, "a"))
  end)

  it("leave from any position", function()
    for _, case in ipairs { { "1", "2 3" }, { "2", "1 3" }, { "3", "1 2" } } do
      local self = open()
      local waiters = join_all(self, "a", "1 2 3")
      self:leave(waiters[case[1]], false)
      assert.equal("", heard())
      assert.is_nil(self.channels.a.idle_since)
      join(self, "a", "4")
      local channel = self.channels.a
      channel.subscriber.notify("live", channel)
      assert.equal(case[2] .. " 4", heard())
    end
  end)

  it("make the channel idle when the last has left", function()
    local self = open()
    local waiter = join(self, "a", "1")
    assert.is_nil(self.channels.a.idle_since)
    self:leave(waiter, true)
    assert.equal(100, self.channels.a.idle_since)
    assert.is_nil(self.channels.a.first)
    assert.is_nil(self.channels.a.last)
    assert.equal("", message(self, "a"))
    join(self, "a", "2")
    assert.is_nil(self.channels.a.idle_since)
    assert.equal("2", message(self, "a"))
  end)

  it("pass on an unused wake", function()
    local self = open()
    local waiters = join_all(self, "a", "1 2 3")
    message(self, "a")
    self:leave(waiters["1"], false)
    assert.equal("2", heard())
    retries(waiters["2"])
    self:leave(waiters["2"], true)
    assert.equal("", heard())
    self:leave(waiters["3"], false)
    assert.equal("", heard())
  end)

  it("are woken when the first has waited without a wake, and leaves",
    function()
      for _, got_it in ipairs { true, false } do
        local self = open()
        local waiters = join_all(self, "a", "1 2 3")
        self:wait(waiters["2"], 5)
        self:leave(waiters["2"], got_it)
        assert.equal("", heard())
        self:wait(waiters["1"], 5)
        self:leave(waiters["1"], got_it)
        assert.equal("3", heard())
      end
    end)

  it("pass on a wake that comes while they succeed", function()
    local self = open()
    local waiters = join_all(self, "a", "1 2")
    message(self, "a")
    message(self, "a")
    for _, waiter in pairs(waiters) do retries(waiter) end
    assert.equal("1", message(self, "a"))
    self:leave(waiters["1"], true)
    assert.equal("2", heard())
  end)

  describe("of a lock that is handed over", function()
    local self, waiters, channel

    before_each(function()
      self = open()
      waiters = join_all(self, "a", "1 2 3")
      channel = self:hand_over("a", now)
      assert.equal("1", heard())
      retries(waiters["1"])
    end)

    it("are not woken by the message, if the first succeeds", function()
      self:leave(waiters["1"], true)
      assert.equal("", message(self, "a"))
      assert.equal("2", message(self, "a"))
    end)

    it("are not, if the message comes first", function()
      assert.equal("1", message(self, "a"))
      self:leave(waiters["1"], true)
      assert.equal("", heard())
      assert.equal("2", message(self, "a"))
    end)

    it("are woken by the message, if the first waits again", function()
      self:wait(waiters["1"], 5)
      assert.equal("1", message(self, "a"))
    end)

    it("are woken if the first retries after the message, and leaves",
      function()
        assert.equal("1", message(self, "a"))
        self:wait(waiters["1"], 5)
        self:leave(waiters["1"], false)
        assert.equal("2", heard())
      end)

    it("are woken at once if the first gives up", function()
      self:leave(waiters["1"], false)
      assert.equal("2", heard())
      assert.equal("3", message(self, "a"))
    end)

    it("are woken by the message, if the release is not confirmed", function()
      self:leave(waiters["1"], true)
      self.handed_over(channel, waiters["1"], false)
      assert.equal("2", message(self, "a"))
    end)

    it("are woken by each message after a new subscription", function()
      self:leave(waiters["1"], true)
      channel.subscriber.notify("live", channel)
      assert.equal("2 3", heard())
      for _, waiter in pairs(waiters) do retries(waiter) end
      self:wait(waiters["2"], 5)
      assert.equal("2", message(self, "a"))
    end)

    it("compete with other clients after a while", function()
      self:leave(waiters["1"], true)
      now = now + 0.004
      assert.equal(channel, self:hand_over("a", now))
      assert.equal("2", heard())
      retries(waiters["2"])
      self:leave(waiters["2"], true)
      now = now + 0.002
      assert.is_nil(self:hand_over("a", now))
      assert.equal("", heard())
      assert.equal(channel, self:hand_over("a", now))
      assert.equal("3", heard())
    end)
  end)

  it("are not handed a lock that several may get", function()
    local self = open()
    join_all(self, "a", "1 2", function() return "one" end)
    assert.is_nil(self:hand_over("a", now))
    assert.is_nil(self:hand_over("b", now))
    assert.equal("", heard())
  end)

  it("are all woken by a message that is for all, and one other", function()
    local self = open()
    local function wakes(payload) return payload == "1" and "all" or "one" end
    join_all(self, "a", "w1 w2")
    join_all(self, "a", "r1 r2", wakes)
    assert.equal("r1 r2 w1", message(self, "a", "1"))
    assert.equal("r1 r2 w2", message(self, "a", "1"))
    assert.equal("r1 r2 w1", message(self, "a", "1"))
    assert.equal("w1", message(self, "a", "0"))
  end)

  it("need not be anybody else for that", function()
    local self = open()
    join_all(self, "a", "r1 r2", function() return "all" end)
    assert.equal("r1 r2", message(self, "a", "1"))
  end)

  it("receive a message published in both ways once", function()
    local self = open "both"
    join_all(self, "a", "1 2 3 4 5 6 7")
    assert.equal("1", message(self, "a"))
    assert.equal("", message(self, "a", "0", "smessage"))
    assert.equal("2", message(self, "a", "0", "smessage"))
    assert.equal("3", message(self, "a", "1"))
    now = now + 0.0019
    assert.equal("", message(self, "a", "1", "smessage"))
    assert.equal("4", message(self, "a"))
    now = now + 0.0021
    assert.equal("5", message(self, "a", "0", "smessage"))
    self = open "publish"
    join_all(self, "a", "1 2")
    assert.equal("1", message(self, "a"))
    assert.equal("2", message(self, "a"))
  end)

  it("receive each release of a client that publishes in one way", function()
    for _, verb in ipairs { "message", "smessage" } do
      local self = open "both"
      join_all(self, "a", "1 2 3")
      for i = 1, 3 do
        assert.equal(tostring(i), message(self, "a", "0", verb))
      end
    end
    local self = open "both"
    join_all(self, "a", "1 2 3")
    assert.equal("1", message(self, "a", "0", "smessage"))
    assert.equal("2", message(self, "a"))      -- then one of ours
    assert.equal("", message(self, "a", "0", "smessage"))
  end)

  it("wake those that share the lock, if no message has", function()
    local self = open()
    local all = function() return "all" end
    join_all(self, "a", "w1")
    local waiters = join_all(self, "a", "r1 r2 r3", all)
    assert.is_true(self:polls(waiters.r2))
    assert.is_false(self:polls(waiters.r1))
    self:leave(waiters.r1, false)
    assert.equal("", heard())
    self:leave(waiters.r2, false)
    assert.equal("r3", heard())                -- which polls from now on
    assert.is_true(self:polls(waiters.r3))
    local more = join_all(self, "a", "r4 r5", all)
    self:wait(waiters.r3, 5)
    self:wait(waiters.r3, 5)
    self:leave(waiters.r3, true)
    assert.equal("r4 r5", heard())
    self:wait(more.r4, 5)
    self:leave(more.r4, true)
    assert.equal("", heard())                  -- it was woken
  end)

  it("may rely on a channel that is live", function()
    local self = open()
    assert.is_false(self:is_live(nil))
    assert.is_false(self:is_live "a")
    join(self, "a", "1")
    assert.is_false(self:is_live "a")
    self.channels.a.is_live = true
    assert.is_true(self:is_live "a")
  end)

  it("get the rest of a semaphore, if it suffices", function()
    local self = open()
    local waiters = join_all(self, "a", "1 2 3 4")
    waiters["1"].wants, waiters["3"].wants = 3, 2
    self:pass("a", 2, waiters["2"])
    assert.equal("3", heard())
    self:pass("a", 2, waiters["2"])
    assert.equal("4", heard())
    self:pass("a", 3)
    assert.equal("1", heard())
    self:pass("a", 1)
    assert.equal("2", heard())
    self:pass("a", 9)
    assert.equal("", heard())
    self:pass("none", 9)
    retries(waiters["1"])
    self:leave(waiters["1"], true)
    self:pass("a", 0)
    assert.equal("", heard())
  end)

  it("are reconnected with their node, or if it is another server", function()
    local self, server = open()
    self.listener:reconnect(server.a, "why")
    self.listener:follow(server.a, "why")
    join(self, "a", "1")
    told(1)
    self.listener:reconnect(server.a, "why")
    assert.equal("reconnect why", told(1))
    self.listener:follow(server.a, "why")
    subscribers[1].connection = {}
    self.listener:follow(server.a, "why")
    subscribers[1].connection.identity = { run_id = 1 }
    self.listener:follow(server.a, "why")
    assert.equal("", told(1))
    subscribers[1].connection.identity = { run_id = 2 }
    self.listener:follow(server.a, "other")
    assert.equal("reconnect other", told(1))
  end)

  it("follow their slots to other nodes", function()
    local self, server = open()
    join(self, "a", "1")
    join(self, "b", "2")
    for i = 1, 2 do told(i) end
    self.listener:rehome()
    assert.equal("renew a; renew b", told(1) .. "; " .. told(2))
    server.a = server.b
    self.listener:rehome()
    assert.equal("remove a; add a, renew b",
      told(1) .. "; " .. told(2):gsub("renew b, add a", "add a, renew b"))
    self.channels.a.subscriber.notify "moved"
    assert.equal(1, server.suspected)
  end)

  it("are woken when the client is closed", function()
    local self = open()
    join_all(self, "a", "1 2")
    told(1)
    self.listener:wind_down()
    assert.equal("wind_down", told(1))
    assert.equal("", heard())
    self:close()
    assert.equal("1 2", heard())
    assert.equal("close", told(1))
    assert.is_nil(subscribers[1].is_closed)
    join(self, "b", "3")
    assert.is_true(subscribers[2].is_closed)
  end)
end)
