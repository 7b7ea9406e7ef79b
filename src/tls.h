/*
 * TLS for one connection, over hiredis_ssl (hiredis 1.0 or newer) and
 * OpenSSL. Without RL_TLS, rl_tls_open refuses and says why.
 */
#ifndef RL_TLS_H
#define RL_TLS_H

#include <hiredis.h>
#include <stddef.h>

typedef struct rl_tls_options {
    const char *ca;   /* file of certificates; NULL: the system's */
    const char *cert; /* the client's, with key, or NULL */
    const char *key;
    const char *server_name; /* for SNI and verification; NULL: host */
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
 * Reads the files. Returns 0, or a UV_E* code with a message in why. host is
 * the name that the certificate must have unless options->server_name is set.
 */
int rl_tls_open(rl_tls **out, const rl_tls_options *options, const char *host,
                char *why, size_t size);

/*
 * Attaches TLS to a context whose socket has just connected, for the rest of
 * the context's life. Returns 0, or a UV_E* code with a message in why.
 */
int rl_tls_attach(rl_tls *self, redisContext *context, char *why, size_t size);

/*
 * Continues the handshake. 0: done. UV_EAGAIN: call again when the socket is
 * ready for *events (UV_READABLE or UV_WRITABLE). Else failed; why says why.
 */
int rl_tls_handshake(rl_tls *self, int *events, char *why, size_t size);

/*
 * OpenSSL queues errors per thread, so an error left by one connection may be
 * taken for another's. Call rl_tls_begin before each read or write. After a
 * failure rl_tls_reason is the reason, or NULL if it is not OpenSSL's.
 */
void rl_tls_begin(void);
const char *rl_tls_reason(void);

/* hiredis must free the attached context, before or after this. */
void rl_tls_close(rl_tls *self);

#endif
