/*
 * A memory allocator for a Lua state. Small blocks have no header; sizes are
 * multiples of eight.
 */
#ifndef RL_POOL_H
#define RL_POOL_H

#include <stddef.h>

typedef struct rl_pool rl_pool;

/* NULL when out of memory. Close it after the state. */
rl_pool *rl_pool_open(void);
void rl_pool_close(rl_pool *self);

/* A lua_Alloc; pool is an rl_pool. */
void *rl_pool_allocate(void *pool, void *block, size_t old, size_t size);

#endif
