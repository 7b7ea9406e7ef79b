/*
 * Signals to this process.
 */
#ifndef RL_SIGNAL_H
#define RL_SIGNAL_H

#include "loop.h"

typedef struct rl_signal rl_signal;

/*
 * Reports RL_FIRED for id whenever the signal arrives. Does not keep the loop
 * running. 0 or a UV_E* code: UV_ECANCELED if the process ignores the signal,
 * as under nohup.
 */
int rl_signal_open(rl_signal **out, rl_loop *loop, int64_t id, int number);
void rl_signal_close(rl_signal *self);

/*
 * HUP, INT, QUIT and TERM ask the program to end. fn is called in the signal
 * handler when one of them arrives. rl_signal_unreported returns the number of
 * the last one if it arrived at least ms ago and is still unreported, because
 * the loop does not turn; else 0.
 */
void rl_signal_on_ask(void (*fn)(void));
int rl_signal_unreported(uint64_t ms);

#endif
