/*
 * The commands in flight on one connection, oldest first, with their
 * deadlines. A queue, because Redis replies in order.
 */
#ifndef RL_INFLIGHT_H
#define RL_INFLIGHT_H

#include <stddef.h>
#include <stdint.h>

typedef struct rl_call {
    int64_t id; /* 0: timed out, drop its reply */
    uint64_t sent;
    uint64_t deadline; /* UINT64_MAX: no deadline */
} rl_call;

typedef struct rl_inflight {
    rl_call *slot;
    size_t size; /* a power of two, or 0 */
    size_t head;
    size_t count;
} rl_inflight; /* all zero is an empty queue */

/* 0, or -1 when out of memory. */
int rl_inflight_push(rl_inflight *self, rl_call call);

/* The oldest. The queue must not be empty. */
rl_call rl_inflight_pop(rl_inflight *self);

/* The i-th oldest. Valid until the next push. */
rl_call *rl_inflight_at(const rl_inflight *self, size_t i);

/*
 * Finds the first call from the i-th on that has an id and whose deadline has
 * passed. Copies it to *out and clears its id. Returns the index to continue
 * from, 0 at the end.
 */
size_t rl_inflight_expire(rl_inflight *self, size_t i, uint64_t now,
                          rl_call *out);

/* The earliest deadline of a call that has an id; UINT64_MAX if none. */
uint64_t rl_inflight_next_deadline(const rl_inflight *self);

void rl_inflight_free(rl_inflight *self);

#endif
