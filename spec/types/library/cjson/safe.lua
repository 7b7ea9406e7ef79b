---@meta cjson.safe
--- A module of OpenResty, for the checker.

---@class stub.cjson.safe
---@field [string] any
local module = {}

return module
