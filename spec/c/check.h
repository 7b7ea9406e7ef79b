/*
 * Shared by the C tests: a check that counts, servers to test against, and a
 * temporary folder.
 *
 * A test is a function without arguments, run by RUN. A check prints only if it
 * fails. The last line of a program is "N passed, N failed".
 */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int check_wrong, check_passed, check_failed;

#define CHECK(condition)                                           \
    do {                                                           \
        if (!(condition)) {                                        \
            check_wrong = 1;                                       \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #condition); \
        }                                                          \
    } while (0)

#define RUN(test) check_run(test, #test)

static inline void check_run(void (*test)(void), const char *name)
{
    check_wrong = 0;
    test();
    printf("%s %s\n", check_wrong ? "not ok" : "ok", name);
    fflush(stdout);
    check_passed += !check_wrong;
    check_failed += check_wrong;
}

/* The return value of main. */
static inline int check_end(void)
{
    printf("%d passed, %d failed\n", check_passed, check_failed);
    return check_failed != 0;
}

/* ---- time ---- */

static inline double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline void pause_ms(long ms)
{
    struct timespec span = { ms / 1000, ms % 1000 * 1000000 };

    while (nanosleep(&span, &span) != 0 && errno == EINTR)
        ;
}

/* The slowness factor of the machine. */
static inline double slow(void)
{
    const char *factor = getenv("RLOCK_SLOW");

    return factor != NULL ? atof(factor) : 1;
}

/* ---- a temporary folder ---- */

static char folder[64];

static inline void remove_folder(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    if (system(command) != 0)
        perror(folder);
}

/* The path of a file in a folder that is removed when the program ends. */
static inline const char *in_folder(const char *name)
{
    static char path[4][128];
    static int next;

    if (folder[0] == '\0') {
        strcpy(folder, "/tmp/rlock-c.XXXXXX");
        if (mkdtemp(folder) == NULL) {
            perror(folder);
            exit(1);
        }
        atexit(remove_folder);
    }
    next = (next + 1) % 4;
    snprintf(path[next], sizeof(path[next]), "%s/%s", folder, name);
    return path[next];
}

/* ---- servers, each in its own process ---- */

static inline struct sockaddr_un address_of(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    if (strlen(path) >= sizeof(address.sun_path))
        abort();
    strcpy(address.sun_path, path);
    return address;
}

static inline int dial(const char *path)
{
    struct sockaddr_un address = address_of(path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    close(fd);
    return -1;
}

static inline void finish(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* Starts a redis-server on that socket and waits until it answers. */
static inline pid_t start_redis(const char *path)
{
    pid_t pid = fork();
    int fd, tries = 0;

    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);

        dup2(null, 1);
        dup2(null, 2);
        execlp("redis-server", "redis-server", "--port", "0", "--unixsocket",
               path, "--save", "", "--enable-debug-command", "yes",
               (char *)NULL);
        _exit(127);
    }
    while ((fd = dial(path)) < 0) {
        pause_ms(5);
        if (++tries > 1000) {
            fputs("redis-server does not start\n", stderr);
            finish(pid);
            exit(1);
        }
    }
    close(fd);
    return pid;
}

static inline int listen_at(const char *path, int backlog)
{
    struct sockaddr_un address = address_of(path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    unlink(path);
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0
        || listen(fd, backlog) != 0) {
        perror(path);
        exit(1);
    }
    return fd;
}

/* A server that passes its first connection to talk, then ends. */
static inline pid_t start_fake(const char *path, void (*talk)(int fd))
{
    int listener = listen_at(path, 8);
    pid_t pid = fork();

    if (pid == 0) {
        talk(accept(listener, NULL, NULL));
        _exit(0);
    }
    close(listener);
    return pid;
}

/* For talk: reads until that text has arrived; returns the number of reads. */
static inline int expect(int fd, const char *text)
{
    static char seen[65536];
    size_t length = 0;
    int reads = 0;

    for (;;) {
        ssize_t n = read(fd, seen + length, sizeof(seen) - 1 - length);

        if (n <= 0)
            _exit(1);
        reads++;
        length += (size_t)n;
        seen[length] = '\0';
        if (strstr(seen, text) != NULL)
            return reads;
    }
}

static inline void say(int fd, const char *text)
{
    size_t length = strlen(text);

    if (write(fd, text, length) != (ssize_t)length)
        _exit(1);
}

#endif
