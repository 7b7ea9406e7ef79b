/*
 * One connection to Redis, for commands or for pub/sub messages.
 */
#ifndef RL_CONN_H
#define RL_CONN_H

#include "loop.h"
#include "tls.h"

typedef struct rl_conn rl_conn;

typedef struct rl_conn_options {
    const char *host; /* name or address, with port; or else */
    int port;
    const char *path;          /* a unix socket */
    uint64_t timeout;          /* ms until RL_OPENED at the latest; 0: none */
    uint64_t silent;           /* see below; 0: never */
    int64_t lost;              /* id of RL_LOST, or 0 */
    int64_t message;           /* id of RL_PUSHED, or 0: not a subscriber */
    const rl_tls_options *tls; /* NULL: without */
} rl_conn_options;

/*
 * Begins to connect: resolves, tries the addresses in turn, shakes hands. It
 * ends in RL_OPENED or in RL_FAILED "connect" for id, at a later turn. 0, or
 * a UV_E* code and a sentence in why (RL_DETAIL bytes). Keeps no pointer of
 * options.
 *
 * An open connection that ends by itself tells RL_LOST for options->lost
 * once, then RL_FAILED "closed" for each command that waits. It also counts
 * as ended when a command has waited for silent ms in which not one byte
 * came.
 */
int rl_conn_open(rl_conn **out, rl_loop *loop, int64_t id,
                 const rl_conn_options *options, char *why);

/*
 * Queues a command; all that is queued in a turn of the loop goes out in one
 * write. Ends in RL_REPLIED, or RL_FAILED "timeout" (after ms, unless 0) or
 * "closed", for id. 0; UV_ENOTCONN: not open, rl_conn_detail says why;
 * UV_EINVAL: a command that would break the order of replies, see command.h,
 * or that comes after a subscribe; UV_ENOMEM.
 */
int rl_conn_call(rl_conn *self, int64_t id, uint64_t ms, int argc,
                 const char *const *argv, const size_t *length);

/*
 * "subscribe" or "unsubscribe" for one channel. All that comes of it is
 * RL_PUSHED. As rl_conn_call; UV_EINVAL: not a subscriber.
 */
int rl_conn_listen(rl_conn *self, const char *verb, const char *channel,
                   size_t length);

const char *rl_conn_detail(const rl_conn *self);

/* The ids that a close now would leave untold: how many, and the i-th call's
   (0: it has timed out). The id of rl_conn_open while it is pending. */
size_t rl_conn_pending(const rl_conn *self);
int64_t rl_conn_pending_id(const rl_conn *self, size_t i);

/* Silent. The memory goes when nothing uses it any more. */
void rl_conn_close(rl_conn *self);

#endif
