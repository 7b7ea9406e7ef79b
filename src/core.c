/*
 * The Lua module rlock.core: primitives by id, and the one entry from C into
 * Lua.
 *
 * Lua gives each asynchronous operation an id. The operation completes with
 * one call of the function set by core.dispatch: fn(id, ...), from within
 * core.run, never from within the call that started it, nor from close or
 * __gc. The same protected call builds the arguments and runs fn; resources
 * owned by C stay outside it, so that an error cannot leak them.
 *
 * Each handle is a userdata created before its resource; :close(), __gc and
 * __close clear the handle before they release the resource.
 *
 * A refusal is nil, code, detail. Durations are integers, in milliseconds.
 */
#include "core.h"

#include <assert.h>
#include <fcntl.h>
#include <lauxlib.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "child.h"
#include "class.h"
#include "clock.h"
#include "conn.h"
#include "file.h"
#include "input.h"
#include "job.h"
#include "loop.h"
#include "reply.h"
#include "serve.h"
#include "timer.h"

#define VERSION "0.1.0" /* must match lua/rlock/host/uv.lua */

#define CORE "rlock.core"
#define TIMER "rlock.core.timer"
#define CONN "rlock.core.conn"
#define SIGNAL "rlock.core.signal"
#define INPUT "rlock.core.input"
#define CHILD "rlock.core.child"
#define JOB "rlock.core.job"
#define SERVER "rlock.core.server"
#define LOCK "rlock.core.lock"

static const lua_Integer MAX_MS = (lua_Integer)1 << 40;

/* Upvalue 1 of all functions. Its user value is the dispatcher. */
typedef struct core {
    rl_loop *loop;     /* NULL: the state is being closed */
    lua_State *L;      /* the caller of core.run */
    int failed;        /* an error message is at FAILURE on its stack */
    const char **argv; /* the arguments of one command */
    size_t *lengths;
    int room;
} core;

/* Stack slots of core.run, which every completion uses. */
enum { HANDLER = 1, DISPATCH, FAILURE };

static core *get_core(lua_State *L)
{
    core *self = lua_touserdata(L, lua_upvalueindex(1));

    if (self->loop == NULL)
        luaL_error(L, "rlock.core is closed");
    return self;
}

static int refuse(lua_State *L, const char *code, const char *detail)
{
    luaL_pushfail(L);
    lua_pushstring(L, code);
    lua_pushstring(L, detail);
    return 3;
}

static int refuse_uv(lua_State *L, const char *code, int err)
{
    return refuse(L, code, uv_strerror(err));
}

static int no_memory(lua_State *L)
{
    return luaL_error(L, "not enough memory");
}

static int push_true(lua_State *L)
{
    lua_pushboolean(L, 1);
    return 1;
}

static lua_Integer check_id(lua_State *L, int arg)
{
    lua_Integer id = luaL_checkinteger(L, arg);

    luaL_argcheck(L, id > 0, arg, "positive id expected");
    return id;
}

static uint64_t check_ms(lua_State *L, int arg)
{
    lua_Integer ms = luaL_checkinteger(L, arg);

    luaL_argcheck(L, ms >= 0 && ms <= MAX_MS, arg, "duration out of range");
    return (uint64_t)ms;
}

/* ---- from C into Lua ---- */

static int push_failure(lua_State *L, const char *code, const char *detail)
{
    refuse(L, code, detail);
    return 4;
}

static int push_reply(lua_State *L, const redisReply *reply)
{
    if (reply->type == REDIS_REPLY_ERROR) {
        luaL_pushfail(L);
        lua_pushliteral(L, "redis");
        lua_pushlstring(L, reply->str, reply->len);
        return 4;
    }
    if (rl_reply_push(L, reply) != 0)
        return push_failure(L, "redis", "reply nested too deep");
    return 2;
}

static int push_message(lua_State *L, const redisReply *reply)
{
    int i;

    for (i = 0; i < 3; i++)
        if (rl_reply_push(L, reply->element[i]) != 0)
            lua_pushboolean(L, 0);
    return 4;
}

static int push_exit(lua_State *L, const rl_event *event)
{
    lua_pushinteger(L, (lua_Integer)event->status);
    lua_pushinteger(L, event->signal);
    return 3;
}

/* Pushes the id and the event's values; returns how many. */
static int push_event(lua_State *L, const rl_event *event)
{
    lua_pushinteger(L, (lua_Integer)event->id);
    switch (event->what) {
    case RL_OPENED:
        return 1 + push_true(L);
    case RL_REPLIED:
        return push_reply(L, event->reply);
    case RL_FAILED:
        return push_failure(L, event->code, event->detail);
    case RL_LOST:
    case RL_ASKED:
        lua_pushstring(L, event->detail);
        return 2;
    case RL_PUSHED:
        return push_message(L, event->reply);
    case RL_EXITED:
    case RL_REPORTED:
        return push_exit(L, event);
    default:
        return 1;
    }
}

/* Upvalue 1: the core. Argument: the event. Runs under core_tell's pcall. */
static int dispatch(lua_State *L)
{
    const rl_event *event = lua_touserdata(L, 1);

    lua_getiuservalue(L, lua_upvalueindex(1), 1);
    if (!lua_isnil(L, -1))
        lua_call(L, push_event(L, event), 0);
    return 0;
}

