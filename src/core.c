/*
 * The Lua module rlock.core: primitives by id, and the one entry from C into
 * Lua.
 *
 * Lua gives each asynchronous operation an id. The operation completes with
 * one call of the function set by core.dispatch: fn(id, ...), from within
 * core.run, never from within the call that started it, nor from close or
 * __gc. The same protected call builds the arguments and runs fn; resources
 * owned by C stay outside it, so that an error cannot leak them.
 */
#include "core.h"

#include <assert.h>
#include <hiredis.h>
#include <stdlib.h>
#include <string.h>

#include "border.h"
#include "reply.h"
#include "tls.h"

#define CORE "rlock.core"

/* Stack slots of core.run, which every completion uses. */
enum { HANDLER = 1, DISPATCH, FAILURE };

/* ---- from C into Lua ---- */

static int push_failure(lua_State *L, const char *code, const char *detail)
{
    rl_refuse(L, code, detail);
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

/* Pushes the id and the event's values; returns their number. */
static int push_event(lua_State *L, const rl_event *event)
{
    lua_pushinteger(L, (lua_Integer)event->id);
    switch (event->what) {
    case RL_OPENED:
        return 1 + rl_push_true(L);
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
    case RL_FRAME:
        lua_pushlstring(L, event->bytes, event->length);
        return 2;
    case RL_EXITED:
    case RL_REPORTED:
        return push_exit(L, event);
    default:
        return 1;
    }
}

/* Upvalue 1: the core. Argument: the event. Runs under core_report's pcall. */
static int dispatch(lua_State *L)
{
    const rl_event *event = lua_touserdata(L, 1);

    lua_getiuservalue(L, lua_upvalueindex(1), 1);
    if (!lua_isnil(L, -1))
        lua_call(L, push_event(L, event), 0);
    return 0;
}

int rl_traceback(lua_State *L)
{
    const char *message = lua_tostring(L, 1);

    if (message == NULL)
        message = luaL_tolstring(L, 1, NULL);
    luaL_traceback(L, L, message, 1);
    return 1;
}

static void core_report(void *owner, const rl_event *event)
{
    rl_core *self = owner;
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
    rl_core_of(L);
    if (!lua_isnil(L, 1))
        luaL_checktype(L, 1, LUA_TFUNCTION);
    lua_settop(L, 1);
    lua_setiuservalue(L, lua_upvalueindex(1), 1);
    return 0;
}

/* core.run() -> true | nil, message */
static int core_run(lua_State *L)
{
    rl_core *self = rl_core_of(L);
    lua_State *caller = self->L;

    if (caller != NULL)
        return luaL_error(L, "core.run is running already");
    lua_settop(L, 0);
    lua_pushcfunction(L, rl_traceback);
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_pushcclosure(L, dispatch, 1);
    lua_pushnil(L);
    self->L = L;
    self->failed = 0;
    rl_loop_run(self->loop);
    self->L = NULL;
    if (!self->failed)
        return rl_push_true(L);
    luaL_pushfail(L);
    lua_insert(L, FAILURE);
    return 2;
}

/* core.stop() */
static int core_stop(lua_State *L)
{
    rl_loop_stop(rl_core_of(L)->loop);
    return 0;
}

/* ---- assert ---- */

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

/* ---- the module ---- */

static int core_gc(lua_State *L)
{
    rl_core *self = luaL_checkudata(L, 1, CORE);
    rl_loop *loop = self->loop;
    int running = self->L != NULL; /* os.exit(..., true) in a task */
    int err;

    self->loop = NULL;
    self->L = NULL;
    rl_core_forget_running();
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

static void push_versions(lua_State *L)
{
    lua_createtable(L, 0, 4);
    lua_pushliteral(L, RL_VERSION); /* by the Makefile */
    lua_setfield(L, -2, "rlock");
    lua_pushfstring(L, "%d.%d.%d", HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
    lua_setfield(L, -2, "hiredis");
    lua_pushstring(L, uv_version_string());
    lua_setfield(L, -2, "uv");
    lua_pushboolean(L, RL_TLS_SUPPORTED);
    lua_setfield(L, -2, "tls");
}

static void push_core(lua_State *L)
{
    rl_core *self = lua_newuserdatauv(L, sizeof(*self), 1);
    int err;

    memset(self, 0, sizeof(*self));
    luaL_newmetatable(L, CORE);
    lua_pushcfunction(L, core_gc);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    err = rl_loop_open(&self->loop, core_report, self);
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
        { "new_assert", core_new_assert },
        { NULL, NULL },
    };

    luaL_checkversion(L);
    push_core(L);
    lua_newtable(L);
    rl_core_add(L, functions);
    rl_core_add_conn(L);
    rl_core_add_file(L);
    rl_core_add_http(L);
    rl_core_add_process(L);
    rl_core_add_signal(L);
    rl_core_add_system(L);
    push_versions(L);
    lua_setfield(L, -2, "versions");
    return 1;
}
