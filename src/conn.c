/*
 * One connection to Redis: pipelined commands with replies and deadlines, and
 * a subscriber's messages. Of hiredis it uses the parser of replies. (hiredis'
 * synchronous context connects by itself; its asynchronous one aborts the
 * program on a reply that it cannot match, and would duplicate our queue of
 * commands and our channels.)
 *
 *     OPENING -> OPEN -> ENDED
 *
 * The end of a connection is always reported from the timer in the next turn,
 * so that no callback runs inside a call.
 *
 * Writing. A command only starts the uv_prepare_t, which writes the queue just
 * before the loop waits, without epoll_ctl(2). The socket is polled for
 * writability only while it is full. While many replies are processed, the
 * queue is written in parts, so that the server starts on the first part while
 * we still queue the last.
 *
 * The rl_conn is reference-counted. Its users are the owner, the uv handles,
 * and stack frames that may call the sink.
 */
#include "conn.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "command.h"
#include "dial.h"
#include "inflight.h"
#include "reader.h"
#include "timer.h"

enum { PART_LEAST = 2, PART_MOST = 64 }; /* commands in a write, see part() */
enum { READ_SIZE = 16 * 1024 };          /* the size of a TLS record */

#define TLS_HINT \
    "; rediss:// was tried: if this port does not use TLS, use redis://"

struct rl_conn {
    rl_owner base;
    rl_loop *loop;
    int users;
    enum { OPENING, OPEN, ENDED } state;
    int opened; /* RL_OPENED was reported, so the end is RL_LOST */
    int closed; /* by rl_conn_close: report nothing more */
    int64_t id; /* of rl_conn_open; 0 after its completion */
    int64_t lost;
    int64_t message;
    uint64_t silent;
    char *name;             /* "host:port" or the path, for messages */
    char detail[RL_DETAIL]; /* why it is not open */

    rl_dial *dial;       /* only while OPENING */
    rl_stream stream;    /* only while OPEN */
    redisReader *reader; /* only while OPEN */
    uv_poll_t poll;      /* only while OPEN */
    uv_prepare_t flush;
    rl_commands unsent;
    int queued;  /* commands since the last write */
    int is_full; /* the socket; it is polled for writability */
    int is_long; /* a reply exceeds the bounds of reader.h */

    rl_timer *timer;
    uint64_t alarm;    /* when timer fires; UINT64_MAX: never */
    int looks;         /* polls of the socket since the alarm */
    uint64_t received; /* when the last byte arrived */
    rl_inflight inflight;
    size_t subscribing; /* unconfirmed subscribes */
    uint64_t asked;     /* since when there are any */
    int subscriber;     /* a subscribe was sent */
};

/* ---- memory ---- */

static void conn_hold(rl_conn *self)
{
    self->users++;
}

static void conn_release(rl_conn *self)
{
    if (--self->users > 0)
        return;
    rl_inflight_free(&self->inflight);
    rl_commands_free(&self->unsent);
    free(self->name);
    free(self);
}

