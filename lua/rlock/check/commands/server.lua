--- Commands of the server itself: its clock, what it tells of itself, and
--  messages. A server's `listeners` maps channels to numbers of subscribers;
--  published messages are appended to its `sent`.

local arguments = require "rlock.check.commands.arguments"

local lacks = arguments.lacks

local server_commands = {}

-- The clock stands still while a script runs, as of 7.2: before, it went on.
server_commands.time = { 1, function(server)
  return {
    ("%d"):format(server.now // 1000000), ("%d"):format(server.now % 1000000),
  }
end }

local function publish(is_sharded)
  return { 3, function(server, words)
    local channel, message = words[2], words[3]
    local heard = server.listeners[(is_sharded and "s:" or "") .. channel] or 0
    table.insert(server.sent, { channel, message, is_sharded or nil })
    return heard + 0.0
  end }
end

server_commands.publish = publish(false)
server_commands.spublish = publish(true)

local function count_listeners(server, words, prefix)
  local list = {}
  for i = 3, #words do
    list[#list + 1] = words[i]
    list[#list + 1] = (server.listeners[prefix .. words[i]] or 0) + 0.0
  end
  return list
end

server_commands.pubsub = { -2, function(server, words)
  local action = words[2]:lower()
  if action == "numsub" then return count_listeners(server, words, "") end
  if action == "shardnumsub" then
    return count_listeners(server, words, "s:")
  end
  lacks("command PUBSUB " .. action:upper())
end }

local SECTIONS = {
  cluster = "# Cluster\r\ncluster_enabled:0\r\n",
  replication = "# Replication\r\nrole:master\r\nconnected_slaves:0\r\n",
}

server_commands.info = { -1, function(_, words)
  local section = #words == 2 and SECTIONS[words[2]:lower()]
  if not section then lacks("command INFO " .. (words[2] or "")) end
  return section
end }

server_commands.ping = { -1, function(_, words)
  if #words > 2 then arguments.wrong_number(words) end
  return words[2] or { ok = "PONG" }
end }

server_commands.echo = { 2, function(_, words) return words[2] end }

return server_commands
