/*
 * A connection of frames. The input grows with the bytes that have arrived, not
 * with the length that the server announces.
 */
#include "frames.h"

#include <stdlib.h>
#include <string.h>

#include "transport.h"

enum { HEAD = 4 };               /* the bytes of a length */
enum { READ_SIZE = 16 * 1024 };  /* the size of a TLS record */
enum { KEPT_INPUT = 64 * 1024 }; /* bytes kept between frames */

#define TLS_HINT "; zks:// was tried: if this port does not use TLS, use zk://"

struct rl_frames {
    rl_transport base;
    int64_t frame;
    size_t limit;
    char *input; /* bytes that are not yet reported */
    size_t end;
    size_t size;
};

static void frames_free(rl_transport *base)
{
    free(((rl_frames *)base)->input);
    free(base);
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

    while (self->base.state == OPEN && self->end - first >= HEAD) {
        length = length_at(self->input + first);
        if (length > self->limit || self->end - first - HEAD < length)
            break;
        event.bytes = self->input + first + HEAD;
        event.length = length;
        first += HEAD + length;
        rl_loop_report(self->base.loop, &event);
        length = 0;
    }
    input_drop(self, first);
    if (self->base.state == OPEN && length > self->limit)
        rl_transport_end(&self->base,
                         "protocol error: the server announced a frame that "
                         "is too long (does this port speak ZooKeeper?)");
}

/* Reports the bytes that have arrived. */
static void frames_pass(rl_frames *self)
{
    rl_event event = { .what = RL_FRAME,
                       .id = self->frame,
                       .bytes = self->input,
                       .length = self->end };

    rl_loop_report(self->base.loop, &event);
    input_drop(self, self->end);
}

static void frames_read(rl_transport *base)
{
    rl_frames *self = (rl_frames *)base;
    ssize_t n = UV_ENOMEM;

    if (input_reserve(self) == 0)
        n = rl_stream_read(&base->stream, self->input + self->end, READ_SIZE);
    if (n < 0) {
        rl_transport_end(base, rl_stream_error(&base->stream, (int)n));
    } else if (n > 0) {
        self->end += (size_t)n;
        if (self->limit > 0)
            frames_parse(self);
        else
            frames_pass(self);
    }
}

static const rl_protocol protocol = {
    .tls_hint = TLS_HINT,
    .read = frames_read,
    .free = frames_free,
};

int rl_frames_open(rl_frames **out, rl_loop *loop, int64_t id,
                   const rl_frames_options *options, char *why)
{
    rl_frames *self = rl_transport_new(sizeof(*self), &protocol, loop, why);
    int err;

    if (self == NULL)
        return UV_ENOMEM;
    self->base.lost = options->lost;
    self->frame = options->frame;
    self->limit = options->limit;
    err = rl_transport_open(&self->base, id, &options->to, why);
    if (err == 0)
        *out = self;
    else
        rl_frames_close(self);
    return err;
}

/* ---- use ---- */

int rl_frames_send(rl_frames *self, const char *bytes, size_t length)
{
    int err;

    if (!rl_transport_is_open(&self->base))
        return UV_ENOTCONN;
    if (self->limit > 0)
        err = rl_commands_add_frame(&self->base.unsent, bytes, length);
    else
        err = rl_commands_add_bytes(&self->base.unsent, bytes, length);
    if (err != 0)
        return UV_ENOMEM;
    rl_transport_flush(&self->base);
    return 0;
}

const char *rl_frames_detail(const rl_frames *self)
{
    return self->base.detail;
}

int rl_frames_address(const rl_frames *self, char to[RL_ADDRESS])
{
    if (self->base.state != OPEN)
        return -1;
    return rl_stream_address(&self->base.stream, to, RL_ADDRESS);
}

int64_t rl_frames_pending(const rl_frames *self)
{
    return self->base.id;
}

void rl_frames_close(rl_frames *self)
{
    rl_transport_close((rl_transport *)self);
}
