/*
 * One-shot timers over uv_timer_t. A closed one goes to the loop's list of
 * spares: at 100 000 sleeping tasks the handles are initialised once.
 *
 * libuv counts whole milliseconds, rounded down, from the start of the turn.
 * So its clock is read again before each start, and one is added.
 */
#include "timer.h"

#include <stdlib.h>

struct rl_timer {
    rl_owner base;
    uv_timer_t uv;
    rl_loop *loop;
    rl_timer *next;             /* in the list of spares */
    rl_timer_fn *fn;
    void *arg;
};

static void timer_free(uv_handle_t *handle)
{
    free(handle->data);
}

static void timer_drop(rl_owner *base)
{
    rl_timer *self = (rl_timer *)base;

    uv_close((uv_handle_t *)&self->uv, timer_free);
}

static void timer_fired(uv_timer_t *uv)
{
    rl_timer *self = uv->data;

    self->fn(self->arg);
}

static rl_timer *timer_new(rl_loop *loop)
{
    rl_timer *self = calloc(1, sizeof(*self));

    if (self == NULL)
        return NULL;
    self->base.drop = timer_drop;
    self->loop = loop;
    if (uv_timer_init(rl_loop_uv(loop), &self->uv) != 0) {
        free(self);
        return NULL;
    }
    self->uv.data = self;
    return self;
}

rl_timer *rl_timer_open(rl_loop *loop, rl_timer_fn *fn, void *arg)
{
    void **spares = rl_loop_spares(loop);
    rl_timer *self = *spares;

    if (self != NULL)
        *spares = self->next;
    else
        self = timer_new(loop);
    if (self == NULL)
        return NULL;
    self->fn = fn;
    self->arg = arg;
    return self;
}

void rl_timer_start(rl_timer *self, uint64_t ms)
{
    rl_loop_now(self->loop);
    uv_timer_start(&self->uv, timer_fired, ms + 1, 0);
}

void rl_timer_soon(rl_timer *self)
{
    uv_timer_start(&self->uv, timer_fired, 0, 0);
}

void rl_timer_stop(rl_timer *self)
{
    uv_timer_stop(&self->uv);
}

void rl_timer_close(rl_timer *self)
{
    void **spares;

    if (self == NULL)
        return;
    spares = rl_loop_spares(self->loop);
    uv_timer_stop(&self->uv);
    self->next = *spares;
    *spares = self;
}
