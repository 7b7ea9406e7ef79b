/*
 * Runs a command and ends everything that it started.
 *
 *   subreaper [-t SECONDS] [-g SECONDS] COMMAND [ARG...]
 *
 * It is the subreaper of the command's descendants, so none escapes it, and
 * gives them a temporary folder of their own as TMPDIR. When the command ends,
 * when SECONDS (-t) have passed, on SIGINT, SIGTERM or SIGHUP, or when its own
 * parent ends, it kills all descendants and removes the folder. It exits with
 * the status of the command, 124 after a timeout, or by the signal.
 *
 * With -g, descendants that outlive a successful command by more than SECONDS
 * are a failure: they are listed on standard error, and the status is 125.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TIMEOUT = 124, LEFT = 125, PAUSE_MS = 10, KILL_MS = 10000 };

static pid_t command_pid;
static int command_status;
static int has_ended;

static long now_ms(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static void nap(long ms)
{
    struct timespec pause = { ms / 1000, ms % 1000 * 1000000 };

    nanosleep(&pause, NULL);
}

/* Reaps all zombies. Returns whether any child is left. */
static int reap(void)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == command_pid) {
            command_status = status;
            has_ended = 1;
        }
    return pid == 0;
}

/* Calls fn for each child. Children of killed ones become ours in turn. */
static void each_child(void (*fn)(pid_t pid))
{
    char path[64];
    FILE *file;
    int pid;

    snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    file = fopen(path, "r");
    if (!file)
        return;
    while (fscanf(file, "%d", &pid) == 1)
        fn((pid_t)pid);
    fclose(file);
}

static void kill_child(pid_t pid)
{
    kill(pid, SIGKILL);
}

static void kill_all(void)
{
    long end = now_ms() + KILL_MS;

    while (reap() && now_ms() < end) {
        each_child(kill_child);
        nap(1);
    }
}

static void show_child(pid_t pid)
{
    char path[64], line[256];
    size_t length, i;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
    file = fopen(path, "r");
    if (!file)
        return;
    length = fread(line, 1, sizeof(line) - 1, file);
    fclose(file);
    for (i = 0; i < length; i++)
        if (line[i] == '\0')
            line[i] = ' ';
    line[length] = '\0';
    fprintf(stderr, "left behind: process %d: %s\n", (int)pid, line);
}

/* Do all descendants end by themselves within so many seconds? */
static int all_end(long seconds)
{
    long end = now_ms() + seconds * 1000;

    while (reap()) {
        if (now_ms() >= end) {
            each_child(show_child);
            return 0;
        }
        nap(PAUSE_MS);
    }
    return 1;
}

static int remove_one(const char *path, const struct stat *info, int kind,
                      struct FTW *ftw)
{
    (void)info;
    (void)kind;
    (void)ftw;
    remove(path);
    return 0;
}

/*
 * Runs the command in the caller's process group, so that it keeps the
 * terminal. `signals` is the mask to restore in it.
 */
static pid_t start(char **command, const sigset_t *signals)
{
    pid_t parent = getpid(), pid = fork();

    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    sigprocmask(SIG_SETMASK, signals, NULL);
    execvp(command[0], command);
    fprintf(stderr, "%s: %s\n", command[0], strerror(errno));
    _exit(127);
}

/* Waits for the end of the command. Returns 0, a signal's number or -1. */
static int wait_for_end(const sigset_t *signals, long seconds)
{
    long end = now_ms() + seconds * 1000, left;
    struct timespec pause;
    int number;

    for (;;) {
        reap();
        if (has_ended)
            return 0;
        left = seconds ? end - now_ms() : INT_MAX;
        if (left <= 0)
            return -1;
        pause.tv_sec = left / 1000;
        pause.tv_nsec = left % 1000 * 1000000;
        number = sigtimedwait(signals, NULL, &pause);
        if (number > 0 && number != SIGCHLD)
            return number;
    }
}

/* The status with which to exit once the command has ended. */
static int status_of_command(long grace)
{
    if (WIFSIGNALED(command_status))
        return 128 + WTERMSIG(command_status);
    if (WEXITSTATUS(command_status) == 0 && grace && !all_end(grace))
        return LEFT;
    return WEXITSTATUS(command_status);
}

static int end_by(int number)
{
    sigset_t only;

    signal(number, SIG_DFL);
    sigemptyset(&only);
    sigaddset(&only, number);
    raise(number);
    sigprocmask(SIG_UNBLOCK, &only, NULL);
    return 128 + number;
}

static int supervise(char **command, long seconds, long grace)
{
    sigset_t signals, before;
    int number, status = 0;

    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGHUP);
    sigprocmask(SIG_BLOCK, &signals, &before);
    command_pid = start(command, &before);
    if (command_pid < 0)
        return 1;
    number = wait_for_end(&signals, seconds);
    if (number == 0)
        status = status_of_command(grace);
    else if (number < 0)
        status = TIMEOUT;
    kill_all();
    return number > 0 ? -number : status;
}

int main(int argc, char **argv)
{
    const char *parent = getenv("TMPDIR");
    char folder[PATH_MAX];
    long seconds = 0, grace = 0;
    int status, option;

    while ((option = getopt(argc, argv, "+t:g:")) != -1) {
        if (option == 't')
            seconds = atol(optarg);
        else if (option == 'g')
            grace = atol(optarg);
        else
            return 2;
    }
    if (optind == argc)
        return 2;
    if (!parent || !*parent)
        parent = "/tmp";
    /* Short, because messages show the last 60 characters of a path. */
    snprintf(folder, sizeof(folder),
             strstr(parent, "/rlock-") ? "%s/XXXXXX" : "%s/rlock-XXXXXX",
             parent);
    if (!mkdtemp(folder)) {
        perror(folder);
        return 1;
    }
    setenv("TMPDIR", folder, 1);
    if (seconds)
        setpgid(0, 0); /* a group of this namespace, as under timeout(1) */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    status = supervise(argv + optind, seconds, grace);
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return status < 0 ? end_by(-status) : status;
}
