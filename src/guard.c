/*
 * The guard is the parent of the command and the subreaper of its descendants:
 * none can escape it, not even by setsid or after the program is killed. It
 * reports what happens to the command, sends it signals, and makes it the
 * foreground group of the terminal. It exits when no descendant is left.
 *
 * The program may have threads when it forks, so this file calls nothing that
 * takes a lock or allocates.
 */
#ifdef __linux__
#define _GNU_SOURCE /* prctl */
#endif

#include "guard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/prctl.h>
#include <sys/timerfd.h>
#endif

#include "clock.h"
#include "tree.h"

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

typedef struct guard {
    const rl_guard_plan *plan;
    int64_t soft;
    int64_t hard;
    int socket; /* -1: the program has exited */
    int tty;    /* -1: there is no terminal */
    int timer;  /* wakes us after a suspend, too; -1: there is none */
    pid_t child;
    int has_ended; /* the child was reaped */
    int softened;
    int killing;
    int reported_killed;
    int lends; /* the command is in the foreground in place of the program */
} guard;

enum { NS_PER_MS = 1000 * 1000, ROUND_MS = 1000, KILL_MS = 20 };

static int wake[2]; /* a pipe that the handler of SIGCHLD writes to */

static void on_child(int number)
{
    int saved = errno;
    ssize_t n = write(wake[1], "", 1);

    (void)n;
    (void)number;
    errno = saved;
}

