--- A semaphore as programs see it. Nobody owns its permits: any task may take
--  some, any may give some back, and one that dies with them takes them along
--  (permits.lua has those that come back).

local colon = require "rlock.colon"
local deadline = require "rlock.deadline"
local line = require "rlock.line"
local policy = require "rlock.policy"
local requests = require "rlock.requests"

local semaphore = {}
semaphore.__index = semaphore

--- @tparam table client the face, kept alive by its semaphores
-- @tparam string name
function semaphore.new(client, name)
  return setmetatable({
    session = client.session,
    site = client.session:site(client, policy.load("semaphore"), name),
  }, semaphore)
end

-- Of one call that takes permits.
local Question = {}
Question.__index = Question

function Question:ask(until_, now)
  local reply, code, detail = requests.send(self.request, "acquire", until_,
    now, self.n)
  if not reply then return nil, code, detail end
  if reply[1] == "busy" then return "busy", reply[2], reply[3] end
  return "held", reply[2] > 0 and reply[2] or nil
end

local function take(self, n, wait)
  local site = self.site
  local question = setmetatable({
    request = requests.begin(self), n = n, wants = tonumber(n),
    channel = site.policy.channel(site.keys),
    late = ("semaphore %q has fewer than %s permits"):format(site.name, n),
  }, Question)
  local verdict, code, detail = line.wait(self.session, question, wait)
  if verdict then
    requests.finish(question.request)
    local host = self.session.host
    if not host.has_gone(host.current()) then return true end
    requests.insist(requests.begin(self), "release", n)     -- nobody else will
    return nil, "closed", "the task has ended"
  end
  requests.undo(question.request, n)
  if code == "cancelled" then error(detail, 0) end
  return nil, code, detail
end

local function ask_for(self, n, wait)
  return self.session.host.whole(take, self, n, wait)
end

-- Permits to take, and how long to wait for them; either may be left out.
local function arguments(n, options, wait, level)
  if type(n) == "table" then n, options = nil, n end
  n = line.count(n == nil and 1 or n, "n", 0, level + 1)
  options = line.options(options, { wait = 0 }, level + 1)
  return n, options.wait or wait
end

--- Takes permits, and waits for them if it must: for ever, if none are ever
--  set. All or none; nobody is kept waiting for the sake of one who wants more
--  than there are.
-- @tparam[opt=1] integer n
-- @tparam[opt] table options wait: seconds, default for ever
-- @treturn[1] boolean true
-- @treturn[2] nil
-- @treturn[2] string code: "timeout", "connect", "closed", "redis"
-- @treturn[2] string detail
function semaphore:acquire(n, options)
  local wait
  n, wait = arguments(n, options, math.huge, 2)
  if n == "0" then return true end
  return ask_for(self, n, wait)
end

--- As acquire, but waits only if told so: otherwise nil, "busy".
function semaphore:try_acquire(n, options)
  local wait
  n, wait = arguments(n, options, 0, 2)
  if n == "0" then return true end
  return ask_for(self, n, wait)
end

local function yes() return true end

--- Gives permits back; those who wait are woken. If the server cannot be told
--  in time it is told in the background: do not give them back twice.
-- @tparam[opt=1] integer n
-- @treturn[1] boolean true
-- @treturn[2] nil, code, detail
function semaphore:release(n)
  n = line.count(n == nil and 1 or n, "n", 0, 2)
  if n == "0" then return true end
  return requests.tell(yes,
    requests.insist(requests.begin(self), "release", n))
end

--- Makes it so many permits more, or fewer: those in use are not taken away,
--  but there may be fewer than none until enough of them are back.
-- @tparam integer n
-- @return as release
function semaphore:add(n)
  n = line.count(n, "n", -2147483647, 2)
  return requests.tell(yes,
    requests.insist(requests.begin(self), "release", n))
end

local function was_set(reply)
  if reply[1] == "held" then return true end
  return nil, "refused", ("it was set before, %s permits are there"):format(
    reply[2])
end

--- Says how many permits there are, if nobody has said so before.
-- @tparam integer n
-- @tparam[opt] table options ttl: seconds after which it is forgotten
-- @treturn[1] boolean true
-- @treturn[2] nil, "refused", detail: somebody has said so before
-- @treturn[3] nil, code, detail
function semaphore:set(n, options)
  n = line.count(n, "n", 0, 2)
  local ttl = line.options(options, { ttl = deadline.least_lease }, 2).ttl
  return requests.tell(was_set, requests.try(requests.begin(self), "set", n,
    ttl and deadline.ms(ttl)))
end

local function second(reply) return reply[2] end

--- Takes all the permits that are there.
-- @treturn[1] integer how many
-- @treturn[2] nil, code, detail
function semaphore:drain()
  local request = requests.begin(self)
  request.keys[4] = request.keys[3] .. ":drained"
  return requests.tell(second, requests.try(request, "drain", "0"))
end

--- How many permits are there, now.
-- @treturn[1] integer
-- @treturn[2] nil, code, detail
function semaphore:available()
  return requests.tell(second, requests.run(self, "count"))
end

return colon.methods(semaphore, "semaphore",
  "acquire try_acquire release add set drain available")
