/*
 * Redis replies as Lua values.
 */
#ifndef RL_REPLY_H
#define RL_REPLY_H

#include <hiredis.h>
#include <lua.h>

enum { RL_REPLY_DEPTH = 32 };

/*
 * Pushes one value: a string or status as a string, an integer exactly, null
 * as false, an array as a table, an error as { err = message }. RESP3: a
 * double as a float, a boolean as a boolean, maps, sets and pushes as flat
 * tables, other types as strings. Returns 0, or -1 and pushes nothing if
 * arrays are nested deeper than RL_REPLY_DEPTH. Raises only when out of memory.
 */
int rl_reply_push(lua_State *L, const redisReply *reply);

#endif
