/*
 * A readable descriptor, by uv_poll.
 */
#include "input.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>

struct rl_input {
    rl_owner base;
    uv_poll_t uv;
    rl_loop *loop;
    int64_t id;
};

static void input_free(uv_handle_t *handle)
{
    free(handle->data);
}

static void input_drop(rl_owner *base)
{
    rl_input_close((rl_input *)base);
}

/* On an error, too: the reader's next read returns it. */
static void input_fired(uv_poll_t *uv, int status, int events)
{
    rl_input *self = uv->data;
    rl_event event = { .what = RL_FIRED, .id = self->id };

    (void)status;
    (void)events;
    rl_loop_report(self->loop, &event);
}

/* libuv makes the descriptor non-blocking, but other programs share it. */
static int poll_init(uv_poll_t *uv, rl_loop *loop, int fd)
{
    int flags = fcntl(fd, F_GETFL);
    int err = uv_poll_init(rl_loop_uv(loop), uv, fd);

    if (flags != -1)
        fcntl(fd, F_SETFL, flags);
    return err;
}

int rl_input_open(rl_input **out, rl_loop *loop, int64_t id, int fd)
{
    rl_input *self = calloc(1, sizeof(*self));
    int err;

    if (self == NULL)
        return UV_ENOMEM;
    self->base.drop = input_drop;
    self->loop = loop;
    self->id = id;
    err = poll_init(&self->uv, loop, fd);
    if (err != 0) {
        free(self);
        return err;
    }
    self->uv.data = self;
    err = uv_poll_start(&self->uv, UV_READABLE, input_fired);
    if (err != 0) {
        rl_input_close(self);
        return err;
    }
    *out = self;
    return 0;
}

int rl_input_has_gone(int fd)
{
    struct pollfd input = { .fd = fd }; /* without events: errors only */

    return poll(&input, 1, 0) > 0;
}

void rl_input_close(rl_input *self)
{
    if (self != NULL)
        uv_close((uv_handle_t *)&self->uv, input_free);
}
