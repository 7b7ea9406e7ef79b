---@meta cjson
--- A module of OpenResty, for the checker.

---@class stub.cjson
---@field [string] any
local module = {}

return module
