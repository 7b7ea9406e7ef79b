/*
 * The part of rlock.core for files and descriptors.
 */
#include "border.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"
#include "input.h"

#define INPUT "rlock.core.input"
#define LOCK "rlock.core.lock"

/* A string argument that is a valid C path: without NUL bytes. */
static const char *check_path(lua_State *L, int arg)
{
    size_t length;
    const char *path = luaL_checklstring(L, arg, &length);

    luaL_argcheck(L, length > 0 && strlen(path) == length, arg, "not a path");
    return path;
}

/* core.private_dir(path) -> true | nil, "refused", detail */
static int core_private_dir(lua_State *L)
{
    char why[RL_DETAIL];

    if (rl_private_dir(check_path(L, 1), why, sizeof(why)) != 0)
        return rl_refuse(L, "refused", why);
    return rl_push_true(L);
}

/* core.check_private(path, "directory" | "socket") -> true | nil, "missing" |
   "refused", detail */
static int core_check_private(lua_State *L)
{
    static const char *const kinds[] = { "directory", "socket", NULL };
    static const mode_t types[] = { S_IFDIR, S_IFSOCK };
    const char *path = check_path(L, 1);
    mode_t type = types[luaL_checkoption(L, 2, NULL, kinds)];
    char why[RL_DETAIL];
    int err = rl_check_private(path, type, why, sizeof(why));

    if (err != 0)
        return rl_refuse(L, err == UV_ENOENT ? "missing" : "refused", why);
    return rl_push_true(L);
}

/* ---- lock files ---- */

static void close_lock(void *resource)
{
    rl_handle *self = resource;

    close((int)self->number);
}

/* core.flock(path) -> handle | nil, "busy" | "refused", detail */
static int core_flock(lua_State *L)
{
    const char *path = check_path(L, 1);
    char why[RL_DETAIL];
    rl_handle *new = rl_handle_new(L, NULL, LOCK, close_lock);
    int fd = rl_lock_file(path, why, sizeof(why));

    if (fd < 0)
        return rl_refuse(L, fd == UV_EAGAIN ? "busy" : "refused", why);
    new->number = fd;
    new->resource = new;
    return 1;
}

int rl_lock_descriptor(lua_State *L, int arg)
{
    const rl_handle *lock = luaL_checkudata(L, arg, LOCK);

    return lock->resource != NULL ? (int)lock->number : -1;
}

/* ---- descriptors ---- */

static void close_input(void *resource)
{
    rl_input_close(resource);
}

/* core.input(id, fd) -> handle | nil, code, detail */
static int core_input(lua_State *L)
{
    rl_core *self = rl_core_of(L);
    lua_Integer id = rl_check_id(L, 1);
    int fd = (int)luaL_checkinteger(L, 2);
    rl_handle *new = rl_handle_new(L, self, INPUT, close_input);
    rl_input *input = NULL;
    int err = rl_input_open(&input, self->loop, id, fd);

    new->resource = input;
    return err == 0 ? 1 : rl_refuse_uv(L, "refused", err);
}

/* core.isatty(fd) -> boolean */
static int core_isatty(lua_State *L)
{
    lua_pushboolean(L, isatty((int)luaL_checkinteger(L, 1)));
    return 1;
}

/* core.keep(fd) -> true if the process has inherited it. Ask only once: it sets
   FD_CLOEXEC, so that no child inherits fd. Those of libuv already have it. */
static int core_keep(lua_State *L)
{
    int fd = (int)luaL_checkinteger(L, 1);
    int flags = fcntl(fd, F_GETFD);
    const int is_inherited = flags >= 0 && (flags & FD_CLOEXEC) == 0;

    if (is_inherited && fd > STDERR_FILENO)
        fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
    lua_pushboolean(L, is_inherited);
    return 1;
}

/* core.write(fd, text) -> the number of bytes written: fewer than the text has
   if the pipe is full or closed. A text longer than PIPE_BUF is written in
   parts, so it may be cut. Does not wait if no other process fills the pipe. */
static int core_write(lua_State *L)
{
    size_t length, left;
    struct pollfd room = { (int)luaL_checkinteger(L, 1), POLLOUT, 0 };
    const char *text = luaL_checklstring(L, 2, &length);

    for (left = length; left > 0;) {
        const size_t part = left < PIPE_BUF ? left : PIPE_BUF;

        if (poll(&room, 1, 0) != 1
            || write(room.fd, text, part) != (ssize_t)part)
            break;
        text += part;
        left -= part;
    }
    lua_pushinteger(L, (lua_Integer)(length - left));
    return 1;
}

/* core.write_failure(file) -> nil | "cut" | "unread": has a write to a Lua file
   failed? Lua's print ignores such an error, and a later flush succeeds.
   "unread": the reader of the pipe has closed it. nil for an output that was
   closed at start, when main.c opens /dev/null read-only: it is unwanted. */
static int core_write_failure(lua_State *L)
{
    const luaL_Stream *stream = luaL_checkudata(L, 1, LUA_FILEHANDLE);
    struct pollfd reader = { -1, POLLOUT, 0 };

    if (stream->closef == NULL || !ferror(stream->f))
        return 0;
    reader.fd = fileno(stream->f);
    if ((fcntl(reader.fd, F_GETFL) & O_ACCMODE) == O_RDONLY)
        return 0;
    poll(&reader, 1, 0);
    lua_pushstring(L, reader.revents & (POLLERR | POLLHUP) ? "unread" : "cut");
    return 1;
}

void rl_core_add_file(lua_State *L)
{
    static const luaL_Reg functions[] = {
        { "private_dir", core_private_dir },
        { "check_private", core_check_private },
        { "flock", core_flock },
        { "input", core_input },
        { "isatty", core_isatty },
        { "keep", core_keep },
        { "write", core_write },
        { "write_failure", core_write_failure },
        { NULL, NULL },
    };

    rl_handle_class(L, INPUT, NULL);
    rl_handle_class(L, LOCK, NULL);
    rl_core_add(L, functions);
}
