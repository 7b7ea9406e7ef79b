--- A deposed leader that continues: it wins the election, then works without
--- checking that it still leads. leader_asks.lua checks before each write.

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
site.leader, site.publisher = me, me
for _ = 1, 3 do
  rlock.sleep(0.01)                     -- prepares a page
  site.publisher = me                   -- publishes it
end
assert(election:resign())
