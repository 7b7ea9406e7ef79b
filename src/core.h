/*
 * The Lua module rlock.core: primitives by id. Only the libuv host
 * (lua/rlock/host/uv.lua) requires it. core.c and core_*.c document its
 * functions.
 */
#ifndef RL_CORE_H
#define RL_CORE_H

#include <lua.h>

int luaopen_rlock_core(lua_State *L);

/* A message handler: adds a traceback. */
int rl_traceback(lua_State *L);

/*
 * After lua_close: would exit() block on a name lookup that is still running?
 * Then flush and _exit() instead.
 */
int rl_core_lingers(void);

#endif
