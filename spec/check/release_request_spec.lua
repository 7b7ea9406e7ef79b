--- The script of a release request (policy/release_request.lua) on the model of
--- Redis: what it publishes for each option `publish`, and whom it counts.

local redis = require "rlockctl.model.redis"
local release_request = require "rlock.policy.release_request"
local script = require "rlock.script"

local ask = script.compile("release_request", "ask", release_request.ask)

local model

-- The reply to a request, and how it was published.
local function request(publish)
  model.sent = {}
  local n = model:eval(ask.text, { "lock" }, { "asked", publish, "1 please" })
  local how = {}
  for i, message in ipairs(model.sent) do
    assert.same({ "asked", "1 please" }, { message[1], message[2] })
    how[i] = message[3] and "spublish" or "publish"
  end
  return n, table.concat(how, " ")
end

-- Makes a command of scripts do something else.
local function replace(name, fn)
  local find = redis.find
  function model.find(words)
    if words[1] ~= name then return find(words) end
    return fn
  end
end

local function subscribe(channels, sharded)
  model.listeners.asked, model.listeners["s:asked"] = channels, sharded
end

describe("a release request", function()
  before_each(function() model = redis.new() end)

  it("is published by the given command, whose subscribers count", function()
    subscribe(2, 3)
    assert.same({ 2, "publish" }, { request "publish" })
    assert.same({ 3, "spublish" }, { request "spublish" })
    subscribe(0, 3)
    assert.same({ 0, "publish" }, { request "publish" })
    subscribe(2, 0)
    assert.same({ 0, "spublish" }, { request "spublish" })
  end)

  it("is published by both, and counts who is there twice once", function()
    for _, row in ipairs { { 2, 3, 3 }, { 3, 2, 3 }, { 1, 0, 1 }, { 0, 0, 0 } }
    do
      subscribe(row[1], row[2])
      assert.same({ row[3], "publish spublish" }, { request "both" })
    end
  end)

  it("does not count who listens to a pattern", function()
    subscribe(1, 0)
    replace("publish", function() return 5.0 end)
    assert.equal(1, (request "publish"))
  end)

  it("counts them if PUBSUB is not permitted", function()
    subscribe(2, 0)
    replace("pubsub", function() error({ err = "NOPERM" }, 0) end)
    assert.same({ 2, "publish" }, { request "publish" })
  end)
end)
