/*
 * The libuv loop, and the one door through which everything that happens is
 * told.
 *
 * Slow acts carry an id of their starter's choice. What becomes of them is
 * told as a small struct to the sink that the loop was opened with. The sink
 * may do anything to any handle, close the very one that is telling too.
 * Nothing is ever told from within the call that started an act, nor by a
 * call that closes one.
 */
#ifndef RL_LOOP_H
#define RL_LOOP_H

#include <stdint.h>
#include <uv.h>

struct redisReply;

enum { RL_DETAIL = 320 }; /* room for any sentence of these files */

enum rl_what {
    RL_FIRED,   /* a timer or a signal */
    RL_OPENED,  /* a connection is usable */
    RL_REPLIED, /* reply: what the server said, errors included */
    RL_FAILED,  /* code and detail */
    RL_LOST,    /* detail: a connection ended by itself */
    RL_PUSHED,  /* reply: an array { kind, channel, payload } */
    RL_EXITED   /* status and signal of a child */
};

typedef struct rl_event {
    enum rl_what what;
    int64_t id;
    const char *code;
    const char *detail;
    const struct redisReply *reply;
    int64_t status;
    int signal;
} rl_event;

typedef void rl_sink(void *owner, const rl_event *event);

typedef struct rl_loop rl_loop;

/*
 * Every uv handle's data points to one of these, the first member of the
 * struct that owns the handle: what rl_loop_close calls to get rid of it.
 */
typedef struct rl_owner {
    void (*drop)(struct rl_owner *self);
} rl_owner;

/* A loop of its own, not libuv's default one. 0 or a UV_E* code. */
int rl_loop_open(rl_loop **out, rl_sink *sink, void *owner);

/* Until rl_loop_stop, or until nothing is left that could happen.
   UV_EBUSY when called from within the sink. */
int rl_loop_run(rl_loop *loop);
void rl_loop_stop(rl_loop *loop);

/*
 * Drops every handle that is left and frees the loop; tells nothing. UV_EBUSY
 * from within the sink. UV_EAGAIN if a name is being resolved, which nothing
 * can interrupt: then the loop stays in memory, and rl_loop_lingers, which
 * tries again to free it, says so: exit would wait for the resolver.
 */
int rl_loop_close(rl_loop *loop);
int rl_loop_lingers(void);

void rl_loop_tell(rl_loop *loop, const rl_event *event);

uv_loop_t *rl_loop_uv(rl_loop *loop);

/* Milliseconds of the loop's clock, read now rather than at the last turn. */
uint64_t rl_loop_now(rl_loop *loop);

/*
 * An answer may come within microseconds, from a server on this machine: the
 * loop looks for it a while before it lets the process sleep, because to be
 * woken takes longer than such an answer. And: it has come.
 */
void rl_loop_expect(rl_loop *loop);
void rl_loop_answered(rl_loop *loop);

/* A place for what timer.c shares among the timers of this loop. */
void **rl_loop_timers(rl_loop *loop);

/*
 * Tells RL_FIRED with this id at each arrival of the signal. Does not keep
 * the loop running.
 */
typedef struct rl_signal rl_signal;

int rl_signal_open(rl_signal **out, rl_loop *loop, int64_t id, int number);
void rl_signal_close(rl_signal *self);

/*
 * HUP, INT, QUIT and TERM ask the program to end. fn is called in the signal
 * handler when one of them arrives. rl_signal_unheard: the number of the last
 * one if it arrived at least so many milliseconds ago and has not been told
 * yet, because the loop does not turn; else 0.
 */
void rl_signal_on_ask(void (*fn)(void));
int rl_signal_unheard(uint64_t ms);

#endif
