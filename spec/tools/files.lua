--- Whole files, as strings.

local files = {}

--- The contents of a file, or nil and why not.
function files.read(path)
  local file, why = io.open(path, "rb")
  if not file then return nil, why end
  local text = file:read("*a")
  file:close()
  return text
end

--- Writes a file; raises if it cannot.
function files.write(path, text)
  local file = assert(io.open(path, "wb"))
  assert(file:write(text))
  file:close()
end

return files
