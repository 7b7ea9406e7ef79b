/*
 * TLS: certificates, host names, the handshake, bytes. Does not depend on the
 * loop: the caller waits for the events that it returns.
 *
 * OpenSSL queues errors per thread, so an error left by one connection may be
 * mistaken for another's: each call empties the queue first.
 */
#include "tls.h"

#include "openssl.h"

#include <stdio.h>
#include <uv.h>

#ifdef RL_TLS

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct rl_tls {
    SSL_CTX *files; /* from the options' files */
    SSL *ssl;       /* of the attached socket, or NULL */
    char *name;     /* which the certificate must have, or NULL */
    const char *hint;
};

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

/* OpenSSL ignores a missing file in SSL_CERT_FILE. */
static int check_environment(char *why, size_t size)
{
    const char *name = X509_get_default_cert_file_env();
    const char *file = getenv(name);

    if (file == NULL || *file == '\0' || access(file, R_OK) == 0)
        return 0;
    snprintf(why, size, "TLS: %s: %.200s: %s", name, file, strerror(errno));
    return UV_ENOENT;
}

/* An empty SSL_CERT_FILE counts as none; OpenSSL would load no file. */
static int load_defaults(SSL_CTX *files)
{
    const char *file = getenv(X509_get_default_cert_file_env());

    if (file != NULL && *file == '\0')
        SSL_CTX_load_verify_locations(files, X509_get_default_cert_file(),
                                      NULL);
    return SSL_CTX_set_default_verify_paths(files);
}

static int load_authorities(SSL_CTX *files, const char *ca, char *why,
                            size_t size)
{
    int err = ca == NULL ? check_environment(why, size) : 0;
    int ok;

    if (err != 0)
        return err;
    if (ca == NULL)
        ok = load_defaults(files);
    else
        ok = SSL_CTX_load_verify_locations(files, ca, NULL);
    return ok == 1 ? 0 : say(why, size, ca ? ca : "the system's certificates");
}

static int load_files(SSL_CTX *files, const rl_tls_options *options, char *why,
                      size_t size)
{
    int err = 0;

    SSL_CTX_set_min_proto_version(files, TLS1_2_VERSION);
    SSL_CTX_set_verify(
        files, options->verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
    if (options->verify || options->ca != NULL)
        err = load_authorities(files, options->ca, why, size);
    if (err != 0)
        return err;
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
    rl_tls *self;
    int err = rl_openssl_load(why, size);

    if (err != 0)
        return err;
    err = UV_ENOMEM;
    snprintf(why, size, "%s", uv_strerror(err));
    ERR_clear_error();
    self = calloc(1, sizeof(*self));
    if (self == NULL)
        return err;
    self->hint = options->hint != NULL ? options->hint : "";
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

/* Is this how OpenSSL reads bytes that are not TLS, or their end? */
static int is_plain(void)
{
    unsigned long error = ERR_peek_error();
    int reason = ERR_GET_REASON(error);

    return ERR_GET_LIB(error) == ERR_LIB_SSL
           && (reason == SSL_R_WRONG_VERSION_NUMBER
#ifdef SSL_R_UNEXPECTED_EOF_WHILE_READING /* since OpenSSL 3 */
               || reason == SSL_R_UNEXPECTED_EOF_WHILE_READING
#endif
               || reason == SSL_R_PACKET_LENGTH_TOO_LONG);
}

/* Says why the handshake failed. */
static int say_handshake(const rl_tls *self, char *why, size_t size)
{
    long result = SSL_get_verify_result(self->ssl);

    if (result != X509_V_OK) {
        snprintf(why, size, "TLS: %s", X509_verify_cert_error_string(result));
        return UV_EPROTO;
    }
    if (is_plain())
        snprintf(why, size, "TLS: handshake failed: %s%s", rl_tls_reason(),
                 self->hint);
    else if (rl_tls_reason() != NULL)
        return say(why, size, "handshake failed");
    else
        snprintf(why, size, "TLS: %s%s",
                 errno != 0 ? strerror(errno)
                            : "the server closed the connection",
                 self->hint);
    return UV_EPROTO;
}

int rl_tls_attach(rl_tls *self, int fd, char *why, size_t size)
{
    ERR_clear_error();
    SSL_free(self->ssl);
    self->ssl = SSL_new(self->files);
    if (self->ssl == NULL || !set_name(self->ssl, self->name)
        || SSL_set_fd(self->ssl, fd) != 1)
        return say(why, size, "no session");
    SSL_set_connect_state(self->ssl);
    SSL_set_mode(self->ssl, SSL_MODE_ENABLE_PARTIAL_WRITE
                                | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    return 0;
}

int rl_tls_handshake(rl_tls *self, int *events, char *why, size_t size)
{
    int status;

    ERR_clear_error();
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

static int most(size_t size)
{
    return size < INT_MAX ? (int)size : INT_MAX;
}

/* A read that has to write first, or the reverse, is tried again when the
   socket is next ready for its own direction. */
static ssize_t result_of(const rl_tls *self, int status)
{
    if (status > 0)
        return status;
    switch (SSL_get_error(self->ssl, status)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return 0;
    case SSL_ERROR_ZERO_RETURN:
        return UV_EOF;
    case SSL_ERROR_SYSCALL:
        return errno != 0 ? uv_translate_sys_error(errno) : UV_EOF;
    default:
        return UV_EPROTO;
    }
}

ssize_t rl_tls_read(rl_tls *self, void *to, size_t size)
{
    ERR_clear_error();
    errno = 0;
    return result_of(self, SSL_read(self->ssl, to, most(size)));
}

ssize_t rl_tls_write(rl_tls *self, const void *from, size_t size)
{
    ERR_clear_error();
    errno = 0;
    return result_of(self, SSL_write(self->ssl, from, most(size)));
}

void rl_tls_close(rl_tls *self)
{
    if (self == NULL)
        return;
    SSL_free(self->ssl);
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
    return rl_openssl_load(why, size);
}

int rl_tls_attach(rl_tls *self, int fd, char *why, size_t size)
{
    (void)self;
    (void)fd;
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

ssize_t rl_tls_read(rl_tls *self, void *to, size_t size)
{
    (void)self;
    (void)to;
    (void)size;
    return UV_ENOTSUP;
}

ssize_t rl_tls_write(rl_tls *self, const void *from, size_t size)
{
    (void)self;
    (void)from;
    (void)size;
    return UV_ENOTSUP;
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
