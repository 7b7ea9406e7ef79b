--- The READMEs, as texts. Their programs are run by spec/cli/readme_spec.lua,
--- that for nginx by spec/openresty/readme_spec.lua.

local readmes = {}

readmes.paths = {
  "README.md", "lua/resty/README.md", "lua/rlock/README.md",
  "lua/rlock/policy/README.md", "lua/rlock/several/README.md",
  "rocks/README.md", "src/README.md",
}

--- The text of a file; nil if there is none.
function readmes.read(path)
  local file = io.open(path)
  local text = file and file:read("*a")
  if file then file:close() end
  return text
end

return readmes
