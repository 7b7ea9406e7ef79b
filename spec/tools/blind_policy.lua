--- A policy without `peek`: clients cannot ask who holds such a lock.
return {
  name = "blind", keys = function(name) return { name } end,
  server = {
    acquire = function() return { "held" } end,
    renew = function() return { "held" } end,
    release = function() return { "freed" } end,
  },
}
