--- Reads an option of a lock, K=V. Numbers and booleans are recognised.
---@param text string
---@return string? # K; it has another form
---@return any # V
return function(text)
  local key, value = text:match("^([^=]+)=(.*)$")
  if value == "true" or value == "false" then return key, value == "true" end
  return key, tonumber(value) or value
end
