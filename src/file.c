/*
 * Private folders and lock files, for the local: server. Blocks only as long
 * as the file system takes.
 */
#define _DEFAULT_SOURCE /* flock */

#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

static int say(char *why, size_t size, const char *path, int err)
{
    snprintf(why, size, "%.200s: %s", path, uv_strerror(err));
    return err;
}

static int say_errno(char *why, size_t size, const char *path)
{
    return say(why, size, path, uv_translate_sys_error(errno));
}

/* Checks that it has this type (S_IFREG, ...) and that we own it. */
static int check_own(const struct stat *about, mode_t type, char *why,
                     size_t size, const char *path)
{
    if ((about->st_mode & S_IFMT) != type) {
        snprintf(why, size, "%.200s: not a %s", path,
                 type == S_IFDIR    ? "directory"
                 : type == S_IFSOCK ? "socket"
                                    : "regular file");
        return UV_EINVAL;
    }
    if (about->st_uid != geteuid()) {
        snprintf(why, size, "%.200s: belongs to another user (%ld)", path,
                 (long)about->st_uid);
        return UV_EPERM;
    }
    return 0;
}

int rl_check_private(const char *path, mode_t type, char *why, size_t size)
{
    struct stat about;
    int err;

    if (lstat(path, &about) != 0)
        return say_errno(why, size, path);
    err = check_own(&about, type, why, size, path);
    if (err == 0 && type == S_IFDIR && (about.st_mode & 077) != 0) {
        snprintf(why, size, "%.200s: open to other users (mode %03o)", path,
                 (unsigned)(about.st_mode & 0777));
        return UV_EPERM;
    }
    return err;
}

int rl_private_dir(const char *path, char *why, size_t size)
{
    int tries, err = UV_ENOENT;

    /* Another process may remove it just after mkdir has found it. */
    for (tries = 0; tries < 8 && err == UV_ENOENT; tries++) {
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            return say_errno(why, size, path);
        err = rl_check_private(path, S_IFDIR, why, size);
    }
    return err;
}

/* Has the file been removed or replaced since we opened it? */
static int is_stale(const char *path, int fd)
{
    struct stat opened, named;

    return fstat(fd, &opened) != 0 || lstat(path, &named) != 0
           || opened.st_ino != named.st_ino || opened.st_dev != named.st_dev;
}

static int lock_opened(int fd, char *why, size_t size, const char *path)
{
    struct stat about;
    int err;

    if (fstat(fd, &about) != 0)
        return say_errno(why, size, path);
    err = check_own(&about, S_IFREG, why, size, path);
    if (err != 0 || flock(fd, LOCK_EX | LOCK_NB) == 0)
        return err;
    if (errno != EWOULDBLOCK)
        return say_errno(why, size, path);
    snprintf(why, size, "%.200s: held by another process", path);
    return UV_EAGAIN;
}

static int lock_once(const char *path, char *why, size_t size)
{
    int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    int fd = open(path, flags, 0600);
    int err;

    if (fd < 0)
        return say_errno(why, size, path);
    err = lock_opened(fd, why, size, path);
    if (err == 0)
        return fd;
    close(fd);
    return err;
}

int rl_lock_file(const char *path, char *why, size_t size)
{
    int tries, fd;

    for (tries = 0; tries < 8; tries++) {
        fd = lock_once(path, why, size);
        if (fd < 0 || !is_stale(path, fd))
            return fd;
        close(fd);
    }
    return say(why, size, path, UV_ENOENT);
}
