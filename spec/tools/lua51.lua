--- Runs under lua5.1: calls each script of a file as Redis would, and prints
--- "ok" or "error" with its result, one line each. A script is its length on a
--- line, then its bytes.
---
---   lua5.1 spec/tools/lua51.lua FILE KEY KEY ARGUMENT ARGUMENT

local file = assert(io.open(arg[1], "rb"))

while true do
  local length = file:read("*l")
  if not length then break end
  local text = assert(file:read(tonumber(length)))
  KEYS, ARGV = { arg[2], arg[3] }, { arg[4], arg[5] }
  local chunk, fault = loadstring(text, "@user_script")
  local ok, result = chunk ~= nil, fault
  if chunk then ok, result = pcall(chunk) end
  print((ok and "ok " or "error ") .. tostring(result):gsub("\n", " "))
end
