/*
 * One connection to Redis over hiredis' asynchronous context, with an
 * adapter of its own to libuv.
 *
 *     RESOLVING -> CONNECTING -> SHAKING (TLS) -> OPEN -> ENDED
 *
 * An address that fails makes the next one be tried; each gets its share of
 * the time that is left. The end, whatever it is, is told from the timer at
 * the next turn, so that nothing is told from within hiredis but replies.
 *
 * Writing. hiredis asks for a write after each command. That only starts the
 * uv_prepare_t, which writes all that is queued just before the loop waits:
 * one write(2) per turn, no epoll_ctl(2). Only if the socket is full is it
 * polled for room. A long batch goes out in parts, so that the server works
 * on the first while we still queue the last.
 *
 * Who frees what. hiredis frees its context, on errors at once, out of our
 * sight: the cleanup hook takes note and closes the uv handles, which are
 * allocated one by one and free themselves. The rl_conn goes with its last
 * user: the owner, a frame below that may call the sink, a name lookup.
 */
#include "conn.h"

#include <async.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "calls.h"
#include "command.h"
#include "guard.h"
#include "timer.h"

enum state { RESOLVING, CONNECTING, SHAKING, OPEN, ENDED };

enum {
    PART = 16, /* commands that are not held back longer */
    PATH_LIMIT = sizeof(((struct sockaddr_un *)0)->sun_path) - 1
};

struct rl_conn {
    rl_owner base;
    rl_loop *loop;
    int users;
    enum state state;
    int opened; /* RL_OPENED was told: an end is a loss */
    int closed; /* by rl_conn_close: tell nothing more */
    int64_t id; /* of the opening, 0 when it was told */
    int64_t lost;
    int64_t message;
    uint64_t timeout;
    uint64_t silent;
    uint64_t give_up; /* when opening must have ended */
    char *name;       /* "host:port" or the path, for people */
    char *path;
    rl_tls *tls;
    char detail[RL_DETAIL]; /* why it is not open */

    uv_getaddrinfo_t lookup;
    struct addrinfo *addresses;
    struct addrinfo *next; /* the address to try next */

    redisAsyncContext *redis;
    rl_guard guard;
    uv_poll_t *poll; /* one per attempt, beside redis */
    uv_prepare_t *flush;
    int events;  /* what poll waits for */
    int writing; /* within redisAsyncHandleWrite */
    int unsent;  /* commands queued since the last write */

    rl_timer *timer;
    uint64_t alarm; /* what timer is set to; UINT64_MAX: nothing */
    int looks;      /* at the socket, since the alarm */
    uint64_t heard; /* when a byte came last */
    rl_calls calls;
    size_t subscribing; /* subscribes that are not confirmed yet, */
    uint64_t asked;     /* and since when there are some */
    int subscriber;     /* the first subscribe was sent */

    rl_command command; /* the latest */
};

static void conn_try(rl_conn *self);

/* ---- memory ---- */

static void conn_free(rl_conn *self)
{
    if (self->addresses != NULL)
        freeaddrinfo(self->addresses);
    rl_calls_free(&self->calls);
    rl_tls_close(self->tls);
    rl_command_free(&self->command);
    free(self->path);
    free(self->name);
    free(self);
}

static void conn_hold(rl_conn *self)
{
    self->users++;
}

static void conn_release(rl_conn *self)
{
    if (--self->users == 0)
        conn_free(self);
}

static void handle_free(uv_handle_t *handle)
{
    free(handle);
}

static void handle_close(uv_handle_t *handle)
{
    if (handle != NULL) {
        handle->data = NULL;
        uv_close(handle, handle_free);
    }
}

/* ---- the end ---- */

static void conn_say(rl_conn *self, const char *format, ...)
{
    va_list args;
    int length =
        snprintf(self->detail, sizeof(self->detail), "%.200s: ", self->name);
    size_t used = length < 0 ? 0 : (size_t)length;

    va_start(args, format);
    vsnprintf(self->detail + used, sizeof(self->detail) - used, format, args);
    va_end(args);
}

/* hiredis' sentences begin with a capital letter; ours do not. */
static void conn_say_error(rl_conn *self, const char *error)
{
    char first = error[0];

    if (first >= 'A' && first <= 'Z' && error[1] >= 'a' && error[1] <= 'z')
        conn_say(self, "%c%s", first - 'A' + 'a', error + 1);
    else
        conn_say(self, "%s", error);
}

