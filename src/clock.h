/*
 * The clock of all deadlines.
 */
#ifndef RL_CLOCK_H
#define RL_CLOCK_H

#include <stdint.h>

/* Nanoseconds of a monotonic clock that includes suspend where possible. */
int64_t rl_clock_now(void);

#endif
