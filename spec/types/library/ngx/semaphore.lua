---@meta ngx.semaphore
--- A module of OpenResty, for the checker.

---@class stub.ngx.semaphore
---@field [string] any
local module = {}

return module
