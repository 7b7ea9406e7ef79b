/*
 * One connection to Redis, for commands or for pub/sub messages.
 */
#ifndef RL_CONN_H
#define RL_CONN_H

#include "dial.h"

typedef struct rl_conn rl_conn;

typedef struct rl_conn_options {
    rl_dial_options to; /* without fn and arg */
    uint64_t silent;    /* ms, see rl_conn_open; 0: never */
    int64_t lost;       /* id of RL_LOST, or 0 */
    int64_t message;    /* id of RL_PUSHED, or 0: not a subscriber */
} rl_conn_options;

/*
 * Starts to connect: resolves the name, tries its addresses in turn, does the
 * TLS handshake. Completes with RL_OPENED or RL_FAILED "connect" for id, in a
 * later turn of the loop. Returns 0, or a UV_E* code with a message in why
 * (RL_DETAIL bytes). Keeps no pointers from options.
 *
 * If an open connection ends by itself, reports RL_LOST for options->lost
 * once, then RL_FAILED "closed" for each command in flight. A connection that
 * receives no byte for silent ms while a command is in flight counts as ended.
 */
int rl_conn_open(rl_conn **out, rl_loop *loop, int64_t id,
                 const rl_conn_options *options, char *why);

/*
 * Queues a command; those queued in a turn of the loop share a few writes.
 * Completes with RL_REPLIED, or RL_FAILED "timeout" (after ms; 0: never) or
 * "closed", for id. Returns 0; UV_ENOTCONN if not open (rl_conn_detail says
 * why); UV_EINVAL for a command that would break the order of replies (see
 * command.h) or that follows a subscribe; UV_ENOMEM.
 */
int rl_conn_call(rl_conn *self, int64_t id, uint64_t ms, int argc,
                 const char *const *argv, const size_t *length);

/*
 * Sends "subscribe", "unsubscribe", "ssubscribe" or "sunsubscribe" for one
 * channel. All results are RL_PUSHED; an error reply ends the connection.
 * Errors as in rl_conn_call; UV_EINVAL: not a subscriber.
 */
int rl_conn_listen(rl_conn *self, const char *verb, const char *channel,
                   size_t length);

const char *rl_conn_detail(const rl_conn *self);

/* The ids that would never complete if the connection were closed now: their
   count, and the i-th (0: a call that has timed out). While the connection is
   opening, the one id is rl_conn_open's. */
size_t rl_conn_pending(const rl_conn *self);
int64_t rl_conn_pending_id(const rl_conn *self, size_t i);

/* Reports nothing. The memory is freed with its last user. */
void rl_conn_close(rl_conn *self);

#endif
