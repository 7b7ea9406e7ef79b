/*
 * The Lua module rlock.screen: a full-screen display over ncursesw. It is part
 * of rlockctl only, and only if ncursesw was available at build time. screen.c
 * documents its functions.
 */
#ifndef RL_SCREEN_H
#define RL_SCREEN_H

#include <lua.h>

int luaopen_rlock_screen(lua_State *L);

#endif
