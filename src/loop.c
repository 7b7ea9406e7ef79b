/*
 * The libuv loop: run, stop, and a close that leaks nothing. Does not depend on
 * Lua or Redis.
 */
#include "loop.h"

#include <stdlib.h>

struct rl_loop {
    uv_loop_t uv;
    rl_sink *sink;
    void *owner;
    void *timers;
    int running;
    uv_idle_t look;
    uint64_t look_until; /* by uv_hrtime */
    unsigned expected;   /* replies to busy-poll for */
    unsigned in_vain;    /* back-off: futile rounds minus successful ones */
    unsigned skip;       /* rounds to skip */
    rl_loop *next;       /* in the list below */
};

static rl_loop *lingering; /* closed during a name lookup */

int rl_loop_open(rl_loop **out, rl_sink *sink, void *owner)
{
    rl_loop *loop = calloc(1, sizeof(*loop));
    int err;

    if (loop == NULL)
        return UV_ENOMEM;
    err = uv_loop_init(&loop->uv);
    if (err != 0) {
        free(loop);
        return err;
    }
    uv_idle_init(&loop->uv, &loop->look);
    uv_unref((uv_handle_t *)&loop->look);
    loop->sink = sink;
    loop->owner = owner;
    *out = loop;
    return 0;
}

int rl_loop_run(rl_loop *loop)
{
    if (loop->running)
        return UV_EBUSY;
    loop->running = 1;
    uv_run(&loop->uv, UV_RUN_DEFAULT);
    loop->running = 0;
    return 0;
}

void rl_loop_stop(rl_loop *loop)
{
    if (loop->running)
        uv_stop(&loop->uv);
}

static void drop_handle(uv_handle_t *handle, void *arg)
{
    rl_owner *owner = handle->data;

    (void)arg;
    if (!uv_is_closing(handle) && owner != NULL)
        owner->drop(owner);
}

/*
 * Runs the callbacks of closed handles. A name lookup cannot be interrupted:
 * waits for it, but only patience milliseconds.
 */
static int loop_finish(rl_loop *loop, int patience)
{
    int turns = 3; /* a close callback may close another handle */
    int err;

    while (turns-- > 0)
        uv_run(&loop->uv, UV_RUN_NOWAIT);
    while (loop->uv.active_reqs.count > 0 && patience-- > 0) {
        uv_sleep(1);
        uv_run(&loop->uv, UV_RUN_NOWAIT);
    }
    err = uv_loop_close(&loop->uv);
    if (err == 0)
        free(loop);
    else if (loop->uv.active_reqs.count > 0)
        err = UV_EAGAIN;
    return err;
}

int rl_loop_close(rl_loop *loop)
{
    int err;

    if (loop == NULL)
        return 0;
    if (loop->running)
        return UV_EBUSY;
    loop->sink = NULL;
    uv_walk(&loop->uv, drop_handle, NULL);
    loop->timers = NULL;
    uv_close((uv_handle_t *)&loop->look, NULL);
    err = loop_finish(loop, 50);
    if (err == UV_EAGAIN) {
        loop->next = lingering;
        lingering = loop;
    }
    return err;
}

int rl_loop_lingers(void)
{
    rl_loop **link = &lingering;

    while (*link != NULL) {
        rl_loop *loop = *link, *next = loop->next;

        if (loop_finish(loop, 0) == 0)
            *link = next;
        else
            link = &loop->next;
    }
    return lingering != NULL;
}

void rl_loop_report(rl_loop *loop, const rl_event *event)
{
    if (loop->sink != NULL)
        loop->sink(loop->owner, event);
}

uv_loop_t *rl_loop_uv(rl_loop *loop)
{
    return &loop->uv;
}

uint64_t rl_loop_now(rl_loop *loop)
{
    uv_update_time(&loop->uv);
    return uv_now(&loop->uv);
}

void **rl_loop_timers(rl_loop *loop)
{
    return &loop->timers;
}

/* ---- busy-polling ---- */

/*
 * While the uv_idle_t is active, libuv polls its sockets without waiting.
 * A round of polling that finds no reply makes further rounds rarer, down to
 * one in 2^RAREST; a successful one makes them more frequent.
 */
enum { LOOK_NS = 50 * 1000, RAREST = 10 };

static void look_end(rl_loop *loop)
{
    loop->expected = 0;
    uv_idle_stop(&loop->look);
}

static void look_again(uv_idle_t *look)
{
    rl_loop *loop = (rl_loop *)look->loop;

    if (uv_hrtime() < loop->look_until)
        return;
    look_end(loop);
    if (loop->in_vain < RAREST)
        loop->in_vain++;
    loop->skip = (1u << loop->in_vain) - 1;
}

void rl_loop_expect(rl_loop *loop)
{
    if (loop->expected == 0 && loop->skip > 0) {
        loop->skip--;
        return;
    }
    loop->expected++;
    loop->look_until = uv_hrtime() + LOOK_NS;
    uv_idle_start(&loop->look, look_again);
}

void rl_loop_answered(rl_loop *loop)
{
    if (loop->expected == 0 || --loop->expected > 0)
        return;
    look_end(loop);
    if (loop->in_vain > 0)
        loop->in_vain--;
}
