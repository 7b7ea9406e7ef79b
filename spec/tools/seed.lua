--- The seed of a random test; RLOCK_SEED repeats a run.

return tonumber(os.getenv "RLOCK_SEED") or os.time()
