/*
 * The Lua interface of the core, without rlock's Lua: runs core_test.lua, the
 * file beside this one.
 */
#include "core.h"

#include <lauxlib.h>
#include <lualib.h>

#include "check.h"

static const char *path;

static int check(lua_State *L)
{
    if (!lua_toboolean(L, 1)) {
        check_wrong = 1;
        luaL_where(L, 1);
        printf("%swrong: %s\n", lua_tostring(L, -1),
               luaL_tolstring(L, 2, NULL));
    }
    return 0;
}

static lua_State *new_state(void)
{
    lua_State *L = luaL_newstate();

    luaL_openlibs(L);
    luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
    lua_pushcfunction(L, luaopen_rlock_core);
    lua_setfield(L, -2, "rlock.core");
    lua_pushcfunction(L, check);
    lua_setglobal(L, "check");
    lua_pushstring(L, path);
    lua_setglobal(L, "path");
    lua_settop(L, 0);
    return L;
}

/* Each test gets its own Lua state, so that each ends with lua_close. */
static const char *test;

static void run_test(void)
{
    lua_State *L = new_state();

    if (luaL_dofile(L, "spec/c/core_test.lua") != LUA_OK
        || (lua_getfield(L, -1, test), lua_pcall(L, 0, 0, 0)) != LUA_OK) {
        check_wrong = 1;
        puts(lua_tostring(L, -1));
    }
    lua_settop(L, 0);
    lua_close(L);
}

int main(void)
{
    lua_State *L;
    pid_t redis;

    path = strdup(in_folder("redis"));
    redis = start_redis(path);
    L = new_state();
    if (luaL_dofile(L, "spec/c/core_test.lua") != LUA_OK) {
        puts(lua_tostring(L, -1));
        return 1;
    }
    lua_pushnil(L);
    while (lua_next(L, 1)) {
        test = lua_tostring(L, 2);
        check_run(run_test, test);
        lua_pop(L, 1);
    }
    lua_close(L);
    free((char *)(uintptr_t)path);
    finish(redis);
    return check_end();
}
