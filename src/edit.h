/*
 * The Lua module rlock.edit: a line of a terminal, edited with libedit. It is
 * part of rlockctl only, and only if libedit was there at the build. edit.c
 * documents its functions.
 */
#ifndef RL_EDIT_H
#define RL_EDIT_H

#include <lua.h>

int luaopen_rlock_edit(lua_State *L);

#endif
