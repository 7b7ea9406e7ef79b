--- The kinds of locks, and what is built on locks and has keys of its own, with
--- the fields of lock/kinds.lua.

local kinds = require "rlock.lock.kinds"

return table.move(kinds, 1, #kinds, 2, {
  { name = "barrier", title = "barrier", factory = "barrier",
    driver = "recipes.barrier" },
})
