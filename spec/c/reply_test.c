/*
 * Replies as Lua values: those that Redis itself cannot be made to send.
 */
#include "reply.h"

#include <lauxlib.h>
#include <stdint.h>

#include "check.h"

static redisReply text(int type, const char *string, size_t length)
{
    redisReply reply = { .type = type,
                         .str = (char *)(uintptr_t)string,
                         .len = length };

    return reply;
}

static redisReply integer(long long value)
{
    redisReply reply = { .type = REDIS_REPLY_INTEGER, .integer = value };

    return reply;
}

/* Pushes an integer inside that many arrays. */
static int pushes_nested(lua_State *L, int depth)
{
    static redisReply level[RL_REPLY_DEPTH + 4];
    static redisReply *element[RL_REPLY_DEPTH + 4];
    int i;

    memset(level, 0, sizeof(level));
    level[0] = integer(42);
    for (i = 1; i <= depth; i++) {
        element[i] = &level[i - 1];
        level[i].type = REDIS_REPLY_ARRAY;
        level[i].elements = 1;
        level[i].element = &element[i];
    }
    lua_settop(L, 0);
    return rl_reply_push(L, &level[depth]);
}

static void depth_is_bounded(void)
{
    lua_State *L = luaL_newstate();
    int i;

    CHECK(pushes_nested(L, 0) == 0 && lua_tointeger(L, 1) == 42);
    CHECK(pushes_nested(L, RL_REPLY_DEPTH) == 0);
    CHECK(lua_gettop(L) == 1);
    for (i = 0; i < RL_REPLY_DEPTH; i++)
        lua_rawgeti(L, -1, 1);
    CHECK(lua_tointeger(L, -1) == 42);
    CHECK(pushes_nested(L, RL_REPLY_DEPTH + 1) == -1);
    CHECK(lua_gettop(L) == 0);
    lua_close(L);
}

static void integers_are_exact(void)
{
    lua_State *L = luaL_newstate();
    redisReply least = integer(INT64_MIN), most = integer(INT64_MAX);

    rl_reply_push(L, &least);
    rl_reply_push(L, &most);
    CHECK(lua_isinteger(L, 1) && lua_tointeger(L, 1) == INT64_MIN);
    CHECK(lua_isinteger(L, 2) && lua_tointeger(L, 2) == INT64_MAX);
    lua_close(L);
}

static void strings_keep_every_byte(void)
{
    lua_State *L = luaL_newstate();
    redisReply string = text(REDIS_REPLY_STRING, "a\0\r\n\xff", 5);
    redisReply status = text(REDIS_REPLY_STATUS, "OK", 2);
    redisReply none = text(REDIS_REPLY_STRING, "", 0);
    size_t length;

    rl_reply_push(L, &string);
    rl_reply_push(L, &status);
    rl_reply_push(L, &none);
    CHECK(memcmp(lua_tolstring(L, 1, &length), "a\0\r\n\xff", 5) == 0);
    CHECK(length == 5);
    CHECK(strcmp(lua_tostring(L, 2), "OK") == 0);
    CHECK(lua_rawlen(L, 3) == 0 && lua_isstring(L, 3));
    lua_close(L);
}

static void arrays_hold_nulls_as_false_and_errors_as_tables(void)
{
    lua_State *L = luaL_newstate();
    redisReply nil = { .type = REDIS_REPLY_NIL };
    redisReply error = text(REDIS_REPLY_ERROR, "ERR no", 6);
    redisReply empty = { .type = REDIS_REPLY_ARRAY };
    redisReply *elements[] = { &nil, &error, &empty };
    redisReply array = { .type = REDIS_REPLY_ARRAY,
                         .elements = 3,
                         .element = elements };

    rl_reply_push(L, &array);
    CHECK(lua_rawlen(L, 1) == 3);
    CHECK(lua_rawgeti(L, 1, 1) == LUA_TBOOLEAN && !lua_toboolean(L, -1));
    CHECK(lua_rawgeti(L, 1, 2) == LUA_TTABLE);
    CHECK(lua_getfield(L, -1, "err") == LUA_TSTRING);
    CHECK(strcmp(lua_tostring(L, -1), "ERR no") == 0);
    CHECK(lua_rawgeti(L, 1, 3) == LUA_TTABLE && lua_rawlen(L, -1) == 0);
    lua_close(L);
}

#ifdef REDIS_REPLY_DOUBLE
static void resp3_values_have_their_own_types(void)
{
    lua_State *L = luaL_newstate();
    redisReply number = { .type = REDIS_REPLY_DOUBLE, .dval = 1.5 };
    redisReply yes = { .type = REDIS_REPLY_BOOL, .integer = 1 };
    redisReply *elements[] = { &number, &yes };
    redisReply map = { .type = REDIS_REPLY_MAP,
                       .elements = 2,
                       .element = elements };

    rl_reply_push(L, &map);
    CHECK(lua_rawgeti(L, 1, 1) == LUA_TNUMBER && !lua_isinteger(L, -1));
    CHECK(lua_rawgeti(L, 1, 2) == LUA_TBOOLEAN && lua_toboolean(L, -1));
    lua_close(L);
}
#endif

int main(void)
{
    RUN(depth_is_bounded);
    RUN(integers_are_exact);
    RUN(strings_keep_every_byte);
    RUN(arrays_hold_nulls_as_false_and_errors_as_tables);
#ifdef REDIS_REPLY_DOUBLE
    RUN(resp3_values_have_their_own_types);
#endif
    return check_end();
}
