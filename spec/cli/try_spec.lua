--- rlockctl try, and rlockctl check --on: steps on the model, and on a server,
--- which agree.

local ctl = require "spec.cli.ctl"
local redis = require "spec.tools.redis"

local server = redis.shared()

teardown(ctl.clean)

local function try(stdin, ...)
  return ctl.run { "try", "--lua-path", ".", stdin = stdin, ... }
end

describe("rlockctl try", function()
  it("shows answers, beliefs and keys", function()
    local result = try("A acquire 2s\n\nB acquire wait\n+1.5s\nA release lost\n"
      .. "A retry\nkeys\n", "spec.fixtures.good", "printer")
    assert.same({ 0, "" }, { result.status, result.err })
    assert.equal([[
A acquire 2s
  held  (holds 2s)
    printer "A" 2s
B acquire wait
  busy 2000  (waits)
    printer "A" 2s
+1.5s
    printer "A" 0.5s
A release lost
  freed  (? release)
    no keys
A retry
  lost
    no keys
keys
    no keys
]], result.out)
  end)

  it("explains the steps, and ends when told to", function()
    local result = try("help\nquit\nA acquire\n", "mutex")
    assert.same({ 0, "" }, { result.status, result.err })
    assert.matches("^help\n  A acquire %[2s%].*\n  keys .*\n[^\n]+end\nquit\n$",
      result.out)
    assert.equal(1, try("A fly\nquit\n", "mutex").status)
  end)

  it("shows faults", function()
    assert.matches("  fault: A and B hold it at the same time\n", try(
      "A acquire 2s\nA release lost\nB acquire\nA retry\nA acquire\n",
      "spec.fixtures.release_of_others").out)
  end)

  it("says what it does not know, and goes on", function()
    local result = try("A jump\nA acquire\n", "mutex")
    assert.equal(1, result.status)
    assert.matches("\n  unknown client D: there are A, B, see %-%-clients\n",
      try("D count_down\n", "latch").out)
    assert.matches('^A jump\n  unknown step "jump": say acquire, .*'
      .. "\nA acquire\n  held", result.out)
  end)

  it("refuses steps that a barrier does not have, and goes on", function()
    for _, step in ipairs { "evict lock", "expire x", "jump -1s", "break" } do
      local result = try(step .. "\nA enter\n", "barrier")
      assert.same({ 1, "" }, { result.status, result.err })
      assert.matches("\n  a barrier has no " .. step:match("%a+")
        .. ": say A enter, A leave lost or %+1s\nA enter\n  busy ", result.out)
    end
  end)

  it("refuses numbers and times that are too large", function()
    for step, problem in pairs {
      ["A acquire 99999999999999999999"] = "unknown word 99999999999999999999",
      ["jump -99999999999999999999s"] = "say jump +1s or jump -1s",
      ["+99999999999999999999s"] = "unknown step",
    } do
      local result = try(step .. "\n", "permits")
      assert.same({ 1, "" }, { result.status, result.err })
      assert.is_truthy(result.out:find("\n  " .. problem, 1, true), result.out)
    end
    assert.matches("\n  unknown word 99999999999s\n",
      try("A acquire 99999999999s\n", "fair").out)
  end)

  it("knows semaphores, permits and latches", function()
    assert.matches("^A acquire 2\n  held 0  %(has 2%)\n.*B acquire 1 lost\n"
      .. "  busy %-1  %(%? acquire%)\n.*B retry\n  busy %-1\n",
      try("A acquire 2\nB acquire 1 lost\nB retry\n", "semaphore").out)
    assert.matches("A count_down\n  free 0\n", try(
      "A count_down\n", "latch", "--option", "n=1").out)
    assert.matches("^A acquire\n  held 1  %(has one 2s%)\n.*\n"
      .. "  lost  %(expired, %? renew%)\n",
      try("A acquire\n+3s\nA renew lost\n", "permits").out)
  end)

  it("does the steps on a server as well, and cleans up", function()
    for _, name in ipairs { "fair", "readwrite", "fenced" } do
      local result = ctl.run { "try", name, "--on", server.url,
        stdin = "A acquire 60s\nB acquire 60s wait\n+0.1s\nA release\n"
          .. "B acquire 60s wait\n" }
      assert.same({ 0, "" }, { result.status, result.err }, result.out)
      assert.matches("B acquire 60s wait\n  held .*\n$", result.out)
    end
    local result = ctl.run { "try", "semaphore", "--on", server.url,
      stdin = "A acquire 2\nB acquire 1 lost\nB retry\nA drain\n" }
    assert.same({ 0, "" }, { result.status, result.err }, result.out)
    assert.equal("", server:cli("KEYS", "*rlock_check_*"))
  end)

  it("refuses a second acquire where the client does", function()
    local result = try("A acquire 2s\nA acquire 2s\n", "mutex")
    assert.equal(1, result.status)
    assert.matches("\n  refused by the client: A already holds it, and mutex "
      .. "is not reentrant\n", result.out)
  end)

  it("refuses what it cannot do", function()
    for _, words in ipairs { {}, { "fair", "a", "b" }, { "no.such" },
        { "fair", "--clients", "0" }, { "fair", "--on", "nowhere" } } do
      local result = try("", table.unpack(words))
      assert.same({ 206, "" }, { result.status, result.out })
      assert.matches("^rlockctl: try: [^\n]+\n$", result.err)
    end
  end)
end)

