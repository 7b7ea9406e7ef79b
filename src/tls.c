/*
 * TLS: certificates, host names and the handshake. Does not depend on the
 * loop: it tells the caller which events to wait for.
 *
 * The SSL object is made here and passed to hiredis, which reads and writes
 * through it. The handshake completes here, before hiredis touches the
 * connection, so that a failure still has OpenSSL's reason.
 */
#include "tls.h"

#include <stdio.h>
#include <uv.h>

#ifdef RL_TLS

#include <errno.h>
#include <hiredis_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>

struct rl_tls {
    SSL_CTX *files; /* from the options' files */
    SSL *ssl;       /* of the attached context */
    char *name;     /* that the certificate must have, or NULL */
};

void rl_tls_begin(void)
{
    ERR_clear_error();
}

const char *rl_tls_reason(void)
{
    unsigned long error = ERR_peek_error();

    if (ERR_GET_LIB(error) == ERR_LIB_SYS)
        return strerror(ERR_GET_REASON(error));
    return error == 0 ? NULL : ERR_reason_error_string(error);
}

static int say(char *why, size_t size, const char *what)
{
    const char *reason = rl_tls_reason();

    snprintf(why, size, "TLS: %.200s%s%s", what, reason ? ": " : "",
             reason ? reason : "");
    return UV_EPROTO;
}

static int load_authorities(SSL_CTX *files, const char *ca)
{
    if (ca == NULL)
        return SSL_CTX_set_default_verify_paths(files);
    return SSL_CTX_load_verify_locations(files, ca, NULL);
}

static int load_files(SSL_CTX *files, const rl_tls_options *options, char *why,
                      size_t size)
{
    SSL_CTX_set_min_proto_version(files, TLS1_2_VERSION);
    SSL_CTX_set_verify(
        files, options->verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
    if ((options->verify || options->ca != NULL)
        && load_authorities(files, options->ca) != 1)
        return say(why, size,
                   options->ca ? options->ca : "the system's certificates");
    if (options->cert == NULL && options->key == NULL)
        return 0;
    if (options->cert == NULL || options->key == NULL)
        return say(why, size, "cert and key are needed together");
    if (SSL_CTX_use_certificate_chain_file(files, options->cert) != 1)
        return say(why, size, options->cert);
    if (SSL_CTX_use_PrivateKey_file(files, options->key, SSL_FILETYPE_PEM) != 1)
        return say(why, size, options->key);
    return 0;
}

static int copy_name(rl_tls *self, const rl_tls_options *options,
                     const char *host, char *why, size_t size)
{
    const char *name = options->server_name ? options->server_name : host;

    if (name == NULL && options->verify)
        return say(why, size, "server_name is needed on a unix socket");
    if (name == NULL)
        return 0;
    self->name = strdup(name);
    return self->name != NULL ? 0 : UV_ENOMEM;
}

int rl_tls_open(rl_tls **out, const rl_tls_options *options, const char *host,
                char *why, size_t size)
{
    rl_tls *self = calloc(1, sizeof(*self));
    int err = UV_ENOMEM;

    snprintf(why, size, "%s", uv_strerror(err));
    rl_tls_begin();
    if (self == NULL)
        return err;
    self->files = SSL_CTX_new(TLS_client_method());
    if (self->files == NULL)
        goto err0;
    err = load_files(self->files, options, why, size);
    if (err == 0)
        err = copy_name(self, options, host, why, size);
    if (err != 0)
        goto err0;
    *out = self;
    return 0;

err0:
    rl_tls_close(self);
    return err;
}

/* An IP address is verified as such and never sent as SNI. */
static int set_name(SSL *ssl, const char *name)
{
    X509_VERIFY_PARAM *param = SSL_get0_param(ssl);

    if (name == NULL || X509_VERIFY_PARAM_set1_ip_asc(param, name) == 1)
        return 1;
    ERR_clear_error();
    X509_VERIFY_PARAM_set_hostflags(param,
                                    X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return X509_VERIFY_PARAM_set1_host(param, name, 0) == 1
           && SSL_set_tlsext_host_name(ssl, name) == 1;
}

/* Says why the handshake failed. */
static int say_handshake(const rl_tls *self, char *why, size_t size)
{
    long result = SSL_get_verify_result(self->ssl);

    if (result != X509_V_OK) {
        snprintf(why, size, "TLS: %s", X509_verify_cert_error_string(result));
        return UV_EPROTO;
    }
    if (rl_tls_reason() != NULL)
        return say(why, size, "handshake failed");
    return say(why, size,
               errno != 0 ? strerror(errno)
                          : "the server closed the connection");
}

int rl_tls_attach(rl_tls *self, redisContext *context, char *why, size_t size)
{
    rl_tls_begin();
    self->ssl = SSL_new(self->files);
    if (self->ssl == NULL)
        return say(why, size, "no session");
    if (set_name(self->ssl, self->name)
        && redisInitiateSSL(context, self->ssl) == REDIS_OK)
        return 0;
    say_handshake(self, why, size);
    SSL_free(self->ssl);
    self->ssl = NULL;
    return UV_EPROTO;
}

int rl_tls_handshake(rl_tls *self, int *events, char *why, size_t size)
{
    int status;

    rl_tls_begin();
    errno = 0;
    status = SSL_do_handshake(self->ssl);
    if (status == 1)
        return 0;
    switch (SSL_get_error(self->ssl, status)) {
    case SSL_ERROR_WANT_READ:
        *events = UV_READABLE;
        return UV_EAGAIN;
    case SSL_ERROR_WANT_WRITE:
        *events = UV_WRITABLE;
        return UV_EAGAIN;
    default:
        return say_handshake(self, why, size);
    }
}

void rl_tls_close(rl_tls *self)
{
    if (self == NULL)
        return;
    SSL_CTX_free(self->files);
    free(self->name);
    free(self);
}

#else

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

int rl_tls_attach(rl_tls *self, redisContext *context, char *why, size_t size)
{
    (void)self;
    (void)context;
    snprintf(why, size, "no TLS");
    return UV_ENOTSUP;
}

int rl_tls_handshake(rl_tls *self, int *events, char *why, size_t size)
{
    (void)self;
    *events = 0;
    snprintf(why, size, "no TLS");
    return UV_ENOTSUP;
}

void rl_tls_begin(void)
{
}

const char *rl_tls_reason(void)
{
    return NULL;
}

void rl_tls_close(rl_tls *self)
{
    (void)self;
}

#endif
