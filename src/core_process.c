/*
 * The part of rlock.core for processes: children and jobs.
 */
#include "border.h"

#include <signal.h>

#include "child.h"
#include "job.h"

#define CHILD "rlock.core.child"
#define JOB "rlock.core.job"

/* ---- child processes ---- */

static void close_child(void *resource)
{
    rl_child_close(resource);
}

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
        to->stdio[i] = rl_opt_string(L, table, names[i]);
        if (to->stdio[i] == NULL)
            to->stdio[i] = i == 0 ? "null" : "inherit";
    }
}

static int opt_flag(lua_State *L, int table, const char *field)
{
    lua_getfield(L, table, field);
    return lua_toboolean(L, -1);
}

/* The strings that the options point to stay on the stack. */
static void get_child_options(lua_State *L, int table, rl_child_options *to)
{
    luaL_checktype(L, table, LUA_TTABLE);
    luaL_checkstack(L, 16, NULL);
    to->file = rl_opt_string(L, table, "file");
    luaL_argcheck(L, to->file != NULL, table, "file expected");
    to->cwd = rl_opt_string(L, table, "cwd");
    get_stdio(L, table, to);
    to->detached = opt_flag(L, table, "detached");
    lua_getfield(L, table, "keep");
    to->keep = lua_isnil(L, -1) ? -1 : rl_lock_descriptor(L, lua_gettop(L));
    lua_getfield(L, table, "args");
    to->args = push_list(L, lua_gettop(L), to->file);
    if (lua_getfield(L, table, "env") == LUA_TTABLE)
        to->env = push_list(L, lua_gettop(L), NULL);
}

/* core.spawn(id, options) -> child | nil, code, detail, errno's name */
static int core_spawn(lua_State *L)
{
    rl_core *self = rl_core_of(L);
    lua_Integer id = rl_check_id(L, 1);
    rl_child_options options = { 0 };
    char why[RL_DETAIL];
    rl_handle *new;
    rl_child *child = NULL;
    int err;

    lua_settop(L, 2);
    new = rl_handle_new(L, self, CHILD, close_child);
    get_child_options(L, 2, &options);
    err = rl_child_open(&child, self->loop, id, &options, why, sizeof(why));
    new->resource = child;
    if (err != 0) {
        rl_refuse(L, err == UV_ENOMEM || err == UV_EAGAIN ? "refused" : "usage",
                  why);
        lua_pushstring(L, uv_err_name(err));
        return 4;
    }
    lua_settop(L, 3);
    return 1;
}

static rl_child *check_child(lua_State *L)
{
    rl_child *child = rl_handle_resource(luaL_checkudata(L, 1, CHILD));

    if (child == NULL)
        luaL_error(L, "the child was closed");
    return child;
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
        lua_isinteger(L, 2) ? (int)lua_tointeger(L, 2) : rl_check_signal(L, 2);
    int err = rl_child_kill(child, number);

    if (err != 0)
        return rl_refuse_uv(L, err == UV_ESRCH ? "closed" : "refused", err);
    return rl_push_true(L);
}

/* ---- jobs ---- */

static int ignores_pipe; /* we do, but the program did not */

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

static void close_job(void *resource)
{
    rl_job_close(resource);
}

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

/* The strings that the options point to stay on the stack. */
static void get_job_options(lua_State *L, int table, rl_job_options *to)
{
    luaL_checktype(L, table, LUA_TTABLE);
    luaL_checkstack(L, 16, NULL);
    to->plan.farewell = rl_opt_string(L, table, "farewell");
    to->plan.foreground = opt_flag(L, table, "foreground");
    to->plan.no_input = opt_flag(L, table, "no_input");
    to->plan.soft_signal = (int)rl_opt_integer(L, table, "soft_signal", 64);
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
    rl_core *self = rl_core_of(L);
    lua_Integer id = rl_check_id(L, 1);
    rl_job_options options = { 0 };
    rl_handle *new;
    rl_job *job = NULL;
    int err;

    lua_settop(L, 2);
    new = rl_handle_new(L, self, JOB, close_job);
    get_job_options(L, 2, &options);
    err = rl_job_open(&job, self->loop, id, &options);
    new->resource = job;
    if (err != 0)
        return rl_refuse_uv(L, "refused", err);
    lua_settop(L, 3);
    return 1;
}

static int job_order(lua_State *L, const rl_order *order)
{
    rl_job *job = rl_handle_resource(luaL_checkudata(L, 1, JOB));

    if (job != NULL)
        rl_job_order(job, order);
    return 0;
}

/* job:limit(soft, hard): seconds by core.now, or math.huge */
static int job_limit(lua_State *L)
{
    rl_order order = { .what = RL_LIMIT };

    order.soft = check_time(L, 2);
    order.hard = check_time(L, 3);
    return job_order(L, &order);
}

/* job:signal(number) */
static int job_signal(lua_State *L)
{
    rl_order order = { .what = RL_SIGNAL };
    lua_Integer number = luaL_checkinteger(L, 2);

    luaL_argcheck(L, number > 0 && number <= 64, 2, "not a signal");
    order.number = (int32_t)number;
    return job_order(L, &order);
}

/* job:resume() */
static int job_resume(lua_State *L)
{
    rl_order order = { .what = RL_CONTINUE };

    return job_order(L, &order);
}

/* core.suspend(): stops this process's group, as the terminal would; returns
   when it runs again */
static int core_suspend(lua_State *L)
{
    (void)L;
    kill(0, SIGTSTP);
    return 0;
}

void rl_core_add_process(lua_State *L)
{
    static const luaL_Reg child[] = {
        { "pid", child_pid },
        { "kill", child_kill },
        { NULL, NULL },
    };
    static const luaL_Reg job[] = {
        { "limit", job_limit },
        { "signal", job_signal },
        { "resume", job_resume },
        { NULL, NULL },
    };
    static const luaL_Reg functions[] = {
        { "spawn", core_spawn },
        { "job", core_job },
        { "suspend", core_suspend },
        { NULL, NULL },
    };

    ignore_pipe_signal();
    rl_handle_class(L, CHILD, child);
    rl_handle_class(L, JOB, job);
    rl_core_add(L, functions);
}
