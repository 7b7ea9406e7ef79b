/*
 * How to wait for an answer that may come within microseconds, from a server
 * on this machine: asleep, or looking for it all the time. To be woken takes
 * longer than such an answer, if the machine has nothing else to do; if it is
 * busy, to look is of no use. So both are tried.
 */
#ifndef RL_LOOK_H
#define RL_LOOK_H

#include <stdint.h>

enum { RL_LOOK_NS = 50 * 1000 }; /* that a look takes at most */

typedef struct rl_look {
    uint64_t asked;
    int looks;
    int64_t usual[2]; /* nanoseconds until the answer, asleep and looking */
    unsigned chances;
} rl_look; /* all zero to begin with */

/* Something is asked now, in nanoseconds: shall it be looked for? */
int rl_look_begin(rl_look *self, uint64_t now);

/* The answer has come. */
void rl_look_end(rl_look *self, uint64_t now);

#endif
