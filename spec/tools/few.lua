--- The text of the README's user policy "my/few.lua".

local files = require "spec.tools.files"

return assert(files.read("lua/rlock/policy/README.md"))
  :match("```lua\n(%-%- my/few%.lua\n.-)```")
