/*
 * Connecting to a server: resolve, connect, TLS handshake.
 *
 * Addresses are tried in turn; each gets an equal share of the remaining time.
 * A running name lookup cannot be interrupted: the rl_dial stays in memory
 * until it completes.
 */
#include "dial.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "timer.h"

struct rl_dial {
    rl_owner base;
    rl_loop *loop;
    rl_dial_fn *fn; /* NULL: closed */
    void *arg;
    char *path;
    rl_tls *tls; /* NULL: none, or handed over */
    const char *hint;
    uint64_t timeout;
    uint64_t give_up; /* the deadline */
    rl_timer *timer;

    uv_getaddrinfo_t lookup; /* data is NULL unless a lookup is running */
    struct addrinfo *addresses;
    struct addrinfo *next; /* address to try next */

    rl_stream stream; /* of the current attempt */
    uv_poll_t *poll;  /* of the current attempt; frees itself */
    int shaking;
    char why[RL_DETAIL]; /* not empty: the dial has failed */
};

static void dial_try(rl_dial *self);

static void dial_free(rl_dial *self)
{
    if (self->addresses != NULL)
        freeaddrinfo(self->addresses);
    rl_tls_close(self->tls);
    free(self->path);
    free(self);
}

/* ---- the end of an attempt ---- */

static void poll_free(uv_handle_t *handle)
{
    free(handle);
}

static void dial_stop_poll(rl_dial *self)
{
    if (self->poll == NULL)
        return;
    self->poll->data = NULL;
    uv_close((uv_handle_t *)self->poll, poll_free);
    self->poll = NULL;
}

static void dial_hang_up(rl_dial *self)
{
    dial_stop_poll(self);
    rl_stream_close(&self->stream);
    self->shaking = 0;
}

static void dial_fail(rl_dial *self, const char *why)
{
    snprintf(self->why, sizeof(self->why), "%s", why);
    rl_timer_soon(self->timer);
}

static void dial_refused(rl_dial *self, const char *why)
{
    dial_hang_up(self);
    if (self->next != NULL)
        dial_try(self);
    else
        dial_fail(self, why);
}

static void dial_late(rl_dial *self)
{
    char why[128];
    const char *hint = self->shaking && self->hint != NULL ? self->hint : "";

    dial_hang_up(self);
    if (self->next != NULL && self->give_up > rl_loop_now(self->loop)) {
        dial_try(self);
        return;
    }
    snprintf(why, sizeof(why), "no connection within %llu ms%s",
             (unsigned long long)self->timeout, hint);
    dial_fail(self, why);
}

static void on_timer(void *arg)
{
    rl_dial *self = arg;

    if (self->why[0] != '\0')
        self->fn(self->arg, NULL, self->why);
    else
        dial_late(self);
}

static void dial_done(rl_dial *self)
{
    rl_stream stream = { .fd = self->stream.fd, .tls = self->tls };

    self->stream.fd = -1;
    self->tls = NULL;
    dial_stop_poll(self);
    rl_timer_stop(self->timer);
    self->fn(self->arg, &stream, NULL);
}

/* ---- one attempt ---- */

static void on_poll(uv_poll_t *poll, int status, int events);

static void dial_poll(rl_dial *self, int events)
{
    int err = uv_poll_start(self->poll, events, on_poll);

    if (err != 0)
        dial_refused(self, uv_strerror(err));
}

static void dial_shake(rl_dial *self)
{
    char why[RL_DETAIL];
    int events = 0;
    int err = rl_tls_handshake(self->tls, &events, why, sizeof(why));

    if (err == 0)
        dial_done(self);
    else if (err == UV_EAGAIN)
        dial_poll(self, events);
    else
        dial_refused(self, why);
}

static int socket_error(int fd)
{
    int error = 0;
    socklen_t size = sizeof(error);

    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        return UV_EINVAL;
    return uv_translate_sys_error(error);
}

/* Probes a silent server after 15 s, then every 5 s; the third is the last. */
static void set_keep_alive(int fd)
{
    int on = 1, idle = 15, interval = 5, count = 3;

    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
#ifdef TCP_KEEPIDLE
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
#else
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPALIVE, &idle, sizeof(idle));
#endif
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

static void dial_connected(rl_dial *self)
{
    int fd = self->stream.fd;
    char why[RL_DETAIL];
    int on = 1;
    int err = socket_error(fd);

    if (err != 0) {
        dial_refused(self, uv_strerror(err));
        return;
    }
    if (self->path == NULL) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        set_keep_alive(fd);
    }
    if (self->tls == NULL) {
        dial_done(self);
        return;
    }
    self->shaking = 1;
    if (rl_tls_attach(self->tls, fd, why, sizeof(why)) != 0)
        dial_refused(self, why);
    else
        dial_shake(self);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    rl_dial *self = poll->data;

    (void)status; /* the next call finds the error */
    (void)events;
    if (self->shaking)
        dial_shake(self);
    else
        dial_connected(self);
}

static int dial_connect(rl_dial *self, const struct sockaddr *address,
                        socklen_t size)
{
    int fd = socket(address->sa_family, SOCK_STREAM, 0);

    if (fd < 0)
        return uv_translate_sys_error(errno);
    self->stream.fd = fd;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    rl_stream_linger(&self->stream, 0);
    if (connect(fd, address, size) == 0 || errno == EINPROGRESS)
        return 0;
    return uv_translate_sys_error(errno);
}

