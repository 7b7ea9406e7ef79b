/*
 * One-shot timers, cheap to start and to stop: they are kept for the next
 * use, not closed.
 */
#ifndef RL_TIMER_H
#define RL_TIMER_H

#include "loop.h"

typedef struct rl_timer rl_timer;
typedef void rl_timer_fn(void *arg);

/* A stopped timer that will call fn(arg). NULL when out of memory. */
rl_timer *rl_timer_open(rl_loop *loop, rl_timer_fn *fn, void *arg);

/* Once, ms from now, never earlier; replaces what was set before. */
void rl_timer_start(rl_timer *self, uint64_t ms);

/* At the next turn of the loop, after a look at the sockets; what zero ms
   mean, too. In order. */
void rl_timer_soon(rl_timer *self);

void rl_timer_stop(rl_timer *self);

/* May be called from within fn. */
void rl_timer_close(rl_timer *self);

#endif
