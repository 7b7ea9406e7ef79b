/*
 * Private folders and lock files, for the embedded server. Blocking, but
 * only as long as the file system takes.
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

int rl_private_dir(const char *path, char *why, size_t size)
{
    struct stat about;

    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return say_errno(why, size, path);
    if (lstat(path, &about) != 0)
        return say_errno(why, size, path);
    if (!S_ISDIR(about.st_mode))
        return say(why, size, path, UV_ENOTDIR);
    if (about.st_uid != geteuid()) {
        snprintf(why, size, "%.200s: belongs to another user (%ld)", path,
                 (long)about.st_uid);
        return UV_EPERM;
    }
    if ((about.st_mode & 077) != 0) {
        snprintf(why, size, "%.200s: open to other users (mode %03o)", path,
                 (unsigned)(about.st_mode & 0777));
        return UV_EPERM;
    }
    return 0;
}

/* Has the file been removed or replaced since it was opened? */
static int is_stale(const char *path, int fd)
{
    struct stat opened, named;

    return fstat(fd, &opened) != 0 || lstat(path, &named) != 0
           || opened.st_ino != named.st_ino || opened.st_dev != named.st_dev;
}

static int lock_once(const char *path, char *why, size_t size)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    int err;

    if (fd < 0)
        return say_errno(why, size, path);
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    err = errno == EWOULDBLOCK ? UV_EAGAIN : uv_translate_sys_error(errno);
    close(fd);
    if (err == UV_EAGAIN)
        snprintf(why, size, "%.200s: held by another process", path);
    else
        say(why, size, path, err);
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