static int traceback(lua_State *L)
{
    const char *message = lua_tostring(L, 1);

    if (message == NULL)
        message = luaL_tolstring(L, 1, NULL);
    luaL_traceback(L, L, message, 1);
    return 1;
}

static void core_tell(void *owner, const rl_event *event)
{
    core *self = owner;
    lua_State *L = self->L;

    if (L == NULL)
        return;
    lua_pushvalue(L, DISPATCH);
    lua_pushlightuserdata(L, (void *)event);
    if (lua_pcall(L, 1, 0, HANDLER) == LUA_OK)
        return;
    if (self->failed) {
        lua_pop(L, 1); /* report only the first failure */
    } else {
        self->failed = 1;
        lua_replace(L, FAILURE);
    }
    if (self->loop != NULL)
        rl_loop_stop(self->loop);
}

/* core.dispatch(fn) */
static int core_dispatch(lua_State *L)
{
    get_core(L);
    if (!lua_isnil(L, 1))
        luaL_checktype(L, 1, LUA_TFUNCTION);
    lua_settop(L, 1);
    lua_setiuservalue(L, lua_upvalueindex(1), 1);
    return 0;
}

/* core.run() -> true | nil, message */
static int core_run(lua_State *L)
{
    core *self = get_core(L);
    lua_State *caller = self->L;

    if (caller != NULL)
        return luaL_error(L, "core.run is running already");
    lua_settop(L, 0);
    lua_pushcfunction(L, traceback);
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_pushcclosure(L, dispatch, 1);
    lua_pushnil(L);
    self->L = L;
    self->failed = 0;
    rl_loop_run(self->loop);
    self->L = NULL;
    if (!self->failed)
        return push_true(L);
    luaL_pushfail(L);
    lua_insert(L, FAILURE);
    return 2;
}

/* core.stop() */
static int core_stop(lua_State *L)
{
    rl_loop_stop(get_core(L)->loop);
    return 0;
}

/* ---- interrupting a task that never waits ---- */

/*
 * The loop cannot report a signal while a task computes. So the signal handler
 * sets a debug hook in the running coroutine, as lua does. The hook lets
 * PATIENCE_MS pass, in case the task waits soon, and then calls the function
 * given to core.interrupt: fn(number), which may raise. Every coroutine that
 * is resumed meanwhile gets the hook.
 */
enum { PATIENCE_MS = 100, STEPS = 1000 };
static lua_State *volatile active;
static const char INTERRUPT; /* its address is the function's key */

static void interrupt(lua_State *L, lua_Debug *where)
{
    int number = rl_signal_unheard(PATIENCE_MS);

    (void)where;
    if (rl_signal_unheard(0) == 0)
        lua_sethook(L, NULL, 0, 0);
    if (number == 0)
        return;
    lua_sethook(L, interrupt, LUA_MASKCOUNT, 1);
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, &INTERRUPT) == LUA_TNIL) {
        lua_pop(L, 1);
        return;
    }
    lua_pushinteger(L, number);
    lua_call(L, 1, 0);
}

/* Runs in the signal handler. */
static void hook_running(void)
{
    if (active != NULL)
        lua_sethook(active, interrupt, LUA_MASKCOUNT, STEPS);
}

static void set_running(lua_State *L)
{
    active = L;
    if (L != NULL && rl_signal_unheard(0) != 0 && lua_gethook(L) == NULL)
        hook_running();
}

/* core.interrupt(fn); nil removes it */
static int core_interrupt(lua_State *L)
{
    get_core(L);
    lua_settop(L, 1);
    if (!lua_isnil(L, 1))
        luaL_checktype(L, 1, LUA_TFUNCTION);
    rl_signal_on_ask(lua_isnil(L, 1) ? NULL : hook_running);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &INTERRUPT);
    return 0;
}

static int resume_failed(lua_State *L, const char *message)
{
    lua_pushboolean(L, 0);
    lua_pushstring(L, message);
    return 2;
}

/* core.resume(co, ...): coroutine.resume that records the running coroutine */
static int core_resume(lua_State *L)
{
    lua_State *co = lua_tothread(L, 1), *resumer = active;
    int count = lua_gettop(L) - 1;
    int status;

    luaL_argexpected(L, co, 1, "coroutine");
    if (!lua_checkstack(co, count))
        return resume_failed(L, "too many arguments to resume");
    lua_xmove(L, co, count);
    set_running(co);
    status = lua_resume(co, L, count, &count);
    set_running(resumer);
    if (status != LUA_OK && status != LUA_YIELD)
        count = 1; /* the error */
    if (!lua_checkstack(L, count + 1)) {
        lua_pop(co, count);
        return resume_failed(L, "too many results to resume");
    }
    lua_xmove(co, L, count);
    lua_pushboolean(L, status == LUA_OK || status == LUA_YIELD);
    lua_insert(L, -(count + 1));
    return count + 1;
}

/* ---- functions without a handle ---- */

/* core.now() -> seconds, by a clock that includes suspend where possible */
static int core_now(lua_State *L)
{
    lua_pushnumber(L, (lua_Number)rl_clock_now() / 1e9);
    return 1;
}

/* core.random(n) -> n bytes from the system's random generator */
static int core_random(lua_State *L)
{
    char bytes[1024];
    lua_Integer n = luaL_checkinteger(L, 1);
    int err;

    luaL_argcheck(L, n >= 1 && n <= (lua_Integer)sizeof(bytes), 1,
                  "1 to 1024 expected");
    err = uv_random(NULL, NULL, bytes, (size_t)n, 0, NULL);
    if (err != 0)
        return luaL_error(L, "no random bytes: %s", uv_strerror(err));
    lua_pushlstring(L, bytes, (size_t)n);
    return 1;
}

