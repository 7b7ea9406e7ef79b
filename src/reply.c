/*
 * Redis replies as Lua values. Does not depend on connections.
 */
#include "reply.h"

#include <lauxlib.h>

static int push(lua_State *L, const redisReply *reply, int depth);

static int push_array(lua_State *L, const redisReply *reply, int depth)
{
    size_t i;

    if (depth == 0 && reply->elements > 0)
        return -1;
    luaL_checkstack(L, 4, "reply nested too deep");
    lua_createtable(L, (int)reply->elements, 0);
    for (i = 0; i < reply->elements; i++) {
        if (push(L, reply->element[i], depth - 1) != 0)
            return -1;
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return 0;
}

/* Fails, and leaves values on the stack, if it is nested deeper than this. */
static int push(lua_State *L, const redisReply *reply, int depth)
{
    switch (reply == NULL ? REDIS_REPLY_NIL : reply->type) {
    case REDIS_REPLY_NIL:
        lua_pushboolean(L, 0);
        break;
    case REDIS_REPLY_INTEGER:
        lua_pushinteger(L, (lua_Integer)reply->integer);
        break;
    case REDIS_REPLY_ERROR:
        lua_createtable(L, 0, 1);
        lua_pushlstring(L, reply->str, reply->len);
        lua_setfield(L, -2, "err");
        break;
#ifdef REDIS_REPLY_DOUBLE
    case REDIS_REPLY_DOUBLE:
        lua_pushnumber(L, (lua_Number)reply->dval);
        break;
    case REDIS_REPLY_BOOL:
        lua_pushboolean(L, reply->integer != 0);
        break;
    case REDIS_REPLY_MAP:
    case REDIS_REPLY_SET:
    case REDIS_REPLY_ATTR:
    case REDIS_REPLY_PUSH:
#endif
    case REDIS_REPLY_ARRAY:
        return push_array(L, reply, depth);
    default:
        lua_pushlstring(L, reply->str, reply->len);
    }
    return 0;
}

int rl_reply_push(lua_State *L, const redisReply *reply)
{
    int top = lua_gettop(L);

    if (push(L, reply, RL_REPLY_DEPTH) == 0)
        return 0;
    lua_settop(L, top);
    return -1;
}
