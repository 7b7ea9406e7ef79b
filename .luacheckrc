-- What both hosts run is the common subset of Lua 5.1, LuaJIT and 5.4: "min".
-- Version syntax is not seen by luacheck: spec/tools/check parses with luac.
std = "min"
cache = false
max_line_length = 80
max_code_line_length = 80
ignore = {
  "212/self",        -- a method that does not need its object
  "212/_.*",
  "58[12]",          -- "not (x > y)" is how NaN is caught
}
-- Only as `local unpack = table.unpack or unpack`: spec/tools/check looks.
read_globals = { "unpack", table = { fields = { "unpack" } } }

-- Where only our own binary runs, all of Lua 5.4 may be used.
for _, file in ipairs {
  "lua/rlock.lua", "lua/rlock/simulate.lua", "lua/rlock/host/uv.lua", "lua/rlock/host/uv/*.lua",
  "lua/rlockctl/**/*.lua", "src/pages/*.lua", "spec/simulate/*.lua",
  "spec/simulate/zookeeper/*.lua", "spec/mutate/*.lua",
  "examples/*.lua", "spec/redis/*.lua", "spec/cli/*.lua", "spec/check/*.lua",
  "spec/tools/*.lua", "spec/rows/*.lua", "spec/bench/*.lua",
  "spec/interop/*.lua",
  "spec/tools/check-*", "spec/tools/lists",
} do
  files[file] = { std = "lua54" }
end

for _, file in ipairs {
  "lua/resty/**/*.lua",
  "examples/openresty/**/*.lua",
} do
  files[file] = { std = "ngx_lua" }
end

-- Only declare types.
files["lua/rlock/util/types.lua"] = { ignore = { "." } }
files["spec/types/library/**/*.lua"] = { ignore = { "." } }

-- A policy's server functions run inside Redis.
files["lua/rlock/policy/*.lua"] = { read_globals = { "redis" } }
for _, file in ipairs {
  "examples/per_tenant.lua", "examples/priority.lua",
  "lua/rlockctl/cli/recognise.lua",
  "spec/tools/half.lua", "spec/tools/told_lease.lua",
} do
  files[file] = { std = "lua54", read_globals = { "redis" } }
end

for _, file in ipairs {
  "spec/tools/nginx.lua", "spec/tools/inside.lua",
  "spec/tools/process.lua", "spec/tools/browser.lua",
  "spec/tools/at_once.lua",
  "spec/bench/openresty*.lua", "spec/bench/stampede_locations.lua",
  "spec/bench/peers/nginx_locations.lua",
} do
  files[file] = { std = "ngx_lua" }
end
files["spec/openresty/*_spec.lua"] = { std = "ngx_lua+busted" }
files["spec/soak/nginx_*_spec.lua"] = { std = "ngx_lua+busted" }
files["spec/fixtures/*.lua"] = { std = "lua54", read_globals = { "redis" } }
for _, file in ipairs { "half", "told_lease" } do
  files["spec/tools/" .. file .. ".lua"] = { read_globals = { "redis" } }
end
files["spec/tools/lua51.lua"] = {
  std = "lua51", globals = { "KEYS", "ARGV" },
}
files["spec/unit/*_spec.lua"] = { std = "min+busted" }
for _, file in ipairs {
  "spec/redis/*_spec.lua", "spec/cli/*_spec.lua", "spec/check/*_spec.lua",
  "spec/interop/*_spec.lua",
  "spec/soak/*_spec.lua", "examples/simulate/*_spec.lua",
} do
  files[file] = { std = "lua54+busted" }
end