/* core.hostname() -> string or nil */
static int core_hostname(lua_State *L)
{
    char name[UV_MAXHOSTNAMESIZE];
    size_t size = sizeof(name);

    if (uv_os_gethostname(name, &size) != 0)
        return 0;
    lua_pushlstring(L, name, size);
    return 1;
}

/* core.pid() -> integer */
static int core_pid(lua_State *L)
{
    lua_pushinteger(L, (lua_Integer)getpid());
    return 1;
}

/* core.uid() -> integer */
static int core_uid(lua_State *L)
{
    lua_pushinteger(L, (lua_Integer)geteuid());
    return 1;
}

/* core.isatty(fd) -> boolean */
static int core_isatty(lua_State *L)
{
    lua_pushboolean(L, isatty((int)luaL_checkinteger(L, 1)));
    return 1;
}

/* Stores the string at index in this field of upvalue 1. */
static void keep(lua_State *L, int index, const char *field)
{
    lua_pushvalue(L, index);
    lua_setfield(L, lua_upvalueindex(1), field);
}

/* Raises only the message; stores the code and detail. */
static int keeping_assert(lua_State *L)
{
    if (lua_toboolean(L, 1))
        return lua_gettop(L);
    luaL_checkany(L, 1);
    if (lua_type(L, 2) == LUA_TSTRING && lua_type(L, 3) == LUA_TSTRING) {
        keep(L, 2, "code");
        keep(L, 3, "detail");
    }
    if (lua_gettop(L) == 1)
        lua_pushliteral(L, "assertion failed!");
    lua_settop(L, 2);
    return lua_error(L);
}

/*
 * core.new_assert(kept) -> an assert that stores kept.code and kept.detail. It
 * is in C so that tracebacks show it like Lua's own.
 */
static int core_new_assert(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    lua_pushcclosure(L, keeping_assert, 1);
    return 1;
}

/* ---- handles ---- */

/* A userdata of size zero bytes with this metatable. */
static void *new_handle(lua_State *L, size_t size, const char *name)
{
    void *handle = lua_newuserdatauv(L, size, 0);

    memset(handle, 0, size);
    luaL_setmetatable(L, name);
    return handle;
}

typedef struct timer_handle {
    rl_timer *timer; /* NULL: closed or fired */
    core *core;
    lua_Integer id;
} timer_handle;

static void timer_fired(void *arg)
{
    timer_handle *self = arg;
    rl_event event = { .what = RL_FIRED, .id = self->id };

    rl_timer_close(self->timer);
    self->timer = NULL;
    rl_loop_tell(self->core->loop, &event);
}

/* core.timer(id, ms) -> timer */
static int core_timer(lua_State *L)
{
    core *self = get_core(L);
    lua_Integer id = check_id(L, 1);
    uint64_t ms = check_ms(L, 2);
    timer_handle *handle = new_handle(L, sizeof(*handle), TIMER);

    handle->core = self;
    handle->id = id;
    handle->timer = rl_timer_open(self->loop, timer_fired, handle);
    if (handle->timer == NULL)
        return no_memory(L);
    rl_timer_start(handle->timer, ms);
    return 1;
}

/* timer:close() */
static int timer_close(lua_State *L)
{
    timer_handle *self = luaL_checkudata(L, 1, TIMER);
    rl_timer *timer = self->timer;

    self->timer = NULL;
    if (timer != NULL && self->core->loop != NULL)
        rl_timer_close(timer);
    return 0;
}

typedef struct signal_handle {
    rl_signal *signal;
    core *core;
} signal_handle;

static const char *const signal_names[] = { "HUP",  "INT",  "QUIT",  "TERM",
                                            "USR1", "USR2", "WINCH", "CONT",
                                            "TSTP", "ALRM", "CHLD",  "KILL",
                                            "STOP", NULL };
static const int signal_numbers[] = { SIGHUP,  SIGINT,  SIGQUIT,  SIGTERM,
                                      SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT,
                                      SIGTSTP, SIGALRM, SIGCHLD,  SIGKILL,
                                      SIGSTOP };

static int check_signal(lua_State *L, int arg)
{
    return signal_numbers[luaL_checkoption(L, arg, NULL, signal_names)];
}

/* core.signals: name -> number */
static void push_signals(lua_State *L)
{
    int i;

    lua_newtable(L);
    for (i = 0; signal_names[i] != NULL; i++) {
        lua_pushinteger(L, signal_numbers[i]);
        lua_setfield(L, -2, signal_names[i]);
    }
}

/* core.signal(id, "INT") -> handle | nil, code, detail */
static int core_signal(lua_State *L)
{
    core *self = get_core(L);
    lua_Integer id = check_id(L, 1);
    int number = check_signal(L, 2);
    signal_handle *handle = new_handle(L, sizeof(*handle), SIGNAL);
    int err;

    handle->core = self;
    err = rl_signal_open(&handle->signal, self->loop, id, number);
    if (err != 0)
        return refuse_uv(L, "refused", err);
    return 1;
}

