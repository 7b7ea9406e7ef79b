--- Commands without a type of key: the clock, INFO, and messages. A server's
--- `listeners` maps channels to numbers of subscribers; PUBLISH appends
--- messages to its `sent`.

local arguments = require "rlockctl.model.commands.arguments"

local lacks = arguments.lacks

local general = {}

-- Since 7.2 the clock stands still while a script runs; before, it advanced.
general.time = { 1, function(server)
  return {
    ("%d"):format(server.now // 1000000), ("%d"):format(server.now % 1000000),
  }
end }

local function publish(is_sharded)
  return { 3, function(server, words)
    local channel, message = words[2], words[3]
    local name = (is_sharded and "s:" or "") .. channel
    table.insert(server.sent, { channel, message, is_sharded or nil })
    return (server.listeners[name] or 0) + 0.0
  end }
end

general.publish = publish(false)
general.spublish = publish(true)

local function count_listeners(server, words, prefix)
  local list = {}
  for i = 3, #words do
    list[#list + 1] = words[i]
    list[#list + 1] = (server.listeners[prefix .. words[i]] or 0) + 0.0
  end
  return list
end

general.pubsub = { -2, function(server, words)
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

general.info = { -1, function(_, words)
  local section = #words == 2 and SECTIONS[words[2]:lower()]
  if not section then lacks("command INFO " .. (words[2] or "")) end
  return section
end }

general.ping = { -1, function(_, words)
  if #words > 2 then arguments.wrong_number(words) end
  return words[2] or { ok = "PONG" }
end }

general.echo = { 2, function(_, words) return words[2] end }

return general
