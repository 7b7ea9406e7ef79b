/*
 * The program's side of a job: forks the warden, which forks the guard; passes
 * on their reports; and reaps the warden after both have closed their end of
 * the socket.
 */
#include "job.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "warden.h"

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

struct rl_job {
    rl_owner base;
    uv_poll_t uv;
    rl_loop *loop;
    int64_t id;
    int socket; /* -1: closed */
    pid_t warden;
    pid_t child; /* 0: not running, so its pid may be reused */
    int gone;    /* the value of RL_GONE; -1: not reported */
};

/* ---- the environment ---- */

extern char **environ;

static size_t length_of(char **list)
{
    size_t n = 0;

    while (list != NULL && list[n] != NULL)
        n++;
    return n;
}

/* Whether both entries name the same variable. */
static int is_same(const char *a, const char *b)
{
    size_t n = strcspn(a, "=");

    return n == strcspn(b, "=") && strncmp(a, b, n) == 0;
}

static int is_changed(const char *entry, char **changes)
{
    for (; changes != NULL && *changes != NULL; changes++)
        if (is_same(entry, *changes))
            return 1;
    return 0;
}

/* Our environment with these changes; only the array is new. */
static char **env_with(char **changes)
{
    size_t n = 0;
    size_t most = length_of(environ) + length_of(changes) + 1;
    char **env = calloc(most, sizeof(*env));
    char **from;

    if (env == NULL)
        return NULL;
    for (from = environ; from != NULL && *from != NULL; from++)
        if (!is_changed(*from, changes))
            env[n++] = *from;
    for (from = changes; from != NULL && *from != NULL; from++)
        if (strchr(*from, '=') != NULL)
            env[n++] = *from;
    return env;
}

/* ---- reports ---- */

static void job_freed(uv_handle_t *handle)
{
    free(handle->data);
}

static void job_shut(rl_job *self)
{
    if (self->socket < 0)
        return;
    uv_close((uv_handle_t *)&self->uv, job_freed);
    close(self->socket);
    self->socket = -1;
}

static void job_drop(rl_owner *base)
{
    job_shut((rl_job *)base);
}

static void job_report(rl_job *self, int what, int value)
{
    rl_event event = {
        .what = RL_REPORTED, .id = self->id, .status = what, .signal = value
    };

    rl_loop_report(self->loop, &event);
}

static void warden_reap(rl_job *self)
{
    int status;

    while (waitpid(self->warden, &status, 0) < 0 && errno == EINTR)
        ;
    self->warden = 0;
}

/* The socket has ended: neither guard nor warden is left. */
static void job_finish(rl_job *self)
{
    uv_poll_stop(&self->uv);
    warden_reap(self);
    if (self->gone < 0 && self->child > 0)
        kill(-self->child, SIGKILL);
    job_report(self, RL_GONE, self->gone);
}

static void job_received(rl_job *self, const rl_report *news)
{
    if (news->what == RL_STARTED)
        self->child = news->value;
    if (news->what == RL_ENDED)
        self->child = 0;
    if (news->what == RL_GONE)
        self->gone = news->value; /* reported when the socket ends */
    else
        job_report(self, news->what, news->value);
}

/* Reads one report; returns 0 at the socket's end. */
static int job_receive(rl_job *self)
{
    rl_report news;
    ssize_t n;

    do
        n = recv(self->socket, &news, sizeof(news), MSG_WAITALL);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof(news))
        return 0;
    job_received(self, &news);
    return 1;
}

/*
 * If the guard exits with an order unread, libuv reports an error and stops
 * polling. The reports that it sent before are read first.
 */
static void job_readable(uv_poll_t *uv, int status, int events)
{
    rl_job *self = uv->data;
    int is_more;

    (void)events;
    do
        is_more = job_receive(self);
    while (is_more && status != 0 && self->socket >= 0);
    if (!is_more)
        job_finish(self);
}

/* ---- starting ---- */

static int sockets_open(int pair[2])
{
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        return uv_translate_sys_error(errno);
    fcntl(pair[0], F_SETFD, FD_CLOEXEC);
    fcntl(pair[1], F_SETFD, FD_CLOEXEC);
    return 0;
}

static int warden_fork(rl_job *self, const rl_guard_plan *given, int socket)
{
    rl_guard_plan plan = *given;
    sigset_t all;
    int err = 0;

    plan.socket = socket;
    plan.group = getpgrp();
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &plan.mask);
    self->warden = fork();
    if (self->warden == 0)
        rl_warden_run(&plan);
    if (self->warden < 0)
        err = uv_translate_sys_error(errno);
    sigprocmask(SIG_SETMASK, &plan.mask, NULL);
    return err;
}

static int job_start(rl_job *self, rl_job_options *options)
{
    int pair[2];
    int err = sockets_open(pair);

    if (err != 0)
        return err;
    options->plan.args = options->args;
    options->plan.env = env_with(options->changes);
    err = options->plan.env == NULL ? UV_ENOMEM : 0;
    if (err == 0)
        err = warden_fork(self, &options->plan, pair[1]);
    free(options->plan.env);
    close(pair[1]);
    if (err == 0)
        err = uv_poll_init(rl_loop_uv(self->loop), &self->uv, pair[0]);
    if (err != 0) {
        close(pair[0]);
        return err;
    }
    self->socket = pair[0];
    self->uv.data = self;
    return uv_poll_start(&self->uv, UV_READABLE, job_readable);
}

int rl_job_open(rl_job **out, rl_loop *loop, int64_t id,
                rl_job_options *options)
{
    rl_job *self = calloc(1, sizeof(*self));
    int err;

    if (self == NULL)
        return UV_ENOMEM;
    self->base.drop = job_drop;
    self->loop = loop;
    self->id = id;
    self->socket = -1;
    self->gone = -1;
    err = job_start(self, options);
    if (err == 0)
        *out = self;
    else if (self->socket >= 0)
        job_shut(self);
    else
        free(self);
    return err;
}

void rl_job_order(rl_job *self, const rl_order *order)
{
    ssize_t n =
        send(self->socket, order, sizeof(*order), MSG_NOSIGNAL | MSG_DONTWAIT);

    (void)n; /* if the guard has exited, it has reported that */
    if (self->warden > 0)
        kill(self->warden, SIGCONT); /* it continues the guard */
}

void rl_job_close(rl_job *self)
{
    if (self != NULL)
        job_shut(self);
}
