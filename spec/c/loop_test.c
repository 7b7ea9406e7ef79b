/*
 * The loop, its timers, signals and child processes.
 */
#include "loop.h"
#include "child.h"
#include "record.h"
#include "signal.h"
#include "timer.h"

static rl_timer *timer;
static double started, fired;
static int turns;

static void note_time(void *arg)
{
    (void)arg;
    fired = seconds();
}

static void timers_are_never_early(void)
{
    long ms;

    open_loop();
    timer = rl_timer_open(loop, note_time, NULL);
    for (ms = 0; ms < 20; ms++) {
        started = seconds();
        rl_timer_start(timer, (uint64_t)ms);
        pause_ms(ms % 3); /* makes the loop's clock stale */
        rl_loop_run(loop);
        CHECK(fired - started >= (double)ms / 1000);
        CHECK(fired - started < (double)(ms + 500) / 1000 * slow());
    }
    rl_timer_close(timer);
    close_loop();
}

static void yield(void *arg)
{
    (void)arg;
    if (++turns < 100000)
        rl_timer_start(timer, 0);
}

static void stop(void *arg)
{
    (void)arg;
    turns = 100000;
}

static void a_task_that_yields_does_not_stop_the_clock(void)
{
    rl_timer *end;

    open_loop();
    turns = 0;
    timer = rl_timer_open(loop, yield, NULL);
    end = rl_timer_open(loop, stop, NULL);
    rl_timer_start(timer, 0);
    rl_timer_start(end, 20);
    started = seconds();
    rl_loop_run(loop);
    CHECK(seconds() - started < 5 * slow());
    rl_timer_close(timer);
    rl_timer_close(end);
    close_loop();
}

static rl_timer *yielder[3];
static int order[3], served;

static void serve(void *arg)
{
    rl_timer **self = arg;

    order[served++] = (int)(self - yielder);
    if (served == 1) {
        rl_timer_stop(yielder[1]);
        rl_timer_soon(*self); /* not in this turn: it runs once per turn */
        rl_timer_stop(*self);
    }
}

static void yields_are_served_in_order_and_can_be_taken_back(void)
{
    int i;

    open_loop();
    served = 0;
    for (i = 0; i < 3; i++)
        yielder[i] = rl_timer_open(loop, serve, &yielder[i]);
    rl_timer_start(yielder[2], 0);
    rl_timer_start(yielder[0], 5);
    for (i = 0; i < 3; i++)
        rl_timer_start(yielder[i], 0);
    rl_loop_run(loop);
    CHECK(served == 2 && order[0] == 0 && order[1] == 2);
    for (i = 0; i < 3; i++)
        rl_timer_close(yielder[i]);
    close_loop();
}

static void close_self(void *arg)
{
    rl_timer **self = arg;

    rl_timer_close(*self);
    *self = NULL;
    turns++;
}

static void a_timer_may_close_itself_and_is_used_again(void)
{
    rl_timer *first, *second;

    open_loop();
    turns = 0;
    timer = first = rl_timer_open(loop, close_self, &timer);
    rl_timer_start(timer, 1);
    rl_loop_run(loop);
    CHECK(turns == 1 && timer == NULL);
    second = rl_timer_open(loop, close_self, &timer);
    CHECK(second == first);
    rl_timer_start(second, 1000);
    rl_timer_close(second);
    rl_loop_run(loop);
    CHECK(turns == 1);
    rl_timer_close(NULL);
    close_loop();
}

/* Would the loop poll its sockets without waiting? */
static int looks(void)
{
    return uv_backend_timeout(rl_loop_uv(loop)) == 0;
}

/* Runs for longer than a look. */
static void let_time_pass(void)
{
    rl_timer_start(timer, 3);
    rl_loop_run(loop);
    rl_timer_start(timer, 1000);
}

static void an_answer_that_is_expected_is_looked_for(void)
{
    open_loop();
    timer = rl_timer_open(loop, note_time, NULL);
    let_time_pass();
    CHECK(!looks());
    rl_loop_expect(loop);
    rl_loop_expect(loop);
    CHECK(looks());
    rl_loop_answered(loop);
    CHECK(looks());
    rl_loop_answered(loop);
    CHECK(!looks());
    rl_loop_answered(loop); /* not expected */
    rl_loop_expect(loop);
    CHECK(looks());
    let_time_pass();
    CHECK(!looks());
    rl_timer_close(timer);
    close_loop();
}

static void looks_in_vain_become_rare(void)
{
    int i, made = 0;

    open_loop();
    timer = rl_timer_open(loop, note_time, NULL);
    for (i = 1; i <= 100; i++) {
        rl_loop_expect(loop);
        made += looks();
        let_time_pass();
    }
    CHECK(made == 6); /* the 1st, 3rd, 7th, 15th, 31st, 63rd */
    rl_timer_close(timer);
    close_loop();
}

static void run_again(const rl_event *event)
{
    (void)event;
    CHECK(rl_loop_run(loop) == UV_EBUSY);
    CHECK(rl_loop_close(loop) == UV_EBUSY);
    rl_loop_stop(loop);
}

static void raise_signal(void *arg)
{
    (void)arg;
    raise(SIGUSR1);
}