/* signal:close() */
static int signal_close(lua_State *L)
{
    signal_handle *self = luaL_checkudata(L, 1, SIGNAL);
    rl_signal *signal = self->signal;

    self->signal = NULL;
    if (self->core != NULL && self->core->loop != NULL)
        rl_signal_close(signal);
    return 0;
}

/* ---- readable descriptors ---- */

typedef struct input_handle {
    rl_input *input;
    core *core;
} input_handle;

/* core.input(id, fd) -> handle | nil, code, detail */
static int core_input(lua_State *L)
{
    core *self = get_core(L);
    lua_Integer id = check_id(L, 1);
    int fd = (int)luaL_checkinteger(L, 2);
    input_handle *handle = new_handle(L, sizeof(*handle), INPUT);
    int err;

    handle->core = self;
    err = rl_input_open(&handle->input, self->loop, id, fd);
    if (err != 0)
        return refuse_uv(L, "refused", err);
    return 1;
}

/* input:close() */
static int input_close(lua_State *L)
{
    input_handle *self = luaL_checkudata(L, 1, INPUT);
    rl_input *input = self->input;

    self->input = NULL;
    if (self->core != NULL && self->core->loop != NULL)
        rl_input_close(input);
    return 0;
}

/* ---- options ---- */

static const char *opt_string(lua_State *L, int table, const char *field)
{
    const char *value;
    size_t length;

    if (lua_getfield(L, table, field) == LUA_TNIL)
        return NULL;
    value = lua_tolstring(L, -1, &length);
    if (value == NULL || strlen(value) != length)
        luaL_error(L, "option '%s' must be a string without NUL", field);
    return value;
}

static lua_Integer opt_integer(lua_State *L, int table, const char *field,
                               lua_Integer max)
{
    lua_Integer value = 0;
    int exact = 1;

    if (lua_getfield(L, table, field) != LUA_TNIL)
        value = lua_tointegerx(L, -1, &exact);
    if (!exact || value < 0 || value > max)
        luaL_error(L, "option '%s' out of range", field);
    return value;
}

/* ---- lock files and private folders ---- */

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
        return refuse(L, "refused", why);
    return push_true(L);
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
        return refuse(L, err == UV_ENOENT ? "missing" : "refused", why);
    return push_true(L);
}

typedef struct lock_handle {
    int held;
    int fd;
} lock_handle;

/* core.flock(path) -> handle | nil, "busy" | "refused", detail */
static int core_flock(lua_State *L)
{
    const char *path = check_path(L, 1);
    char why[RL_DETAIL];
    lock_handle *handle = new_handle(L, sizeof(*handle), LOCK);
    int fd = rl_lock_file(path, why, sizeof(why));

    if (fd < 0)
        return refuse(L, fd == UV_EAGAIN ? "busy" : "refused", why);
    handle->fd = fd;
    handle->held = 1;
    return 1;
}

/* handle:close() */
static int lock_close(lua_State *L)
{
    lock_handle *self = luaL_checkudata(L, 1, LOCK);

    if (self->held) {
        self->held = 0;
        close(self->fd);
    }
    return 0;
}

/* ---- child processes ---- */

typedef struct child_handle {
    rl_child *child; /* NULL: closed */
    core *core;
} child_handle;

/*
 * A NULL-terminated C array of first (unless NULL) and the strings of the list
 * at index from. Pushes the array; the strings belong to the Lua list.
 */
static char **push_list(lua_State *L, int from, const char *first)
{
    size_t count = lua_istable(L, from) ? (size_t)lua_rawlen(L, from) : 0;
    char **list = lua_newuserdatauv(L, (count + 2) * sizeof(*list), 0);
    char **to = list;
    size_t i;

    if (first != NULL)
        *to++ = (char *)first;
    for (i = 1; i <= count; i++) {
        lua_rawgeti(L, from, (lua_Integer)i);
        if (lua_type(L, -1) != LUA_TSTRING)
            luaL_error(L, "arguments and environment must be strings");
        *to++ = (char *)lua_tostring(L, -1);
        lua_pop(L, 1);
    }
    *to = NULL;
    return list;
}

static void get_stdio(lua_State *L, int table, rl_child_options *to)
{
    static const char *const names[] = { "stdin", "stdout", "stderr" };
    int i;

    for (i = 0; i < 3; i++) {
        to->stdio[i] = opt_string(L, table, names[i]);
        if (to->stdio[i] == NULL)
            to->stdio[i] = i == 0 ? "null" : "inherit";
    }
}

/* The descriptor of the lock file on top of the stack, or -1. */
static int opt_descriptor(lua_State *L)
{
    lock_handle *lock;

    if (lua_isnil(L, -1))
        return -1;
    lock = luaL_checkudata(L, lua_gettop(L), LOCK);
    return lock->held ? lock->fd : -1;
}

/* The strings that the options point to stay on the stack. */
static void get_child_options(lua_State *L, int table, rl_child_options *to)
{
    luaL_checktype(L, table, LUA_TTABLE);
    luaL_checkstack(L, 16, NULL);
    to->file = opt_string(L, table, "file");
    luaL_argcheck(L, to->file != NULL, table, "file expected");
    to->cwd = opt_string(L, table, "cwd");
    get_stdio(L, table, to);
    lua_getfield(L, table, "detached");
    to->detached = lua_toboolean(L, -1);
    lua_getfield(L, table, "keep");
    to->keep = opt_descriptor(L);
    lua_getfield(L, table, "args");
    to->args = push_list(L, lua_gettop(L), to->file);
    if (lua_getfield(L, table, "env") == LUA_TTABLE)
        to->env = push_list(L, lua_gettop(L), NULL);
}

