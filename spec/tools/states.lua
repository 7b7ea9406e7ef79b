--- The operations of a policy, one by one, on a real Redis: the verdict of each
--- operation in each state.
---
---   local states = require "spec.tools.states"
---   local simple = states.of(client, "simple")
---   local reply = simple.ask("the name", "acquire", "a", "60000", "1")
---   simple.play("the name", [[
---     acquire a 60000 1         held
---     acquire b 60000 1         busy
---     over                      -- the lease of the lock expires
---     acquire b 10 1            held
---     wait 20                   -- milliseconds
---     acquire c 60000 1         held
---   ]])
---
--- A line of `play` has the operation, its arguments ("-" is an empty one) and
--- the expected verdict. Errors contain the line.

local eventually = require "spec.tools.eventually"
local host = require "rlock.host.uv"
local policy = require "rlock.policy"
local remote = require "rlock.redis.remote"

local states = {}

local SECONDS = 5

local function lines_of(text)
  local lines = {}
  for line in text:gmatch("[^\n]+") do
    local words = {}
    for word in line:gsub("%-%-.*", ""):gmatch("%S+") do
      words[#words + 1] = word == "-" and "" or word
    end
    if words[1] then lines[#lines + 1] = { text = line, words = words } end
  end
  return lines
end

--- The operations of a policy, over a client's connection.
---@param client table
---@param which any as for policy.load
function states.of(client, which)
  local loaded, node = policy.load(which), client.session.server.node
  local self = { policy = loaded }

  --- Runs an operation; returns its reply, always as a list, or nil, code,
  --- detail.
  function self.ask(name, op, ...)
    local now = host.now()
    local reply, code, detail = remote.run(node, assert(loaded.ops[op], op),
      now + SECONDS, now, loaded.keys(name), nil, nil, nil, nil, { ... })
    if type(reply) == "string" then reply = { reply } end
    return reply, code, detail
  end

  --- Makes a key expire and waits until it has.
  function self.over(key)
    assert(client:call("PEXPIRE", key, 1))
    eventually(function() return client:call("EXISTS", key) == 0 end)
  end

  --- Runs the lines of a text, see above.
  function self.play(name, text)
    for _, line in ipairs(lines_of(text)) do
      local words = line.words
      if words[1] == "over" then
        self.over(name)
      elseif words[1] == "wait" then
        host.sleep(tonumber(words[2]) / 1000)
      else
        local reply, _, detail = self.ask(name,
          table.unpack(words, 1, #words - 1))
        local verdict = reply and reply[1] or detail
        if verdict ~= words[#words] then
          error(("%s: got %s"):format(line.text, verdict), 2)
        end
      end
    end
  end

  return self
end

--- The server's time in milliseconds.
function states.now_ms(client)
  local time = assert(client:call("TIME"))
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

return states
