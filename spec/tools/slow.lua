--- How much slower than usual this machine may be (RLOCK_SLOW): times that
--- must not be exceeded are multiplied by it.

return tonumber(os.getenv "RLOCK_SLOW") or 1
