/*
 * A connection of frames.
 *
 *     OPENING -> OPEN -> ENDED
 *
 * The end of a connection is always reported from the timer in the next turn,
 * so that no callback runs inside a call. Sending only starts the uv_prepare_t,
 * which writes the queue just before the loop waits. The socket is polled for
 * writability only while it is full.
 *
 * The input grows with the bytes that have arrived, not with the length that
 * the server announces. The rl_frames is reference-counted. Its users are the
 * owner, the uv handles, and stack frames that may call the sink.
 */
#include "frames.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "dial.h"
#include "timer.h"

enum { HEAD = 4 };               /* the bytes of a length */
enum { READ_SIZE = 16 * 1024 };  /* the size of a TLS record */
enum { KEPT_INPUT = 64 * 1024 }; /* bytes kept between frames */

#define TLS_HINT "; zks:// was tried: if this port does not use TLS, use zk://"

struct rl_frames {
    rl_owner base;
    rl_loop *loop;
    int users;
    enum { OPENING, OPEN, ENDED } state;
    int opened; /* RL_OPENED was reported, so the end is RL_LOST */
    int closed; /* by rl_frames_close: report nothing more */
    int64_t id; /* of rl_frames_open; 0 after its completion */
    int64_t lost;
    int64_t frame;
    size_t limit;
    char *name;             /* "host:port", for messages */
    char detail[RL_DETAIL]; /* why it is not open */

    rl_dial *dial;    /* only while OPENING */
    rl_stream stream; /* only while OPEN */
    uv_poll_t poll;   /* only while OPEN */
    uv_prepare_t flush;
    rl_timer *timer;
    rl_commands unsent;
    int is_full; /* the socket; it is polled for writability */
    char *input; /* bytes that are not yet reported */
    size_t end;
    size_t size;
};

/* ---- memory ---- */

static void frames_hold(rl_frames *self)
{
    self->users++;
}

static void frames_release(rl_frames *self)
{
    if (--self->users > 0)
        return;
    rl_commands_free(&self->unsent);
    free(self->input);
    free(self->name);
    free(self);
}

static void handle_closed(uv_handle_t *handle)
{
    frames_release(handle->data);
}

/* ---- the end ---- */

static void frames_say(rl_frames *self, const char *format, ...)
{
    va_list args;
    int length =
        snprintf(self->detail, sizeof(self->detail), "%.200s: ", self->name);
    size_t used = length < 0 ? 0 : (size_t)length;

    va_start(args, format);
    vsnprintf(self->detail + used, sizeof(self->detail) - used, format, args);
    va_end(args);
}

static void frames_hang_up(rl_frames *self)
{
    rl_dial_close(self->dial);
    self->dial = NULL;
    if (self->stream.fd < 0)
        return;
    uv_close((uv_handle_t *)&self->poll, handle_closed);
    uv_prepare_stop(&self->flush);
    rl_stream_close(&self->stream);
}

static void frames_end(rl_frames *self, const char *why)
{
    frames_say(self, "%s", why);
    self->state = ENDED;
    frames_hang_up(self);
    rl_timer_soon(self->timer);
}

static void report_end(rl_frames *self)
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
    if (event.id != 0 && !self->closed
        && (self->opened || event.what == RL_FAILED))
        rl_loop_report(self->loop, &event);
}

static void on_timer(void *arg)
{
    rl_frames *self = arg;

    frames_hold(self);
    if (self->state == ENDED)
        report_end(self);
    frames_release(self);
}

/* ---- reading ---- */

static size_t length_at(const char *bytes)
{
    const unsigned char *at = (const unsigned char *)bytes;

    return (size_t)at[0] << 24 | (size_t)at[1] << 16 | (size_t)at[2] << 8
           | (size_t)at[3];
}

/* Makes room for another read. */
static int input_reserve(rl_frames *self)
{
    size_t size = self->size == 0 ? READ_SIZE : self->size;
    char *input;

    while (size - self->end < READ_SIZE)
        size *= 2;
    if (size == self->size)
        return 0;
    input = realloc(self->input, size);
    if (input == NULL)
        return -1;
    self->input = input;
    self->size = size;
    return 0;
}

static void input_drop(rl_frames *self, size_t count)
{
    self->end -= count;
    if (self->end > 0 && count > 0)
        memmove(self->input, self->input + count, self->end);
    if (self->end == 0 && self->size > KEPT_INPUT) {
        free(self->input);
        self->input = NULL;
        self->size = 0;
    }
}

/* Reports the frames that have arrived. The sink may close the connection, but
   the input stays until the last user has gone. */
static void frames_parse(rl_frames *self)
{
    rl_event event = { .what = RL_FRAME, .id = self->frame };
    size_t first = 0, length = 0;

    while (self->state == OPEN && self->end - first >= HEAD) {
        length = length_at(self->input + first);
        if (length > self->limit || self->end - first - HEAD < length)
            break;
        event.bytes = self->input + first + HEAD;
        event.length = length;
        first += HEAD + length;
        rl_loop_report(self->loop, &event);
        length = 0;
    }
    input_drop(self, first);
    if (self->state == OPEN && length > self->limit)
        frames_end(self, "protocol error: the server announced a frame that "
                         "is too long (does this port speak ZooKeeper?)");
}

