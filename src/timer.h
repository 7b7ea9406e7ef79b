/*
 * One-shot timers, cheap to start and to stop: a closed timer's handle is
 * reused.
 */
#ifndef RL_TIMER_H
#define RL_TIMER_H

#include "loop.h"

typedef struct rl_timer rl_timer;
typedef void rl_timer_fn(void *arg);

/* A stopped timer that will call fn(arg). NULL when out of memory. */
rl_timer *rl_timer_open(rl_loop *loop, rl_timer_fn *fn, void *arg);

/* Fires once, ms from now, never early. Replaces the previous setting. */
void rl_timer_start(rl_timer *self, uint64_t ms);

/* Fires in the next turn of the loop, after it has polled the sockets; so does
   a timer of zero ms. First in, first out. */
void rl_timer_soon(rl_timer *self);

void rl_timer_stop(rl_timer *self);

/* May be called from within fn. */
void rl_timer_close(rl_timer *self);

#endif
