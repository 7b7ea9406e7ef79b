/*
 * One-shot timers over uv_timer_t. A closed timer goes to a free list, so
 * 100 000 sleeping tasks initialise their handles once.
 *
 * libuv counts whole milliseconds, rounded down, from the start of the turn.
 * So each start updates the clock first and adds one millisecond.
 *
 * libuv never sees a time of zero: some versions would run such timers in a
 * loop without polling a socket. They go to a queue that a uv_idle_t, which
 * also keeps the loop from waiting, serves once per turn of the loop.
 */
#include "timer.h"

#include <stdlib.h>

struct rl_timer {
    rl_owner base;
    uv_timer_t uv;
    rl_loop *loop;
    /* In the free list, or in the ring of timers to fire in the next turn;
       prev is NULL outside the ring. */
    rl_timer *next;
    rl_timer *prev;
    rl_timer_fn *fn;
    void *arg;
};

/* The state that the timers of a loop share. */
typedef struct pool {
    rl_owner base;
    uv_idle_t idle;
    rl_timer *spares;
    rl_timer soon; /* head of the ring */
} pool;

/* ---- the ring ---- */

static void ring_init(rl_timer *head)
{
    head->next = head->prev = head;
}

static void ring_append(rl_timer *head, rl_timer *timer)
{
    timer->prev = head->prev;
    timer->next = head;
    head->prev->next = timer;
    head->prev = timer;
}

static void ring_remove(rl_timer *timer)
{
    if (timer->prev == NULL)
        return;
    timer->prev->next = timer->next;
    timer->next->prev = timer->prev;
    timer->next = timer->prev = NULL;
}

static int ring_is_empty(const rl_timer *head)
{
    return head->next == head;
}

/* Moves all timers of a ring to an uninitialised head. */
static void ring_move(rl_timer *from, rl_timer *to)
{
    ring_append(from, to);
    ring_remove(from);
    ring_init(from);
}

/* ---- the pool ---- */

static void pool_free(uv_handle_t *handle)
{
    free(handle->data);
}

static void pool_drop(rl_owner *base)
{
    pool *self = (pool *)base;

    uv_close((uv_handle_t *)&self->idle, pool_free);
}

/* Timers added during this call wait for the next turn. */
static void serve_soon(uv_idle_t *idle)
{
    pool *self = idle->data;
    rl_timer now;

    ring_move(&self->soon, &now);
    while (!ring_is_empty(&now)) {
        rl_timer *timer = now.next;

        ring_remove(timer);
        timer->fn(timer->arg);
    }
    if (ring_is_empty(&self->soon))
        uv_idle_stop(idle);
}

static pool *pool_new(rl_loop *loop)
{
    pool *self = calloc(1, sizeof(*self));

    if (self == NULL)
        return NULL;
    if (uv_idle_init(rl_loop_uv(loop), &self->idle) != 0) {
        free(self);
        return NULL;
    }
    self->base.drop = pool_drop;
    self->idle.data = self;
    ring_init(&self->soon);
    return self;
}

static pool *pool_of(rl_loop *loop)
{
    void **slot = rl_loop_timers(loop);

    if (*slot == NULL)
        *slot = pool_new(loop);
    return *slot;
}

/* ---- timers ---- */

static void timer_free(uv_handle_t *handle)
{
    free(handle->data);
}

static void timer_drop(rl_owner *base)
{
    rl_timer *self = (rl_timer *)base;

    ring_remove(self);
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
    pool *shared = pool_of(loop);
    rl_timer *self;

    if (shared == NULL)
        return NULL;
    self = shared->spares;
    if (self != NULL)
        shared->spares = self->next;
    else
        self = timer_new(loop);
    if (self == NULL)
        return NULL;
    self->next = NULL;
    self->fn = fn;
    self->arg = arg;
    return self;
}

void rl_timer_start(rl_timer *self, uint64_t ms)
{
    if (ms == 0) {
        rl_timer_soon(self);
        return;
    }
    ring_remove(self);
    rl_loop_now(self->loop);
    uv_timer_start(&self->uv, timer_fired, ms + 1, 0);
}

void rl_timer_soon(rl_timer *self)
{
    pool *shared = pool_of(self->loop);

    rl_timer_stop(self);
    ring_append(&shared->soon, self);
    uv_idle_start(&shared->idle, serve_soon);
}

void rl_timer_stop(rl_timer *self)
{
    ring_remove(self);
    uv_timer_stop(&self->uv);
}

void rl_timer_close(rl_timer *self)
{
    pool *shared;

    if (self == NULL)
        return;
    shared = pool_of(self->loop);
    rl_timer_stop(self);
    self->next = shared->spares;
    shared->spares = self;
}