static void signals_are_told_and_nothing_runs_twice(void)
{
    rl_signal *self = NULL;

    open_loop();
    on_event = run_again;
    CHECK(rl_signal_open(&self, loop, 7, SIGUSR1) == 0);
    rl_loop_run(loop); /* a signal alone does not keep it running */
    timer = rl_timer_open(loop, raise_signal, NULL);
    rl_timer_start(timer, 1);
    rl_loop_run(loop);
    if (record[0] == '\0') { /* it arrives once the pipe is read */
        rl_timer_start(timer, 10);
        rl_loop_run(loop);
    }
    CHECK(strncmp(record, "7 fired\n", 8) == 0);
    CHECK(rl_signal_open(&self, loop, 7, SIGKILL) == UV_EINVAL);
    rl_timer_close(timer);
    rl_signal_close(self);
    rl_signal_close(NULL);
    close_loop();
}

static rl_child_options sh(char **args)
{
    rl_child_options options = { .file = "sh",
                                 .args = args,
                                 .stdio = { "null", "null", "null" } };

    return options;
}

static void children_end_with_a_status_or_a_signal(void)
{
    char *three[] = { "sh", "-c", "exit 3", NULL };
    char *hang[] = { "sh", "-c", "sleep 10", NULL };
    rl_child_options options = sh(three);
    rl_child *first = NULL, *second = NULL;
    char why[200];

    open_loop();
    CHECK(rl_child_open(&first, loop, 1, &options, why, sizeof(why)) == 0);
    rl_loop_run(loop);
    CHECK(recorded("1 exited 3\n"));
    CHECK(rl_child_kill(first, SIGTERM) == UV_ESRCH);
    options.args = hang;
    CHECK(rl_child_open(&second, loop, 2, &options, why, sizeof(why)) == 0);
    CHECK(rl_child_pid(second) > 0);
    CHECK(rl_child_kill(second, SIGTERM) == 0);
    rl_loop_run(loop);
    CHECK(recorded("1 exited 3\n2 exited 0\n"));
    rl_child_close(first);
    rl_child_close(second);
    rl_child_close(NULL);
    close_loop();
}

static void what_cannot_be_started_leaves_nothing_behind(void)
{
    char *none[] = { "none", NULL };
    rl_child_options options = sh(none);
    rl_child *self = NULL;
    char why[200];

    open_loop();
    options.file = "no-such-program-here";
    CHECK(rl_child_open(&self, loop, 1, &options, why, sizeof(why))
          == UV_ENOENT);
    CHECK(strcmp(why, "no-such-program-here: not found") == 0);
    options.file = "sh";
    options.cwd = "/no/such/folder";
    CHECK(rl_child_open(&self, loop, 1, &options, why, sizeof(why))
          == UV_ENOENT);
    options.cwd = NULL;
    options.stdio[1] = "/no/such/folder/file";
    CHECK(rl_child_open(&self, loop, 1, &options, why, sizeof(why))
          == UV_ENOENT);
    CHECK(strstr(why, "/no/such/folder/file") == why);
    rl_loop_run(loop);
    CHECK(recorded(""));
    close_loop();
}

static void a_forgotten_child_does_not_hold_up_the_loop(void)
{
    char *nap[] = { "sh", "-c", "sleep 1", NULL };
    char *hang[] = { "sh", "-c", "sleep 10", NULL };
    rl_child_options options = sh(nap);
    rl_child *self = NULL;
    char why[200];
    int pid;

    open_loop();
    CHECK(rl_child_open(&self, loop, 1, &options, why, sizeof(why)) == 0);
    pid = rl_child_pid(self);
    rl_child_close(self);
    started = seconds();
    rl_loop_run(loop);
    CHECK(seconds() - started < 0.9);
    timer = rl_timer_open(loop, note_time, NULL);
    while (kill(pid, 0) == 0 && seconds() - started < 10 * slow()) {
        rl_timer_start(timer, 50);
        rl_loop_run(loop);
    }
    CHECK(kill(pid, 0) != 0 && errno == ESRCH); /* no zombie */
    options.args = hang;
    CHECK(rl_child_open(&self, loop, 1, &options, why, sizeof(why)) == 0);
    pid = rl_child_pid(self);
    rl_child_close(self);
    rl_timer_close(timer);
    close_loop();
    CHECK(recorded(""));
    finish(pid);
}

static void closing_drops_whatever_is_left(void)
{
    char *hang[] = { "sh", "-c", "sleep 10", NULL };
    rl_child_options options = sh(hang);
    rl_child *child = NULL;
    rl_signal *self = NULL;
    char why[200];
    int pid;

    open_loop();
    timer = rl_timer_open(loop, note_time, NULL);
    rl_timer_start(timer, 0);
    CHECK(rl_signal_open(&self, loop, 7, SIGUSR2) == 0);
    CHECK(rl_child_open(&child, loop, 1, &options, why, sizeof(why)) == 0);
    pid = rl_child_pid(child);
    close_loop();
    CHECK(recorded(""));
    finish(pid);
    CHECK(rl_loop_close(NULL) == 0);
}

int main(void)
{
    RUN(timers_are_never_early);
    RUN(a_task_that_yields_does_not_stop_the_clock);
    RUN(yields_are_served_in_order_and_can_be_taken_back);
    RUN(a_timer_may_close_itself_and_is_used_again);
    RUN(an_answer_that_is_expected_is_looked_for);
    RUN(looks_in_vain_become_rare);
    RUN(signals_are_told_and_nothing_runs_twice);
    RUN(children_end_with_a_status_or_a_signal);
    RUN(what_cannot_be_started_leaves_nothing_behind);
    RUN(a_forgotten_child_does_not_hold_up_the_loop);
    RUN(closing_drops_whatever_is_left);
    return check_end();
}
