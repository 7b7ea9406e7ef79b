/*
 * Classes of userdata for Lua.
 */
#include "class.h"

void rl_class(lua_State *L, const char *name, const luaL_Reg *methods,
              lua_CFunction close)
{
    luaL_newmetatable(L, name);
    lua_pushvalue(L, -1);
    lua_setfield(L, -2, "__index");
    lua_pushstring(L, name);
    lua_pushcclosure(L, close, 1);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, "__gc");
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, "__close");
    lua_setfield(L, -2, "close");
    luaL_setfuncs(L, methods, 0);
    lua_pop(L, 1);
}
