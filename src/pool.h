/*
 * Memory for a Lua state: small blocks without a header, of any size a
 * multiple of eight.
 */
#ifndef RL_POOL_H
#define RL_POOL_H

#include <stddef.h>

typedef struct rl_pool rl_pool;

/* NULL when out of memory. To be closed after the state. */
rl_pool *rl_pool_open(void);
void rl_pool_close(rl_pool *self);

/* A lua_Alloc; pool is a rl_pool. */
void *rl_pool_allocate(void *pool, void *block, size_t old, size_t size);

#endif
