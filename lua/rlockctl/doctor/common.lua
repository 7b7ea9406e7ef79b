--- What the audits of Redis and of ZooKeeper share.

local listing = require "rlockctl.cli.listing"
local text = require "rlockctl.cli.text"

local common = {}

local MOST = 1000            -- locks to look at
local SECONDS = 2            -- to look for them
local SHOWN = 3              -- names in a finding

--- Calls fn(audit, item) for each item, all at the same time; returns when all
--- have returned. Does not keep the program running.
---@param audit table
---@param list table
---@param fn function
function common.each(audit, list, fn)
  local host, left = audit.client.session.host, #list
  local done = host.event()
  for _, item in ipairs(list) do
    host.daemon(function()
      fn(audit, item)
      left = left - 1
      if left == 0 then done:set() end
    end)
  end
  if left > 0 then done:wait() end
end

--- Rules by name, in this order.
---@param rules table
---@param ... any their names; "_" is shown as "-"
---@return table # of { name, rule }
function common.list_of(rules, ...)
  local list = {}
  for i, name in ipairs { ... } do
    list[i] = { (name:gsub("_", "-")), rules[name] }
  end
  return list
end

--- A duration, for people.
---@param seconds number
---@return string
function common.duration(seconds)
  if seconds < 1 then return ("%.3g ms"):format(seconds * 1000) end
  return ("%.4g s"):format(seconds)
end

--- The first of some names, as text.
---@param names table
---@return string
function common.some(names)
  local shown = {}
  for i = 1, math.min(SHOWN, #names) do shown[i] = text.bare(names[i]) end
  if names[SHOWN + 1] then shown[SHOWN + 1] = "..." end
  return table.concat(shown, ", ")
end

-- Does nothing end this hold?
local function is_endless(row)
  return row.state == "held" and row.holders[1] and not row.ttl
    and not row.ends_with and not row.in_use
end

--- Adds the locks that nothing ends.
---@param its table a report
---@param client table
function common.check_locks(its, client)
  local rows, more, known = listing.of(client, { limit = MOST,
    seconds = SECONDS })
  if not rows then return its:add("locks", "unknown", known) end
  local names = {}
  for _, row in ipairs(rows) do
    if is_endless(row) then names[#names + 1] = row.name end
  end
  if not names[1] then
    return its:add("locks", "ok", ("%s%d found, all with an end"):format(
      more and "at least " or "", #rows))
  end
  its:add("locks", "warning", ("%d locks without an end: %s"):format(#names,
    common.some(names)), "if the holder has died, nobody gets the lock",
    "rlockctl break NAME, if `rlockctl status NAME` shows a dead holder")
end

--- A word for a shell.
---@param word string
---@return string
function common.quoted(word)
  if word ~= "" and not word:find "[^%w_.:/@%%+-]" then return word end
  return "'" .. word:gsub("'", "'\\''") .. "'"
end

--- The reply to a command that was refused, as text.
---@param command string
---@param detail string
---@return string
function common.refusal(command, detail)
  if detail:find "NOPERM" or detail:find "unknown command"
      or detail:find "unknown subcommand" then
    return command .. " is not permitted"
  end
  return command .. ": " .. detail
end

return common