/* core.spawn(id, options) -> child | nil, code, detail, errno's name */
static int core_spawn(lua_State *L)
{
    core *self = get_core(L);
    lua_Integer id = check_id(L, 1);
    rl_child_options options = { 0 };
    char why[RL_DETAIL];
    child_handle *handle;
    int err;

    lua_settop(L, 2);
    handle = new_handle(L, sizeof(*handle), CHILD);
    handle->core = self;
    get_child_options(L, 2, &options);
    err = rl_child_open(&handle->child, self->loop, id, &options, why,
                        sizeof(why));
    if (err != 0) {
        refuse(L, err == UV_ENOMEM || err == UV_EAGAIN ? "refused" : "usage",
               why);
        lua_pushstring(L, uv_err_name(err));
        return 4;
    }
    lua_settop(L, 3);
    return 1;
}

static rl_child *check_child(lua_State *L)
{
    child_handle *self = luaL_checkudata(L, 1, CHILD);

    if (self->child == NULL || self->core->loop == NULL)
        luaL_error(L, "the child was closed");
    return self->child;
}

/* child:pid() -> integer */
static int child_pid(lua_State *L)
{
    lua_pushinteger(L, rl_child_pid(check_child(L)));
    return 1;
}

/* child:kill(number or "TERM") -> true | nil, code, detail */
static int child_kill(lua_State *L)
{
    rl_child *child = check_child(L);
    int number =
        lua_isinteger(L, 2) ? (int)lua_tointeger(L, 2) : check_signal(L, 2);
    int err = rl_child_kill(child, number);

    if (err != 0)
        return refuse_uv(L, err == UV_ESRCH ? "closed" : "refused", err);
    return push_true(L);
}

/* child:close() */
static int child_close(lua_State *L)
{
    child_handle *self = luaL_checkudata(L, 1, CHILD);
    rl_child *child = self->child;

    self->child = NULL;
    if (self->core != NULL && self->core->loop != NULL)
        rl_child_close(child);
    return 0;
}

/* ---- jobs ---- */

typedef struct job_handle {
    rl_job *job; /* NULL: closed */
    core *core;
} job_handle;

/* Nanoseconds; math.huge: never. */
static int64_t check_time(lua_State *L, int arg)
{
    lua_Number seconds = luaL_checknumber(L, arg);

    luaL_argcheck(L, seconds >= 0, arg, "not a time");
    return seconds < 9e9 ? (int64_t)(seconds * 1e9) : INT64_MAX;
}

static int64_t opt_time(lua_State *L, int table, const char *field)
{
    return lua_getfield(L, table, field) == LUA_TNIL
               ? INT64_MAX
               : check_time(L, lua_gettop(L));
}

static int opt_flag(lua_State *L, int table, const char *field)
{
    lua_getfield(L, table, field);
    return lua_toboolean(L, -1);
}

static int ignores_pipe; /* we do, but the program did not: see below */

/* The strings that the options point to stay on the stack. */
static void get_job_options(lua_State *L, int table, rl_job_options *to)
{
    luaL_checktype(L, table, LUA_TTABLE);
    luaL_checkstack(L, 16, NULL);
    to->plan.farewell = opt_string(L, table, "farewell");
    to->plan.foreground = opt_flag(L, table, "foreground");
    to->plan.no_input = opt_flag(L, table, "no_input");
    to->plan.soft_signal = (int)opt_integer(L, table, "soft_signal", 64);
    to->plan.soft = opt_time(L, table, "soft");
    to->plan.hard = opt_time(L, table, "hard");
    to->plan.default_pipe = ignores_pipe;
    luaL_argcheck(L, lua_getfield(L, table, "args") == LUA_TTABLE, table,
                  "args expected");
    to->args = push_list(L, lua_gettop(L), NULL);
    luaL_argcheck(L, to->args[0] != NULL, table, "no command");
    lua_getfield(L, table, "env");
    to->changes = push_list(L, lua_gettop(L), NULL);
}

/* core.job(id, options) -> job | nil, code, detail */
static int core_job(lua_State *L)
{
    core *self = get_core(L);
    lua_Integer id = check_id(L, 1);
    rl_job_options options = { 0 };
    job_handle *handle;
    int err;

    lua_settop(L, 2);
    handle = new_handle(L, sizeof(*handle), JOB);
    handle->core = self;
    get_job_options(L, 2, &options);
    err = rl_job_open(&handle->job, self->loop, id, &options);
    if (err != 0)
        return refuse_uv(L, "refused", err);
    lua_settop(L, 3);
    return 1;
}

static int job_tell(lua_State *L, const rl_order *order)
{
    job_handle *self = luaL_checkudata(L, 1, JOB);

    if (self->job != NULL && self->core->loop != NULL)
        rl_job_tell(self->job, order);
    return 0;
}

/* job:limit(soft, hard): seconds by core.now, or math.huge */
static int job_limit(lua_State *L)
{
    rl_order order = { .what = RL_LIMIT };

    order.soft = check_time(L, 2);
    order.hard = check_time(L, 3);
    return job_tell(L, &order);
}