/* Lets hiredis go, and with it by the hook the socket and its poll. */
static void conn_hang_up(rl_conn *self)
{
    if (self->redis != NULL)
        redisAsyncFree(self->redis);
}

static void conn_end(rl_conn *self)
{
    self->state = ENDED;
    conn_hang_up(self);
    if (!self->closed)
        rl_timer_soon(self->timer);
}

static void tell_failed(rl_conn *self, int64_t id, const char *code,
                        const char *detail)
{
    rl_event event = {
        .what = RL_FAILED, .id = id, .code = code, .detail = detail
    };

    if (id != 0 && !self->closed)
        rl_loop_tell(self->loop, &event);
}

static void conn_tell_end(rl_conn *self)
{
    rl_event lost = { .what = RL_LOST,
                      .id = self->lost,
                      .detail = self->detail };
    int64_t id = self->id;

    self->id = 0;
    tell_failed(self, id, "connect", self->detail);
    if (self->opened && self->lost != 0 && !self->closed) {
        self->lost = 0;
        rl_loop_tell(self->loop, &lost);
    }
    while (!self->closed && self->calls.count != 0)
        tell_failed(self, rl_calls_pop(&self->calls).id, "closed",
                    self->detail);
}

/* ---- deadlines ---- */

static void conn_set_alarm(rl_conn *self, uint64_t when)
{
    uint64_t now;

    if (when >= self->alarm)
        return;
    self->alarm = when;
    now = rl_loop_now(self->loop);
    rl_timer_start(self->timer, when > now ? when - now : 0);
}

/* When the connection counts as dead, should it stay silent. */
static uint64_t conn_silent_due(const rl_conn *self)
{
    uint64_t since = UINT64_MAX;

    if (self->silent == 0)
        return UINT64_MAX;
    if (self->calls.count != 0)
        since = rl_calls_at(&self->calls, 0)->sent;
    if (self->subscribing != 0 && self->asked < since)
        since = self->asked;
    if (since == UINT64_MAX)
        return UINT64_MAX;
    return (self->heard > since ? self->heard : since) + self->silent;
}

static void conn_expire(rl_conn *self, uint64_t now)
{
    char detail[RL_DETAIL];
    rl_call call;
    size_t i = 0;

    while (!self->closed
           && (i = rl_calls_expire(&self->calls, i, now, &call)) != 0) {
        snprintf(detail, sizeof(detail), "%.200s: no reply within %llu ms",
                 self->name, (unsigned long long)(call.due - call.sent));
        tell_failed(self, call.id, "timeout", detail);
    }
}

/*
 * The process may have been stopped for a while, or a task may have computed
 * for long: then the answers wait in the socket, which is looked at between
 * two turns. True if that has been done.
 */
static int conn_has_looked(rl_conn *self)
{
    if (self->looks++ < 2) {
        self->alarm = 0;
        rl_timer_soon(self->timer);
        return 0;
    }
    self->looks = 0;
    return 1;
}

static void conn_watch(rl_conn *self)
{
    uint64_t now = uv_now(rl_loop_uv(self->loop));

    if (!conn_has_looked(self))
        return;
    conn_expire(self, now);
    if (self->closed || self->state != OPEN)
        return;
    if (conn_silent_due(self) <= now) {
        conn_say(self, "silent for %llu ms while commands waited",
                 (unsigned long long)self->silent);
        conn_end(self);
        return;
    }
    conn_set_alarm(self, rl_calls_due(&self->calls));
    conn_set_alarm(self, conn_silent_due(self));
}

static void conn_late(rl_conn *self)
{
    conn_hang_up(self);
    if (self->next != NULL && self->give_up > rl_loop_now(self->loop)) {
        conn_try(self);
        return;
    }
    conn_say(self, "no connection within %llu ms",
             (unsigned long long)self->timeout);
    conn_end(self);
}

static void on_timer(void *arg)
{
    rl_conn *self = arg;

    conn_hold(self);
    self->alarm = UINT64_MAX;
    switch (self->state) {
    case OPEN:
        conn_watch(self);
        break;
    case ENDED:
        conn_tell_end(self);
        break;
    default:
        conn_late(self);
    }
    conn_release(self);
}

