/*
 * The part of rlock.core for time, randomness and names.
 */
#include "border.h"

#include <unistd.h>

#include "clock.h"
#include "timer.h"

#define TIMER "rlock.core.timer"

static void close_timer(void *resource)
{
    rl_timer_close(resource);
}

static void timer_fired(void *arg)
{
    rl_handle *self = arg;
    rl_event event = { .what = RL_FIRED, .id = self->number };

    rl_handle_release(self);
    rl_loop_report(self->core->loop, &event);
}

/* core.timer(id, ms) -> timer */
static int core_timer(lua_State *L)
{
    rl_core *self = rl_core_of(L);
    lua_Integer id = rl_check_id(L, 1);
    uint64_t ms = rl_check_ms(L, 2);
    rl_handle *timer = rl_handle_new(L, self, TIMER, close_timer);

    timer->number = id;
    timer->resource = rl_timer_open(self->loop, timer_fired, timer);
    if (timer->resource == NULL)
        return rl_no_memory(L);
    rl_timer_start(timer->resource, ms);
    return 1;
}

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

/* core.error(errno) -> its text, its name */
static int core_error(lua_State *L)
{
    int number = (int)luaL_checkinteger(L, 1);

    lua_pushstring(L, uv_strerror(uv_translate_sys_error(number)));
    lua_pushstring(L, uv_err_name(uv_translate_sys_error(number)));
    return 2;
}

void rl_core_add_system(lua_State *L)
{
    static const luaL_Reg functions[] = {
        { "now", core_now },       { "timer", core_timer },
        { "random", core_random }, { "hostname", core_hostname },
        { "pid", core_pid },       { "uid", core_uid },
        { "error", core_error },   { NULL, NULL },
    };

    rl_handle_class(L, TIMER, NULL);
    rl_core_add(L, functions);
}
