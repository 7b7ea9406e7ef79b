--- The turn of a grant: it has one request at a time, although several tasks
--  may share it (an explicit owner, a transferred hold). A grant is `acting`
--  while a request has its turn: true, or CONTENDED if the end of the request
--  may not end the turn. `queue` has the events of those that wait.

local turn = {}

--- Value of `acting` if another request waits, if a rollback keeps the turn, or
--  if the task has ended.
turn.CONTENDED = "contended"

--- Waits for the turn of a grant that is acting.
-- @tparam table self the grant
-- @tparam number deadline by host.now()
-- @treturn[1] boolean true
-- @treturn[2] nil, code, detail; for "cancelled", the value to raise
function turn.wait(self, deadline)
  local host = self.lock.session.host
  local event = host.event()
  local queue = self.queue or {}
  self.queue, self.acting = queue, turn.CONTENDED
  queue[#queue + 1] = event
  local is_ours, code, unwind = event:pause(deadline - host.now())
  if is_ours then return true end
  for i, other in ipairs(queue) do
    if other == event then
      table.remove(queue, i)
      if not queue[1] then self.queue = nil end
      if is_ours == nil then return nil, code, unwind end
      return nil, "timeout", "another request of this owner is in flight"
    end
  end
  turn.pass(self)                     -- a race: it came at the timeout
  return nil, code or "timeout", unwind or "no time left"
end

--- Passes the turn to the first that waits for it.
-- @tparam table self the grant
function turn.pass(self)
  local queue = self.queue
  if not queue then
    self.acting = nil
    return
  end
  local next_one = table.remove(queue, 1)
  if not queue[1] then self.queue = nil end
  next_one:set()
end

return turn
