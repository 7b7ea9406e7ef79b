/*
 * The Lua module rlock.edit: a line editor over libedit. It is part of rlockctl
 * only, and only if libedit was available at build time. edit.c documents its
 * functions.
 */
#ifndef RL_EDIT_H
#define RL_EDIT_H

#include <lua.h>

int luaopen_rlock_edit(lua_State *L);

#endif
