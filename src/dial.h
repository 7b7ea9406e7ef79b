/*
 * The way to a server: names, addresses, TLS.
 */
#ifndef RL_DIAL_H
#define RL_DIAL_H

#include <hiredis.h>

#include "loop.h"
#include "tls.h"

typedef struct rl_dial rl_dial;

/* A connected, non-blocking context that is the callee's from now on; or NULL,
   and why there is none. */
typedef void rl_dial_fn(void *arg, redisContext *redis, const char *why);

typedef struct rl_dial_options {
    const char *host; /* name or address, with port; or else */
    int port;
    const char *path;          /* a unix socket */
    uint64_t timeout;          /* ms for all of it; 0: none */
    const rl_tls_options *tls; /* NULL: without */
    rl_dial_fn *fn;
    void *arg;
} rl_dial_options;

/*
 * Begins to connect. fn is called once, at a later turn of the loop, unless
 * the dial is closed before; it must close the dial. 0, or a UV_E* code and a
 * sentence in why (RL_DETAIL bytes). Keeps no pointer of options but arg.
 */
int rl_dial_open(rl_dial **out, rl_loop *loop, const rl_dial_options *options,
                 char *why);
void rl_dial_close(rl_dial *self);

/*
 * What the kernel does with unsent bytes when the socket is closed, also by
 * the death of the process. It drops them and resets the connection, so that
 * no request is delivered after we have given it up. For an orderly close it
 * sends them. A socket begins with the former.
 */
void rl_dial_linger(int fd, int is_orderly);

#endif
