--- rlock for programs on libuv: `rlockctl script.lua` and plain lua5.4.
--- Durations are seconds. Failures are returned as nil, code, detail; misuse
--- raises.

if _VERSION < "Lua 5.4" then
  error('rlock needs Lua 5.4; in OpenResty, require "resty.rlock"', 0)
end

local host = require "rlock.host.uv"

-- A second `require` returns the same table, which has the open clients and the
-- --url.
host.entry_point = host.entry_point or require "rlock.host.uv.entry_point"(host)
return host.entry_point --[[@as rlock]]
