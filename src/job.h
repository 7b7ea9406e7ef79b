/*
 * A job: a command that runs under a guard (guard.h).
 */
#ifndef RL_JOB_H
#define RL_JOB_H

#include "guard.h"
#include "loop.h"

typedef struct rl_job rl_job;

typedef struct rl_job_options {
    char **args;
    char **changes; /* "K=V" or, to unset it, "K"; terminated by NULL */
    rl_guard_plan plan;
} rl_job_options;

/*
 * Starts a job. The guard's reports are RL_REPORTED for id, with what and value
 * in `status` and `signal`; the last one is RL_GONE. Its value is -1 if guard
 * and warden were both killed: then the group of a command that has not ended
 * is killed, but other descendants may be alive. Returns 0, or a UV_E* code.
 */
int rl_job_open(rl_job **out, rl_loop *loop, int64_t id,
                rl_job_options *options);

/* Sends an order to the guard; has no effect after the guard has exited. */
void rl_job_order(rl_job *self, const rl_order *order);

/* Closes it. The guard still enforces its last deadlines on the command. */
void rl_job_close(rl_job *self);

#endif
