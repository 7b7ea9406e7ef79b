--- rlockctl version: the versions of rlock and of its libraries.

local version = {}

version.usage = [[
rlockctl version
]]

function version.run()
  local rlock, versions = require "rlock", require("rlock.host.uv").versions
  print(("rlock %s (%s, libuv %s, hiredis %s, TLS %s)"):format(
    rlock._VERSION, _VERSION, versions.uv, versions.hiredis,
    versions.tls and "yes" or "no"))
  return 0
end

return version
