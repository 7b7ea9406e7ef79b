/*
 * The libuv loop: run, stop, signals, and a close that leaks nothing. Does not
 * depend on Lua or Redis.
 */
#include "loop.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
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
    unsigned in_vain;    /* back-off: futile looks minus successful ones */
    unsigned skip;       /* looks to skip */
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

void rl_loop_tell(rl_loop *loop, const rl_event *event)
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
 * A futile look makes the next ones rarer, down to one in 2^RAREST; a
 * successful one makes them more frequent.
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

/* ---- signals ---- */

struct rl_signal {
    rl_owner base;
    uv_signal_t uv;
    rl_loop *loop;
    int64_t id;
};

static void signal_free(uv_handle_t *handle)
{
    free(handle->data);
}

static void signal_drop(rl_owner *base)
{
    rl_signal_close((rl_signal *)base);
}

/*
 * A second request to end that arrives before the loop has reported the first
 * kills the program at once, as in lua: it is inside a C function, such as a
 * blocking read. A repeat within AGAIN_NS counts as the same signal, because
 * timeout(1) sends each twice. libuv's handler does the rest.
 */
enum { SIGNALS = 65, AGAIN_NS = 200 * 1000 * 1000, NS_PER_MS = 1000 * 1000 };
static volatile sig_atomic_t unheard[SIGNALS];
static volatile uint64_t came[SIGNALS]; /* by uv_hrtime */
static volatile sig_atomic_t asked;     /* last request to end, or 0 */
static void (*uv_handlers[SIGNALS])(int);
static void (*volatile on_ask)(void);
static pthread_t main_thread;

static int asks_to_end(int number)
{
    return number == SIGINT || number == SIGTERM || number == SIGHUP
           || number == SIGQUIT;
}

static void set_heard(int number)
{
    unheard[number] = 0;
    if (asked == number)
        asked = 0;
}

static void on_signal(int number)
{
    uint64_t now = uv_hrtime();

    if (!pthread_equal(pthread_self(), main_thread)) {
        pthread_kill(main_thread, number);
        return;
    }
    if (now - came[number] < AGAIN_NS)
        return;
    if (unheard[number]) {
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    unheard[number] = 1;
    came[number] = now;
    asked = number;
    uv_handlers[number](number);
    if (on_ask != NULL)
        on_ask();
}

void rl_signal_on_ask(void (*fn)(void))
{
    on_ask = fn;
}

int rl_signal_unheard(uint64_t ms)
{
    int number = asked;

    if (number != 0 && uv_hrtime() - came[number] < ms * NS_PER_MS)
        return 0;
    return number;
}

static void signal_wrap(int number)
{
    struct sigaction action;

    if (!asks_to_end(number) || sigaction(number, NULL, &action) != 0
        || action.sa_handler == on_signal)
        return;
    uv_handlers[number] = action.sa_handler;
    main_thread = pthread_self();
    set_heard(number);
    came[number] = 0;
    action.sa_handler = on_signal;
    sigaction(number, &action, NULL);
}

static int is_ignored(int number)
{
    struct sigaction action;

    return sigaction(number, NULL, &action) == 0
           && action.sa_handler == SIG_IGN;
}

static void signal_fired(uv_signal_t *uv, int number)
{
    rl_signal *self = uv->data;
    rl_event event = { .what = RL_FIRED, .id = self->id };

    if (number < SIGNALS)
        set_heard(number);
    rl_loop_tell(self->loop, &event);
}

int rl_signal_open(rl_signal **out, rl_loop *loop, int64_t id, int number)
{
    rl_signal *self;
    int err;

    if (is_ignored(number))
        return UV_ECANCELED;
    self = calloc(1, sizeof(*self));
    if (self == NULL)
        return UV_ENOMEM;
    self->base.drop = signal_drop;
    self->loop = loop;
    self->id = id;
    err = uv_signal_init(&loop->uv, &self->uv);
    if (err != 0) {
        free(self);
        return err;
    }
    self->uv.data = self;
    uv_unref((uv_handle_t *)&self->uv);
    err = uv_signal_start(&self->uv, signal_fired, number);
    if (err != 0) {
        rl_signal_close(self);
        return err;
    }
    signal_wrap(number);
    *out = self;
    return 0;
}

void rl_signal_close(rl_signal *self)
{
    if (self != NULL)
        uv_close((uv_handle_t *)&self->uv, signal_free);
}
