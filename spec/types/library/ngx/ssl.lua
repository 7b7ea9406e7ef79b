---@meta ngx.ssl
--- A module of OpenResty, for the checker.

---@class stub.ngx.ssl
---@field [string] any
local module = {}

return module
