/*
 * Reads the lists of children in /proc. A list may miss a process because of a
 * race with one that exits or gets another parent, so a caller repeats its
 * call. Uses system calls instead of opendir, which may allocate: that is
 * unsafe in the forked child of a program with threads.
 */
#ifdef __linux__
#define _GNU_SOURCE /* syscall */
#endif

#include "tree.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __linux__
#include <stdint.h>
#include <sys/syscall.h>

/* What the kernel writes for each entry of a folder. */
struct entry {
    uint64_t inode;
    int64_t next;
    unsigned short length;
    unsigned char type;
    char name[];
};

static int folder_open(const char *path)
{
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Calls fn(arg, number) for each entry of the folder that is a number. */
static void each_number(int fd, void (*fn)(void *, int), void *arg)
{
    _Alignas(struct entry) char buffer[1024];
    long length, at;

    while ((length = syscall(SYS_getdents64, fd, buffer, sizeof(buffer))) > 0)
        for (at = 0; at < length;) {
            struct entry *entry = (struct entry *)(void *)(buffer + at);
            char *end;
            long number = strtol(entry->name, &end, 10);

            at += entry->length;
            if (*end == '\0')
                fn(arg, (int)number);
        }
}

struct walk {
    void (*fn)(const struct walk *walk, pid_t pid);
    pid_t group;
    int number;
    int depth;   /* below this process */
    int deepest; /* the depth at which to stop */
    pid_t pid;   /* whose children */
};

static void walk_children(const struct walk *walk, pid_t pid);

static void walk_child(const struct walk *walk, pid_t pid)
{
    if (walk->depth < walk->deepest)
        walk_children(walk, pid);
    walk->fn(walk, pid);
}

/* The children of one thread: numbers, each followed by a space. */
static void walk_thread(void *arg, int thread)
{
    const struct walk *walk = arg;
    char text[256], *at;
    pid_t pid = 0;
    ssize_t length;
    int fd;

    snprintf(text, sizeof(text), "/proc/%d/task/%d/children", (int)walk->pid,
             thread);
    fd = open(text, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    while ((length = read(fd, text, sizeof(text))) > 0)
        for (at = text; at < text + length; at++)
            if (*at >= '0' && *at <= '9') {
                pid = pid * 10 + (*at - '0');
            } else if (pid > 0) {
                walk_child(walk, pid);
                pid = 0;
            }
    close(fd);
}

static void walk_children(const struct walk *walk, pid_t pid)
{
    struct walk below = *walk;
    char path[40];
    int fd;

    below.pid = pid;
    below.depth++;
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    fd = folder_open(path);
    if (fd < 0)
        return;
    each_number(fd, walk_thread, &below);
    close(fd);
}

enum { DEEPEST = 200 };

static void signal_any(const struct walk *walk, pid_t pid)
{
    kill(pid, walk->number);
}

void rl_tree_kill(int number)
{
    struct walk walk = { signal_any, 0, number, 0, DEEPEST, 0 };

    walk_children(&walk, getpid());
}

static void signal_member(const struct walk *walk, pid_t pid)
{
    if (getpgid(pid) == walk->group)
        kill(pid, walk->number);
}

void rl_tree_signal(pid_t group, int number)
{
    struct walk walk = { signal_member, group, number, 0, DEEPEST, 0 };

    walk_children(&walk, getpid());
}

static void signal_stranger(const struct walk *walk, pid_t pid)
{
    if (getpgid(pid) != walk->group)
        kill(pid, walk->number);
}

void rl_tree_signal_orphans(pid_t group, int number)
{
    struct walk walk = { signal_stranger, group, number, 0, 1, 0 };

    walk_children(&walk, getpid());
}

struct files {
    void (*fn)(void *arg, int fd);
    void *arg;
    int own; /* the descriptor that lists them */
};

static void each_file(void *arg, int fd)
{
    const struct files *files = arg;

    if (fd > STDERR_FILENO && fd != files->own)
        files->fn(files->arg, fd);
}

void rl_tree_files(void (*fn)(void *arg, int fd), void *arg)
{
    struct files files = { fn, arg, folder_open("/proc/self/fd") };

    if (files.own < 0)
        return;
    each_number(files.own, each_file, &files);
    close(files.own);
}

#else

void rl_tree_kill(int number)
{
    (void)number;
}

void rl_tree_signal(pid_t group, int number)
{
    (void)group;
    (void)number;
}

void rl_tree_signal_orphans(pid_t group, int number)
{
    (void)group;
    (void)number;
}

void rl_tree_files(void (*fn)(void *arg, int fd), void *arg)
{
    enum { MOST = 256 };
    int fd;

    for (fd = STDERR_FILENO + 1; fd < MOST; fd++)
        fn(arg, fd);
}

#endif
