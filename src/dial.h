/*
 * Connecting to a server: name, addresses, TLS.
 */
#ifndef RL_DIAL_H
#define RL_DIAL_H

#include "loop.h"
#include "stream.h"

typedef struct rl_dial rl_dial;

/* Receives a connected stream, which the callee copies and then owns; or NULL
   and why it failed. */
typedef void rl_dial_fn(void *arg, const rl_stream *stream, const char *why);

typedef struct rl_dial_options {
    const char *host; /* name or address, with port; or NULL and a path */
    int port;
    const char *path;          /* a unix socket */
    uint64_t timeout;          /* ms for the whole attempt; 0: none */
    const rl_tls_options *tls; /* NULL: no TLS */
    rl_dial_fn *fn;
    void *arg;
} rl_dial_options;

/*
 * Starts to connect. Calls fn once, in a later turn of the loop, unless the
 * dial is closed first; fn must close the dial. Returns 0, or a UV_E* code
 * with a message in why (RL_DETAIL bytes). Keeps no pointers from options but
 * arg and tls->hint.
 */
int rl_dial_open(rl_dial **out, rl_loop *loop, const rl_dial_options *options,
                 char *why);
void rl_dial_close(rl_dial *self);

/* "host:port" or the path, for messages. The caller frees it. NULL: out of
   memory. */
char *rl_dial_name(const char *host, int port, const char *path);

#endif