static void report(guard *self, int what, int value)
{
    rl_report news = { what, value };

    if (self->socket >= 0)
        send(self->socket, &news, sizeof(news), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* ---- the terminal ---- */

static pid_t front(const guard *self)
{
    return self->tty >= 0 ? tcgetpgrp(self->tty) : -1;
}

/* Makes the command's group the foreground group of the terminal. */
static void tty_lend(guard *self)
{
    if (!self->plan->foreground && front(self) == self->plan->group) {
        tcsetpgrp(self->tty, self->child);
        self->lends = 1;
    }
}

static void tty_take_back(guard *self)
{
    if (front(self) == self->child)
        tcsetpgrp(self->tty, self->plan->group);
}

/* ---- starting the command ---- */

static void default_action(int number)
{
    struct sigaction action;

    if (sigaction(number, NULL, &action) != 0 || action.sa_handler == SIG_IGN
        || action.sa_handler == SIG_DFL)
        return;
    memset(&action, 0, sizeof(action));
    action.sa_handler = SIG_DFL;
    sigaction(number, &action, NULL);
}

static void default_actions(const rl_guard_plan *plan)
{
    enum { LAST = 64 };
    int i;

    for (i = 1; i <= LAST; i++)
        default_action(i);
    if (plan->default_pipe)
        signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &plan->mask, NULL);
}

static void null_input(int fd, int flags)
{
    int null = open("/dev/null", flags);

    if (null >= 0 && null != fd) {
        dup2(null, fd);
        close(null);
    }
}

extern char **environ;

/* The command dies with its guard, even if the program has exited, too. */
static void die_with(pid_t parent)
{
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    if (getppid() != parent)
        _exit(127);
}

/* Runs in the child. */
static noreturn void execute(guard *self, int failure, pid_t parent)
{
    const rl_guard_plan *plan = self->plan;
    int err;
    ssize_t n;

    die_with(parent);
    self->child = getpid();
    setpgid(0, plan->foreground ? plan->group : self->child);
    if (self->lends)
        tty_lend(self);
    if (plan->no_input)
        null_input(STDIN_FILENO, O_RDONLY);
    default_actions(plan);
    environ = plan->env;
    execvp(plan->args[0], plan->args);
    err = errno;
    n = write(failure, &err, sizeof(err));
    (void)n;
    _exit(127);
}

static void close_others(void *arg, int fd)
{
    const guard *self = arg;

    if (fd != self->socket && fd != self->tty && fd != wake[0] && fd != wake[1]
        && fd != self->timer)
        close(fd);
}

static void make_private(int fd)
{
    fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static int guard_prepare(guard *self)
{
    struct sigaction action;

    setpgid(0, 0);
    self->tty = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
    self->timer = -1;
    if (pipe(wake) != 0)
        return errno;
    make_private(wake[0]);
    make_private(wake[1]);
    fcntl(wake[0], F_SETFL, O_NONBLOCK);
    fcntl(wake[1], F_SETFL, O_NONBLOCK);
#ifdef __linux__
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_NAME, "rlock-guard");
    self->timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
#endif
    memset(&action, 0, sizeof(action));
    action.sa_handler = on_child;
    sigaction(SIGCHLD, &action, NULL);
    return 0;
}

/* Starts the command; an errno if it cannot be executed. */
static int start(guard *self)
{
    int failure[2];
    int err = 0;
    pid_t parent = getpid();
    ssize_t n;

    if (pipe(failure) != 0)
        return errno;
    make_private(failure[0]);
    make_private(failure[1]);
    self->lends = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    self->child = fork();
    if (self->child == 0)
        execute(self, failure[1], parent);
    err = self->child < 0 ? errno : 0;
    close(failure[1]);
    if (err == 0) {
        if (!self->plan->foreground)
            setpgid(self->child, self->child);
        do
            n = read(failure[0], &err, sizeof(err));
        while (n < 0 && errno == EINTR);
    }
    close(failure[0]);
    return err;
}

/* ---- signals to the command ---- */

/* Whether the child's pid is still valid: it is until the child is reaped. */
static int owns_group(const guard *self)
{
    return !self->has_ended && !self->plan->foreground;
}

static pid_t group_of(const guard *self)
{
    return self->plan->foreground ? self->plan->group : self->child;
}

static void signal_group(guard *self, int number)
{
    if (owns_group(self))
        kill(-self->child, number);
    else
        rl_tree_signal(group_of(self), number);
}

/* Signals the group, and orphans that have left it. */
static void signal_all(guard *self, int number)
{
    signal_group(self, number);
    rl_tree_signal_orphans(group_of(self), number);
}

static void kill_all(guard *self)
{
    if (owns_group(self))
        kill(-self->child, SIGKILL);
    rl_tree_kill(SIGKILL);
}

/* ---- deadlines ---- */

/* Does not block: drops the text if standard error is full. */
static void say(const char *text)
{
    struct pollfd room = { STDERR_FILENO, POLLOUT, 0 };
    ssize_t n = 0;

    if (text != NULL && poll(&room, 1, 0) == 1)
        n = write(STDERR_FILENO, text, strlen(text));
    (void)n;
}

static void soften(guard *self)
{
    self->softened = 1;
    if (self->plan->soft_signal == 0)
        return;
    report(self, RL_SOFTENED, 0);
    signal_all(self, self->plan->soft_signal);
    signal_all(self, SIGCONT);
}

static void keep_deadlines(guard *self)
{
    int64_t now = rl_clock_now();

    if (now >= self->soft && now < self->hard && !self->softened)
        soften(self);
    if (now >= self->hard)
        self->killing = 1;
    if (self->killing)
        kill_all(self);
    if (now >= self->hard && !self->reported_killed) {
        self->reported_killed = 1;
        report(self, RL_KILLED, 0);
        say(self->plan->farewell);
    }
}

static int64_t next_deadline(const guard *self)
{
    return self->softened || self->hard < self->soft ? self->hard : self->soft;
}

/* poll() does not count the time that the machine is suspended; the timer
   does. */
static void set_timer(const guard *self, int64_t at)
{
#ifdef __linux__
    enum { NS = 1000 * 1000 * 1000 };
    struct itimerspec when = { { 0, 0 }, { 0, 0 } };

    if (at < INT64_MAX) {
        when.it_value.tv_sec = (time_t)(at / NS);
        when.it_value.tv_nsec = (long)(at % NS);
    }
    if (self->timer >= 0)
        timerfd_settime(self->timer, TFD_TIMER_ABSTIME, &when, NULL);
#else
    (void)self;
    (void)at;
#endif
}

/* How long to sleep, in milliseconds; -1: until something happens. */
static int patience(const guard *self)
{
    int64_t at, left;

    if (self->killing)
        return KILL_MS;
    at = next_deadline(self);
    set_timer(self, at);
    if (at == INT64_MAX)
        return -1;
    left = (at - rl_clock_now()) / NS_PER_MS + 1;
    if (left < 0)
        left = 0;
    if (self->timer < 0 && left > ROUND_MS)
        left = ROUND_MS;
    return left > 60 * ROUND_MS ? 60 * ROUND_MS : (int)left;
}

/* ---- events ---- */

static void execute_order(guard *self, const rl_order *order)
{
    switch (order->what) {
    case RL_LIMIT:
        if (order->soft > rl_clock_now())
            self->softened = 0; /* the new deadline sends a signal again */
        self->soft = order->soft;
        self->hard = order->hard;
        break;
    case RL_SIGNAL:
        if (order->number == SIGKILL)
            self->killing = 1;
        else if (self->has_ended)
            signal_all(self, order->number);
        else
            signal_group(self, order->number);
        break;
    case RL_CONTINUE:
        if (self->lends && !self->has_ended)
            tty_lend(self);
        signal_group(self, SIGCONT);
        break;
    default:
        break;
    }
}

static void read_order(guard *self)
{
    rl_order order;
    ssize_t n = recv(self->socket, &order, sizeof(order), MSG_WAITALL);

    if (n == (ssize_t)sizeof(order)) {
        execute_order(self, &order);
    } else if (n >= 0 || (errno != EINTR && errno != EAGAIN)) {
        close(self->socket);
        self->socket = -1;
    }
}

/*
 * If a background command stopped to use the terminal, and the program is in
 * the foreground, lends it the terminal. Otherwise the program stops with its
 * command, as one job.
 */
static void stopped(guard *self, int number)
{
    if (self->tty < 0 || self->plan->foreground)
        return;
    if ((number == SIGTTIN || number == SIGTTOU)
        && front(self) == self->plan->group) {
        tty_lend(self);
        signal_group(self, SIGCONT);
        return;
    }
    tty_take_back(self);
    report(self, RL_STOPPED, number);
}

/* Returns 0 once no descendant is left. */
static int reap(guard *self)
{
    char drained[64];
    int status;
    pid_t pid;

    while (read(wake[0], drained, sizeof(drained)) > 0)
        ;
    while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0) {
        if (pid != self->child)
            continue;
        if (WIFSTOPPED(status)) {
            stopped(self, WSTOPSIG(status));
            continue;
        }
        tty_take_back(self);
        self->has_ended = 1;
        report(self, RL_ENDED, status);
    }
    return pid == 0 || errno == EINTR;
}

