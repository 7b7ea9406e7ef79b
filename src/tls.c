/*
 * TLS: certificates, host names and the handshake. Knows no loop: it says
 * what it waits for.
 *
 * The SSL object is made here and given to hiredis, which reads and writes
 * through it. The handshake is run from here to its end, before hiredis may
 * touch the connection: so its failure still has OpenSSL's reason.
 */
#include "tls.h"

#include <stdio.h>
#include <uv.h>

#ifndef RL_TLS

int rl_tls_open(rl_tls **out, const rl_tls_options *options, const char *host,
                char *why, size_t size)
{
    (void)options;
    (void)host;
    *out = NULL;
    snprintf(why, size,
             "rediss:// needs hiredis 1.0 or newer, this is %d.%d.%d",
             HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
    return UV_ENOTSUP;
}

int rl_tls_attach(rl_tls *tls, redisContext *context, char *why, size_t size)
{
    (void)tls;
    (void)context;
    snprintf(why, size, "no TLS");
    return UV_ENOTSUP;
}

int rl_tls_handshake(rl_tls *tls, int *events, char *why, size_t size)
{
    (void)tls;
    *events = 0;
    snprintf(why, size, "no TLS");
    return UV_ENOTSUP;
}

void rl_tls_close(rl_tls *tls)
{
    (void)tls;
}

#endif
