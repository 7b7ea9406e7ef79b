/*
 * TLS for one connection, over hiredis_ssl (hiredis 1.0 or newer) and
 * OpenSSL. Without RL_TLS rl_tls_open refuses, and says why.
 */
#ifndef RL_TLS_H
#define RL_TLS_H

#include <hiredis.h>
#include <stddef.h>

typedef struct rl_tls_options {
    const char *ca;   /* file of certificates; NULL: the system's */
    const char *cert; /* of the client, with key, or NULL */
    const char *key;
    const char *server_name; /* to ask for and to verify; NULL: host */
    int verify;
} rl_tls_options;

typedef struct rl_tls rl_tls;

enum {
    RL_TLS_SUPPORTED =
#ifdef RL_TLS
        1
#else
        0
#endif
};

/*
 * Reads the files. 0, or a UV_E* code and a sentence in why. host is what the
 * certificate must name unless options say otherwise.
 */
int rl_tls_open(rl_tls **out, const rl_tls_options *options, const char *host,
                char *why, size_t size);

/*
 * Takes over a context whose socket has just connected, for the rest of the
 * context's life. 0, or a UV_E* code and why.
 */
int rl_tls_attach(rl_tls *self, redisContext *context, char *why, size_t size);

/*
 * Goes on with the handshake. 0: done. UV_EAGAIN: again when the socket can
 * do *events (UV_READABLE or UV_WRITABLE). Otherwise failed, see why.
 */
int rl_tls_handshake(rl_tls *self, int *events, char *why, size_t size);

/*
 * OpenSSL keeps errors per thread until someone asks, and takes what another
 * connection left for this one's. So: begin before each read or write, and
 * after a failure the reason, or NULL if it is not OpenSSL's.
 */
void rl_tls_begin(void);
const char *rl_tls_reason(void);

/* The context that was attached must be freed by hiredis, before or after. */
void rl_tls_close(rl_tls *self);

#endif