/* job:signal(number) */
static int job_signal(lua_State *L)
{
    rl_order order = { .what = RL_SIGNAL };
    lua_Integer number = luaL_checkinteger(L, 2);

    luaL_argcheck(L, number > 0 && number <= 64, 2, "not a signal");
    order.number = (int32_t)number;
    return job_tell(L, &order);
}

/* job:resume() */
static int job_resume(lua_State *L)
{
    rl_order order = { .what = RL_CONTINUE };

    return job_tell(L, &order);
}

/* job:close() */
static int job_close(lua_State *L)
{
    job_handle *self = luaL_checkudata(L, 1, JOB);
    rl_job *job = self->job;

    self->job = NULL;
    if (self->core != NULL && self->core->loop != NULL)
        rl_job_close(job);
    return 0;
}

/* core.suspend(): stops this process's group, as the terminal would; returns
   when it runs again */
static int core_suspend(lua_State *L)
{
    (void)L;
    kill(0, SIGTSTP);
    return 0;
}

/* core.keep(fd) -> true, if it is open; keeps it from child processes */
static int core_keep(lua_State *L)
{
    int fd = (int)luaL_checkinteger(L, 1);
    int flags = fcntl(fd, F_GETFD);

    if (flags >= 0 && fd > STDERR_FILENO)
        fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
    lua_pushboolean(L, flags >= 0);
    return 1;
}

/* core.write(fd, text) -> boolean. Does not wait: returns false if the reader
   is too slow, or has gone. The text should be shorter than PIPE_BUF. */
static int core_write(lua_State *L)
{
    size_t length;
    struct pollfd room = { (int)luaL_checkinteger(L, 1), POLLOUT, 0 };
    const char *text = luaL_checklstring(L, 2, &length);

    lua_pushboolean(L, poll(&room, 1, 0) == 1
                           && write(room.fd, text, length) == (ssize_t)length);
    return 1;
}

/* core.error(errno) -> its text, its name */
static int core_error(lua_State *L)
{
    int number = (int)luaL_checkinteger(L, 1);

    lua_pushstring(L, uv_strerror(uv_translate_sys_error(number)));
    lua_pushstring(L, uv_err_name(uv_translate_sys_error(number)));
    return 2;
}

/* ---- HTTP ---- */

typedef struct server_handle {
    rl_server *server; /* NULL: closed */
    core *core;
} server_handle;

/* core.serve(id, port) -> server | nil, code, detail */
static int core_serve(lua_State *L)
{
    core *self = get_core(L);
    lua_Integer id = check_id(L, 1), port = luaL_checkinteger(L, 2);
    server_handle *handle = new_handle(L, sizeof(*handle), SERVER);
    int err;

    luaL_argcheck(L, port > 0 && port < 65536, 2, "port out of range");
    handle->core = self;
    err = rl_server_open(&handle->server, self->loop, id, (int)port);
    if (err != 0)
        return refuse_uv(L, "refused", err);
    return 1;
}

/* server:answer(response), in the dispatcher -> true | nil, code, detail */
static int server_answer(lua_State *L)
{
    server_handle *self = luaL_checkudata(L, 1, SERVER);
    size_t length;
    const char *text = luaL_checklstring(L, 2, &length);
    int err = UV_EINVAL;

    if (self->server != NULL && self->core->loop != NULL)
        err = rl_server_answer(self->server, text, length);
    return err == 0 ? push_true(L) : refuse_uv(L, "refused", err);
}

/* server:close() */
static int server_close(lua_State *L)
{
    server_handle *self = luaL_checkudata(L, 1, SERVER);
    rl_server *server = self->server;

    self->server = NULL;
    if (self->core != NULL && self->core->loop != NULL)
        rl_server_close(server);
    return 0;
}

/* ---- connections ---- */

typedef struct conn_handle {
    rl_conn *conn; /* NULL: closed */
    core *core;
} conn_handle;

static void get_tls_options(lua_State *L, int table, rl_tls_options *tls)
{
    tls->ca = opt_string(L, table, "ca");
    tls->cert = opt_string(L, table, "cert");
    tls->key = opt_string(L, table, "key");
    tls->server_name = opt_string(L, table, "server_name");
    lua_getfield(L, table, "verify");
    tls->verify = lua_isnil(L, -1) || lua_toboolean(L, -1);
}

/* The strings that the options point to stay on the stack. */
static void get_conn_options(lua_State *L, int table, rl_conn_options *to,
                             rl_tls_options *tls)
{
    luaL_checktype(L, table, LUA_TTABLE);
    luaL_checkstack(L, 16, NULL);
    to->host = opt_string(L, table, "host");
    to->port = (int)opt_integer(L, table, "port", 65535);
    to->path = opt_string(L, table, "path");
    to->timeout = (uint64_t)opt_integer(L, table, "timeout", MAX_MS);
    to->silent = (uint64_t)opt_integer(L, table, "silent", MAX_MS);
    to->lost = opt_integer(L, table, "lost", LUA_MAXINTEGER);
    to->message = opt_integer(L, table, "message", LUA_MAXINTEGER);
    if (to->path == NULL && (to->host == NULL || to->port == 0))
        luaL_argerror(L, table, "host and port, or path expected");
    if (lua_getfield(L, table, "tls") == LUA_TTABLE) {
        get_tls_options(L, lua_gettop(L), tls);
        to->tls = tls;
    }
}

