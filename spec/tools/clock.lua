--- The wall clock of a child process, which a spec sets while that runs. Other
--- programs, and the other clocks, keep theirs (see clock.c).
---
---   local words = clock.words(path)           -- before a program's own words
---   clock.set(path, 3600)                     -- an hour ahead

local files = require "spec.tools.files"
local shell = require "spec.tools.shell"

local clock = {}

--- Makes the file by which the clock is set.
---@param path string of the file
---@return string[] # words to be put before those of a program
function clock.words(path)
  files.write(path, ("j"):pack(0))
  local folder = os.getenv "RLOCK_TOOLS" or (os.getenv "B" or "build")
    .. "/spec"
  local library = shell.run("realpath " .. shell.quote(folder .. "/clock.so"))
  return { "env", "LD_PRELOAD=" .. library, "RLOCK_CLOCK=" .. path }
end

--- Sets the clock of the programs that were started with this path.
---@param path string
---@param seconds integer by which it is ahead of this machine's
function clock.set(path, seconds)
  local file = assert(io.open(path, "r+"))      -- not a new one: it is mapped
  file:write(("j"):pack(seconds))
  file:close()
end

return clock
