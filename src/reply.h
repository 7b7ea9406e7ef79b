/*
 * Redis replies as Lua values.
 */
#ifndef RL_REPLY_H
#define RL_REPLY_H

#include <hiredis.h>
#include <lua.h>

enum { RL_REPLY_DEPTH = 32 };

/*
 * Pushes one value: string or status as string, integer exactly, null as
 * false, array as table, an error as { err = message }; of RESP3, double as
 * float, boolean as boolean, map, set and push as flat tables, the rest as
 * strings. Returns 0, or -1 and pushes nothing if arrays are nested deeper
 * than RL_REPLY_DEPTH. Raises only when out of memory.
 */
int rl_reply_push(lua_State *L, const redisReply *reply);

#endif
