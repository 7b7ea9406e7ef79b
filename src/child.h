/*
 * Child processes.
 */
#ifndef RL_CHILD_H
#define RL_CHILD_H

#include "loop.h"

typedef struct rl_child rl_child;

typedef struct rl_child_options {
    const char *file; /* looked for in PATH */
    char **args;      /* argv[0] and on, ended by NULL */
    char **env;       /* "K=V", ended by NULL; or NULL: ours */
    const char *cwd;  /* or NULL: ours */
    int detached;     /* a session of its own, without our other files */
    int keep;         /* a descriptor that becomes its 3, or -1 */
    /* "inherit", "null" or the path of a file, read from or appended to */
    const char *stdio[3];
} rl_child_options;

/*
 * Ends in RL_EXITED for id. 0, or a UV_E* code and a sentence in why:
 * UV_ENOENT and UV_EACCES mean that there is no such program or that it
 * cannot be executed.
 */
int rl_child_open(rl_child **out, rl_loop *loop, int64_t id,
                  const rl_child_options *options, char *why, size_t size);

int rl_child_pid(const rl_child *self);

/* UV_ESRCH once it has ended, even if the number is in use again. */
int rl_child_kill(rl_child *self, int number);

/* Forgets the process, which lives on and does not keep the loop running. */
void rl_child_close(rl_child *self);

#endif
