--- Two versions of rlock in one queue: the fair locks from before liveness.lua,
--- from the git history, beside the current ones. What depends on time runs on
--- the model of Redis.
--- #long

local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local fixtures = require "spec.tools.fixtures"
local model = require "rlockctl.model.redis"
local policy = require "rlock.policy"
local redis = require "spec.tools.redis"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local FORMER = "0214eaf"                   -- last commit with the old format
local SKIPPED = 3                          -- seconds

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
      local store, sides

      before_each(function()
        if not old then return end
        store = model.new()
        store.now = 1700000000000000
        sides = { o = policy.load(old), n = policy.load(new) }
      end)

      local function row(title, fn)
        it(title, function()
          if not old then pending("no history of the project here") end
          fn()
        end)
      end

      local function pass(seconds) store.now = store.now + seconds * 1000000 end

      -- "o1" uses the old version, "n1" the new one.
      local function ask(who, op, ...)
        local side = sides[who:sub(1, 1)]
        local reply = store:eval(side.ops[op].text, side.keys "lock",
          { who, ... })
        return type(reply) == "table" and reply[1] or reply
      end

      local function verdict(who, waits)
        return ask(who, "acquire", "60000", "1", waits or told, "publish")
      end

      local function release(who) ask(who, "release", "1", "0", "publish") end

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
          local waited = 0
          while verdict(asks .. 9) ~= "held" do
            pass(0.3)
            waited = waited + 0.3
            assert.is_true(waited < SKIPPED)
          end
        end)

        row("nobody loses a place when the server stood still, whichever is "
          .. "heard first: " .. asks, function()
            verdict "n0"
            local all = { "o1", "n2", "o3", "n4" }
            for _ = 1, 6 do
              for _, who in ipairs(all) do verdict(who) end
              pass(0.3)
            end
            pass(1.6)
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
        local client, served, all = fixtures.open(server.url), 0, {}
        local name = fixtures.name "versions"
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
        fixtures.close()
      end)
    end)
end