/* core.connect(id, options) -> conn | nil, code, detail */
static int core_connect(lua_State *L)
{
    core *self = get_core(L);
    lua_Integer id = check_id(L, 1);
    rl_tls_options tls = { 0 };
    rl_conn_options options = { 0 };
    char why[RL_DETAIL];
    conn_handle *handle;

    lua_settop(L, 2);
    get_conn_options(L, 2, &options, &tls);
    handle = new_handle(L, sizeof(*handle), CONN);
    handle->core = self;
    if (rl_conn_open(&handle->conn, self->loop, id, &options, why) != 0)
        return refuse(L, "connect", why);
    return 1;
}

static conn_handle *check_conn(lua_State *L)
{
    conn_handle *self = luaL_checkudata(L, 1, CONN);

    if (self->core->loop == NULL)
        luaL_error(L, "rlock.core is closed");
    return self;
}

static void core_reserve(lua_State *L, core *self, int count)
{
    const char **argv;
    size_t *lengths;

    if (count <= self->room)
        return;
    argv = realloc(self->argv, (size_t)count * sizeof(*argv));
    if (argv == NULL)
        no_memory(L);
    self->argv = argv;
    lengths = realloc(self->lengths, (size_t)count * sizeof(*lengths));
    if (lengths == NULL)
        no_memory(L);
    self->lengths = lengths;
    self->room = count;
}

/* Converts the argument at this index to a string in place. */
static void to_string(lua_State *L, int index)
{
    char text[64];

    if (lua_type(L, index) != LUA_TNUMBER)
        luaL_error(L, "a word must be a string or a number");
    if (!lua_isinteger(L, index)) {
        snprintf(text, sizeof(text), "%.17g", lua_tonumber(L, index));
        lua_pushstring(L, text);
        lua_replace(L, index);
    }
    lua_tolstring(L, index, NULL);
}

/*
 * Loads words 1 to count of a table into core->argv and core->lengths; they
 * stay on the stack. Converting a number may run the garbage collector, a
 * user's finalizer and, through it, this function again: so all words are
 * converted before the arrays are filled.
 */
static void get_words(lua_State *L, core *self, int table, int count)
{
    int first = lua_gettop(L) + 1;
    int i;

    luaL_checkstack(L, count + 1, "too many words");
    for (i = 0; i < count; i++) {
        lua_rawgeti(L, table, i + 1);
        if (lua_type(L, first + i) != LUA_TSTRING)
            to_string(L, first + i);
    }
    core_reserve(L, self, count);
    for (i = 0; i < count; i++)
        self->argv[i] = lua_tolstring(L, first + i, &self->lengths[i]);
}

static int refuse_call(lua_State *L, const rl_conn *conn, int err)
{
    switch (err) {
    case UV_ENOTCONN:
        return refuse(L, "closed", rl_conn_detail(conn));
    case UV_EINVAL:
        return refuse(L, "usage", "not a command for this connection");
    default:
        return no_memory(L);
    }
}

/* conn:call(id, ms, words, count) -> true | nil, code, detail */
static int conn_call(lua_State *L)
{
    enum { WORDS = 4, COUNT = 5, MAX_WORDS = 1 << 20 };
    conn_handle *self = check_conn(L);
    lua_Integer id = check_id(L, 2);
    uint64_t ms = check_ms(L, 3);
    lua_Integer count = luaL_checkinteger(L, COUNT);
    int err;

    luaL_checktype(L, WORDS, LUA_TTABLE);
    luaL_argcheck(L, count > 0 && count <= MAX_WORDS, COUNT,
                  "not a count of words");
    get_words(L, self->core, WORDS, (int)count);
    if (self->conn == NULL)
        return refuse(L, "closed", "the connection was closed");
    err = rl_conn_call(self->conn, id, ms, (int)count, self->core->argv,
                       self->core->lengths);
    return err == 0 ? push_true(L) : refuse_call(L, self->conn, err);
}

/*
 * conn:listen(verb, channel) -> true | nil, code, detail
 * The verbs are those of rl_conn_listen.
 */
static int conn_listen(lua_State *L)
{
    static const char *const verbs[] = { "subscribe", "unsubscribe",
                                         "ssubscribe", "sunsubscribe", NULL };
    conn_handle *self = check_conn(L);
    const char *verb = verbs[luaL_checkoption(L, 2, NULL, verbs)];
    size_t length;
    const char *channel = luaL_checklstring(L, 3, &length);
    int err;

    if (self->conn == NULL)
        return refuse(L, "closed", "the connection was closed");
    err = rl_conn_listen(self->conn, verb, channel, length);
    return err == 0 ? push_true(L) : refuse_call(L, self->conn, err);
}

static void conn_forget(conn_handle *self)
{
    rl_conn *conn = self->conn;

    self->conn = NULL;
    if (self->core != NULL && self->core->loop != NULL)
        rl_conn_close(conn);
}

/* conn:close() -> { id, ... }: the calls that will never complete */
static int conn_close(lua_State *L)
{
    conn_handle *self = check_conn(L);
    lua_Integer n = 0;
    size_t i;

    lua_createtable(L, self->conn ? (int)rl_conn_pending(self->conn) : 0, 0);
    if (self->conn == NULL) /* closed before, or by a finalizer just now */
        return 1;
    for (i = 0; i < rl_conn_pending(self->conn); i++) {
        int64_t id = rl_conn_pending_id(self->conn, i);

        if (id == 0)
            continue;
        lua_pushinteger(L, (lua_Integer)id);
        lua_rawseti(L, -2, ++n);
    }
    conn_forget(self);
    return 1;
}

