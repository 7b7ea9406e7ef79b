--- A policy without `peek`: clients cannot read the holders of its locks.
return {
  name = "blind", keys = function(name) return { name } end,
  server = {
    acquire = function() return { "held" } end,
    renew = function() return { "held" } end,
    release = function() return { "freed" } end,
  },
}
