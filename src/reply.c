/*
 * Redis replies as Lua values. Does not depend on connections.
 */
#include "reply.h"

#include <lauxlib.h>

static int fits(const redisReply *reply, int depth)
{
    size_t i;

    if (reply == NULL || reply->elements == 0)
        return 1;
    if (depth == 0)
        return 0;
    for (i = 0; i < reply->elements; i++)
        if (!fits(reply->element[i], depth - 1))
            return 0;
    return 1;
}

static void push(lua_State *L, const redisReply *reply);

static void push_array(lua_State *L, const redisReply *reply)
{
    size_t i;

    luaL_checkstack(L, 4, "reply nested too deep");
    lua_createtable(L, (int)reply->elements, 0);
    for (i = 0; i < reply->elements; i++) {
        push(L, reply->element[i]);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
}

static void push(lua_State *L, const redisReply *reply)
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
        push_array(L, reply);
        break;
    default:
        lua_pushlstring(L, reply->str, reply->len);
    }
}

int rl_reply_push(lua_State *L, const redisReply *reply)
{
    if (!fits(reply, RL_REPLY_DEPTH))
        return -1;
    push(L, reply);
    return 0;
}
