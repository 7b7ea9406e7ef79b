/*
 * One connection to Redis: pipelined commands with replies and deadlines, and
 * a subscriber's messages. Of hiredis it uses the parser of replies. (hiredis'
 * synchronous context connects by itself; its asynchronous one aborts the
 * program on a reply that it cannot match, and would duplicate our queue of
 * commands and our channels.)
 *
 * While many replies are processed, the queue is written in parts, so that the
 * server starts on the first part while we still queue the last.
 */
#include "conn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "inflight.h"
#include "reader.h"
#include "transport.h"

enum { PART_LEAST = 1, PART_MOST = 64 }; /* commands in a write, see part() */
enum { READ_SIZE = 16 * 1024 };          /* the size of a TLS record */

#define TLS_HINT \
    "; rediss:// was tried: if this port does not use TLS, use redis://"

struct rl_conn {
    rl_transport base;
    int64_t message;
    uint64_t silent;
    redisReader *reader;
    int is_long; /* a reply exceeds the bounds of reader.h */

    uint64_t alarm;    /* when the timer fires; UINT64_MAX: never */
    int looks;         /* polls of the socket since the alarm */
    uint64_t received; /* when the last byte arrived */
    rl_inflight inflight;
    size_t subscribing; /* unconfirmed subscribes */
    uint64_t asked;     /* since when there are any */
    int subscriber;     /* a subscribe was sent */
};

static void conn_free(rl_transport *base)
{
    rl_conn *self = (rl_conn *)base;

    rl_inflight_free(&self->inflight);
    if (self->reader != NULL)
        redisReaderFree(self->reader);
    free(self);
}

static size_t conn_pending(rl_transport *base)
{
    return ((rl_conn *)base)->inflight.count;
}

/* ---- the end ---- */

/* The messages of hiredis begin with a capital letter; ours do not. */
static void conn_end(rl_conn *self, const char *why)
{
    char text[RL_DETAIL];

    snprintf(text, sizeof(text), "%s", why);
    if (text[0] >= 'A' && text[0] <= 'Z' && text[1] >= 'a' && text[1] <= 'z')
        text[0] += 'a' - 'A';
    rl_transport_end(&self->base, text);
}

static void report_failed(rl_conn *self, int64_t id, const char *code,
                          const char *detail)
{
    rl_event event = {
        .what = RL_FAILED, .id = id, .code = code, .detail = detail
    };

    if (id != 0 && !self->base.closed)
        rl_loop_report(self->base.loop, &event);
}

static void conn_ended(rl_transport *base)
{
    rl_conn *self = (rl_conn *)base;

    while (!base->closed && self->inflight.count != 0)
        report_failed(self, rl_inflight_pop(&self->inflight).id, "closed",
                      base->detail);
}

/* ---- deadlines ---- */

static void conn_set_alarm(rl_conn *self, uint64_t when)
{
    uint64_t now;

    if (when >= self->alarm)
        return;
    self->alarm = when;
    now = rl_loop_now(self->base.loop);
    rl_timer_start(self->base.timer, when > now ? when - now : 0);
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

    while (!self->base.closed
           && (i = rl_inflight_expire(&self->inflight, i, now, &call)) != 0) {
        snprintf(detail, sizeof(detail), "%.200s: no reply within %llu ms",
                 self->base.name,
                 (unsigned long long)(call.deadline - call.sent));
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
        rl_timer_soon(self->base.timer);
        return 0;
    }
    self->looks = 0;
    return 1;
}

static void conn_watch(rl_transport *base)
{
    rl_conn *self = (rl_conn *)base;
    uint64_t now = uv_now(rl_loop_uv(base->loop));

    self->alarm = UINT64_MAX;
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
    if (!rl_transport_is_open(base))
        return;
    conn_set_alarm(self, rl_inflight_next_deadline(&self->inflight));
    conn_set_alarm(self, conn_silent_deadline(self));
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
    rl_loop_report(self->base.loop, &event);
}

