--- Operations on locks of which a key holds something else, on the model of
--- Redis: they succeed, or fail with WRONGTYPE and change nothing.

local policy = require "rlock.policy"
local redis = require "rlockctl.model.redis"
local sorted = require "rlock.util.sorted"

-- What has happened before, and operations.
local rows = {
  fair = {
    { "acquire a 30000 1 -1 publish", "acquire w 30000 1 -1 publish",
      "acquire x 30000 1 -1 publish" },
    { "acquire b 30000 1 -1 publish", "acquire b 30000 1 0 publish",
      "acquire w 30000 1 -1 publish", "release a 1 0 publish",
      "leave w publish", "break_ - publish", "renew a 30000 1", "peek a" },
  },
  readwrite = {
    { "read.acquire a 30000 1", "read.acquire b 30000 1" },
    { "read.acquire a 30000 2", "read.acquire c 30000 1",
      "write.acquire c 30000 1", "read.release a 1 0 publish",
      "read.renew a 30000 1", "read.break_ - publish", "read.peek a" },
  },
}

local function sides_of(name)
  local definition = require("rlock.policy." .. name)
  if definition.server then return { [""] = policy.load(definition) } end
  return { read = policy.load(definition.read),
    write = policy.load(definition.write) }
end

local function run(model, sides, line)
  local side, op, rest = line:match "^(%a*)%.?([%a_]+)(.*)$"
  if not sides[side] then side, op = "", side .. op end
  local its, args = sides[side], {}
  for word in rest:gmatch "%S+" do
    args[#args + 1] = word == "-" and "" or word
  end
  return model:eval(its.ops[op].text, its.keys "lock", args)
end

local function show(model)
  local words = {}
  for _, key in ipairs(sorted(model.entries)) do
    local entry = model:entry(key)
    local value = entry and entry.value
    words[#words + 1] = key .. " " .. tostring(entry and entry.expires)
    for _, field in ipairs(type(value) == "table" and sorted(value) or {}) do
      words[#words + 1] = field .. "=" .. tostring(value[field])
    end
  end
  return table.concat(words, "\n")
end

for name, row in pairs(rows) do
  it("operations fail without an effect on a " .. name .. " lock", function()
    local sides, wrong = sides_of(name), 0
    local keys = (sides[""] or sides.read).keys "lock"
    for _, key in ipairs(keys) do
      for _, line in ipairs(row[2]) do
        local model = redis.new()
        model.now = 1700000000000000
        for _, before in ipairs(row[1]) do run(model, sides, before) end
        model:call { "SET", key, "a string" }
        local shown = show(model)
        local reply = run(model, sides, line)
        if type(reply) == "table" and reply.err then
          wrong = wrong + 1
          assert.matches("WRONGTYPE", reply.err)
          assert.equal(shown, show(model), key .. ": " .. line)
        end
      end
    end
    assert.is_true(wrong > #row[2], wrong)
  end)
end
