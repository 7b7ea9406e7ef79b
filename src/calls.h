/*
 * The commands of one connection that wait for their replies, oldest first.
 * Redis answers in order, so this is a queue; it also knows the deadlines.
 */
#ifndef RL_CALLS_H
#define RL_CALLS_H

#include <stddef.h>
#include <stdint.h>

typedef struct rl_call {
    int64_t id; /* 0: timed out, its reply is dropped */
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

/* The oldest. Only if count is not zero. */
rl_call rl_calls_pop(rl_calls *calls);

/* The i-th oldest. Valid until the next push. */
rl_call *rl_calls_at(const rl_calls *calls, size_t i);

/*
 * Looks from the i-th on for a call with an id that is due, forgets its id
 * and copies it to *out. The index to go on with, or 0 if there is none.
 */
size_t rl_calls_expire(rl_calls *calls, size_t i, uint64_t now, rl_call *out);

/* The earliest deadline of a call that has an id; UINT64_MAX: none. */
uint64_t rl_calls_due(const rl_calls *calls);

void rl_calls_free(rl_calls *calls);

#endif
