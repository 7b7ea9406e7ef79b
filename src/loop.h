/*
 * The libuv loop, and the sink: the one callback for all events.
 *
 * The caller gives each asynchronous operation an id. Its outcome is reported
 * as an rl_event to the sink that the loop was opened with. The sink may do
 * anything to any handle, including closing the one that reports. The sink is
 * never called from within the call that starts an operation or closes a
 * handle.
 */
#ifndef RL_LOOP_H
#define RL_LOOP_H

#include <stdint.h>
#include <uv.h>

struct redisReply;

enum { RL_DETAIL = 320 }; /* room for any error message */

enum rl_what {
    RL_FIRED,    /* a timer or a signal */
    RL_OPENED,   /* a connection is usable */
    RL_REPLIED,  /* reply: the server's, errors included */
    RL_FAILED,   /* code and detail */
    RL_LOST,     /* detail: why a connection ended by itself */
    RL_PUSHED,   /* reply: an array { kind, channel, payload } */
    RL_EXITED,   /* status and signal of a child process */
    RL_REPORTED, /* what (as status) and value (as signal) of a job */
    RL_ASKED,    /* detail: the first line of an HTTP request */
    RL_FRAME     /* bytes: a frame */
};

typedef struct rl_event {
    enum rl_what what;
    int64_t id;
    const char *code;
    const char *detail;
    const struct redisReply *reply;
    const char *bytes;
    size_t length;
    int64_t status;
    int signal;
} rl_event;

typedef void rl_sink(void *owner, const rl_event *event);

typedef struct rl_loop rl_loop;

/*
 * The first member of each struct that owns a uv handle; the handle's data
 * points to it. rl_loop_close calls drop to close the handle.
 */
typedef struct rl_owner {
    void (*drop)(struct rl_owner *self);
} rl_owner;

/* Opens a private loop, not libuv's default one. 0 or a UV_E* code. */
int rl_loop_open(rl_loop **out, rl_sink *sink, void *owner);

/* Runs until rl_loop_stop or until nothing is left to wait for. UV_EBUSY from
   within the sink. */
int rl_loop_run(rl_loop *loop);
void rl_loop_stop(rl_loop *loop);

/*
 * Drops all remaining handles and frees the loop; reports nothing. UV_EBUSY
 * from within the sink. UV_EAGAIN while a name lookup is running, which cannot
 * be interrupted: the loop stays in memory. rl_loop_lingers retries to free
 * it and returns true if it cannot: then exit() would wait for the lookup.
 */
int rl_loop_close(rl_loop *loop);
int rl_loop_lingers(void);

void rl_loop_report(rl_loop *loop, const rl_event *event);

uv_loop_t *rl_loop_uv(rl_loop *loop);

/* Milliseconds of the loop's clock, updated now, not at the last turn. */
uint64_t rl_loop_now(rl_loop *loop);

/*
 * Busy-polls the sockets for a while before the process sleeps: a reply from a
 * local server may come sooner than a sleeping process wakes up.
 * rl_loop_answered: the reply has arrived.
 */
void rl_loop_expect(rl_loop *loop);
void rl_loop_answered(rl_loop *loop);

/* Where timer.c keeps the state that the timers of this loop share. */
void **rl_loop_timers(rl_loop *loop);

#endif