static void watch(guard *self)
{
    struct pollfd fds[3];
    char drained[8];

    while (reap(self)) {
        keep_deadlines(self);
        fds[0] = (struct pollfd){ wake[0], POLLIN, 0 };
        fds[1] = (struct pollfd){ self->socket, POLLIN, 0 };
        fds[2] = (struct pollfd){ self->timer, POLLIN, 0 };
        if (poll(fds, 3, patience(self)) <= 0)
            continue;
        if (fds[2].revents != 0 && read(self->timer, drained, 8) < 0)
            continue;
        if (fds[1].revents != 0 && reap(self)) /* reap before an order */
            read_order(self);
    }
}

noreturn void rl_guard_run(const rl_guard_plan *plan)
{
    guard self = { .plan = plan, .soft = plan->soft, .hard = plan->hard };
    sigset_t child;
    int err;

    self.socket = plan->socket;
    err = guard_prepare(&self);
    if (err == 0)
        err = start(&self);
    if (err == 0)
        report(&self, RL_STARTED, self.child);
    else
        report(&self, RL_UNABLE, err);
    /* Only after the fork, which runs a libuv handler that uses libuv's
       descriptors. */
    rl_tree_files(close_others, &self);
    null_input(STDIN_FILENO, O_RDONLY);
    null_input(STDOUT_FILENO, O_WRONLY);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_UNBLOCK, &child, NULL);
    watch(&self);
    report(&self, RL_GONE, 0);
    _exit(0);
}
