--- The turn of a grant: it has one request at a time, although several tasks
--- may share it (an explicit owner, a transferred hold). A grant is `acting`
--- while a request has its turn: true, or CONTENDED if the end of the request
--- may not end the turn; else false. `queue` has those that wait: events, and
--- requests without a task (posted.lua). The turn is given to the first by its
--- method `set`.

local turn = {}

--- Value of `acting` if another request waits, if a rollback keeps the turn, or
--- if the task has ended.
turn.CONTENDED = "contended"

--- Waits for the turn, without a task.
---@param self table the grant
---@param waiter { set: function } its method `set` gets the turn
function turn.join(self, waiter)
  local queue = self.queue
  self.acting = turn.CONTENDED
  if queue then
    queue[#queue + 1] = waiter
  else
    self.queue = { waiter }
  end
end

--- Stops waiting for the turn.
---@param self table the grant
---@param waiter { set: function }
---@return boolean # whether it was waiting; else it has had the turn
function turn.leave(self, waiter)
  local queue = self.queue
  for i, other in ipairs(queue or {}) do
    if other == waiter then
      table.remove(queue, i)
      if not queue[1] then self.queue = nil end
      return true
    end
  end
  return false
end

--- Waits for the turn of a grant that is acting.
---@param self table the grant
---@param deadline number by host.now()
---@return boolean? # true
---@return rlock.failure? code
---@return string? detail # for "cancelled", the value to raise
function turn.wait(self, deadline)
  local host = self.lock.session.host
  local event = host.event()
  turn.join(self, event)
  local is_ours, code, unwind = event:pause(deadline - host.now())
  if is_ours then return true end
  if turn.leave(self, event) then
    if is_ours == nil then return nil, code, unwind end
    return nil, "timeout", turn.LATE
  end
  turn.pass(self)                     -- a race: it came at the timeout
  return nil, code or "timeout", unwind or "no time left"
end

--- The detail of a turn that does not come in time.
turn.LATE = "another request of this owner is in flight"

--- Passes the turn to the first that waits for it.
---@param self table the grant
function turn.pass(self)
  local queue = self.queue
  if not queue then
    self.acting = false
    return
  end
  local next_one = table.remove(queue, 1)
  if not queue[1] then self.queue = nil end
  next_one:set()
end

return turn
