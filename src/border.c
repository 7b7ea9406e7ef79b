/*
 * Helpers shared by the files of the module rlock.core.
 */
#include "border.h"

#include <string.h>

#include "class.h"

/* ---- the module ---- */

rl_core *rl_core_of(lua_State *L)
{
    rl_core *self = lua_touserdata(L, lua_upvalueindex(1));

    if (self->loop == NULL)
        luaL_error(L, "rlock.core is closed");
    return self;
}

void rl_core_add(lua_State *L, const luaL_Reg *functions)
{
    lua_pushvalue(L, -2);
    luaL_setfuncs(L, functions, 1);
}

/* ---- results ---- */

int rl_refuse(lua_State *L, const char *code, const char *detail)
{
    luaL_pushfail(L);
    lua_pushstring(L, code);
    lua_pushstring(L, detail);
    return 3;
}

int rl_refuse_uv(lua_State *L, const char *code, int err)
{
    return rl_refuse(L, code, uv_strerror(err));
}

int rl_no_memory(lua_State *L)
{
    return luaL_error(L, "not enough memory");
}

int rl_push_true(lua_State *L)
{
    lua_pushboolean(L, 1);
    return 1;
}

/* ---- arguments ---- */

lua_Integer rl_check_id(lua_State *L, int arg)
{
    lua_Integer id = luaL_checkinteger(L, arg);

    luaL_argcheck(L, id > 0, arg, "positive id expected");
    return id;
}

uint64_t rl_check_ms(lua_State *L, int arg)
{
    lua_Integer ms = luaL_checkinteger(L, arg);

    luaL_argcheck(L, ms >= 0 && ms <= RL_MAX_MS, arg, "duration out of range");
    return (uint64_t)ms;
}

const char *rl_opt_string(lua_State *L, int table, const char *field)
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

lua_Integer rl_opt_integer(lua_State *L, int table, const char *field,
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

const rl_tls_options *rl_opt_tls(lua_State *L, int table, rl_tls_options *tls)
{
    luaL_checkstack(L, 8, NULL);
    if (lua_getfield(L, table, "tls") != LUA_TTABLE)
        return NULL;
    table = lua_gettop(L);
    tls->ca = rl_opt_string(L, table, "ca");
    tls->cert = rl_opt_string(L, table, "cert");
    tls->key = rl_opt_string(L, table, "key");
    tls->server_name = rl_opt_string(L, table, "server_name");
    lua_getfield(L, table, "verify");
    tls->verify = lua_isnil(L, -1) || lua_toboolean(L, -1);
    return tls;
}

/* ---- handles ---- */

rl_handle *rl_handle_new(lua_State *L, rl_core *core, const char *name,
                         void (*close)(void *))
{
    rl_handle *self = lua_newuserdatauv(L, sizeof(*self), 0);

    *self = (rl_handle){ .close = close, .core = core };
    luaL_setmetatable(L, name);
    return self;
}

void *rl_handle_resource(const rl_handle *self)
{
    return self->core == NULL || self->core->loop != NULL ? self->resource
                                                          : NULL;
}

void rl_handle_release(rl_handle *self)
{
    void *resource = rl_handle_resource(self);

    self->resource = NULL;
    if (resource != NULL)
        self->close(resource);
}

/* handle:close(), __gc and __close. Upvalue 1: the name of the class. */
static int handle_close(lua_State *L)
{
    const char *name = lua_tostring(L, lua_upvalueindex(1));

    rl_handle_release(luaL_checkudata(L, 1, name));
    return 0;
}

void rl_handle_class(lua_State *L, const char *name, const luaL_Reg *methods)
{
    static const luaL_Reg none[] = { { NULL, NULL } };

    rl_class(L, name, methods != NULL ? methods : none, handle_close);
}
