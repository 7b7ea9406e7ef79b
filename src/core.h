/*
 * The Lua module rlock.core: primitives by id. Only lua/rlock/host/uv.lua
 * requires it; what its functions promise is written in core.c.
 */
#ifndef RL_CORE_H
#define RL_CORE_H

#include <lua.h>

int luaopen_rlock_core(lua_State *L);

/*
 * After lua_close: would exit() wait for a name that is still being resolved?
 * Then flush and _exit() instead.
 */
int rl_core_lingers(void);

#endif
