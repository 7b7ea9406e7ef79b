/*
 * The warden does nothing while the guard lives. It is a subreaper, too, so the
 * descendants of a guard that was killed become its own: it kills them, and
 * reports once it has reaped them all. Only descendants of one job can be its
 * children, so it never kills another child of the program.
 *
 * Its copy of the socket delays end-of-file at the program until then. As in
 * guard.c, nothing here takes a lock or allocates.
 */
#ifdef __linux__
#define _GNU_SOURCE /* prctl */
#endif

#include "warden.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "tree.h"

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

static void report(int socket, int what, int value)
{
    rl_report news = { what, value };

    send(socket, &news, sizeof(news), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Whether orphaned descendants are reparented to this process. */
static int adopt_orphans(void)
{
#ifdef __linux__
    prctl(PR_SET_NAME, "rlock-warden");
    return prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
#else
    return 0;
#endif
}

static void close_other(void *arg, int fd)
{
    const rl_guard_plan *plan = arg;

    if (fd != plan->socket)
        close(fd);
}

static void close_files(rl_guard_plan *plan)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int fd;

    rl_tree_files(close_other, plan);
    for (fd = STDIN_FILENO; null >= 0 && fd <= STDERR_FILENO; fd++)
        dup2(null, fd);
}

/*
 * Waits until the guard ends, and continues it if it was stopped. Returns
 * whether the guard has exited by itself: if so, it has sent RL_GONE.
 */
static int await(pid_t guard)
{
    int status;
    pid_t pid;

    for (;;) {
        pid = waitpid(guard, &status, WUNTRACED);
        if (pid == guard && WIFSTOPPED(status))
            kill(guard, SIGCONT);
        else if (pid == guard)
            return WIFEXITED(status);
        else if (errno != EINTR)
            return 0;
    }
}

/* Kills and reaps until no descendant is left. */
static void clear(void)
{
    const struct timespec pause = { 0, 2 * 1000 * 1000 };
    pid_t pid;

    for (;;) {
        do
            pid = waitpid(-1, NULL, WNOHANG);
        while (pid > 0);
        if (pid < 0 && errno == ECHILD)
            return;
        rl_tree_kill(SIGKILL);
        nanosleep(&pause, NULL);
    }
}

noreturn void rl_warden_run(const rl_guard_plan *given)
{
    rl_guard_plan plan = *given;
    int adopts = adopt_orphans();
    pid_t guard;

    setpgid(0, 0);
    signal(SIGCHLD, SIG_DFL); /* if ignored, the kernel reaps the children */
    guard = fork();
    if (guard == 0)
        rl_guard_run(&plan);
    if (guard < 0) {
        report(plan.socket, RL_UNABLE, errno);
        report(plan.socket, RL_GONE, 0);
        _exit(0);
    }
    close_files(&plan);
    if (!await(guard) && adopts) {
        clear();
        report(plan.socket, RL_GONE, 1);
    }
    _exit(0);
}
