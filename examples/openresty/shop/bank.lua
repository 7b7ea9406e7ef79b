--- A bank to play with. It is slow, and does not answer the first so many
--  attempts to pay an order.

local locks = require "shop.locks"

local bank = {}

bank.LONGEST = 5         -- seconds that a charge may take

--- Takes the money. A real bank is given the order number too, and takes the
--  money once, should we never learn that it has been taken.
-- @treturn[1] string receipt
-- @treturn[2] nil
-- @treturn[2] string why not
function bank.charge(order, amount, failures)
  ngx.sleep(0.2)
  local attempt = assert(locks:call("INCR", "bank:attempts:" .. order))
  if attempt <= failures then return nil, "the bank does not answer" end
  local charges = assert(locks:call("INCR", "bank:charges:" .. order))
  return ("receipt %s-%d over %s"):format(order, charges, amount)
end

return bank
