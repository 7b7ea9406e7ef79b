--- A hold whose callback for release requests notes the reasons and calls fn.

local assert = require "luassert"

---@param lock table
---@param fn? function gets the hold
---@return any # the hold and the list of reasons
return function(lock, fn)
  local hold, reasons = assert(lock:hold()), {}
  assert.is_true(hold:on_release_request(function(its, reason)
    assert.equal(hold, its)
    reasons[#reasons + 1] = reason
    if fn then fn(hold) end
  end))
  return hold, reasons
end
