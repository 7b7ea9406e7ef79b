--- leader.lua, but it checks before each write that it still leads. A leader
--- steps down before another candidate can be elected. It must not wait between
--- the check and the write. If the write itself may arrive late, the site must
--- check a fencing token.

local rlock = require "rlock"
local simulate = require "rlock.simulate"

local site = simulate.shared "site"
simulate.always(function()
  if site.publisher ~= site.leader then
    error(("%s publishes, and %s leads"):format(site.publisher, site.leader), 0)
  end
end)

local client <close> = assert(rlock.open())
local election = client:election("publisher")
local me = ("%x"):format(math.random(1 << 40))

assert(election:campaign())
if election:is_leader() then site.leader, site.publisher = me, me end
for _ = 1, 3 do
  rlock.sleep(0.01)                     -- prepares a page
  if not election:is_leader() then break end
  site.publisher = me                   -- publishes it
end
election:resign()
