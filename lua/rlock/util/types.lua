---@meta _
--- The types that belong to no single file: error codes, the environment of a
--- policy inside Redis, and the contracts of hosts and back ends, which
--- README.md in this folder describes. Editors and `make check` read this file.
--- No module requires it; loading it has no effect.

do return end

--- Error codes. A call that fails returns nil, a code and a detail: a sentence.
---@alias rlock.code
---| "busy" # another owner holds it; only if the call did not wait
---| "timeout" # the wait has expired, or no reply arrived in time
---| "deadlock" # tasks of this process would wait for each other
---| "lost" # it was held, but has expired or was broken
---| "not_held" # it was never held, or has been released already
---| "refused" # a retry would not help: the detail says why
---| "closed" # the client is closed, or the task has ended
---| "connect" # the server cannot be reached
---| "redis" # Redis replied with an error
---| "zookeeper" # ZooKeeper replied with an error
---| "quorum" # no majority of a red lock's servers is reachable
---| "replicas" # too few replicas have confirmed the write
---| "failed" # the function passed to client:compute failed
---| "usage" # the call is wrong, or this server or kind does not support it

--- Error codes inside the library. With "cancelled", the detail is the value
--- to raise.
---@alias rlock.failure rlock.code | "cancelled"

-- factories of a client ------------------------------------------------------

--- The methods of a client: one for each kind (lock/kinds.lua), and recipes.
---@class rlock.factories
local factories = {}

--- Reentrant, like Redisson's RLock.
---@param name string
---@param options? rlock.owner_options
---@return rlock.lock
function factories:lock(name, options) end

--- As `lock`, but not reentrant: a second `lock` by the holder is refused.
---@param name string
---@param options? rlock.owner_options
---@return rlock.lock
function factories:mutex(name, options) end

--- As `lock`, but waiters poll; for locks that are held very briefly.
---@param name string
---@param options? rlock.owner_options
---@return rlock.lock
function factories:spin_lock(name, options) end

--- SET NX PX, compatible with redis-py, redsync and node-redlock.
---@param name string
---@param options? rlock.owner_options
---@return rlock.lock
function factories:simple_lock(name, options) end

--- As `lock`, with a fencing token that only increases.
---@param name string
---@param options? rlock.owner_options
---@return rlock.lock
function factories:fenced_lock(name, options) end

--- Reentrant and fair: first come, first served.
---@param name string
---@param options? rlock.owner_options
---@return rlock.lock
function factories:fair_lock(name, options) end

--- A pair of locks: readers share the read lock, and the write lock is
--- exclusive.
---@param name string
---@param options? rlock.owner_options
---@return rlock.pair
function factories:read_write_lock(name, options) end

--- As `read_write_lock`, but fair: first come, first served.
---@param name string
---@param options? rlock.owner_options
---@return rlock.pair
function factories:fair_read_write_lock(name, options) end

--- A counting semaphore: permits without owners.
---@param name string
---@return rlock.semaphore
function factories:semaphore(name) end

--- A semaphore whose permits have leases.
---@param name string
---@return rlock.permits
function factories:permits(name) end

--- A count-down latch: tasks on any machine wait until its count is zero.
---@param name string
---@return rlock.latch
function factories:latch(name) end

--- A barrier: tasks on any machine wait until it is removed.
---@param name string
---@return rlock.barrier
function factories:barrier(name) end

--- A double barrier: `n` members enter together and leave together.
---@param name string
---@param n number from 1 to 1000; the same for all members
---@return rlock.double_barrier
function factories:double_barrier(name, n) end

--- A leader election: at most one of the candidates leads at any time.
---@param name string
---@param options? rlock.election_options
---@return rlock.election
function factories:election(name, options) end

--- Returns the cached value of a name. If there is none, one caller computes it
--- and the others wait for its result (single flight): see recipes/compute.lua.
---@param name string on ZooKeeper a path
---@param options rlock.compute_options the same for all callers of a name
---@param fn fun(hold: rlock.hold): string?, any the value, or nil and a reason
---@return string? value
---@return "computed" | "cached" | "stale" | rlock.code # its origin, or a code
---@return string? # why the value could not be stored; or the detail
function factories:compute(name, options, fn) end

-- release requests (lock/release_requests.lua) --------------------------------

--- Methods of what can be asked to release: a lock, or a hold.
---@class rlock.asked
local asked = {}

--- Registers a callback for release requests. It decides whether to unlock.
--- Requests that arrive while it runs are ignored.
---@param fn fun(lock: any, reason: string) called as a task
---@return true? # on success; requests arrive after the next round trip
---@return rlock.code? code "not_held" or "lost"
---@return string? detail
function asked:on_release_request(fn) end

---@class rlock.asks
local asks = {}

--- Asks the holders of the lock to release it. Their callbacks decide.
---@param reason? string for the callbacks, at most 256 bytes
---@return true?
---@return integer | rlock.code # the number of holders asked, at least 1. Or
---  "not_held": nobody holds it; "refused": no holder has a callback; or the
---  code with which the request failed
---@return string? detail
function asks:request_release(reason) end

-- inside Redis ----------------------------------------------------------------

--- The `redis` object inside a policy's server functions.
---@class rlock.inside_redis
---@field LOG_DEBUG integer
---@field LOG_VERBOSE integer
---@field LOG_NOTICE integer
---@field LOG_WARNING integer
---@field REDIS_VERSION string
---@field call fun(command: string, ...: any): any
---@field pcall fun(command: string, ...: any): any
---@field error_reply fun(message: string): { err: string }
---@field status_reply fun(status: string): { ok: string }
---@field sha1hex fun(text: string): string
---@field log fun(level: integer, ...: string)