/* ---- the adapter: hiredis asks, libuv does ---- */

static void on_poll(uv_poll_t *poll, int status, int events);

static void conn_poll(rl_conn *self, int events)
{
    int err = 0;

    if (self->poll == NULL || events == self->events)
        return;
    self->events = events;
    if (events != 0)
        err = uv_poll_start(self->poll, events, on_poll);
    else
        uv_poll_stop(self->poll);
    (void)err; /* fails only for a socket being closed */
}

static void on_flush(uv_prepare_t *flush);

static void hook_add_read(void *arg)
{
    rl_conn *self = arg;

    if (self->state == OPEN)
        conn_poll(self, self->events | UV_READABLE);
}

static void hook_del_read(void *arg)
{
    rl_conn *self = arg;

    if (self->state == OPEN)
        conn_poll(self, self->events & ~UV_READABLE);
}

static void hook_add_write(void *arg)
{
    rl_conn *self = arg;

    if (self->state != OPEN || (self->events & UV_WRITABLE) != 0)
        return;
    if (self->writing)
        conn_poll(self, self->events | UV_WRITABLE);
    else
        uv_prepare_start(self->flush, on_flush);
}

static void hook_del_write(void *arg)
{
    rl_conn *self = arg;

    if (self->state == OPEN)
        conn_poll(self, self->events & ~UV_WRITABLE);
}

/* hiredis has only errno's words for what OpenSSL reports. */
static const char *conn_reason(const rl_conn *self)
{
    const redisContext *context = &self->redis->c;
    const char *reason = self->tls ? rl_tls_reason() : NULL;

    if (self->guard.refused)
        return "protocol error: a reply that nobody asked for";
    if (context->err != 0 && reason != NULL)
        return reason;
    return context->err != 0 ? context->errstr : "connection closed";
}

static void hook_cleanup(void *arg)
{
    rl_conn *self = arg;

    if (self->state == OPEN)
        conn_say_error(self, conn_reason(self));
    self->redis = NULL;
    handle_close((uv_handle_t *)self->poll);
    self->poll = NULL;
    self->events = 0;
    if (self->flush != NULL)
        uv_prepare_stop(self->flush);
}

static int conn_adopt(rl_conn *self, redisAsyncContext *redis)
{
    uv_poll_t *poll = malloc(sizeof(*poll));
    int err = UV_ENOMEM;

    if (poll == NULL)
        return err;
    err = uv_poll_init(rl_loop_uv(self->loop), poll, (int)redis->c.fd);
    if (err != 0) {
        free(poll);
        return err;
    }
    poll->data = self;
    self->poll = poll;
    self->events = 0;
    self->redis = redis;
    rl_guard_attach(&self->guard, redis->c.reader, &self->calls.count,
                    &self->subscriber);
    redis->ev.data = self;
    redis->ev.addRead = hook_add_read;
    redis->ev.delRead = hook_del_read;
    redis->ev.addWrite = hook_add_write;
    redis->ev.delWrite = hook_del_write;
    redis->ev.cleanup = hook_cleanup;
    return 0;
}

/* hiredis finds an error at the write that follows. */
static void conn_write_early(rl_conn *self)
{
    int done;

    self->unsent = 0;
    if (self->tls == NULL)
        (void)redisBufferWrite(&self->redis->c, &done);
}

static void conn_write(rl_conn *self)
{
    if (self->tls != NULL)
        rl_tls_begin();
    self->unsent = 0;
    self->writing = 1;
    redisAsyncHandleWrite(self->redis);
    self->writing = 0;
}

/* hiredis has freed its context while we believed to be open. */
static void conn_check(rl_conn *self)
{
    if (self->state == OPEN && self->redis == NULL)
        conn_end(self);
}

static void on_flush(uv_prepare_t *flush)
{
    rl_conn *self = flush->data;

    uv_prepare_stop(flush);
    conn_write(self);
    conn_check(self);
}

/* ---- opening ---- */

static void conn_opened(rl_conn *self)
{
    rl_event event = { .what = RL_OPENED, .id = self->id };

    self->state = OPEN;
    self->opened = 1;
    self->id = 0;
    self->alarm = UINT64_MAX;
    rl_timer_stop(self->timer);
    conn_say(self, "the connection is closed");
    conn_poll(self, UV_READABLE);
    rl_loop_tell(self->loop, &event);
}

