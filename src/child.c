/*
 * Child processes over uv_spawn. A detached child is still reaped while the
 * loop runs, so it leaves no zombie. The memory is freed once both the owner
 * and libuv have released it.
 */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct rl_child {
    rl_owner base;
    uv_process_t uv;
    rl_loop *loop;
    int64_t id;
    int users; /* the owner, and libuv's handle */
    int exited;
    int forgotten;
};

static void child_release(rl_child *self)
{
    if (--self->users == 0)
        free(self);
}

static void handle_closed(uv_handle_t *handle)
{
    child_release(handle->data);
}

static void child_drop(rl_owner *base)
{
    rl_child *self = (rl_child *)base;

    self->users = 1;
    uv_close((uv_handle_t *)&self->uv, handle_closed);
}

static void on_exit(uv_process_t *uv, int64_t status, int number)
{
    rl_child *self = uv->data;
    rl_event event = {
        .what = RL_EXITED, .id = self->id, .status = status, .signal = number
    };

    self->exited = 1;
    uv_close((uv_handle_t *)uv, handle_closed);
    if (!self->forgotten)
        rl_loop_report(self->loop, &event);
}

/* The descriptor for this word. Sets *opened if the caller has to close it. */
static int stdio_open(const char *word, int number, int *opened)
{
    int flags = number == 0 ? O_RDONLY : O_WRONLY | O_CREAT | O_APPEND;

    *opened = 0;
    if (strcmp(word, "inherit") == 0)
        return number;
    if (strcmp(word, "null") == 0)
        word = "/dev/null";
    *opened = 1;
    return open(word, flags | O_CLOEXEC | O_NOCTTY, 0600);
}

static void stdio_close(const uv_stdio_container_t *stdio, const int *opened)
{
    int i;

    for (i = 0; i < 3; i++)
        if (opened[i] && stdio[i].data.fd >= 0)
            close(stdio[i].data.fd);
}

static int stdio_fill(uv_stdio_container_t *stdio, int *opened,
                      const rl_child_options *options, char *why, size_t size)
{
    int i, err;

    for (i = 0; i < 3; i++) {
        stdio[i].flags = UV_INHERIT_FD;
        stdio[i].data.fd = stdio_open(options->stdio[i], i, &opened[i]);
        if (stdio[i].data.fd >= 0)
            continue;
        err = uv_translate_sys_error(errno);
        snprintf(why, size, "%.200s: %s", options->stdio[i], uv_strerror(err));
        return err;
    }
    return 0;
}

static int cwd_check(const char *cwd, char *why, size_t size)
{
    struct stat about;
    int err = 0;

    if (cwd == NULL)
        return 0;
    if (stat(cwd, &about) != 0)
        err = uv_translate_sys_error(errno);
    else if (!S_ISDIR(about.st_mode))
        err = UV_ENOTDIR;
    if (err != 0)
        snprintf(why, size, "%.200s: %s", cwd, uv_strerror(err));
    return err;
}

/* Descriptors that we inherited (a shell's lock, a CI pipe) must not leak into
   children that outlive us. */
static void files_keep_to_ourselves(void)
{
    enum { MOST = 256 };
    int fd, flags;

    for (fd = 3; fd < MOST; fd++) {
        flags = fcntl(fd, F_GETFD);
        if (flags >= 0)
            fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
    }
}

static int child_spawn(rl_child *self, const rl_child_options *options,
                       uv_stdio_container_t *stdio)
{
    unsigned flags = options->detached ? UV_PROCESS_DETACHED : 0;
    int count = options->keep >= 0 ? 4 : 3;
    uv_process_options_t spawn = {
        .exit_cb = on_exit,
        .file = options->file,
        .args = options->args,
        .env = options->env,
        .cwd = options->cwd,
        .flags = flags,
        .stdio_count = count,
        .stdio = stdio,
    };

    stdio[3].flags = UV_INHERIT_FD;
    stdio[3].data.fd = options->keep;
    if (options->detached)
        files_keep_to_ourselves();
    return uv_spawn(rl_loop_uv(self->loop), &self->uv, &spawn);
}

int rl_child_open(rl_child **out, rl_loop *loop, int64_t id,
                  const rl_child_options *options, char *why, size_t size)
{
    uv_stdio_container_t stdio[4];
    int opened[3] = { 0, 0, 0 };
    rl_child *self = calloc(1, sizeof(*self));
    int err = UV_ENOMEM;

    snprintf(why, size, "%s", uv_strerror(err));
    if (self == NULL)
        goto err0;
    err = cwd_check(options->cwd, why, size);
    if (err != 0)
        goto err1;
    err = stdio_fill(stdio, opened, options, why, size);
    if (err != 0)
        goto err2;
    self->base.drop = child_drop;
    self->loop = loop;
    self->id = id;
    self->users = 2;
    err = child_spawn(self, options, stdio);
    self->uv.data = self;
    stdio_close(stdio, opened);
    if (err != 0)
        goto err3;
    *out = self;
    return 0;

err3:
    snprintf(why, size, "%.200s: %s", options->file,
             err == UV_ENOENT ? "not found" : uv_strerror(err));
    child_drop(&self->base); /* libuv still owns the handle */
    return err;
err2:
    stdio_close(stdio, opened);
err1:
    free(self);
err0:
    return err;
}

int rl_child_pid(const rl_child *self)
{
    return self->uv.pid;
}

int rl_child_kill(rl_child *self, int number)
{
    return self->exited ? UV_ESRCH : uv_process_kill(&self->uv, number);
}

void rl_child_close(rl_child *self)
{
    if (self == NULL)
        return;
    self->forgotten = 1;
    if (!self->exited)
        uv_unref((uv_handle_t *)&self->uv);
    child_release(self);
}
