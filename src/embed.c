/*
 * Build tool: runs a Lua program with the Lua that rlockctl is linked with.
 * embed.lua needs that for bytecode, and a machine that builds may lack lua5.4.
 * The global `ident` is the release of that Lua.
 *
 *     embed src/embed.lua ARG...
 */
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>

extern const char lua_ident[];

static void push_arguments(lua_State *L, int argc, char **argv)
{
    int i;

    lua_createtable(L, argc, 1);
    for (i = 1; i < argc; i++) {
        lua_pushstring(L, argv[i]);
        lua_rawseti(L, -2, i - 1);
    }
    lua_setglobal(L, "arg");
}

int main(int argc, char **argv)
{
    lua_State *L = argc > 1 ? luaL_newstate() : NULL;

    if (L == NULL) {
        fputs("usage: embed FILE.lua ARG...\n", stderr);
        return 2;
    }
    luaL_openlibs(L);
    lua_pushstring(L, lua_ident);
    lua_setglobal(L, "ident");
    push_arguments(L, argc, argv);
    if (luaL_dofile(L, argv[1]) != LUA_OK) {
        fprintf(stderr, "embed: %s\n", lua_tostring(L, -1));
        return EXIT_FAILURE;
    }
    lua_close(L);
    return EXIT_SUCCESS;
}
