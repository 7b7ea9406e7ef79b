--- The paths of the READMEs. spec/cli/readme_spec.lua runs their programs, and
--- spec/openresty/readme_spec.lua the one for nginx.

return {
  "README.md", "examples/README.md", "examples/monitoring/README.md",
  "examples/simulate/README.md",
  "lua/resty/README.md", "lua/rlock/README.md", "lua/rlock/policy/README.md",
  "lua/rlock/recipes/README.md", "lua/rlock/redis/README.md",
  "lua/rlock/several/README.md",
  "lua/rlockctl/README.md", "rocks/README.md", "src/README.md",
}