/* __gc, __close: like close, but allocates nothing */
static int conn_gc(lua_State *L)
{
    conn_forget(luaL_checkudata(L, 1, CONN));
    return 0;
}

/* ---- the module ---- */

static int core_gc(lua_State *L)
{
    core *self = luaL_checkudata(L, 1, CORE);
    rl_loop *loop = self->loop;
    int running = self->L != NULL; /* os.exit(..., true) in a task */
    int err;

    self->loop = NULL;
    self->L = NULL;
    active = NULL;
    rl_signal_on_ask(NULL);
    free(self->argv);
    free(self->lengths);
    self->argv = NULL;
    self->lengths = NULL;
    err = rl_loop_close(loop);
    assert(err == 0 || err == UV_EAGAIN || (err == UV_EBUSY && running));
    (void)err;
    (void)running;
    return 0;
}

int rl_core_lingers(void)
{
    return rl_loop_lingers();
}

static void new_classes(lua_State *L)
{
    static const luaL_Reg timer[] = { { "close", timer_close },
                                      { NULL, NULL } };
    static const luaL_Reg signal[] = { { "close", signal_close },
                                       { NULL, NULL } };
    static const luaL_Reg input[] = { { "close", input_close },
                                      { NULL, NULL } };
    static const luaL_Reg lock[] = { { "close", lock_close }, { NULL, NULL } };
    static const luaL_Reg child[] = {
        { "pid", child_pid },
        { "kill", child_kill },
        { "close", child_close },
        { NULL, NULL },
    };
    static const luaL_Reg job[] = {
        { "limit", job_limit },   { "signal", job_signal },
        { "resume", job_resume }, { "close", job_close },
        { NULL, NULL },
    };
    static const luaL_Reg server[] = {
        { "answer", server_answer },
        { "close", server_close },
        { NULL, NULL },
    };
    static const luaL_Reg conn[] = {
        { "call", conn_call },
        { "listen", conn_listen },
        { "close", conn_close },
        { NULL, NULL },
    };

    rl_class(L, TIMER, timer, timer_close);
    rl_class(L, LOCK, lock, lock_close);
    rl_class(L, CHILD, child, child_close);
    rl_class(L, JOB, job, job_close);
    rl_class(L, SERVER, server, server_close);
    rl_class(L, SIGNAL, signal, signal_close);
    rl_class(L, INPUT, input, input_close);
    rl_class(L, CONN, conn, conn_gc);
}

static void push_versions(lua_State *L)
{
    lua_createtable(L, 0, 4);
    lua_pushliteral(L, VERSION);
    lua_setfield(L, -2, "rlock");
    lua_pushfstring(L, "%d.%d.%d", HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
    lua_setfield(L, -2, "hiredis");
    lua_pushstring(L, uv_version_string());
    lua_setfield(L, -2, "uv");
    lua_pushboolean(L, RL_TLS_SUPPORTED);
    lua_setfield(L, -2, "tls");
}

/* Ignores SIGPIPE: a write to a closed socket must not kill the program. */
static void ignore_pipe_signal(void)
{
    struct sigaction action;

    if (sigaction(SIGPIPE, NULL, &action) == 0
        && action.sa_handler == SIG_DFL) {
        action.sa_handler = SIG_IGN;
        sigaction(SIGPIPE, &action, NULL);
        ignores_pipe = 1;
    }
}

static void push_core(lua_State *L)
{
    core *self = lua_newuserdatauv(L, sizeof(*self), 1);
    int err;

    memset(self, 0, sizeof(*self));
    luaL_newmetatable(L, CORE);
    lua_pushcfunction(L, core_gc);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    err = rl_loop_open(&self->loop, core_tell, self);
    if (err != 0)
        luaL_error(L, "no event loop: %s", uv_strerror(err));
    lua_pushvalue(L, -1); /* handles point to it: it lives as long as L */
    luaL_ref(L, LUA_REGISTRYINDEX);
}

int luaopen_rlock_core(lua_State *L)
{
    static const luaL_Reg functions[] = {
        { "dispatch", core_dispatch },
        { "run", core_run },
        { "stop", core_stop },
        { "interrupt", core_interrupt },
        { "resume", core_resume },
        { "now", core_now },
        { "random", core_random },
        { "hostname", core_hostname },
        { "pid", core_pid },
        { "uid", core_uid },
        { "isatty", core_isatty },
        { "new_assert", core_new_assert },
        { "timer", core_timer },
        { "connect", core_connect },
        { "signal", core_signal },
        { "input", core_input },
        { "spawn", core_spawn },
        { "job", core_job },
        { "suspend", core_suspend },
        { "keep", core_keep },
        { "write", core_write },
        { "error", core_error },
        { "serve", core_serve },
        { "private_dir", core_private_dir },
        { "check_private", core_check_private },
        { "flock", core_flock },
        { NULL, NULL },
    };

    luaL_checkversion(L);
    ignore_pipe_signal();
    new_classes(L);
    luaL_newlibtable(L, functions);
    push_core(L);
    luaL_setfuncs(L, functions, 1);
    push_versions(L);
    lua_setfield(L, -2, "versions");
    push_signals(L);
    lua_setfield(L, -2, "signals");
    return 1;
}
