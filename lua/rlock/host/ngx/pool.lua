--- What sends commands: each over a socket of the worker's pool, which it has
--  to itself while it is under way. The pool as a whole is the connection: it
--  is lost when no socket is to be had, or when the server turns out to be
--  another than before.

local resp = require "rlock.host.ngx.resp"
local socket = require "rlock.host.ngx.socket"
local tasks = require "rlock.host.ngx.tasks"

local remove = table.remove

local run_ids = {}       -- name of a pool -> run_id of its server, last told

local pool = {}
pool.__index = pool

--- @tparam table options as for socket.get; and pool = { name =, idle = (ms),
--   size = }, lost = function(detail), called once
function pool.new(options)
  return setmetatable({
    options = options, name = { pool = options.pool.name },
    idle = options.pool.idle, size = options.pool.size, lost = options.lost,
    run_id = run_ids[options.pool.name],
  }, pool)
end

-- Sockets are kept a little while in the home, which is all one request, and
-- then given to nginx.
local function give_back(self, taken)
  local home = tasks.home()
  if not home then return taken:setkeepalive(self.idle, self.size) end
  local kept = home.kept[self]
  if kept then
    kept[#kept + 1] = taken
  else
    home.kept[self] = { taken }
  end
end

local function lose(self, why)
  local lost = self.lost
  self.lost = nil
  if lost then lost(why) end
end

-- Is a new socket one to the server that we know? (It may not tell.)
local function is_same(self, run_id)
  local known = self.run_id
  self.run_id, run_ids[self.name.pool] = run_id, run_id
  return not known or run_id == known
end

local function take(self, ms)
  local why = tasks.refusal()
  if why then return nil, "refused", why end
  if self.is_closed then return nil, "closed", "the client was closed" end
  local home = tasks.home()
  local kept = home and home.kept[self]
  local last = kept and remove(kept)
  if last then
    socket.limit(last, ms)
    return last
  end
  local taken, code, detail = socket.get(self.options, ms, self.name)
  if code == "connect" then
    lose(self, detail)
  elseif taken and taken.run_id and not is_same(self, taken.run_id) then
    give_back(self, taken)
    taken, code, detail = nil, "connect", "the server was restarted"
    lose(self, detail)
  end
  return taken, code, detail
end

--- Gives sockets that a home has kept to nginx.
function pool:put_away(kept)
  for i = 1, #kept do
    kept[i]:setkeepalive(self.idle, self.size)
    kept[i] = nil
  end
end

-- What a reply that did not come means: code, detail.
local function unanswered(why, ms)
  if why == "timeout" then
    return "timeout", ("no answer within %d ms"):format(ms)
  end
  return "closed", "the connection was lost: " .. why
end

--- Sends one command and waits for its reply.
-- @tparam integer ms  the command's deadline
-- @tparam table words the command and its arguments; free to be used again
-- @tparam integer n   how many words
-- @treturn[1] any the reply; false for a Redis nil
-- @treturn[2] nil
-- @treturn[2] string code "redis", "timeout", "closed", "connect", "refused"
-- @treturn[2] string detail
function pool:send(ms, words, n)
  local text = resp.request(words, n)
  local taken, code, detail = take(self, ms)
  if not taken then return nil, code, detail end
  local ok, why = taken:send(text)
  if not ok then
    taken:close()
    return nil, unanswered(why, ms)
  end
  local reader = socket.reader(taken)
  local reply
  reply, code, detail = reader:read()
  if code == "closed" or not reader:is_done() then
    taken:close()
    return nil, unanswered(detail or "more came than was asked for", ms)
  end
  give_back(self, taken)
  return reply, code, detail
end

--- As `send`, with the words as arguments.
function pool:call(ms, ...)
  return self:send(ms, { ... }, select("#", ...))
end

--- Sends several commands at once and waits for all their replies.
-- @tparam integer ms deadline
-- @tparam table commands array of arrays
-- @treturn table replies; where one is nil,
-- @treturn table codes and
-- @treturn table details say why
function pool:pipeline(ms, commands)
  local n, taken, code, detail = #commands, take(self, ms)
  if not taken then
    local codes, details = {}, {}
    for i = 1, n do codes[i], details[i] = code, detail end
    return {}, codes, details
  end
  local replies, codes, details = socket.exchange(taken, commands)
  if codes[n] ~= "closed" then
    give_back(self, taken)
    return replies, codes, details
  end
  taken:close()
  for i = 1, n do
    if codes[i] == "closed" then
      codes[i], details[i] = unanswered(details[i], ms)
    end
  end
  return replies, codes, details
end

function pool:close() self.is_closed = true end

return pool
