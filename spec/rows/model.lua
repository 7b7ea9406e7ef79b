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

-- A float, often one that has no exact sum with another.
local function float(gen)
  local sign = gen:pick { "", "", "-" }
  local choice = gen:below(6)
  if choice == 0 then return commands.kinds.float(gen) end
  if choice == 1 then return ("%s%d.%d"):format(sign, gen:below(1000),
    gen:below(10 ^ gen:below(10))) end
  if choice == 2 then return ("%s%de%d"):format(sign, gen:below(1000000),
    gen:below(60) - 30) end
  if choice == 3 then return ("%s%.17g"):format(sign,
    gen:below(2 ^ 31) / (gen:below(2 ^ 31) + 1)) end
  if choice == 4 then return ("%s0x%x.%xp%d"):format(sign, gen:below(2 ^ 31),
    gen:below(2 ^ 31), gen:below(200) - 100) end
  return ("%s%d%010d.%010d"):format(sign, gen:below(2 ^ 31),
    gen:below(2 ^ 31), gen:below(2 ^ 31))
end

-- What clients send, on an empty server: integers of all sizes, and EVAL.
local OF_CLIENTS = {
  { "set", "n", "9223372036854775806" }, { "incr", "n" }, { "incr", "n" },
  { "decrby", "n", "2" }, { "get", "n" },
  { "incrby", "n", "-9223372036854775807" }, { "incrby", "m", "-1" },
  { "set", "n", "9007199254740992" }, { "incr", "n" }, { "decr", "n" },
  { "decrby", "n", "18014398509481985" }, { "decr", "n" },
  { "hset", "h", "f", "9223372036854775800" }, { "hincrby", "h", "f", "3" },
  { "hincrby", "h", "f", "7" },
  { "set", "n", "1", "pxat", "9223372036854775807" }, { "pexpiretime", "n" },
  { "expiretime", "n" },
  { "eval", "return { KEYS[1], ARGV[1], #KEYS, #ARGV }", "1", "a", "b" },
  { "eval", "return redis.call('incrby', KEYS[1], ARGV[1])", "1", "m", "7" },
  { "eval", "return redis.call('set', KEYS[1], ARGV[1])", "1", "m", "x" },
  { "eval", "return redis.call('incr', KEYS[1])", "1", "m" },
  { "eval", "return redis.call('incr', ARGV[1])", "0", "b" },
  { "eval", "return redis.pcall('eval', 'return 1', 0)", "0" },
  { "eval", "return {err='MINE is this'}", "0" },
  { "eval", "return false", "0" }, { "eval", "return 1", "2", "a" },
  { "eval", "return 1", "-1", "a" }, { "eval", "return 1", "x", "a" },
  { "eval", "return 1" }, { "eval", "return return", "0" },
  { "xadd", "x", "18446744073709551615-18446744073709551614", "a", "b" },
  { "xadd", "x", "18446744073709551615-*", "a", "b" },
  { "xadd", "x", "*", "a", "b" }, { "xrange", "x", "-", "+" },
  { "xread", "streams", "x", "18446744073709551615-18446744073709551615" },
  { "flushall", "now" }, { "flushdb", "sync", "async" }, { "flushdb", "async" },
  { "dbsize" }, { "set", "n", "1" }, { "flushall", "SYNC" }, { "dbsize" },
}

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

      it("replies to clients as the server does", function()
        pair:reset()
        for _, words in ipairs(OF_CLIENTS) do pair:client(words) end
      end)

      it("adds floats as the server does", function()
        pair:reset()
        for seed = options.seed, options.seed + many_commands // BATCH do
          local gen, list = commands.new(seed), {}
          for i = 1, BATCH, 2 do
            list[i] = { "set", "n", float(gen) }
            list[i + 1] = { "incrbyfloat", "n", float(gen) }
          end
          pair:compare(list, true)
        end
      end)

      it("trims streams of several nodes as the server does", function()
        for seed = options.seed, options.seed + 5 do
          pair:reset()
          local gen, list = commands.new(seed), {}
          for i = 1, 600 do
            list[i] = { "xadd", "x", ("%d-1"):format(i), "a", "b" }
          end
          for i = 1, 60 do
            local ms = ("%d"):format(gen:below(600))
            list[#list + 1] = gen:chance(60) and { "xdel", "x", ms .. "-1" }
              or { "xtrim", "x", gen:pick { "maxlen", "minid" },
                gen:pick { "~", "~", "=" }, ms }
            if i % 7 == 0 then
              list[#list + 1] = { "xadd", "x", "maxlen", "~", ms, "limit",
                gen:pick { "0", "100", "250" }, ("%d"):format(600 + i), "a",
                "b" }
            end
          end
          pair:compare(list, true)
        end
      end)

      it("scans all that the server finds", function()
        pair:reset()
        local list = {}
        for i = 1, 300 do
          list[#list + 1] = { "set", "key:" .. i, "x" }
          list[#list + 1] = { "hset", "h", "field:" .. i, "v" .. i }
          list[#list + 1] = { "sadd", "t", "member:" .. i }
          list[#list + 1] = { "zadd", "z", "1", "member:" .. i }
        end
        pair:compare(list, true)
        assert.equal(303, #pair:scan { "scan" })
        assert.equal(3, #pair:scan { "scan", "match", "?", "count", "7" })
        assert.equal(1, #pair:scan { "scan", "type", "hash" })
        assert.equal(600, #pair:scan { "hscan", "h" })
        assert.equal(11, #pair:scan { "sscan", "t", "match", "*:7*" })
        assert.equal(301, #pair:scan { "zscan", "z", "count", "50" })
      end)

      it("names the commands that it lacks", function()
        local known = { info = true, eval = true, flushall = true,
          flushdb = true }
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
