/*
 * The commands in flight on one connection, oldest first, with their
 * deadlines. A queue, because Redis replies in order.
 */
#ifndef RL_CALLS_H
#define RL_CALLS_H

#include <stddef.h>
#include <stdint.h>

typedef struct rl_call {
    int64_t id; /* 0: timed out, drop its reply */
    uint64_t sent;
    uint64_t due; /* UINT64_MAX: no deadline */
} rl_call;

typedef struct rl_calls {
    rl_call *slot;
    size_t size; /* a power of two, or 0 */
    size_t head;
    size_t count;
} rl_calls; /* all zero is an empty queue */

/* 0, or -1 when out of memory. */
int rl_calls_push(rl_calls *calls, rl_call call);

/* The oldest. The queue must not be empty. */
rl_call rl_calls_pop(rl_calls *calls);

/* The i-th oldest. Valid until the next push. */
rl_call *rl_calls_at(const rl_calls *calls, size_t i);

/*
 * Finds the first call from the i-th on that has an id and is due. Copies it
 * to *out and clears its id. Returns the index to continue from, 0 at the end.
 */
size_t rl_calls_expire(rl_calls *calls, size_t i, uint64_t now, rl_call *out);

/* The earliest deadline of a call that has an id; UINT64_MAX if none. */
uint64_t rl_calls_due(const rl_calls *calls);

void rl_calls_free(rl_calls *calls);

#endif
