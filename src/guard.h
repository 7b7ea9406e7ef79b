/*
 * The guard: a process that runs a command for the program, and kills it at a
 * deadline even if the program was stopped or killed. Its parent is the warden
 * (warden.h).
 */
#ifndef RL_GUARD_H
#define RL_GUARD_H

#include <signal.h>
#include <stdint.h>
#include <stdnoreturn.h>
#include <sys/types.h>

/* Orders: messages from the program to the guard, over a socket. */
enum rl_order_what {
    RL_LIMIT,   /* new deadlines */
    RL_SIGNAL,  /* a signal for the command's group; KILL: for all processes */
    RL_CONTINUE /* the program has resumed after a stop */
};

typedef struct rl_order {
    int32_t what;
    int32_t number;
    int64_t soft; /* nanoseconds by rl_clock_now: when to send soft_signal */
    int64_t hard; /* and when to kill */
} rl_order;

/* Reports: messages from the guard to the program. */
enum rl_report_what {
    RL_STARTED,  /* value: pid */
    RL_UNABLE,   /* it could not be executed; value: errno */
    RL_STOPPED,  /* the program should stop, too; value: the signal */
    RL_ENDED,    /* value: the command's status, from waitpid */
    RL_SOFTENED, /* the soft deadline has passed */
    RL_KILLED,   /* the hard deadline has passed */
    RL_GONE      /* no descendant is left; value: 1 if the guard was killed */
};

typedef struct rl_report {
    int32_t what;
    int32_t value;
} rl_report;

typedef struct rl_guard_plan {
    char **args;
    char **env;
    int socket;
    int foreground;  /* keep the command in the program's process group */
    int no_input;    /* standard input is /dev/null */
    int soft_signal; /* 0: none */
    int64_t soft;
    int64_t hard;
    const char *farewell; /* printed on standard error before a kill */
    pid_t group;          /* of the program */
    sigset_t mask;        /* the command's signal mask */
    int default_pipe;     /* the command gets the default action of SIGPIPE */
} rl_guard_plan;

/* The body of the forked process, in which all signals are blocked. */
noreturn void rl_guard_run(const rl_guard_plan *plan);

#endif
