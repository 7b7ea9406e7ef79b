---@meta resty.core.base
--- A module of OpenResty, for the checker.

---@class stub.resty.core.base
---@field [string] any
local module = {}

return module
