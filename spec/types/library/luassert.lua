---@meta luassert
--- The assertions of busted, for the checker.

---@class stub.luassert
---@field [string] fun(...: any): any...
---@overload fun(value: any, ...: any): any...
local module = {}

return module
