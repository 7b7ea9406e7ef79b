---@meta rlock.core
--- The C module (src/core*.c), for the checker.

---@class stub.rlock.core
---@field [string] any
local module = {}

return module