static void conn_refused(rl_conn *self, const char *reason)
{
    conn_hang_up(self);
    conn_say_error(self, reason);
    if (self->next != NULL)
        conn_try(self);
    else
        conn_end(self);
}

static void conn_shake(rl_conn *self)
{
    char why[RL_DETAIL];
    int events = 0;
    int err = rl_tls_handshake(self->tls, &events, why, sizeof(why));

    if (err == 0)
        conn_opened(self);
    else if (err == UV_EAGAIN)
        conn_poll(self, events);
    else
        conn_refused(self, why);
}

static int socket_error(int fd)
{
    int error = 0;
    socklen_t size = sizeof(error);

    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        return UV_EINVAL;
    return uv_translate_sys_error(error);
}

static void conn_connected(rl_conn *self)
{
    redisContext *context = &self->redis->c;
    char why[RL_DETAIL];
    int on = 1;
    int err = socket_error((int)context->fd);

    if (err != 0) {
        conn_refused(self, uv_strerror(err));
        return;
    }
    conn_write(self);
    if (self->redis == NULL) {
        conn_refused(self, "connection failed");
        return;
    }
    if (self->path == NULL) {
        setsockopt((int)context->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        redisEnableKeepAlive(context);
    }
    if (self->tls == NULL) {
        conn_opened(self);
        return;
    }
    self->state = SHAKING;
    if (rl_tls_attach(self->tls, context, why, sizeof(why)) != 0)
        conn_refused(self, why);
    else
        conn_shake(self);
}

static void conn_transfer(rl_conn *self, int events)
{
    if (events & UV_READABLE) {
        self->heard = uv_now(rl_loop_uv(self->loop));
        if (self->tls != NULL)
            rl_tls_begin();
        redisAsyncHandleRead(self->redis);
    }
    if ((events & UV_WRITABLE) && self->redis != NULL)
        conn_write(self);
    conn_check(self);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    rl_conn *self = poll->data;

    conn_hold(self);
    if (status < 0) { /* libuv has stopped it; the read tells why */
        self->events = 0;
        events = UV_READABLE;
    }
    if (self->state == CONNECTING) {
        conn_connected(self);
    } else if (self->state == SHAKING) {
        conn_shake(self);
    } else {
        conn_transfer(self, events);
    }
    conn_release(self);
}

static redisAsyncContext *conn_dial(rl_conn *self)
{
    struct addrinfo *address = self->next;
    char host[NI_MAXHOST], port[NI_MAXSERV];

    if (self->path != NULL)
        return redisAsyncConnectUnix(self->path);
    self->next = address->ai_next;
    if (getnameinfo(address->ai_addr, address->ai_addrlen, host, sizeof(host),
                    port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV)
        != 0)
        return NULL;
    return redisAsyncConnect(host, atoi(port));
}

/* This address' share of the time that is left. */
static void conn_set_share(rl_conn *self)
{
    uint64_t now = rl_loop_now(self->loop);
    uint64_t shares = 1;
    const struct addrinfo *address;

    if (self->timeout == 0)
        return;
    for (address = self->next; address != NULL; address = address->ai_next)
        shares++;
    self->alarm = UINT64_MAX;
    conn_set_alarm(self, self->give_up <= now
                             ? now
                             : now + (self->give_up - now) / shares);
}

static void conn_try(rl_conn *self)
{
    redisAsyncContext *redis;
    int err;

    self->state = CONNECTING;
    if (self->path != NULL && strlen(self->path) > PATH_LIMIT) {
        conn_refused(self, uv_strerror(UV_ENAMETOOLONG));
        return;
    }
    redis = conn_dial(self);
    if (redis == NULL) {
        conn_refused(self, uv_strerror(UV_ENOMEM));
        return;
    }
    if (redis->err != 0) {
        char error[sizeof(redis->c.errstr)];

        memcpy(error, redis->c.errstr, sizeof(error));
        redisAsyncFree(redis);
        conn_refused(self, error);
        return;
    }
    fcntl((int)redis->c.fd, F_SETFD, FD_CLOEXEC);
    err = conn_adopt(self, redis);
    if (err != 0) {
        redisAsyncFree(redis);
        conn_refused(self, uv_strerror(err));
        return;
    }
    conn_set_share(self);
    conn_poll(self, UV_WRITABLE);
}

static void on_lookup(uv_getaddrinfo_t *lookup, int status,
                      struct addrinfo *addresses)
{
    rl_conn *self = lookup->data;

    lookup->data = NULL;
    self->addresses = addresses;
    self->next = addresses;
    if (self->state == RESOLVING && !self->closed) {
        if (status == UV_EAI_NONAME || status == UV_EAI_NODATA)
            conn_refused(self, "no such host");
        else if (status != 0)
            conn_refused(self, uv_strerror(status));
        else
            conn_try(self);
    }
    conn_release(self);
}

static void conn_look_up(rl_conn *self, const char *host, int port)
{
    struct addrinfo hints = { .ai_family = AF_UNSPEC,
                              .ai_socktype = SOCK_STREAM };
    char service[16];
    int err;

    snprintf(service, sizeof(service), "%d", port);
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    if (getaddrinfo(host, service, &hints, &self->addresses) == 0) {
        self->next = self->addresses;
        conn_try(self);
        return;
    }
    self->addresses = NULL;
    hints.ai_flags = AI_NUMERICSERV;
    err = uv_getaddrinfo(rl_loop_uv(self->loop), &self->lookup, on_lookup, host,
                         service, &hints);
    if (err != 0) {
        conn_refused(self, uv_strerror(err));
        return;
    }
    self->lookup.data = self;
    conn_hold(self);
}

static char *name_of(const rl_conn_options *options)
{
    const char *host = options->host;
    int bare = host != NULL && strchr(host, ':') == NULL;
    size_t size;
    char *name;

    if (options->path != NULL)
        return strdup(options->path);
    size = strlen(host) + sizeof("[]:-2147483648");
    name = malloc(size);
    if (name != NULL)
        snprintf(name, size, "%s%s%s:%d", bare ? "" : "[", host,
                 bare ? "" : "]", options->port);
    return name;
}

static void conn_drop(rl_owner *base)
{
    rl_conn_close((rl_conn *)base);
}

static int conn_init(rl_conn *self, const rl_conn_options *options)
{
    int err;

    self->base.drop = conn_drop;
    self->alarm = UINT64_MAX;
    self->lost = options->lost;
    self->message = options->message;
    self->timeout = options->timeout;
    self->silent = options->silent;
    self->name = name_of(options);
    if (options->path != NULL)
        self->path = strdup(options->path);
    self->timer = rl_timer_open(self->loop, on_timer, self);
    self->flush = malloc(sizeof(*self->flush));
    if (self->name == NULL || self->timer == NULL || self->flush == NULL
        || (options->path != NULL && self->path == NULL)) {
        free(self->flush);
        self->flush = NULL;
        return UV_ENOMEM;
    }
    err = uv_prepare_init(rl_loop_uv(self->loop), self->flush);
    if (err != 0) {
        free(self->flush);
        self->flush = NULL;
        return err;
    }
    self->flush->data = self;
    return 0;
}

int rl_conn_open(rl_conn **out, rl_loop *loop, int64_t id,
                 const rl_conn_options *options, char *why)
{
    rl_conn *self = calloc(1, sizeof(*self));
    int err = UV_ENOMEM;

    if (self == NULL)
        goto err0;
    self->users = 1;
    self->loop = loop;
    err = conn_init(self, options);
    if (err != 0)
        goto err1;
    if (options->tls != NULL) {
        err = rl_tls_open(&self->tls, options->tls, options->host, why,
                          RL_DETAIL);
        if (err != 0)
            goto err2;
    }
    self->id = id;
    conn_say(self, "not connected yet");
    self->give_up = rl_loop_now(loop) + self->timeout;
    if (self->timeout != 0)
        conn_set_alarm(self, self->give_up);
    if (self->path != NULL)
        conn_try(self);
    else
        conn_look_up(self, options->host, options->port);
    *out = self;
    return 0;

err1:
    snprintf(why, RL_DETAIL, "%s", uv_strerror(err));
err2:
    rl_conn_close(self);
    return err;
err0:
    snprintf(why, RL_DETAIL, "%s", uv_strerror(err));
    return err;
}

/* ---- commands ---- */

static void on_reply(redisAsyncContext *redis, void *reply, void *arg)
{
    rl_conn *self = arg;
    rl_event event = { .what = RL_REPLIED, .reply = reply };

    (void)redis;
    if (reply == NULL || self->state != OPEN)
        return;
    event.id = rl_calls_pop(&self->calls).id;
    if (event.id != 0)
        rl_loop_tell(self->loop, &event);
}

/*
 * After the last unsubscribe hiredis takes the connection for an ordinary one
 * again, refuses further unsubscribes and aborts on their confirmations.
 */
static void stay_subscriber(redisAsyncContext *redis)
{
    redis->c.flags |= REDIS_SUBSCRIBED;
}

static void on_push(redisAsyncContext *redis, void *arg_reply, void *arg)
{
    rl_conn *self = arg;
    const redisReply *reply = arg_reply;
    rl_event event = { .what = RL_PUSHED, .id = self->message, .reply = reply };

    if (reply == NULL || self->state != OPEN)
        return;
    stay_subscriber(redis);
    if (reply->elements < 3 || reply->element[0]->str == NULL)
        return;
    if (strcasecmp(reply->element[0]->str, "subscribe") == 0
        && self->subscribing != 0)
        self->subscribing--;
    rl_loop_tell(self->loop, &event);
}

static int conn_send(rl_conn *self, redisCallbackFn *fn, int argc,
                     const char *const *argv, const size_t *length)
{
    int status;

    if (rl_command_set(&self->command, argc, argv, length) != 0)
        return UV_ENOMEM;
    status = redisAsyncFormattedCommand(
        self->redis, fn, self, self->command.text, self->command.length);
    return status == REDIS_OK ? 0 : UV_ENOTCONN;
}

int rl_conn_call(rl_conn *self, int64_t id, uint64_t ms, int argc,
                 const char *const *argv, const size_t *length)
{
    rl_call call = { .id = id, .due = UINT64_MAX };
    int err;

    if (self->state != OPEN || self->closed)
        return UV_ENOTCONN;
    if (self->subscriber || !rl_command_has_one_reply(argc, argv, length))
        return UV_EINVAL;
    call.sent = rl_loop_now(self->loop);
    if (ms != 0)
        call.due = call.sent + ms;
    if (rl_calls_push(&self->calls, call) != 0)
        return UV_ENOMEM;
    err = conn_send(self, on_reply, argc, argv, length);
    if (err != 0) {
        self->calls.count--;
        return err;
    }
    if (++self->unsent >= PART)
        conn_write_early(self);
    conn_set_alarm(self, call.due);
    if (self->silent != 0)
        conn_set_alarm(self, call.sent + self->silent);
    return 0;
}

int rl_conn_listen(rl_conn *self, const char *verb, const char *channel,
                   size_t length)
{
    const char *argv[2] = { verb, channel };
    size_t lengths[2] = { strlen(verb), length };
    int subscribe = strcmp(verb, "subscribe") == 0;
    int err;

    if (self->message == 0)
        return UV_EINVAL;
    if (self->state != OPEN || self->closed)
        return UV_ENOTCONN;
    if (!subscribe && !self->subscriber)
        return 0;
    if (self->subscriber)
        stay_subscriber(self->redis);
    err = conn_send(self, on_push, 2, argv, lengths);
    if (err != 0 || !subscribe)
        return err;
    self->subscriber = 1;
    if (self->subscribing++ == 0)
        self->asked = rl_loop_now(self->loop);
    if (self->silent != 0)
        conn_set_alarm(self, conn_silent_due(self));
    return 0;
}

const char *rl_conn_detail(const rl_conn *self)
{
    return self->detail;
}

size_t rl_conn_pending(const rl_conn *self)
{
    return self->calls.count + (self->id != 0);
}

int64_t rl_conn_pending_id(const rl_conn *self, size_t i)
{
    if (i < self->calls.count)
        return rl_calls_at(&self->calls, i)->id;
    return self->id;
}

void rl_conn_close(rl_conn *self)
{
    if (self == NULL || self->closed)
        return;
    self->closed = 1;
    self->state = ENDED;
    conn_hang_up(self);
    rl_timer_close(self->timer);
    self->timer = NULL;
    handle_close((uv_handle_t *)self->flush);
    self->flush = NULL;
    if (self->lookup.data != NULL)
        uv_cancel((uv_req_t *)&self->lookup);
    conn_release(self);
}
