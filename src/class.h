/*
 * Classes of userdata for Lua.
 */
#ifndef RL_CLASS_H
#define RL_CLASS_H

#include <lauxlib.h>
#include <lua.h>

/*
 * Registers a metatable. close is its __gc, its __close, and its method close
 * unless methods has one; its upvalue 1 is the name.
 */
void rl_class(lua_State *L, const char *name, const luaL_Reg *methods,
              lua_CFunction close);

#endif
