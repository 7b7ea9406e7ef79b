/*
 * A connection of bytes.
 *
 * The end is always reported from the timer in the next turn, so that no
 * callback runs inside a call.
 *
 * Sending only starts the uv_prepare_t, which writes the queue just before the
 * loop waits, without epoll_ctl(2). The socket is polled for writability only
 * while it is full.
 */
#include "transport.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- memory ---- */

static void hold(rl_transport *self)
{
    self->users++;
}

static void release(rl_transport *self)
{
    if (--self->users > 0)
        return;
    rl_commands_free(&self->unsent);
    free(self->name);
    self->protocol->free(self);
}

static void handle_closed(uv_handle_t *handle)
{
    release(handle->data);
}

/* ---- the end ---- */

static void say(rl_transport *self, const char *what)
{
    snprintf(self->detail, sizeof(self->detail), "%.200s: %s", self->name,
             what);
}

static size_t pending(rl_transport *self)
{
    return self->protocol->pending == NULL ? SIZE_MAX
                                           : self->protocol->pending(self);
}

static void hang_up(rl_transport *self)
{
    rl_dial_close(self->dial);
    self->dial = NULL;
    if (self->stream.fd < 0)
        return;
    uv_close((uv_handle_t *)&self->poll, handle_closed);
    uv_prepare_stop(&self->flush);
    if (pending(self) == 0)
        rl_stream_linger(&self->stream, 1);
    rl_stream_close(&self->stream);
}

void rl_transport_end(rl_transport *self, const char *why)
{
    say(self, why);
    self->state = ENDED;
    hang_up(self);
    rl_timer_soon(self->timer);
}

static void report_end(rl_transport *self)
{
    rl_event event = { .what = RL_LOST,
                       .id = self->lost,
                       .detail = self->detail };

    if (self->id != 0) {
        event.what = RL_FAILED;
        event.code = "connect";
        event.id = self->id;
    }
    self->id = 0;
    self->lost = 0;
    if (event.id != 0 && !self->closed)
        rl_loop_report(self->loop, &event);
    if (self->protocol->ended != NULL)
        self->protocol->ended(self);
}

static void on_timer(void *arg)
{
    rl_transport *self = arg;

    hold(self);
    if (self->state != OPEN)
        report_end(self);
    else if (self->protocol->alarm != NULL)
        self->protocol->alarm(self);
    release(self);
}

/* ---- reading and writing ---- */

static void on_poll(uv_poll_t *handle, int status, int events);

static void poll_for(rl_transport *self, int is_full)
{
    int events = UV_READABLE | (is_full ? UV_WRITABLE : 0);

    self->is_full = is_full;
    (void)uv_poll_start(&self->poll, events, on_poll);
}

/* If a write fails, first reads what the server may have sent as a reason. */
void rl_transport_write(rl_transport *self)
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
            poll_for(self, unsent->end != 0);
    } else if (!rl_stream_has_more(&self->stream)) {
        rl_transport_end(self, rl_stream_error(&self->stream, (int)n));
    }
}

/* Busy-polls for a single reply, which may be quick; a batch takes longer. */
static void on_flush(uv_prepare_t *flush)
{
    rl_transport *self = flush->data;

    uv_prepare_stop(flush);
    rl_transport_write(self);
    if (self->state == OPEN && pending(self) == 1)
        rl_loop_expect(self->loop);
}

void rl_transport_flush(rl_transport *self)
{
    if (!self->is_full)
        uv_prepare_start(&self->flush, on_flush);
}

static void on_poll(uv_poll_t *handle, int status, int events)
{
    rl_transport *self = handle->data;

    hold(self);
    if (status < 0 || (events & UV_READABLE)) /* the read finds the error */
        self->protocol->read(self);
    if (self->state == OPEN && (events & UV_WRITABLE))
        rl_transport_write(self);
    if (self->state == OPEN && status < 0) /* libuv has stopped polling */
        poll_for(self, self->is_full);
    release(self);
}

/* ---- opening ---- */

static void on_dialled(void *arg, const rl_stream *stream, const char *why)
{
    rl_transport *self = arg;
    rl_event event = { .what = RL_OPENED, .id = self->id };
    int err;

    if (stream == NULL) {
        rl_transport_end(self, why);
        return;
    }
    rl_dial_close(self->dial);
    self->dial = NULL;
    self->stream = *stream;
    err = uv_poll_init(rl_loop_uv(self->loop), &self->poll, self->stream.fd);
    if (err != 0) {
        rl_stream_close(&self->stream);
        rl_transport_end(self, uv_strerror(err));
        return;
    }
    self->poll.data = self;
    hold(self);
    self->state = OPEN;
    self->id = 0;
    say(self, "the connection is closed");
    poll_for(self, 0);
    rl_loop_report(self->loop, &event);
}

static void drop(rl_owner *base)
{
    rl_transport_close((rl_transport *)base);
}

void *rl_transport_new(size_t size, const rl_protocol *protocol, rl_loop *loop,
                       char *why)
{
    rl_transport *self = calloc(1, size);

    snprintf(why, RL_DETAIL, "%s", uv_strerror(UV_ENOMEM));
    if (self == NULL)
        return NULL;
    self->base.drop = drop;
    self->protocol = protocol;
    self->loop = loop;
    self->users = 2; /* the owner and flush */
    self->stream.fd = -1;
    uv_prepare_init(rl_loop_uv(loop), &self->flush);
    self->flush.data = self;
    return self;
}

static int dial(rl_transport *self, const rl_dial_options *options, char *why)
{
    rl_dial_options way = *options;
    rl_tls_options tls;

    way.fn = on_dialled;
    way.arg = self;
    if (options->tls != NULL) {
        tls = *options->tls;
        tls.hint = self->protocol->tls_hint;
        way.tls = &tls;
    }
    return rl_dial_open(&self->dial, self->loop, &way, why);
}

int rl_transport_open(rl_transport *self, int64_t id,
                      const rl_dial_options *options, char *why)
{
    int err = UV_ENOMEM;

    self->name = rl_dial_name(options->host, options->port, options->path);
    self->timer = rl_timer_open(self->loop, on_timer, self);
    if (self->name != NULL && self->timer != NULL)
        err = dial(self, options, why);
    if (err != 0)
        return err;
    self->id = id;
    say(self, "not connected yet");
    return 0;
}

int rl_transport_is_open(const rl_transport *self)
{
    return self->state == OPEN && !self->closed;
}

void rl_transport_close(rl_transport *self)
{
    if (self == NULL || self->closed)
        return;
    self->closed = 1;
    self->state = ENDED;
    hang_up(self);
    rl_timer_close(self->timer);
    uv_close((uv_handle_t *)&self->flush, handle_closed);
    release(self);
}
