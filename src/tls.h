/*
 * TLS for one connection, over OpenSSL. Without it (RL_TLS), rl_tls_open
 * refuses and says why.
 */
#ifndef RL_TLS_H
#define RL_TLS_H

#include <stddef.h>
#include <sys/types.h>

typedef struct rl_tls_options {
    const char *ca;   /* file of certificates; NULL: the system's */
    const char *cert; /* the client's, with key, or NULL */
    const char *key;
    const char *server_name; /* for SNI and verification; NULL: host */
    int verify;
    const char *hint; /* ends the message if the server may not use TLS; a
                         constant, or NULL */
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
 * Begins a session on a socket that has just connected, and ends the previous
 * one. Does not own fd. Returns 0, or a UV_E* code with a message in why.
 */
int rl_tls_attach(rl_tls *self, int fd, char *why, size_t size);

/*
 * Continues the handshake. 0: done. UV_EAGAIN: call again when the socket is
 * ready for *events (UV_READABLE or UV_WRITABLE). Else failed; why says why.
 */
int rl_tls_handshake(rl_tls *self, int *events, char *why, size_t size);

/* After the handshake: as in stream.h. */
ssize_t rl_tls_read(rl_tls *self, void *to, size_t size);
ssize_t rl_tls_write(rl_tls *self, const void *from, size_t size);

/* Why the last call of this thread failed, or NULL if OpenSSL does not say. */
const char *rl_tls_reason(void);

void rl_tls_close(rl_tls *self);

#endif
