/*
 * Child processes.
 */
#ifndef RL_CHILD_H
#define RL_CHILD_H

#include "loop.h"

typedef struct rl_child rl_child;

typedef struct rl_child_options {
    const char *file; /* searched in PATH */
    char **args;      /* argv, terminated by NULL */
    char **env;       /* "K=V", terminated by NULL; NULL: inherited */
    const char *cwd;  /* NULL: inherited */
    int detached;     /* in its own session, without our other descriptors */
    int keep;         /* a descriptor to pass on as 3, or -1 */
    /* "inherit", "null" or the path of a file to read or append to */
    const char *stdio[3];
} rl_child_options;

/*
 * Starts a process; its end is RL_EXITED for id. Returns 0, or a UV_E* code
 * with a message in why. UV_ENOENT and UV_EACCES: the program does not exist
 * or is not executable.
 */
int rl_child_open(rl_child **out, rl_loop *loop, int64_t id,
                  const rl_child_options *options, char *why, size_t size);

int rl_child_pid(const rl_child *self);

/* UV_ESRCH once it has ended, even if its pid is in use again. */
int rl_child_kill(rl_child *self, int number);

/* Detaches from the process: it runs on and does not keep the loop running. */
void rl_child_close(rl_child *self);

#endif
