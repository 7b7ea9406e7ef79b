--- Faults of connections, servers and processes. Each is a function of a scene,
--- two dice in [0,1) that choose whom it hits, and its seconds.
---
--- A scene has `processes`, each with a `host`; `servers`; `network` and
--- `universe`; and start_client_later(scene, seconds), for `kill`.

local faults = {}

local floor = math.floor

function faults.one_of(list, dice)
  return list[floor(dice * #list) + 1]
end

local one_of = faults.one_of

--- One of the processes that run, without a crowd.
function faults.process_of(scene, dice)
  local alive = {}
  for _, process in ipairs(scene.processes) do
    if not process.host.is_dead and not process.is_closed
        and not process.is_crowd then
      alive[#alive + 1] = process
    end
  end
  return one_of(alive, dice)
end

local process_of = faults.process_of

local function route_of(scene, a, b)
  local process = process_of(scene, a)
  if not process then return nil end
  return scene.network:route(process.host, one_of(scene.servers, b))
end

--- The kinds: name -> function(scene, a, b, seconds).
faults.inject = {}

local inject = faults.inject

-- networks --------------------------------------------------------------------

local function of_links(fn)
  return function(scene, a, b, seconds)
    local route = route_of(scene, a, b)
    for _, link in ipairs(route and { table.unpack(route.links) } or {}) do
      fn(link, seconds)
    end
  end
end

-- What is sent on the present connections arrives late, also after they have
-- been closed; new connections are not affected.
inject.late = of_links(function(link, seconds) link:hold("forth", seconds) end)
inject.deaf = of_links(function(link, seconds) link:hold("back", seconds) end)

-- The server resets the connection after so many commands, in place of seconds.
inject.reset = of_links(function(link, count)
  link.resets_after = 1 + floor(count)
end)

-- Nothing arrives any more, until the client gives up or the server resets.
inject["half-open"] = of_links(function(link, seconds)
  link:half_open(seconds)
end)

-- What is on its way is lost, with the connection.
inject.cut = of_links(function(link) link:half_open(0) end)

local function of_route(fn)
  return function(scene, a, b, seconds)
    local route = route_of(scene, a, b)
    if route then fn(route, scene.universe.now + seconds, scene) end
  end
end

inject.partition = of_route(function(route, till)
  route.forth, route.back = till, till
end)
inject["requests delayed"] = of_route(function(route, till)
  route.forth = till
end)
inject["replies delayed"] = of_route(function(route, till)
  route.back = till
end)
inject.refuse = of_route(function(route, till) route.refuses_until = till end)
inject.slow = of_route(function(route, till, scene)
  local delay = route.usual or route.delay
  route.usual, route.delay, route.slow_till = delay, 0.04, till
  scene.universe:at(till, { fire = function()
    if route.slow_till == till then route.delay = delay end
  end })
end)

-- servers ---------------------------------------------------------------------

function inject.freeze(scene, a, _, seconds)
  one_of(scene.servers, a):freeze(seconds)
end

function inject.restart(scene, a, _, seconds)
  one_of(scene.servers, a):restart(seconds, "data")
end

function inject.save(scene, a) one_of(scene.servers, a):save() end
function inject.flush(scene, a) one_of(scene.servers, a):flush_scripts() end

-- The replica of a server stops for a while, and confirms nothing.
inject["replica lags"] = function(scene, a, _, seconds)
  one_of(scene.servers, a):lag(seconds)
end

-- processes -------------------------------------------------------------------

function inject.stall(scene, a, _, seconds)
  local process = process_of(scene, a)
  if process then scene.universe:stall(process.host, seconds) end
end

-- The waiters behind it may detect its death, or no client does for a while.
function inject.kill(scene, a, _, seconds)
  local process = process_of(scene, a)
  if not process then return end
  scene.universe:kill(process.host)
  scene:start_client_later(seconds)
end

return faults