---@type rlock.inside_redis
redis = nil

--- The keys of a script. A server function gets them as its first argument.
---@type string[]
KEYS = nil

--- The arguments of a script. A server function gets them as its second
--- argument.
---@type string[]
ARGV = nil

-- a host: "The host contract" in README.md ------------------------------------

---@class rlock.host
---@field name string
---@field verbosity? integer
---@field ends_tasks? boolean
---@field now fun(): number
---@field time fun(): number
---@field random fun(n: integer): string
---@field random_number fun(): number
---@field sleep fun(seconds: number)
---@field event fun(): rlock.event
---@field spawn fun(fn: function, ...: any): rlock.task
---@field daemon fun(fn: function, ...: any): rlock.task?, rlock.code?, string?
---@field service fun(fn: function, ...: any)
---@field current fun(): rlock.task
---@field is_over fun(task: any): boolean
---@field has_gone fun(task: any): boolean
---@field whole fun(fn: function, ...: any): any...
---@field whole_wait fun(fn: function, a: any, wait: number, ...: any): any...
---@field guard fun(undo: function, what: any, fn: function, ...: any): any...
---@field on_death? fun(undo: function, what: any): function
---@field process_identity? fun(): table
---@field log fun(level: "warn" | "info", text: string)
---@field connect fun(options: table): rlock.connection?, rlock.failure?,
---   string?
---@field frames fun(options: table): table?, rlock.failure?, string?

---@class rlock.connection
---@field identity table
---@field send fun(self, ms: integer, words: table, n: integer): any...
---@field eval fun(self, ms: integer, sha: string, ...: any): any...
---@field pipeline fun(self, ms: integer, commands: table[],
---   replies?: table): any...
---@field subscribe fun(self, ...: any): any...
---@field unsubscribe fun(self, ...: any): any...
---@field make_ready fun(self, ms: integer, seals: table): any...
---@field post? fun(self, ms: integer, words: table, n: integer,
---   receiver: table): any...
---@field close fun(self, why?: string)

-- a back end: "The back end contract" in README.md ----------------------------

---@class rlock.backend
---@field name string
---@field complete fun(given: table, address: string): table?, rlock.code?,
---   string?
---@field load fun(kind: string | rlock.policy,
---   level?: integer): rlock.loaded_policy
---@field sides fun(name: string): { read: rlock.policy, write: rlock.policy }
---@field fenced fun(policy: rlock.policy, level: integer): rlock.loaded_policy
---@field is_for_red_locks boolean
---@field elections? table<string, string | rlock.policy>
---@field recipes? table<string, string>
---@field open fun(host: rlock.host, options: table, hooks: table): rlock.server
---@field valid_until fun(sent: number, seconds: number, drift?: number): number

---@class rlock.server
---@field where string
---@field bound? number
---@field channels rlock.channels
---@field connect fun(self, seconds: number): true?, rlock.failure?, any
---@field rest fun(self)
---@field close fun(self)
---@field call fun(self, deadline: number, words: table): any...
---@field get fun(self, deadline: number, path: string): any...
---@field set fun(self, deadline: number, path: string, value: string,
---   version?: integer, grant?: rlock.grant): any...
---@field is_retried fun(self, code: string, detail: string): boolean
---@field bind fun(self, policy: rlock.loaded_policy, name: string,
---   options?: table): rlock.target
---@field batch fun(self, fields: table): table
---@field has_routes fun(self): boolean

---@class rlock.channels
---@field add fun(self, channel: string)
---@field close fun(self)
---@field idle? fun(self, channel: any)
---@field notify fun(what: string, channel: any, payload?: string)
---@field inbox? string

---@class rlock.target
---@field hands_over? boolean
---@field leaves? boolean
---@field run fun(self, name: string, deadline: number, now: number,
---   ...: any): any...
---@field post fun(self, name: string, receiver: table, deadline: number,
---   now: number, ...: any): boolean
---@field carrier fun(self): any
---@field retry fun(self, connection: any, name: string, deadline: number,
---   now: number, code: string, detail: string, ...: any): any...
---@field check fun(self, name: string, options?: table)
---@field with fun(self, suffix: string): rlock.target
---@field requests fun(): table
---@field channel fun(self, owner_name?: string): string?
---@field route fun(self, owner_name: string): any
---@field announce fun(self, deadline: number, owner_name: string,
---   text?: string, seconds?: integer): any...
---@field where fun(self): string
---@field address fun(self): string, string
---@field ping fun(self, deadline: number): any...
---@field is_connected fun(self): boolean
---@field is_closed fun(self): boolean
---@field effect? fun(self, guards: table[], commands: table[],
---   deadline: number): any...
---@field identify fun(self, deadline: number): table?, rlock.failure?, any
---@field identity fun(self): table?
---@field clash fun(self, locks: table): string?
---@field quarantine fun(self, lease: number): any...
---@field why_away fun(self): string?
---@field mark_away fun(self, why: string)
---@field standing fun(self, lease: number, now: number, locks: table): table?

-- LuaJIT and Redis have it. Policies use it, and modules that run on LuaJIT.
---@param list any[]
---@param first? number
---@param last? number
---@return any ...
function unpack(list, first, last) end