static void frames_read(rl_frames *self)
{
    ssize_t n = UV_ENOMEM;

    if (input_reserve(self) == 0)
        n = rl_stream_read(&self->stream, self->input + self->end, READ_SIZE);
    if (n < 0) {
        frames_end(self, rl_stream_error(&self->stream, (int)n));
    } else if (n > 0) {
        self->end += (size_t)n;
        frames_parse(self);
    }
}

/* ---- writing ---- */

static void on_poll(uv_poll_t *poll, int status, int events);

static void frames_poll(rl_frames *self, int is_full)
{
    int events = UV_READABLE | (is_full ? UV_WRITABLE : 0);

    self->is_full = is_full;
    (void)uv_poll_start(&self->poll, events, on_poll);
}

static void frames_write(rl_frames *self)
{
    rl_commands *unsent = &self->unsent;
    ssize_t n = 0;

    if (unsent->end != 0)
        n = rl_stream_write(&self->stream, unsent->text + unsent->first,
                            unsent->end - unsent->first);
    if (n >= 0) {
        rl_commands_sent(unsent, (size_t)n);
        if (self->is_full != (unsent->end != 0))
            frames_poll(self, unsent->end != 0);
    } else if (!rl_stream_has_more(&self->stream)) {
        frames_end(self, rl_stream_error(&self->stream, (int)n));
    }
}

static void on_flush(uv_prepare_t *flush)
{
    uv_prepare_stop(flush);
    frames_write(flush->data);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    rl_frames *self = poll->data;

    frames_hold(self);
    if (status < 0 || (events & UV_READABLE)) /* the read finds the error */
        frames_read(self);
    if (self->state == OPEN && (events & UV_WRITABLE))
        frames_write(self);
    if (self->state == OPEN && status < 0) /* libuv has stopped polling */
        frames_poll(self, self->is_full);
    frames_release(self);
}

/* ---- opening ---- */

static void on_dialled(void *arg, const rl_stream *stream, const char *why)
{
    rl_frames *self = arg;
    rl_event event = { .what = RL_OPENED, .id = self->id };
    int err;

    if (stream == NULL) {
        frames_end(self, why);
        return;
    }
    rl_dial_close(self->dial);
    self->dial = NULL;
    self->stream = *stream;
    err = uv_poll_init(rl_loop_uv(self->loop), &self->poll, self->stream.fd);
    if (err != 0) {
        rl_stream_close(&self->stream);
        frames_end(self, uv_strerror(err));
        return;
    }
    self->poll.data = self;
    frames_hold(self);
    self->state = OPEN;
    self->opened = 1;
    self->id = 0;
    frames_say(self, "the connection is closed");
    frames_poll(self, 0);
    rl_loop_report(self->loop, &event);
}

static int frames_dial(rl_frames *self, const rl_frames_options *options,
                       char *why)
{
    rl_tls_options tls;
    rl_dial_options way = { .host = options->host,
                            .port = options->port,
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

static void frames_drop(rl_owner *base)
{
    rl_frames_close((rl_frames *)base);
}

int rl_frames_open(rl_frames **out, rl_loop *loop, int64_t id,
                   const rl_frames_options *options, char *why)
{
    rl_frames *self = calloc(1, sizeof(*self));
    int err = UV_ENOMEM;

    snprintf(why, RL_DETAIL, "%s", uv_strerror(err));
    if (self == NULL)
        return err;
    self->base.drop = frames_drop;
    self->loop = loop;
    self->users = 2; /* the owner and flush */
    self->lost = options->lost;
    self->frame = options->frame;
    self->limit = options->limit;
    self->stream.fd = -1;
    uv_prepare_init(rl_loop_uv(loop), &self->flush);
    self->flush.data = self;
    self->name = rl_dial_name(options->host, options->port, NULL);
    self->timer = rl_timer_open(loop, on_timer, self);
    if (self->name != NULL && self->timer != NULL)
        err = frames_dial(self, options, why);
    if (err != 0) {
        rl_frames_close(self);
        return err;
    }
    self->id = id;
    frames_say(self, "not connected yet");
    *out = self;
    return 0;
}

/* ---- use ---- */

int rl_frames_send(rl_frames *self, const char *bytes, size_t length)
{
    if (self->state != OPEN || self->closed)
        return UV_ENOTCONN;
    if (rl_commands_add_frame(&self->unsent, bytes, length) != 0)
        return UV_ENOMEM;
    if (!self->is_full)
        uv_prepare_start(&self->flush, on_flush);
    return 0;
}

const char *rl_frames_detail(const rl_frames *self)
{
    return self->detail;
}

int rl_frames_address(const rl_frames *self, char to[RL_ADDRESS])
{
    if (self->state != OPEN)
        return -1;
    return rl_stream_address(&self->stream, to, RL_ADDRESS);
}

int64_t rl_frames_pending(const rl_frames *self)
{
    return self->id;
}

void rl_frames_close(rl_frames *self)
{
    if (self == NULL || self->closed)
        return;
    self->closed = 1;
    self->state = ENDED;
    frames_hang_up(self);
    rl_timer_close(self->timer);
    uv_close((uv_handle_t *)&self->flush, handle_closed);
    frames_release(self);
}