static void handle_closed(uv_handle_t *handle)
{
    conn_release(handle->data);
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

/* The messages of hiredis begin with a capital letter; ours do not. */
static void conn_say_error(rl_conn *self, const char *error)
{
    char first = error[0];

    if (first >= 'A' && first <= 'Z' && error[1] >= 'a' && error[1] <= 'z')
        conn_say(self, "%c%s", first - 'A' + 'a', error + 1);
    else
        conn_say(self, "%s", error);
}

static void conn_hang_up(rl_conn *self)
{
    rl_dial_close(self->dial);
    self->dial = NULL;
    if (self->reader == NULL)
        return;
    uv_close((uv_handle_t *)&self->poll, handle_closed);
    uv_prepare_stop(&self->flush);
    if (self->inflight.count == 0)
        rl_stream_linger(&self->stream, 1);
    rl_stream_close(&self->stream);
    redisReaderFree(self->reader);
    self->reader = NULL;
}

static void conn_end(rl_conn *self, const char *why)
{
    conn_say_error(self, why);
    self->state = ENDED;
    conn_hang_up(self);
    rl_timer_soon(self->timer);
}

static void report_failed(rl_conn *self, int64_t id, const char *code,
                          const char *detail)
{
    rl_event event = {
        .what = RL_FAILED, .id = id, .code = code, .detail = detail
    };

    if (id != 0 && !self->closed)
        rl_loop_report(self->loop, &event);
}

static void conn_report_end(rl_conn *self)
{
    rl_event lost = { .what = RL_LOST,
                      .id = self->lost,
                      .detail = self->detail };
    int64_t id = self->id;

    self->id = 0;
    report_failed(self, id, "connect", self->detail);
    if (self->opened && self->lost != 0 && !self->closed) {
        self->lost = 0;
        rl_loop_report(self->loop, &lost);
    }
    while (!self->closed && self->inflight.count != 0)
        report_failed(self, rl_inflight_pop(&self->inflight).id, "closed",
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

/* When the connection counts as dead if it stays silent. */
static uint64_t conn_silent_deadline(const rl_conn *self)
{
    uint64_t since = UINT64_MAX;

    if (self->silent == 0)
        return UINT64_MAX;
    if (self->inflight.count != 0)
        since = rl_inflight_at(&self->inflight, 0)->sent;
    if (self->subscribing != 0 && self->asked < since)
        since = self->asked;
    if (since == UINT64_MAX)
        return UINT64_MAX;
    return (self->received > since ? self->received : since) + self->silent;
}

static void conn_expire(rl_conn *self, uint64_t now)
{
    char detail[RL_DETAIL];
    rl_call call;
    size_t i = 0;

    while (!self->closed
           && (i = rl_inflight_expire(&self->inflight, i, now, &call)) != 0) {
        snprintf(detail, sizeof(detail), "%.200s: no reply within %llu ms",
                 self->name, (unsigned long long)(call.deadline - call.sent));
        report_failed(self, call.id, "timeout", detail);
    }
}

/*
 * Replies may be waiting in the socket if the process was suspended or a task
 * did not yield for long. So the loop polls the socket before an alarm takes
 * effect. Returns true once it has.
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
    /* End first: a caller that gets a timeout might retry on it. */
    if (conn_silent_deadline(self) <= now) {
        char why[64];

        snprintf(why, sizeof(why), "silent for %llu ms while commands waited",
                 (unsigned long long)self->silent);
        conn_end(self, why);
    }
    conn_expire(self, now);
    if (self->closed || self->state != OPEN)
        return;
    conn_set_alarm(self, rl_inflight_next_deadline(&self->inflight));
    conn_set_alarm(self, conn_silent_deadline(self));
}

static void on_timer(void *arg)
{
    rl_conn *self = arg;

    conn_hold(self);
    self->alarm = UINT64_MAX;
    if (self->state == OPEN)
        conn_watch(self);
    else
        conn_report_end(self);
    conn_release(self);
}

/* ---- reading ---- */

static int is_string(const redisReply *reply)
{
    return reply->type == REDIS_REPLY_STRING;
}

/* "message" or, for a sharded channel, "smessage". */
static int has_payload(const char *kind)
{
    return strcmp(kind, "message") == 0 || strcmp(kind, "smessage") == 0;
}

/* "subscribe" or "ssubscribe". */
static int is_subscribe(const char *verb)
{
    return strcmp(verb, "subscribe") == 0 || strcmp(verb, "ssubscribe") == 0;
}

/* { "message", channel, payload }, or else { kind, channel, count }. */
static int is_message(const redisReply *reply)
{
    return reply->type == REDIS_REPLY_ARRAY && reply->elements >= 3
           && is_string(reply->element[0]) && is_string(reply->element[1])
           && (reply->element[2]->type == REDIS_REPLY_INTEGER
               || has_payload(reply->element[0]->str));
}

static void take_message(rl_conn *self, const redisReply *reply)
{
    rl_event event = { .what = RL_PUSHED, .id = self->message, .reply = reply };

    if (is_subscribe(reply->element[0]->str) && self->subscribing != 0)
        self->subscribing--;
    rl_loop_report(self->loop, &event);
}

static void take_reply(rl_conn *self, const redisReply *reply)
{
    rl_event event = { .what = RL_REPLIED, .reply = reply };

    event.id = rl_inflight_pop(&self->inflight).id;
    if (self->inflight.count == 0)
        rl_loop_answered(self->loop);
    if (event.id != 0)
        rl_loop_report(self->loop, &event);
}

static void conn_take(rl_conn *self, const redisReply *reply)
{
    if (self->inflight.count != 0)
        take_reply(self, reply);
    else if (self->subscriber && is_message(reply))
        take_message(self, reply);
    else if (reply->type == REDIS_REPLY_ERROR)
        conn_end(self, reply->str);
    else
        conn_end(self, "protocol error: a reply without a request");
}

static void conn_write(rl_conn *self);

/*
 * While replies are processed, the number of commands to queue before a write:
 * a quarter of those in flight. With larger parts, the server and this process
 * would wait for each other in turn.
 */
static int part(const rl_conn *self)
{
    size_t n = self->inflight.count / 4;

    if (n < PART_LEAST)
        return PART_LEAST;
    return n < PART_MOST ? (int)n : PART_MOST;
}

/* What a task sends after one reply stays together: it is one batch. */
static void conn_parse(rl_conn *self)
{
    void *reply = NULL;

    while (redisReaderGetReply(self->reader, &reply) == REDIS_OK
           && reply != NULL) {
        conn_take(self, reply);
        freeReplyObject(reply);
        if (self->state == OPEN && self->queued >= part(self) && !self->is_full)
            conn_write(self);
        if (self->state != OPEN)
            return;
    }
    if (self->is_long || rl_reader_is_long(self->reader))
        conn_end(self, "protocol error: the server announced a reply that is "
                       "too long");
    else if (self->reader->err != 0)
        conn_end(self, self->reader->errstr);
}

static void conn_read(rl_conn *self)
{
    char bytes[READ_SIZE];
    ssize_t n = rl_stream_read(&self->stream, bytes, sizeof(bytes));

    if (n < 0) {
        conn_end(self, rl_stream_error(&self->stream, (int)n));
    } else if (n > 0) {
        redisReaderFeed(self->reader, bytes, (size_t)n); /* it keeps errors */
        conn_parse(self);
    }
}

/* ---- writing ---- */

static void on_poll(uv_poll_t *poll, int status, int events);

static void conn_poll(rl_conn *self, int is_full)
{
    int events = UV_READABLE | (is_full ? UV_WRITABLE : 0);

    self->is_full = is_full;
    (void)uv_poll_start(&self->poll, events, on_poll);
}

/* If a write fails, first reads what the server may have sent as a reason. */
static void conn_write(rl_conn *self)
{
    rl_commands *unsent = &self->unsent;
    ssize_t n = 0;

    self->queued = 0;
    if (unsent->end != 0)
        n = rl_stream_write(&self->stream, unsent->text + unsent->first,
                            unsent->end - unsent->first);
    if (n >= 0) {
        rl_commands_sent(unsent, (size_t)n);
        if (self->is_full != (unsent->end != 0))
            conn_poll(self, unsent->end != 0);
    } else if (!rl_stream_has_more(&self->stream)) {
        conn_end(self, rl_stream_error(&self->stream, (int)n));
    }
}

/* Busy-polls for a single reply, which may be quick; a batch takes longer. */
static void on_flush(uv_prepare_t *flush)
{
    rl_conn *self = flush->data;

    uv_prepare_stop(flush);
    conn_write(self);
    if (self->state == OPEN && self->inflight.count == 1)
        rl_loop_expect(self->loop);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    rl_conn *self = poll->data;

    conn_hold(self);
    if (status < 0 || (events & UV_READABLE)) { /* the read finds the error */
        self->received = uv_now(rl_loop_uv(self->loop));
        conn_read(self);
    }
    if (self->state == OPEN && (events & UV_WRITABLE))
        conn_write(self);
    if (self->state == OPEN && status < 0) /* libuv has stopped polling */
        conn_poll(self, self->is_full);
    conn_release(self);
}

/* ---- opening ---- */

static int conn_start(rl_conn *self)
{
    int err =
        uv_poll_init(rl_loop_uv(self->loop), &self->poll, self->stream.fd);

    if (err != 0)
        return err;
    self->poll.data = self;
    conn_hold(self);
    self->reader = redisReaderCreate();
    if (self->reader == NULL) {
        uv_close((uv_handle_t *)&self->poll, handle_closed);
        return UV_ENOMEM;
    }
    rl_reader_bound(self->reader, &self->is_long);
    return 0;
}

static void on_dialled(void *arg, const rl_stream *stream, const char *why)
{
    rl_conn *self = arg;
    rl_event event = { .what = RL_OPENED, .id = self->id };
    int err;

    if (stream == NULL) {
        conn_end(self, why);
        return;
    }
    rl_dial_close(self->dial);
    self->dial = NULL;
    self->stream = *stream;
    err = conn_start(self);
    if (err != 0) {
        rl_stream_close(&self->stream);
        conn_end(self, uv_strerror(err));
        return;
    }
    self->state = OPEN;
    self->opened = 1;
    self->id = 0;
    conn_say(self, "the connection is closed");
    conn_poll(self, 0);
    rl_loop_report(self->loop, &event);
}

static void conn_drop(rl_owner *base)
{
    rl_conn_close((rl_conn *)base);
}

static int conn_dial(rl_conn *self, const rl_conn_options *options, char *why)
{
    rl_tls_options tls;
    rl_dial_options way = { .host = options->host,
                            .port = options->port,
                            .path = options->path,
                            .timeout = options->timeout,
                            .fn = on_dialled,
                            .arg = self };

    if (options->tls != NULL) {
        tls = *options->tls;
        tls.hint = TLS_HINT;
        way.tls = &tls;
    }
    return rl_dial_open(&self->dial, self->loop, &way, why);
}

int rl_conn_open(rl_conn **out, rl_loop *loop, int64_t id,
                 const rl_conn_options *options, char *why)
{
    rl_conn *self = calloc(1, sizeof(*self));
    int err = UV_ENOMEM;

    snprintf(why, RL_DETAIL, "%s", uv_strerror(err));
    if (self == NULL)
        return err;
    self->base.drop = conn_drop;
    self->loop = loop;
    self->users = 2; /* the owner and flush */
    self->lost = options->lost;
    self->message = options->message;
    self->silent = options->silent;
    self->stream.fd = -1;
    self->alarm = UINT64_MAX;
    uv_prepare_init(rl_loop_uv(loop), &self->flush);
    self->flush.data = self;
    self->name = rl_dial_name(options->host, options->port, options->path);
    self->timer = rl_timer_open(loop, on_timer, self);
    if (self->name != NULL && self->timer != NULL)
        err = conn_dial(self, options, why);
    if (err != 0) {
        rl_conn_close(self);
        return err;
    }
    self->id = id;
    conn_say(self, "not connected yet");
    *out = self;
    return 0;
}

/* ---- commands ---- */

static int conn_send(rl_conn *self, int argc, const char *const *argv,
                     const size_t *length)
{
    if (rl_commands_add(&self->unsent, argc, argv, length) != 0)
        return UV_ENOMEM;
    if (!self->is_full)
        uv_prepare_start(&self->flush, on_flush);
    return 0;
}

int rl_conn_call(rl_conn *self, int64_t id, uint64_t ms, int argc,
                 const char *const *argv, const size_t *length)
{
    rl_call call = { .id = id, .deadline = UINT64_MAX };
    int err;

    if (self->state != OPEN || self->closed)
        return UV_ENOTCONN;
    if (self->subscriber || !rl_command_has_one_reply(argc, argv, length))
        return UV_EINVAL;
    call.sent = rl_loop_now(self->loop);
    if (ms != 0)
        call.deadline = call.sent + ms;
    if (rl_inflight_push(&self->inflight, call) != 0)
        return UV_ENOMEM;
    err = conn_send(self, argc, argv, length);
    if (err != 0) {
        self->inflight.count--;
        return err;
    }
    conn_set_alarm(self, call.deadline);
    if (self->silent != 0)
        conn_set_alarm(self, call.sent + self->silent);
    if (++self->queued >= PART_MOST && !self->is_full)
        conn_write(self);
    return 0;
}

int rl_conn_listen(rl_conn *self, const char *verb, const char *channel,
                   size_t length)
{
    const char *argv[2] = { verb, channel };
    size_t lengths[2] = { strlen(verb), length };
    int subscribe = is_subscribe(verb);
    int err;

    if (self->message == 0)
        return UV_EINVAL;
    if (self->state != OPEN || self->closed)
        return UV_ENOTCONN;
    if (!subscribe && !self->subscriber)
        return 0;
    err = conn_send(self, 2, argv, lengths);
    if (err != 0 || !subscribe)
        return err;
    self->subscriber = 1;
    if (self->subscribing++ == 0)
        self->asked = rl_loop_now(self->loop);
    if (self->silent != 0)
        conn_set_alarm(self, conn_silent_deadline(self));
    return 0;
}

const char *rl_conn_detail(const rl_conn *self)
{
    return self->detail;
}

size_t rl_conn_pending(const rl_conn *self)
{
    return self->inflight.count + (self->id != 0);
}

int64_t rl_conn_pending_id(const rl_conn *self, size_t i)
{
    if (i < self->inflight.count)
        return rl_inflight_at(&self->inflight, i)->id;
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
    uv_close((uv_handle_t *)&self->flush, handle_closed);
    conn_release(self);
}
