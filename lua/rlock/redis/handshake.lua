--- The first commands on every connection: the login, the database, and the
--- connection's name.

local identity = require "rlock.util.identity"

---@param options table username, password, db; connection_name, or name
---@return table # array of commands
return function(options)
  local commands = {}
  if options.username then
    -- A user without a password logs in with an empty one: without AUTH, the
    -- connection is that of the default user.
    commands[1] = { "AUTH", options.username, options.password or "" }
  elseif options.password then
    commands[1] = { "AUTH", options.password }
  end
  if options.db and options.db ~= 0 then
    commands[#commands + 1] = { "SELECT", ("%d"):format(options.db) }
  end
  commands[#commands + 1] = { "CLIENT", "SETNAME",
    options.connection_name or identity.plain(options.name) }
  return commands
end
