---@meta ffi
--- A module of OpenResty, for the checker.

---@class stub.ffi
---@field [string] any
local module = {}

return module
