--- The README's policy "my/few.lua", as text: a lock of a user's own.

local function read(path)
  local file = assert(io.open(path))
  local text = file:read("*a")
  file:close()
  return text
end

return read("lua/rlock/policy/README.md")
  :match("```lua\n(%-%- my/few%.lua\n.-)```")
