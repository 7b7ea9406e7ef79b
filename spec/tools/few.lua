--- The text of the README's user policy "my/few.lua".

local function read(path)
  local file = assert(io.open(path))
  local text = file:read("*a")
  file:close()
  return text
end

return read("lua/rlock/policy/README.md")
  :match("```lua\n(%-%- my/few%.lua\n.-)```")
