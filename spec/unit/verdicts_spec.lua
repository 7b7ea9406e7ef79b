local verdicts = require "rlock.lock.verdicts"

local function op(name)
  return { op = name, where = 'policy "p": p.lua:3: ' .. name }
end

describe("a reply", function()
  it("is a verdict and what comes with it", function()
    for name, replies in pairs {
      acquire = { { "held" }, { "held", 7 }, { "held", "7" }, { "busy", -1 },
        { "refused", "why" }, { "lost" }, { "lost", -2 } },
      renew = { { "held" }, { "lost" } },
      release = { { "freed" }, { "kept" }, { "lost" } },
      break_ = { { "freed" }, { "free" }, { "refused", "why" } },
    } do
      for _, reply in ipairs(replies) do
        local verdict, value = verdicts.of(op(name), reply)
        assert.same(reply, { verdict, value })
      end
    end
    assert.same({ "held" }, { verdicts.of(op "renew", "held") })
  end)

  it("is reported with its position, if it is none", function()
    for name, replies in pairs {
      acquire = { false, 7, "hold", {}, { 42 }, { { "held" } }, { "busy" },
        { "busy", "1" }, { "busy", {} }, { "held", {} }, { "refused" },
        { "refused", 1 }, { "freed" } },
      renew = { false, { "freed" }, "freed", { "busy", 1 } },
      release = { false, { "held" }, { "free" } },
      break_ = { false, { "lost" }, { "refused" } },
      peek = { false, {}, { "held" }, { "held", 1 }, { "held", "1", 1, {} },
        { "busy", 1, 1, {} }, { "held", 1, 1, "x" } },
    } do
      for _, reply in pairs(replies) do
        local of = name == "peek" and verdicts.of_peek or verdicts.of
        local verdict, code, detail = of(op(name), reply)
        assert.is_nil(verdict)
        assert.equal("redis", code)
        assert.matches('^policy "p": p.lua:3: ' .. name
          .. ": answered [^\n]+; it must answer [{\"][^\n]+$", detail)
      end
    end
  end)

  it("is shown, but not all of it", function()
    local function shown(reply)
      return select(3, verdicts.wrong(op "renew", reply))
        :match("answered (.*); it must")
    end
    assert.equal("nothing", shown(nil))
    assert.equal("nothing", shown(false))
    assert.equal("{}", shown({}))
    assert.equal('{ "busy", { 1, 2 } }', shown({ "busy", { 1, 2 } }))
    assert.equal("{ 1, 2, 3, 4, ... }", shown({ 1, 2, 3, 4, 5, 6 }))
    assert.equal('"two?lines"', shown("two\nlines"))
    assert.equal('"' .. ("x"):rep(37) .. '..."', shown(("x"):rep(1000)))
  end)

  it("has a reason without control characters", function()
    assert.equal("no? entry", select(2, verdicts.of(op "acquire",
      { "refused", "no\27 entry" })))
  end)

  it("has no control characters in a text for a driver", function()
    local shapes = { refused = "s", busy = "nn" }
    assert.same({ "refused", "?[2J" },
      (verdicts.shaped(op "enter", { "refused", "\27[2J" }, shapes)))
    local long = verdicts.shaped(op "enter", { "refused", ("x"):rep(1000) },
      shapes)
    assert.same({ "refused", ("x"):rep(256) }, long)
    assert.same({ "busy", 1, 2 },
      (verdicts.shaped(op "enter", { "busy", 1, 2 }, shapes)))
  end)

  it("of peek has times and counts", function()
    assert.equal("free", (verdicts.of_peek(op "peek", { "free", -2, 0 })))
    assert.equal("held",
      (verdicts.of_peek(op "peek", { "held", 1, 0, { "a", "1" } })))
    for _, flat in ipairs { "x", 5, { 5, "1" }, { {}, "1" } } do
      assert.is_nil((verdicts.of_peek(op "peek", { "held", 1, 0, flat })))
      assert.is_nil((verdicts.of_peek(op "peek", { "held", 1, 0, {}, flat })))
    end
  end)

  it("of peek has a queue of texts and a number as a token", function()
    local function verdict(...)
      return (verdicts.of_peek(op "peek", { "held", 1, 0, {}, { ... } }))
    end
    assert.equal("held", verdict("queue", { "a" }, "token", 7, "mine", {}))
    assert.equal("held", verdict("queue", false, "token", false))
    for _, wrong in ipairs { 5, "x", { 5 }, { "a", false }, { { "a" } } } do
      assert.is_nil(verdict("queue", wrong))
      assert.is_nil(verdict("token", 7, "identities", wrong))
    end
    assert.is_nil(verdict("token", "7"))
  end)
end)
