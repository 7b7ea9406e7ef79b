--- How a program of a storm starts in each host: the words before its own.

local rlockctl = require "spec.tools.rlockctl"

return {
  rlockctl = { "env", rlockctl, "--lua-path", "./?.lua" },
  nginx = io.open("/usr/lib/nginx/modules/ngx_http_lua_module.so")
    and { "spec/tools/in-nginx" } or nil,
}
