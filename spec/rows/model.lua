--- The model of Redis in lua/rlockctl/model, compared with a server: random
--- commands, scripts and calls of policies must have the same replies and leave
--- the same keys.
---
---   require "spec.rows.model" ({ name = "Redis", server = redis.start,
---     commands = 10000, scripts = 10000, seed = 1 },
---     describe, it, setup, teardown)

local assert = require "luassert"
local calls = require "spec.tools.policy_calls"
local commands = require "spec.tools.commands"
local expressions = require "spec.tools.expressions"
local memory = require "rlockctl.model.memory"
local model = require "spec.tools.model"
local scripts = require "spec.tools.scripts"

local BATCH = 100                        -- commands or calls of one seed
local KEYS, ARGV = { "l1", "z1" }, { "s0", "1", "abc" }

local function compare(pair, seed, text)
  local reply = pair:script(text, KEYS, ARGV, {
    told = ("RLOCK_SEED=%d\n%s"):format(seed, text),
  })
  assert.not_equal("-compile", reply)
end

-- The script of a seed; ten follow each other on the same keys.
local function script(pair, seed)
  if seed % 10 == 0 then pair:reset() end
  compare(pair, seed, scripts.file(seed))
end

local function expression(pair, seed)
  if seed % 100 == 0 then pair:reset() end
  compare(pair, seed, expressions.script(seed, 5, true))
end

return function(options, describe, it, setup, teardown)
  local server, pair
  local many_commands, many_scripts = options.commands, options.scripts

  -- Calls fn(pair, seed) for some seeds. Of the commands or scripts, which are
  -- `n` each time, the model must not lack more than a share.
  local function run(count, n, share, fn)
    pair:reset()
    pair.ran = 0
    for seed = options.seed, options.seed + count - 1 do fn(pair, seed) end
    assert.is_true(pair.ran >= (1 - share) * count * n)
  end

  describe(("the model of %s, with seed %d"):format(options.name, options.seed),
    function()
      setup(function()
        server = options.server()
        pair = model.open(server)
      end)

      teardown(function()
        pair:close()
        server:stop()
      end)

      it(("answers %d commands as the server does"):format(many_commands),
        function()
          run(many_commands // BATCH, BATCH, 0.02, function(_, seed)
            pair:commands(seed, BATCH)
          end)
        end)

      it("names the commands that it lacks", function()
        local known = { info = true }
        for _, name in ipairs(commands.NAMES) do known[name] = true end
        for _, name in ipairs(pair:ask("COMMAND", "LIST")) do
          if not known[name:lower()] then
            local ok, fault = pcall(pair.model.call, pair.model, { name })
            assert.is_false(ok)
            assert.equal("the model of Redis has no command " .. name:upper(),
              fault)
          end
        end
      end)

      it("knows which commands need memory", function()
        for _, name in ipairs(commands.NAMES) do
          local flags = pair:ask("COMMAND", "INFO", name)[1][3]
          local is = {}
          for _, flag in ipairs(flags) do is[flag] = true end
          local needs
          if is.write then needs = is.denyoom == true end
          assert.equal(needs, memory.writes[name], name)
        end
      end)

      it("lets keys expire as the server does", function()
        run(5 + many_commands // 10000, BATCH, 0.02, function(_, seed)
          pair:expiry(seed, BATCH)
        end)
      end)

      it(("runs %d scripts as the server does"):format(many_scripts), function()
        run(many_scripts, 1, 0.05, script)
      end)

      it("evaluates odd expressions as the server does", function()
        run(many_scripts // 10, 1, 0.2, expression)
      end)

      for _, name in ipairs(calls.NAMES) do
        it("runs the policy " .. name .. " as the server does", function()
          run(many_scripts // 3000, BATCH, 0.02, function(_, seed)
            calls.compare(pair, name, seed, BATCH)
          end)
        end)
      end
    end)
end
