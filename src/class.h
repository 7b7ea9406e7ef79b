/*
 * Classes of userdata for Lua.
 */
#ifndef RL_CLASS_H
#define RL_CLASS_H

#include <lauxlib.h>
#include <lua.h>

/* Registers a metatable. close is its __gc and its __close. */
void rl_class(lua_State *L, const char *name, const luaL_Reg *methods,
              lua_CFunction close);

#endif
