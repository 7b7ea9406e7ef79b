/*
 * Helper processes of a test, servers and proxies, which end with the test.
 *
 *   daemon start PARENT DIR READY COMMAND [ARG...]
 *
 * Runs COMMAND in its own session, with its output in DIR/log and its pid in
 * DIR/pid, and prints the pid once the log contains READY. If COMMAND ends
 * earlier, prints the log on standard error and fails.
 *
 * A watchdog remains. Once process PARENT has ended, even by SIGKILL, it kills
 * the pid in DIR/pid (a group if negative) and removes DIR; once DIR is gone,
 * it just ends. To stop COMMAND, kill it and remove DIR/pid or DIR. If COMMAND
 * is started again in the same DIR, the first watchdog stays in charge.
 *
 *   daemon kill SIGNAL PID
 *
 * Sends a signal by number, and waits until the process has ended.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { READY_MS = 20000, GONE_MS = 20000, WATCH_MS = 50 };

/* Skips the fields of /proc/PID/stat between the state and the threads. */
#define SKIP_4 " %*s %*s %*s %*s "
#define SKIP_16 SKIP_4 SKIP_4 SKIP_4 SKIP_4

static void nap(long ms)
{
    struct timespec pause = { ms / 1000, ms % 1000 * 1000000 };

    nanosleep(&pause, NULL);
}

/*
 * A zombie counts as ended once its last thread is gone. Until then, its
 * sockets may still be open.
 */
static int is_alive(pid_t pid)
{
    char path[40], text[512], *state, letter;
    size_t length;
    int threads;
    FILE *file;

    if (kill(pid, 0) != 0 && errno == ESRCH)
        return 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    file = fopen(path, "r");
    if (!file)
        return access("/proc/self", F_OK) != 0;
    length = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[length] = '\0';
    state = strrchr(text, ')');
    if (!state || sscanf(state, ") %c" SKIP_16 "%d", &letter, &threads) != 2)
        return 0;
    return (letter != 'Z' && letter != 'X') || threads > 1;
}

static char *path_in(const char *folder, const char *name)
{
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = malloc(size);

    if (!path)
        exit(1);
    snprintf(path, size, "%s/%s", folder, name);
    return path;
}

/* The content of a file, or NULL. The caller frees it. */
static char *content_of(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text;
    size_t length = 0, size = 4096, got;

    if (!file)
        return NULL;
    text = malloc(size);
    while (text
           && (got = fread(text + length, 1, size - length - 1, file)) > 0) {
        length += got;
        if (size - length < 2)
            text = realloc(text, size *= 2);
    }
    fclose(file);
    if (text)
        text[length] = '\0';
    return text;
}

static pid_t pid_in(const char *path)
{
    char *text = content_of(path);
    long pid = text ? strtol(text, NULL, 10) : 0;

    free(text);
    return (pid_t)pid;
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

static void watch(pid_t parent, const char *folder)
{
    const char *name = strrchr(folder, '/');
    char *path = path_in(folder, "pid");
    pid_t pid;

    while (is_alive(parent) && access(folder, F_OK) == 0)
        nap(WATCH_MS);
    pid = pid_in(path);
    if (pid > 1 || pid < -1)
        kill(pid, SIGKILL);
    if (name && strncmp(name, "/rlock-", 7) == 0)
        nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(path);
}

static void open_as(const char *path, int flags, int target)
{
    int fd = open(path, flags, 0600);

    if (fd < 0 || dup2(fd, target) < 0)
        _exit(127);
    if (fd != target)
        close(fd);
}

/* Starts the watchdog, unless the folder has one. */
static void start_watch(pid_t parent, const char *folder)
{
    char *path = path_in(folder, "watched");
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    free(path);
    if (fd < 0)
        return;
    close(fd);
    if (fork() != 0)
        return;
    open_as("/dev/null", O_RDONLY, STDIN_FILENO);
    open_as("/dev/null", O_WRONLY, STDOUT_FILENO);
    open_as("/dev/null", O_WRONLY, STDERR_FILENO);
    watch(parent, folder);
    _exit(0);
}

static pid_t run(const char *log, char **command)
{
    pid_t pid = fork();

    if (pid != 0)
        return pid;
    open_as("/dev/null", O_RDONLY, STDIN_FILENO);
    open_as(log, O_WRONLY | O_CREAT | O_APPEND, STDOUT_FILENO);
    dup2(STDOUT_FILENO, STDERR_FILENO);
    execvp(command[0], command);
    fprintf(stderr, "%s: %s\n", command[0], strerror(errno));
    _exit(127);
}

static int is_ready(const char *log, const char *ready)
{
    char *text = content_of(log);
    int found = text && strstr(text, ready);

    free(text);
    return found;
}

static void write_pid(const char *path, pid_t pid)
{
    FILE *file = fopen(path, "w");

    if (!file)
        exit(1);
    fprintf(file, "%d\n", (int)pid);
    fclose(file);
}

/* Waits until the log contains `ready`. Fails if the process ends earlier. */
static int wait_until_ready(pid_t pid, const char *log, const char *ready)
{
    int ms;

    for (ms = 0; ms < READY_MS; ms++) {
        if (is_ready(log, ready))
            return 0;
        if (waitpid(pid, NULL, WNOHANG) != 0)
            break;
        nap(1);
    }
    if (kill(-pid, SIGKILL) != 0)
        kill(pid, SIGKILL);
    return 1;
}

static int run_daemon(const char *log, const char *path, const char *ready,
                      char **command)
{
    char *text;
    pid_t pid;

    if (truncate(log, 0) != 0 && errno != ENOENT)
        return 1;
    pid = run(log, command);
    if (pid < 0)
        return 1;
    write_pid(path, pid);
    if (wait_until_ready(pid, log, ready) == 0) {
        printf("%d\n", (int)pid);
        return 0;
    }
    remove(path);
    text = content_of(log);
    fputs(text ? text : "no log\n", stderr);
    free(text);
    return 1;
}

static int start(pid_t parent, const char *folder, const char *ready,
                 char **command)
{
    char *log = path_in(folder, "log"), *path = path_in(folder, "pid");
    int status;

    setsid();
    start_watch(parent, folder);
    status = run_daemon(log, path, ready, command);
    free(log);
    free(path);
    return status;
}

static int stop(int number, pid_t pid)
{
    int ms;

    if (kill(pid, number) != 0)
        return errno != ESRCH;
    for (ms = 0; ms < GONE_MS && is_alive(pid); ms++)
        nap(1);
    return ms == GONE_MS;
}

int main(int argc, char **argv)
{
    if (argc > 5 && strcmp(argv[1], "start") == 0)
        return start((pid_t)atoi(argv[2]), argv[3], argv[4], argv + 5);
    if (argc == 4 && strcmp(argv[1], "kill") == 0)
        return stop(atoi(argv[2]), (pid_t)atoi(argv[3]));
    fputs("usage: daemon start PARENT DIR READY COMMAND...\n"
          "       daemon kill SIGNAL PID\n",
          stderr);
    return 2;
}