static int dial_connect_path(rl_dial *self)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    if (strlen(self->path) >= sizeof(address.sun_path))
        return UV_ENAMETOOLONG;
    strcpy(address.sun_path, self->path);
    return dial_connect(self, (const struct sockaddr *)&address,
                        sizeof(address));
}

/* Starts to connect to the path or to the next address. */
static int dial_connect_next(rl_dial *self)
{
    const struct addrinfo *address = self->next;

    if (self->path != NULL)
        return dial_connect_path(self);
    self->next = address->ai_next;
    return dial_connect(self, address->ai_addr, address->ai_addrlen);
}

static int dial_open_poll(rl_dial *self)
{
    uv_poll_t *poll = malloc(sizeof(*poll));
    int err = UV_ENOMEM;

    if (poll == NULL)
        return err;
    err = uv_poll_init(rl_loop_uv(self->loop), poll, self->stream.fd);
    if (err != 0) {
        free(poll);
        return err;
    }
    poll->data = self;
    self->poll = poll;
    return 0;
}

/* Gives this address its share of the remaining time. */
static void dial_set_share(rl_dial *self)
{
    uint64_t now = rl_loop_now(self->loop);
    uint64_t shares = 1;
    const struct addrinfo *address;

    if (self->timeout == 0)
        return;
    for (address = self->next; address != NULL; address = address->ai_next)
        shares++;
    rl_timer_start(self->timer,
                   self->give_up <= now ? 0 : (self->give_up - now) / shares);
}

static void dial_try(rl_dial *self)
{
    int err = dial_connect_next(self);

    if (err == 0)
        err = dial_open_poll(self);
    if (err != 0) {
        dial_refused(self, uv_strerror(err));
        return;
    }
    dial_set_share(self);
    dial_poll(self, UV_WRITABLE);
}

/* ---- names ---- */

static void on_lookup(uv_getaddrinfo_t *lookup, int status,
                      struct addrinfo *addresses)
{
    rl_dial *self = lookup->data;

    lookup->data = NULL;
    self->addresses = addresses;
    self->next = addresses;
    if (self->fn == NULL)
        dial_free(self);
    else if (self->why[0] != '\0')
        return;
    else if (status == UV_EAI_NONAME || status == UV_EAI_NODATA)
        dial_refused(self, "no such host");
    else if (status != 0)
        dial_refused(self, uv_strerror(status));
    else
        dial_try(self);
}

static void dial_look_up(rl_dial *self, const char *host, int port)
{
    struct addrinfo hints = { .ai_family = AF_UNSPEC,
                              .ai_socktype = SOCK_STREAM };
    char service[16];
    int err;

    snprintf(service, sizeof(service), "%d", port);
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    if (getaddrinfo(host, service, &hints, &self->addresses) == 0) {
        self->next = self->addresses;
        dial_try(self);
        return;
    }
    self->addresses = NULL;
    hints.ai_flags = AI_NUMERICSERV;
    err = uv_getaddrinfo(rl_loop_uv(self->loop), &self->lookup, on_lookup, host,
                         service, &hints);
    if (err != 0) {
        dial_refused(self, uv_strerror(err));
        return;
    }
    self->lookup.data = self;
    if (self->timeout != 0)
        rl_timer_start(self->timer, self->timeout);
}

/* ---- opening and closing ---- */

/* Nothing to do: the owner has a handle of its own and closes the dial. */
static void dial_drop(rl_owner *base)
{
    (void)base;
}

int rl_dial_open(rl_dial **out, rl_loop *loop, const rl_dial_options *options,
                 char *why)
{
    rl_dial *self = calloc(1, sizeof(*self));
    int err = UV_ENOMEM;

    snprintf(why, RL_DETAIL, "%s", uv_strerror(err));
    if (self == NULL)
        return err;
    self->base.drop = dial_drop;
    self->stream.fd = -1;
    self->loop = loop;
    self->fn = options->fn;
    self->arg = options->arg;
    self->timeout = options->timeout;
    self->give_up = rl_loop_now(loop) + options->timeout;
    if (options->path != NULL && (self->path = strdup(options->path)) == NULL)
        goto err0;
    self->timer = rl_timer_open(loop, on_timer, self);
    if (self->timer == NULL)
        goto err0;
    if (options->tls != NULL) {
        self->hint = options->tls->hint;
        err = rl_tls_open(&self->tls, options->tls, options->host, why,
                          RL_DETAIL);
        if (err != 0)
            goto err1;
    }
    *out = self;
    if (self->path != NULL)
        dial_try(self);
    else
        dial_look_up(self, options->host, options->port);
    return 0;

err1:
    rl_timer_close(self->timer);
err0:
    dial_free(self);
    return err;
}

void rl_dial_close(rl_dial *self)
{
    if (self == NULL)
        return;
    dial_hang_up(self);
    rl_timer_close(self->timer);
    self->fn = NULL;
    if (self->lookup.data != NULL)
        uv_cancel((uv_req_t *)&self->lookup);
    else
        dial_free(self);
}

char *rl_dial_name(const char *host, int port, const char *path)
{
    int bare = host != NULL && strchr(host, ':') == NULL;
    size_t size;
    char *name;

    if (path != NULL)
        return strdup(path);
    size = strlen(host) + sizeof("[]:-2147483648");
    name = malloc(size);
    if (name != NULL)
        snprintf(name, size, "%s%s%s:%d", bare ? "" : "[", host,
                 bare ? "" : "]", port);
    return name;
}
