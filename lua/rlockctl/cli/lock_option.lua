--- Reads an option of a lock, K=V. Numbers and booleans are recognised.
-- @tparam string text
-- @treturn[1] string K
-- @return[1] V
-- @treturn[2] nil  it has another form
return function(text)
  local key, value = text:match("^([^=]+)=(.*)$")
  if value == "true" or value == "false" then return key, value == "true" end
  return key, tonumber(value) or value
end
