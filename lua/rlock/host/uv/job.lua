--- Commands that run under a guard process, see src/guard.h.

local core = require "rlock.core"
local tasks = require "rlock.host.uv.tasks"

local job = {}

---@class rlock.host.uv.job.Job
---@field news any
---@field reports table
---@field raw any
local Job = {}
Job.__index = Job

-- Reports of the guard, by their numbers.
local REPORTS = { [0] = "started", "unable", "stopped", "ended", "softened",
  "killed", "gone" }

--- Starts a command.
---@param options table args, env (a list of "K=V", or "K" to unset it), soft
---  and hard (times by host.now at which to send soft_signal, a number, and to
---  kill), foreground, no_input, farewell (a line to print when it kills)
---@return any # the job
---@return any code, string? detail
function job.start(options)
  local self = setmetatable({ news = tasks.event(), reports = {} }, Job)
  local raw, id, detail = tasks.open(function(what, value)
    table.insert(self.reports, { REPORTS[what], value })
    self.news:set()
  end, core.job, options)
  if not raw then return nil, id, detail end
  self.raw, self.id = raw, id
  return self
end

--- The next report, if one arrives in time.
---@param seconds number
---@return string? # "started", "unable" (value: errno), "stopped", "ended"
---  (value: the status returned by waitpid), "softened", "killed", "gone"
---  (value: 0; 1 if the guard was killed; -1 if its warden was killed, too, so
---  that processes of the command may be left)
---@return integer? # value
function Job:next(seconds)
  if not self.reports[1] then self.news:wait(seconds) end
  local report = table.remove(self.reports, 1)
  if report then return report[1], report[2] end
end

--- Ends a wait of `next`.
function Job:wake() self.news:set() end

--- Sets the soft deadline, for the signal, and the hard one, for the kill.
function Job:limit(soft, hard) self.raw:limit(soft, hard) end

--- Sends a signal, by number; SIGKILL kills all descendants.
function Job:signal(number) self.raw:signal(number) end

--- Continues a stopped command.
function Job:resume() self.raw:resume() end

--- Detaches from the guard, which still enforces its last deadlines.
function Job:close()
  if self.id then
    tasks.free_id(self.id)
    self.raw:close()
  end
  self.id = nil
end

return job
