--- Idempotent payments: an order is charged once, and every retry gets the same
--- receipt.
---
---   curl -X POST 'http://127.0.0.1:8080/pay/4711?amount=25'
---   curl -X POST 'http://127.0.0.1:8080/pay/4712?amount=25&failures=1'

local answer = require "shop.answer"
local bank = require "shop.bank"
local locks = require "shop.locks"

local payment = {}

local function charge_once(lock, order, amount, failures)
  local key = "payment:" .. order .. ":receipt"
  local receipt, code, detail = locks:call("GET", key)
  if receipt ~= false then return receipt, code, detail end

  local ok                 -- no other worker may start until the bank is done
  ok, code, detail = lock:need(bank.LONGEST)
  if not ok then return nil, code, detail end

  receipt, detail = bank.charge(order, amount, failures)
  if not receipt then return nil, "bank", detail end
  ok, code, detail = locks:call("SET", key, receipt)
  if not ok then return nil, code, detail end
  return receipt
end

---@return any # the receipt
---@return rlock.code | "bank" | nil code
---@return string? detail # a retry is safe
function payment.pay(order, amount, failures)
  return locks:lock("payment:" .. order):with({ wait = 10 }, charge_once,
    order, amount, failures)
end

function payment.serve(order)
  local amount = tonumber(ngx.var.arg_amount)
  if ngx.req.get_method() ~= "POST" or not amount then
    return answer(nil, "usage", "POST /pay/ORDER?amount=NUMBER")
  end
  answer(payment.pay(order, amount, tonumber(ngx.var.arg_failures) or 0))
end

return payment
