/*
 * A memory allocator for a Lua state. Small blocks have no header; sizes are
 * multiples of eight.
 */
#ifndef RL_ALLOCATOR_H
#define RL_ALLOCATOR_H

#include <stddef.h>

typedef struct rl_allocator rl_allocator;

/* NULL when out of memory. Close it after the state. */
rl_allocator *rl_allocator_open(void);
void rl_allocator_close(rl_allocator *self);

/* A lua_Alloc; ud is an rl_allocator. */
void *rl_allocator_allocate(void *ud, void *block, size_t old, size_t size);

#endif
