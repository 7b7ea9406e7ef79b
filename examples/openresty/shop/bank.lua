--- A mock bank. It is slow, and fails the first `failures` attempts to pay an
--- order.

local locks = require "shop.locks"

local bank = {}

bank.LONGEST = 5         -- seconds that a charge may take

--- Charges an order. A real bank takes the order number as an idempotency key,
--- so that a retry after a lost reply does not charge twice.
---@return string? # receipt
---@return string? # why not
function bank.charge(order, amount, failures)
  ngx.sleep(0.2)
  local attempt = assert(locks:call("INCR", "bank:attempts:" .. order))
  if attempt <= failures then return nil, "the bank does not answer" end
  local charges = assert(locks:call("INCR", "bank:charges:" .. order))
  return ("receipt %s-%d over %s"):format(order, charges, amount)
end

return bank
