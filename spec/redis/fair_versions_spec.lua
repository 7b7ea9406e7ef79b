--- Two versions of rlock in one queue: the fair locks from before liveness.lua,
--- from the git history, beside the current ones.
-- #long

local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local fixtures = require "spec.tools.fixtures"
local policy = require "rlock.policy"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"
local states = require "spec.tools.states"
local task = require "spec.tools.task"

local FORMER = "0214eaf"                   -- last commit with the old format
local SKIPPED = 3 * slow                   -- seconds

-- A former version of a policy, or nil without a git history.
local function former(file)
  local text, ok = shell.run(("git show %s:lua/rlock/policy/%s.lua 2>&1")
    :format(FORMER, file))
  if not ok then return nil end
  local path = os.tmpname()
  files.write(path, text)
  local definition = assert(loadfile(path))()
  local sides = definition.read and { definition.read, definition.write }
    or { definition }
  for _, each in ipairs(sides) do policy.load(each) end   -- reads the file
  os.remove(path)
  return definition
end

local fair, readwrite = former "fair", former "fair_readwrite"

local server = redis.shared()

for _, case in ipairs {
  { "fair", fair, "fair", 5 },
  { "fair read/write", readwrite and readwrite.write,
    require("rlock.policy.fair_readwrite").write, 6 },
} do
  local kind, old, new, signs_at = table.unpack(case)
  local told = kind == "fair" and "-1" or "1"

  describe("two versions of rlock in the queue of a " .. kind .. " lock,",
    function()
      local client, name, sides

      before_each(function()
        if not old then return end
        client, name = fixtures.open(server.url), fixtures.name "versions"
        sides = { o = states.of(client, old), n = states.of(client, new) }
      end)

      after_each(fixtures.close)

      local function row(title, fn)
        it(title, function()
          if not old then pending("no history of the project here") end
          fn()
        end)
      end

      -- "o1" uses the old version, "n1" the new one.
      local function verdict(who, waits)
        return assert(sides[who:sub(1, 1)].ask(name, "acquire", who, "60000",
          "1", waits or told, "publish"))[1]
      end

      local function release(who)
        assert(sides[who:sub(1, 1)].ask(name, "release", who, "1", "0",
          "publish"))
      end

      -- All retry now and then until fn() is true or the time is over.
      local function ask_on(all, seconds, fn)
        local ends = rlock.now() + seconds
        repeat
          for _, who in ipairs(all) do
            local got = verdict(who)
            if fn and fn(who, got) then return true end
          end
          rlock.sleep(0.3)
        until rlock.now() > ends
      end

      row("strict order of arrival", function()
        verdict "n0"
        local all = {}
        for i = 1, 12 do
          all[i] = (i % 3 == 0 and "n" or "o") .. i
          verdict(all[i])
        end
        local last = "n0"
        for i = 1, 12 do
          release(last)
          for j = 12, i + 1, -1 do assert.equal("busy", verdict(all[j])) end
          assert.equal("busy", verdict("otry", "0"))
          assert.equal("busy", verdict("ntry", "0"))
          assert.equal("held", verdict(all[i]))
          last = all[i]
        end
      end)

      for _, asks in ipairs { "n", "o" } do
        row("the dead of both are skipped by " .. asks, function()
          verdict "n0"
          for _, who in ipairs { "o1", "n2", "o3", "n4" } do verdict(who) end
          verdict(asks .. 9)
          release "n0"
          local before = rlock.now()
          ask_on({ asks .. 9 }, 10, function(_, got) return got == "held" end)
          assert.is_true(rlock.now() - before < SKIPPED)
        end)

        row("nobody loses a place when the server stood still, whichever is "
          .. "heard first: " .. asks, function()
            local alone = fixtures.server()
            local other = fixtures.open {
              url = alone.url, timeout = 10 * slow,
            }
            sides = { o = states.of(other, old), n = states.of(other, new) }
            verdict "n0"
            local all = { "o1", "n2", "o3", "n4" }
            ask_on(all, 1.5)
            alone:background("DEBUG", "SLEEP", "1.6")
            rlock.sleep(0.1)
            release "n0"
            -- The others are late; the old version waits for them once.
            for _ = 1, asks == "n" and 2 or 1 do
              for i = #all, 1, -1 do
                if all[i]:sub(1, 1) == asks and i > 1 then
                  assert.equal("busy", verdict(all[i]))
                end
              end
            end
            for i = 1, #all do
              assert.equal("held", verdict(all[i]))
              release(all[i])
            end
          end)
      end

      row("many of both take turns", function()
        local served, all = 0, {}
        for i = 1, 40 do
          all[i] = task.start(function()
            local lock = client:policy(i % 2 == 0 and old or new, name)
            for _ = 1, 5 do
              assert(lock:lock { wait = 60 })
              served = served + 1
              assert(lock:unlock())
            end
          end)
        end
        for i = 1, 40 do all[i]:join(60 * slow) end
        assert.equal(200, served)
        local keys = policy.load(new).keys(name)
        eventually(function()
          return client:call("EXISTS", keys[1], keys[2], keys[3],
            keys[signs_at]) == 0
        end)
      end)
    end)
end