static void take_reply(rl_conn *self, const redisReply *reply)
{
    rl_event event = { .what = RL_REPLIED, .reply = reply };

    event.id = rl_inflight_pop(&self->inflight).id;
    if (self->inflight.count == 0)
        rl_loop_answered(self->base.loop);
    if (event.id != 0)
        rl_loop_report(self->base.loop, &event);
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
    rl_transport *base = &self->base;
    void *reply = NULL;

    while (redisReaderGetReply(self->reader, &reply) == REDIS_OK
           && reply != NULL) {
        conn_take(self, reply);
        freeReplyObject(reply);
        if (base->state == OPEN && base->queued >= part(self) && !base->is_full)
            rl_transport_write(base);
        if (base->state != OPEN)
            return;
    }
    if (self->is_long || rl_reader_is_long(self->reader))
        conn_end(self, "protocol error: the server announced a reply that is "
                       "too long");
    else if (self->reader->err != 0)
        conn_end(self, self->reader->errstr);
}

static void conn_read(rl_transport *base)
{
    rl_conn *self = (rl_conn *)base;
    char bytes[READ_SIZE];
    ssize_t n;

    self->received = uv_now(rl_loop_uv(base->loop));
    n = rl_stream_read(&base->stream, bytes, sizeof(bytes));
    if (n < 0) {
        conn_end(self, rl_stream_error(&base->stream, (int)n));
    } else if (n > 0) {
        redisReaderFeed(self->reader, bytes, (size_t)n); /* it keeps errors */
        conn_parse(self);
    }
}

static const rl_protocol redis = {
    .tls_hint = TLS_HINT,
    .read = conn_read,
    .alarm = conn_watch,
    .ended = conn_ended,
    .free = conn_free,
    .pending = conn_pending,
};

int rl_conn_open(rl_conn **out, rl_loop *loop, int64_t id,
                 const rl_conn_options *options, char *why)
{
    rl_conn *self = rl_transport_new(sizeof(*self), &redis, loop, why);
    int err = UV_ENOMEM;

    if (self == NULL)
        return err;
    self->base.lost = options->lost;
    self->message = options->message;
    self->silent = options->silent;
    self->alarm = UINT64_MAX;
    self->reader = redisReaderCreate();
    if (self->reader != NULL) {
        rl_reader_bound(self->reader, &self->is_long);
        err = rl_transport_open(&self->base, id, &options->to, why);
    }
    if (err == 0)
        *out = self;
    else
        rl_conn_close(self);
    return err;
}

/* ---- commands ---- */

static int conn_send(rl_conn *self, int argc, const char *const *argv,
                     const size_t *length)
{
    if (rl_commands_add(&self->base.unsent, argc, argv, length) != 0)
        return UV_ENOMEM;
    rl_transport_flush(&self->base);
    return 0;
}

int rl_conn_call(rl_conn *self, int64_t id, uint64_t ms, int argc,
                 const char *const *argv, const size_t *length)
{
    rl_call call = { .id = id, .deadline = UINT64_MAX };
    int err;

    if (!rl_transport_is_open(&self->base))
        return UV_ENOTCONN;
    if (self->subscriber || !rl_command_has_one_reply(argc, argv, length))
        return UV_EINVAL;
    call.sent = rl_loop_now(self->base.loop);
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
    if (++self->base.queued >= PART_MOST && !self->base.is_full)
        rl_transport_write(&self->base);
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
    if (!rl_transport_is_open(&self->base))
        return UV_ENOTCONN;
    if (!subscribe && !self->subscriber)
        return 0;
    err = conn_send(self, 2, argv, lengths);
    if (err != 0 || !subscribe)
        return err;
    self->subscriber = 1;
    if (self->subscribing++ == 0)
        self->asked = rl_loop_now(self->base.loop);
    if (self->silent != 0)
        conn_set_alarm(self, conn_silent_deadline(self));
    return 0;
}

const char *rl_conn_detail(const rl_conn *self)
{
    return self->base.detail;
}

size_t rl_conn_pending(const rl_conn *self)
{
    return self->inflight.count + (self->base.id != 0);
}

int64_t rl_conn_pending_id(const rl_conn *self, size_t i)
{
    if (i < self->inflight.count)
        return rl_inflight_at(&self->inflight, i)->id;
    return self->base.id;
}

void rl_conn_close(rl_conn *self)
{
    rl_transport_close((rl_transport *)self);
}
