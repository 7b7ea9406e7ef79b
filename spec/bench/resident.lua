--- Returns the resident memory of this process in bytes, after a collection.

return function()
  collectgarbage()
  collectgarbage()
  local file = assert(io.open("/proc/self/statm"))
  local _, pages = file:read("n", "n")
  file:close()
  return pages * 4096
end
