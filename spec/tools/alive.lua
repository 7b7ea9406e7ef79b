--- Does this process run? A zombie does not.
---
---   local alive = require "spec.tools.alive"
---   alive(pid)

return function(pid)
  local file = io.open(("/proc/%d/stat"):format(pid))
  local text = file and file:read("a") or ""
  if file then file:close() end
  local state = text:match("^.*%) (%a)")
  return state ~= nil and state ~= "Z" and state ~= "X"
end
