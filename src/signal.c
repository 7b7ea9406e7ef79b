/*
 * Signals over uv_signal_t, and those that ask the program to end, which a
 * program that never waits must receive, too.
 */
#include "signal.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

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
static volatile sig_atomic_t unreported[SIGNALS];
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

static void set_reported(int number)
{
    unreported[number] = 0;
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
    if (unreported[number]) {
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    unreported[number] = 1;
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

int rl_signal_unreported(uint64_t ms)
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
    set_reported(number);
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
        set_reported(number);
    rl_loop_report(self->loop, &event);
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
    err = uv_signal_init(rl_loop_uv(loop), &self->uv);
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
