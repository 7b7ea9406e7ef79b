--- The specs of Redisson, which are the same for each version of it.

local locks = require "spec.interop.locks"

return {
  { "lock", locks },
  { "fenced", locks },
}