describe("a server that cannot be asked", function()
  local guarded

  setup(function()
    guarded = redis.start { users = { "bare on >pw +ping",
      "blind on >pw ~* &* +@all -set", "mute on >pw ~* &* +@all -eval" } }
  end)
  teardown(function() guarded:stop() end)

  -- The ends of `try --on` and `check --on`, with these steps.
  local function refused(status, url, text)
    local path = ctl.file("asked", "A acquire\nA release\n")
    for _, words in ipairs { { "try", stdin = "A acquire\nA release\n" },
        { "check", "--trace", path } } do
      words[#words + 1] = "simple"
      table.move({ "--on", url }, 1, 2, #words + 1, words)
      local result = ctl.run(words)
      assert.equal(status, result.status, result.err)
      assert.matches("rlockctl: " .. words[1] .. ": [^\n]*" .. text
        .. "[^\n]*\n$", result.err)
      assert.is_nil(result.out:find "agree")
      assert.is_nil(result.err:find "agree")
    end
  end

  for login, text in pairs { ["no:x"] = "WRONGPASS", ["bare:pw"] = "NOPERM",
      ["mute:pw"] = "NOPERM", ["blind:pw"] = "user executing the script can't" }
  do
    it("refuses " .. login .. ": 208", function()
      refused(208, ("unix://%s@%s"):format(login, guarded.socket), text)
    end)
  end

  it("is not there: 202", function()
    refused(202, "unix:///no/such/socket", "no such file")
  end)

  it("has no valid address: 206", function()
    refused(206, "nowhere", "bad url: ")
  end)
end)

describe("rlockctl check --on", function()
  for _, name in ipairs { "release_of_others", "dead_head", "wrong_type",
      "token_of_the_clock", "late_renewal" } do
    it("agrees on the trace of " .. name, function()
      local result = ctl.run { "check", "--lua-path", ".", "--on", server.url,
        "spec.fixtures." .. name, "--tick", "0.6" }
      assert.same({ 1, "" }, { result.status, result.err })
      assert.matches("\nthe server agrees, %d+ steps\n$", result.out)
    end)
  end

  it("says if there was nothing to run", function()
    local result = ctl.run { "check", "simple", "--on", server.url }
    assert.same({ 0, "" }, { result.status, result.err })
    assert.matches(": no fault found\n%-%-on: nothing ran on the server; ",
      result.out)
  end)

  it("says what differs", function()
    local path = ctl.folder() .. "/looks.lua"
    local file = assert(io.open(path, "w"))
    file:write [[
      return require "spec.fixtures.simple" ("looks", function(server)
        function server.release(keys, args)
          if redis.call("get", keys[1]) ~= args[1] then return { "lost" } end
          local text = redis.call("info", "replication")
          if #text > 60 then return { "lost" } end    -- the model's is shorter
          redis.call("del", keys[1])
          return { "freed" }
        end
      end)]]
    file:close()
    local steps = ctl.folder() .. "/steps"
    file = assert(io.open(steps, "w"))
    file:write "A acquire\nA release\n"
    file:close()
    local result = ctl.run { "check", "--lua-path", ".", "--lua-path",
      ctl.folder(), "looks", "--trace", steps, "--on", server.url }
    assert.same({ 1, "" }, { result.status, result.err })
    assert.matches("\nthe server does not agree: step 2, A release: the model "
      .. "returns { freed }, and the server { lost }\n$", result.out)
  end)
end)
