--- The absolute path of the rlockctl under test.

local shell = require "spec.tools.shell"

local path = os.getenv("RLOCKCTL")
  or (os.getenv("B") or "build") .. "/rlockctl"

return path:sub(1, 1) == "/" and path or shell.run("pwd") .. "/" .. path
