--- Programs that are wrong: each with what is wrong, how the checker calls it,
--- and the text. The comment WRONG marks the line of the fault. They share the
--- head below.

local HEAD = [[
local rlock = require "rlock"
local client = assert(rlock.open())
local lock = client:lock("name")
]]

local programs = {
  { "a misspelt option", "param-type-mismatch", [[
lock:lock { wiat = 5 }                                    -- WRONG
]] },
  { "a misspelt option of open", "param-type-mismatch", [[
assert(rlock.open { url = "local:", watchdogs = 10 })     -- WRONG
]] },
  { "seconds as text", "param-type-mismatch", [[
lock:lock { wait = "5" }                                  -- WRONG
]] },
  { "seconds as text, for need", "param-type-mismatch", [[
lock:need("1")                                            -- WRONG
]] },
  { "no check whether the client was opened", "need-check-nil", [[
local other = rlock.open("redis://127.0.0.1")
other:close()                                             -- WRONG
]] },
  { "no check whether a hold was taken", "need-check-nil", [[
local hold = lock:hold { wait = 1 }
hold:call("SET", "key", "value")                          -- WRONG
]] },
  { "no check of the state", "need-check-nil", [[
print(lock:peek().state)                                  -- WRONG
]] },
  { "a method of another kind", "undefined-field", [[
client:semaphore("name"):lock()                           -- WRONG
]] },
  { "a pair is no lock", "undefined-field", [[
client:read_write_lock("name"):lock()                     -- WRONG
]] },
  { "a method of a counter on a lock", "undefined-field", [[
lock:acquire()                                            -- WRONG
]] },
  { "a misspelt method", "undefined-field", [[
lock:unlok()                                              -- WRONG
]] },
  { "a kind that does not exist", "undefined-field", [[
client:fairlock("name")                                   -- WRONG
]] },
  { "a number as a name", "param-type-mismatch", [[
client:lock(42)                                           -- WRONG
]] },
  { "a policy without release", "param-type-mismatch", [[
client:policy({ name = "mine", server = { acquire = print }, -- WRONG
  keys = function(name) return { name } end }, "name")
]] },
  { "a misspelt operation of a policy", "param-type-mismatch", [[
client:policy({ name = "mine",                            -- WRONG
  keys = function(name) return { name } end,
  server = { acquire = print, unlock = print } }, "name")
]] },
  { "a policy whose keys are no list", "return-type-mismatch", [[
client:policy({ name = "mine",
  keys = function(name) return name end,                  -- WRONG
  server = { acquire = print, release = print } }, "name")
]] },
  { "inside Redis, a function that it lacks", "undefined-field", [[
local function acquire(keys) return redis.cal("GET", keys[1]) end -- WRONG
print(acquire)
]] },
  { "a code that does not exist", "assign-type-mismatch", [[
---@type rlock.code
local code = "expired"                                    -- WRONG
print(code)
]] },
  { "a count as text", "param-type-mismatch", [[
client:permits("name"):set("3")                           -- WRONG
]] },
  { "compute without ttl", "param-type-mismatch", [[
client:compute("name", { stale = 1 }, function()          -- WRONG
  return "value"
end)
]] },
  { "an option that nginx lacks", "param-type-mismatch", [[
assert(require("resty.rlock").open { lazy = true })       -- WRONG
]] },
  { "a misspelt method of a lock of a policy", "undefined-field", [[
client:policy("my.few", "name"):try_lok()                 -- WRONG
]] },
  { "a misspelt option of a simulation", "param-type-mismatch", [[
require("rlock.simulate").run(function() end, { sed = 2 })   -- WRONG
]] },
  { "a simulated server that does what none can", "undefined-field", [[
require("rlock.simulate").run(function(server) server.halt(1) end) -- WRONG
]] },
  { "a hold that is asked for what only locks have", "undefined-field", [[
assert(lock:hold()):peek()                                -- WRONG
]] },
  { "a hold that needs seconds as text", "param-type-mismatch", [[
assert(lock:hold()):need("1")                             -- WRONG
]] },
  { "a seal that does not exist", "param-type-mismatch", [[
assert(rlock.open { url = "local:", seal = "never" })     -- WRONG
]] },
  { "arithmetic with a time to live that may be missing", "need-check-nil", [[
local state = assert(lock:peek())
print(state.ttl / 2)                                      -- WRONG
]] },
}

return { head = HEAD, programs = programs }
